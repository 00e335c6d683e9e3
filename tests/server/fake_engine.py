"""A scripted engine: real tokenizer code, real stop strings and detokenising, no model.

Every request answers ``answer`` (then the end token), or what ``script`` says, one token per step.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from inferx.engine.input_processor import InputProcessor
from inferx.engine.output_processor import OutputProcessor
from inferx.engine.protocol import EngineOutput, EngineStats, RequestMetrics, TokenLogprobs
from inferx.engine.structured.validator import GrammarValidator
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from inferx.loader.tokenizer import Tokenizer
from inferx.outputs import RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams
from inferx.structured_outputs import StructuredOutputsParams

WORDS = ("Hello", "Ġworld", "Ġthe", "ing", "Ġthree", "Ġfour", "Ġfive", "ĊĊ", ".ĊĊ")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}"
    "{% if m.role == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if tools %}{{ 'TOOLS ' + tools | map(attribute='function.name') | join(',') }}{% endif %}"
    "{% if shout %}{{ 'SHOUT' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The byte-level alphabet, in the order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    extra = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(extra)) for b in range(256)]


def tokenizer_json() -> str:
    """Byte-level BPE: ids 0-255 are the bytes, then prefixes of the words, then special tokens."""
    vocab = {token: i for i, token in enumerate(byte_alphabet())}
    merges = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
                merges.append([word[: end - 1], word[end - 1]])
    added = [
        {"id": len(vocab) + i, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, text in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        }
    )


def make_tokenizer() -> Tokenizer:
    count = len(json.loads(tokenizer_json())["model"]["vocab"])
    return Tokenizer(
        tokenizer_json(), eos_token_ids=[count, count + 2], chat_template=CHATML, source="fake engine"
    )


class FakeEngine:
    """``AsyncEngine`` for the server's tests.

    hold: while set, requests wait as if queued.  step_seconds: pause before every token.  fail: raised
    instead of the next output.  seen: (prompt ids, params) of every request.
    """

    def __init__(self, max_model_len: int = 512, tokenizer: Tokenizer | None = None) -> None:
        self.tokenizer = tokenizer or make_tokenizer()
        self.model_name = "fake-model"
        self.failure: str | None = None
        self.max_model_len = max_model_len
        self.vocab_size = self.tokenizer.vocab_size + 8  # a padded embedding table
        self.hidden_size = 4
        self.max_num_seqs = 64
        self.generation_config: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "eos_token_id": 3}
        self.inputs = InputProcessor(
            self.tokenizer,
            vocab_size=self.vocab_size,
            max_model_len=max_model_len,
            max_num_seqs=64,
            eos_token_ids=self.tokenizer.eos_token_ids,
        )
        self.outputs = OutputProcessor(self.tokenizer)
        self.queue_capacity: int | None = None
        self.grammars = GrammarValidator(
            Vocabulary(self.tokenizer, self.tokenizer.eos_token_ids, self.vocab_size)
        )
        self.reset()

    def reset(self) -> None:
        self.answer = "Hello world three four five"
        self.script: Callable[[list[int], SamplingParams, int], list[int]] | None = None
        self.hold = False
        self.step_seconds = 0.0
        self.fail: Exception | None = None
        self.fail_after = 0
        self.healthy = (True, "ok")
        self.seen: list[tuple[list[int], SamplingParams]] = []
        self.priorities: list[int] = []
        self.running: set[str] = set()
        self.waiting: set[str] = set()
        self.aborted: list[str] = []
        self.generated = 0

    async def start(self) -> None: ...

    async def shutdown(self) -> None: ...

    async def abort(self, request_id: str) -> None: ...

    async def check_structured_outputs(self, params: StructuredOutputsParams) -> None:
        """As the real engine does it."""
        if not self.grammars.known(params):
            await asyncio.to_thread(self.grammars.check, params)

    def is_healthy(self) -> tuple[bool, str]:
        return self.healthy

    @property
    def num_unfinished(self) -> int:
        return len(self.running) + len(self.waiting)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            generation_tokens=self.generated,
            total_parameters=46_700_000_000,
            active_parameters=12_900_000_000,
        )

    async def generate(
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
        if pooling is not None:
            request = self.inputs.make_pooling_request(request_id, prompt_token_ids, pooling)
        else:
            request = self.inputs.make_request(request_id, prompt_token_ids, params)
        self.seen.append((prompt_token_ids, params))
        self.priorities.append(priority)
        outputs = self.outputs
        outputs.add_request(request)
        finished = False
        try:
            self.waiting.add(request_id)
            while self.hold:
                await asyncio.sleep(0.01)
            self.waiting.discard(request_id)
            self.running.add(request_id)
            samples = [
                _Sample(request_id, i, self._tokens(request.prompt_token_ids, params, i), request)
                for i in range(params.n)
            ]
            step = 0
            if pooling is not None:
                finished = True
                yield self._embedding(request_id, prompt_token_ids, pooling)
                return
            while live := [s for s in samples if not s.done]:
                await asyncio.sleep(self.step_seconds)
                if self.fail is not None and step >= self.fail_after:
                    raise self.fail
                step += 1
                for sample in live:
                    self.generated += 1
                    messages = [sample.next_output()]
                    while messages:
                        result = outputs.process(messages.pop())
                        if result.to_finish:
                            messages.append(sample.finish())
                        if result.request_output is not None:
                            finished = result.request_output.finished
                            yield result.request_output
        finally:
            outputs.abort(request_id)
            self.waiting.discard(request_id)
            self.running.discard(request_id)
            if not finished:
                self.aborted.append(request_id)

    def _embedding(self, request_id: str, prompt: list[int], pooling: PoolingParams) -> RequestOutput:
        """The first token of the prompt, its last one, their number, 0: or as ``fail`` says."""
        if self.fail is not None:
            raise self.fail
        vector = np.array([prompt[0], prompt[-1], len(prompt), 0], np.float32)[: pooling.dimensions]
        output = RequestOutput.empty(request_id, None, prompt)
        output.finished, output.embedding = True, vector.tobytes()
        output.outputs[0].finish_reason = "stop"
        return output

    def _tokens(self, prompt: list[int], params: SamplingParams, index: int) -> list[int]:
        if self.script is not None:
            return self.script(prompt, params, index)
        return [*self.tokenizer.encode(self.answer), self.tokenizer.eos_token_ids[1]]


class _Sample:
    def __init__(self, request_id: str, index: int, tokens: list[int], request: Any) -> None:
        self.request_id = request_id
        self.index = index
        self.tokens = tokens
        self.request = request
        self.params: SamplingParams = request.sampling_params
        self.position = 0
        self.done = False
        self.started = time.monotonic()

    def next_output(self) -> EngineOutput:
        params = self.params
        token = self.tokens[self.position % len(self.tokens)]
        self.position += 1
        output = EngineOutput(self.request_id, self.index, [token], num_cached_tokens=2)
        if params.logprobs is not None:
            output.logprobs = [entry(token, params.logprobs)]
        if params.prompt_logprobs is not None and self.position == 1:
            prompt = self.request.prompt_token_ids
            output.prompt_logprobs = [None, *(entry(t, params.prompt_logprobs) for t in prompt[1:])]
        if token in params.stop_token_ids:
            output.finish_reason, output.stop_reason = "stop", token
        elif token in params.eos_token_ids and not params.ignore_eos:
            output.finish_reason = "stop"
        elif self.position >= (params.max_tokens or 1 << 30):
            output.finish_reason = "length"
        if output.finish_reason is not None:
            self._end(output)
        return output

    def finish(self) -> EngineOutput:
        output = EngineOutput(self.request_id, self.index, [], finish_reason="stop")
        self._end(output)
        return output

    def _end(self, output: EngineOutput) -> None:
        self.done = True
        prompt = len(self.request.prompt_token_ids)
        output.metrics = RequestMetrics(
            queue_time=0.001,
            prefill_time=0.002,
            decode_time=0.003,
            e2e_time=0.007,
            num_prompt_tokens=prompt,
            num_cached_tokens=2,
            num_computed_prompt_tokens=prompt - 2,
            num_prefill_chunks=1,
            num_decode_steps=self.position - 1,
        )


def entry(token: int, k: int) -> TokenLogprobs:
    """Alternatives 10, 11, ... with falling log-probabilities; the token itself is unlikely."""
    return TokenLogprobs([token, *range(10, 10 + k)], [-4.0, *(-0.5 * i for i in range(1, k + 1))], k + 1)


__all__ = ["EngineDeadError", "FakeEngine", "InvalidRequestError", "RequestFailedError", "make_tokenizer"]
