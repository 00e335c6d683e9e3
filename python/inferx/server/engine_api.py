"""The engine as the server sees it.

``inferx.engine.async_engine.AsyncEngine`` is one; the tests use a scripted one.  Nothing else in
``server/`` knows how tokens come about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from inferx.engine.protocol import EngineStats
from inferx.loader.chat_template import ChatTemplate
from inferx.outputs import RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams
from inferx.structured_outputs import StructuredOutputsParams


class Tokenizer(Protocol):
    """The part of ``inferx.loader.tokenizer.Tokenizer`` that the server uses."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def id_to_token(self, token_id: int) -> str: ...

    def is_special(self, token_id: int) -> bool: ...

    def token_to_id(self, token: str) -> int | None: ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    def encode_chat(
        self, messages: Any, add_generation_prompt: bool = True, tools: Any = None, **kwargs: Any
    ) -> list[int]: ...


class AsyncEngine(Protocol):
    """Runs requests.  ``generate`` yields deltas; leaving its iterator early aborts the request."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def model_name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_num_seqs(self) -> int: ...

    @property
    def generation_config(self) -> dict[str, Any]: ...

    @property
    def failure(self) -> str | None:
        """Why the engine ended by itself, if it did."""
        ...

    async def start(self) -> None: ...

    async def shutdown(self) -> None: ...

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float | None = None,
        pooling: PoolingParams | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """InvalidRequestError, RequestFailedError or EngineDeadError, at any item."""
        ...

    async def abort(self, request_id: str) -> None: ...

    async def check_structured_outputs(self, params: StructuredOutputsParams) -> None:
        """InvalidRequestError (param "structured_outputs") when no answer could follow ``params``, or only at
        too high a cost; QueueFullError when others' grammars take all the time."""
        ...

    def is_healthy(self) -> tuple[bool, str]: ...

    def stats(self) -> EngineStats: ...

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait, background work aside."""
        ...

    @property
    def queue_capacity(self) -> int | None:
        """Most unfinished requests; more are refused with QueueFullError.  None: no limit."""
        ...
