"""Tokenising, decoding and template rendering, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from inferx.errors import InferxError
from inferx.server import limits_table as limits
from inferx.server.engine_api import Tokenizer
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.workers import WorkerPool

Result = TypeVar("Result")

# Work on more text than this gets a queue of its own, so that short prompts never wait behind it.
LARGE_CHARS = 64 << 10


class TextPool:
    """A tokenizer behind two small thread pools, with bounds on what is tokenised at all and on how long
    it may take (``seconds``).

    No text of more than ``max_model_len * longest_token_bytes`` bytes can fit the context, so a longer
    one is refused without looking at it.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_model_len: int, seconds: float = limits.TEXT_SECONDS.most
    ) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self.longest_token_bytes = max(
            (
                max(len(tokenizer.token_bytes(i)), len(tokenizer.id_to_token(i).encode("utf-8", "replace")))
                for i in range(tokenizer.vocab_size)
            ),
            default=1,
        )
        self._small = WorkerPool("inferx-text", 2, seconds)
        self._large = WorkerPool("inferx-long-text", 1, seconds)

    def close(self) -> None:
        for pool in (self._small, self._large):
            pool.close()

    @property
    def num_stuck(self) -> int:
        """Threads that go on with work that took too long and was given up."""
        return self._small.num_stuck + self._large.num_stuck

    async def run(
        self, size: int, function: Callable[..., Result], *args: Any, param: str | None = None
    ) -> Result:
        """``function(*args)`` in a thread; ``size`` in characters or ids decides which queue.

        ApiError when it takes too long (400, naming ``param``) or too much is stuck already (503)."""
        pool = self._large if size > LARGE_CHARS else self._small
        return await pool.run(function, *args, param=param)

    async def encode(
        self, text: str, add_special_tokens: bool, param: str, *, to_be_cut: bool = False
    ) -> list[int]:
        """Token ids of ``text``; 400 naming ``param`` when it cannot fit the context.

        to_be_cut: it need not fit, since only its end will be used; then a bound of its own holds."""
        self.check_size(text, param, to_be_cut)
        return await self.run(len(text), self.tokenizer.encode, text, add_special_tokens, param=param)

    async def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return await self.run(len(ids), self.tokenizer.decode, ids, skip_special_tokens)

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: dict[str, Any],
        *,
        to_be_cut: bool = False,
    ) -> list[int]:
        """Token ids of a conversation as the model's template writes it; 400 when the template refuses it.

        Text that looks like a control token comes out as ordinary tokens: a message cannot end its turn.
        """
        if not self.tokenizer.has_chat_template:
            raise bad_request("this model has no chat template; use /v1/completions", "messages")
        size = sum(len(message["content"]) for message in messages)
        extras = [message["tool_calls"] for message in messages if message.get("tool_calls")]
        size += len(msgspec.json.encode([tools, extras]))
        if size > (max(self.max_chars, limits.TRUNCATED_BYTES.most) if to_be_cut else self.max_chars):
            raise self._too_long(size, "messages")

        def encode() -> list[int]:
            return self.tokenizer.encode_chat(
                messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs
            )

        try:
            return await self.run(size, encode, param="messages")
        except (ApiError, InferxError):
            raise
        except Exception as error:
            # Templates are programs of others: they may trip over whatever the caller put in.
            message = f"the chat template failed on the messages: {shorten(str(error), 200)}"
            raise bad_request(message, "messages") from error

    @property
    def max_chars(self) -> int:
        return self.max_model_len * self.longest_token_bytes

    def check_size(self, text: str, param: str, to_be_cut: bool = False) -> None:
        most = max(self.max_chars, limits.TRUNCATED_BYTES.most) if to_be_cut else self.max_chars
        # Encoding to count bytes is cheap beside tokenising, but pointless when characters suffice.
        size = len(text) if len(text) > most else len(text.encode("utf-8", "replace"))
        if size > most:
            raise (
                bad_request(f"{param} takes at most {most} bytes, got {size}", param)
                if to_be_cut
                else self._too_long(size, param)
            )

    def _too_long(self, size: int, param: str) -> ApiError:
        least = -(-size // self.longest_token_bytes)
        return bad_request(
            f"the maximum context length is {self.max_model_len} tokens, but the prompt of {size:,} bytes "
            f"has at least {least} tokens",
            param,
            "context_length_exceeded",
        )
