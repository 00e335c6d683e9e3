"""What a request returns: the field names are vLLM's.

Outputs come either as deltas (what one step added; joined they are the answer) or whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from inferx.engine.protocol import FinishReason, RequestMetrics, TokenLogprobs


class Logprob(NamedTuple):
    """One candidate at one position.  rank: 1 is the most likely.  token_bytes: empty for special tokens;
    several tokens may share a character, then decoded_token shows U+FFFD for what is no character."""

    logprob: float
    rank: int
    decoded_token: str
    token_bytes: bytes


class PositionLogprobs(TokenLogprobs, array_like=True):
    """Log-probabilities at one position, to be used as vLLM's ``dict[token id, Logprob]``: the token of
    the text first, then the most likely ones, best first (k of them, or k + 1 entries when the token is
    none of these).  The plain lists are there too.  Texts are looked up when asked for.
    """

    name: Callable[[int], tuple[str, bytes]] | None = None

    def _dict(self) -> dict[int, Logprob]:
        result: dict[int, Logprob] = {}
        for i, (token, value) in enumerate(zip(self.token_ids, self.logprobs, strict=True)):
            if token not in result:
                text, data = self.name(token) if self.name is not None else ("", b"")
                result[token] = Logprob(value, i or self.rank, text, data)
        return result

    def __getitem__(self, token_id: int) -> Logprob:
        return self._dict()[token_id]

    def get(self, token_id: int, default: Any = None) -> Any:
        return self._dict().get(token_id, default)

    def __contains__(self, token_id: object) -> bool:
        return token_id in self.token_ids

    def __iter__(self) -> Iterator[int]:
        return iter(self._dict())

    def __len__(self) -> int:
        return len(set(self.token_ids))

    def __repr__(self) -> str:
        return repr(self._dict())

    def keys(self) -> KeysView[int]:
        return self._dict().keys()

    def values(self) -> ValuesView[Logprob]:
        return self._dict().values()

    def items(self) -> ItemsView[int, Logprob]:
        return self._dict().items()


@dataclass
class CompletionOutput:
    """One sample of a request.

    ``logprobs``: one entry per token of ``token_ids``, None when not asked for; ``cumulative_logprob``
    their sum over all tokens so far (also in a delta).  ``finish_reason``: None while it runs.
    ``stop_reason``: the stop string or the stop token id that ended it.  A stop token is in
    ``token_ids``; its text is in ``text`` only with include_stop_str_in_output.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def add(self, delta: CompletionOutput) -> None:
        """Append a delta of the same sample."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(delta.logprobs)
        self.cumulative_logprob = delta.cumulative_logprob
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.metrics = delta.metrics

    def copy(self) -> CompletionOutput:
        """A snapshot that later ``add`` calls do not change."""
        return replace(
            self,
            token_ids=list(self.token_ids),
            logprobs=None if self.logprobs is None else list(self.logprobs),
        )


@dataclass
class RequestOutput:
    """A request's answer, or one step's part of it.

    ``outputs``: whole answers hold all n samples in order; a delta those that moved.
    ``prompt_logprobs``: one entry per prompt token, None for the first; a delta has them once.
    ``metrics``: where the time went, of the sample that took longest; with the end of each sample.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None  # float32; of a pooling request, with its end

    @classmethod
    def empty(
        cls, request_id: str, prompt: str | None, prompt_token_ids: list[int], n: int = 1
    ) -> RequestOutput:
        """Nothing yet, to ``add`` deltas to."""
        return cls(request_id, prompt, prompt_token_ids, [CompletionOutput(i) for i in range(n)])

    def add(self, delta: RequestOutput) -> None:
        """Append a delta of the same request."""
        for output in delta.outputs:
            self.outputs[output.index].add(output)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.metrics is not None and (
            self.metrics is None or delta.metrics.e2e_time >= self.metrics.e2e_time
        ):
            self.metrics = delta.metrics
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        self.embedding = delta.embedding
        self.finished = delta.finished

    def copy(self) -> RequestOutput:
        """A snapshot that later ``add`` calls do not change."""
        return replace(self, outputs=[output.copy() for output in self.outputs])


@dataclass
class EmbeddingOutput:
    """A prompt's vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """What ``LLM.embed`` returns for a prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    prompt: str | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> EmbeddingRequestOutput:
        """Of a pooling request that has ended."""
        assert output.embedding is not None
        values = array("f", output.embedding).tolist()
        return cls(
            output.request_id,
            EmbeddingOutput(values),
            output.prompt_token_ids,
            output.num_cached_tokens,
            prompt=output.prompt,
        )
