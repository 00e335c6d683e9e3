"""Choose the next token of every sample of a step.

The order, for each row (as in vLLM):

1. log-probabilities, if asked for, of the raw distribution;
2. ids the tokenizer does not know (padding of the vocabulary) are out of reach;
3. what the sample's grammar does not allow, then allowed_token_ids, bad_words, min_tokens (no end or stop
   token yet), logit_bias;
4. repetition_penalty (prompt and output), then frequency_penalty and presence_penalty (output);
5. greedy: the largest logit, the lowest id among equals;
6. otherwise temperature, min_p, top_k, top_p, and a draw by inverse CDF in order of token id, from one
   64-bit random integer that depends on (seed, sample index, token number) only.

With a grammar, a logit_bias of -100 forbids the token, and where only end tokens may come min_tokens does not
hold them back.

A row's token and log-probabilities are the same bits whatever else is in the batch, on every device (see
``inferx.ops.sampling``).  A row that cannot be answered (NaN, no legal token) fails alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from inferx import ops
from inferx.engine.logits_processors import LogitsProcessors, apply_processors
from inferx.engine.protocol import TokenLogprobs
from inferx.engine.sampling_arrays import Download, upload
from inferx.engine.structured.bitmask import apply_matchers
from inferx.engine.structured.matcher import Matcher
from inferx.errors import NO_LEGAL_TOKEN, RequestFailedError
from inferx.ops import SampleStatus
from inferx.ops._lib import on_device
from inferx.sampling_params import SamplingParams

# A row's weights must add up to less than 2**63 (csrc/sampling_math.h).
MAX_VOCAB = 1 << 20
# On the CPU, logits that are changed are copied in groups of rows that stay in the cache.
_GROUP_ELEMENTS = 1 << 19
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(slots=True)
class SampleRow:
    """One sample of one request, for as long as it runs: what its next token depends on.

    Keep one object per sample and update ``output_token_ids`` (appended to) and ``step``; what the
    sampler caches for it hangs on the object and goes with it.  A fresh object per step gives the same
    answers, only slower.

    ``seed_key``: params.seed, or any integer the engine chose for an unseeded request.
    ``step``: number of output tokens so far.  ``index``: number of the sample when n > 1.
    ``matcher``: where the sample stands in its grammar, if it has one.
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    seed_key: int
    step: int
    index: int = 0
    matcher: Matcher | None = field(default=None, repr=False, compare=False)
    processors: LogitsProcessors | None = field(default=None, repr=False, compare=False)
    # Always the largest of the logits as they are, and nothing else is asked for; None: not known yet.
    plain: bool | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class SampleResult:
    """``token_id`` is None exactly when ``error`` says why there is none."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class PendingSamples:
    """A step's samples on their way.

    ``token_ids``: int64 [R] on the logits' device, what the next step may read without waiting.  A row
    that failed holds some id of the vocabulary.
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        download: Download,
        counts: Sequence[int | None],
        failed: Mapping[int, str],
    ) -> None:
        """download: token ids and two statuses of each row; where any row wants log-probabilities (counts:
        how many alternatives), also ``ops.token_logprobs`` of those rows.  failed: rows whose token counts
        for nothing, and why."""
        self.token_ids = token_ids
        self._download = download
        self._counts = counts
        self._failed = failed
        self._results: list[SampleResult] | None = None

    def results(self) -> list[SampleResult]:
        """One result per row; waits for the device."""
        if self._results is None:
            self._results = self._wait()
        return self._results

    def _wait(self) -> list[SampleResult]:
        tokens, raw, processed, *listed = self._download.wait()
        results = []
        statuses = zip(tokens.tolist(), raw.tolist(), processed.tolist(), strict=True)
        for r, (token, before, after) in enumerate(statuses):
            error = _ERRORS.get(before) or self._failed.get(r) or (_NO_LEGAL_TOKEN if after else None)
            results.append(SampleResult(None if error else token, error=error))
        if listed:
            wanting = [r for r, count in enumerate(self._counts) if count is not None]
            counts = [self._counts[r] or 0 for r in wanting]
            for r, entry in zip(wanting, _entries(listed, counts), strict=True):
                if results[r].error is None:
                    results[r].logprobs = entry
        return results


class DoneSamples(PendingSamples):
    """Samples that are there at once."""

    def __init__(self, token_ids: torch.Tensor, results: list[SampleResult]) -> None:
        self.token_ids = token_ids
        self._results = results


class _PlainRows:
    """Memory for steps of plain rows, kept as long as their number stays."""

    __slots__ = ("count", "status", "statuses", "token_ids", "tokens", "zeros")

    def __init__(self, count: int) -> None:
        self.count = count
        self.zeros = torch.zeros(count)
        self.token_ids = torch.empty(count, dtype=torch.int64)
        self.status = torch.empty(count, dtype=torch.int32)
        self.tokens, self.statuses = self.token_ids.numpy(), self.status.numpy()


class Sampler:
    """Samples the rows of a step.

    ``vocab_size``: width of the logits.  ``tokenizer_vocab_size``: ids from there on have no text and
    are never sampled nor listed as alternatives (the raw normaliser covers all of ``vocab_size``).
    """

    def __init__(self, vocab_size: int, tokenizer_vocab_size: int | None = None) -> None:
        if not 0 < vocab_size <= MAX_VOCAB:
            raise ValueError(f"vocab_size must be in [1, {MAX_VOCAB}], got {vocab_size}")
        self.vocab_size = vocab_size
        self.num_ids = min(vocab_size, tokenizer_vocab_size or vocab_size)
        self._plain_rows = _PlainRows(1)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampleResult]:
        """One result per row of ``logits [R, vocab_size]`` (any float type; read only, computed in f32).

        Raises ValueError when the shapes do not fit together; what is wrong with a single row is its
        result's ``error``.
        """
        return self.launch(logits, rows).results()

    def launch(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> PendingSamples:
        """``sample`` without waiting for the answer: the work is queued on the logits' device.

        The rows are read before this returns, so they may change afterwards.
        """
        if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] != self.vocab_size:
            raise ValueError(
                f"logits must have shape [{len(rows)}, {self.vocab_size}] (rows, vocab_size), "
                f"got {list(logits.shape)}"
            )
        if logits.dtype not in _FLOATS:
            logits = logits.float()
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        # Tokens on a device have to outlive the next launch, so these take their own memory.
        if logits.is_cpu and not on_device(logits) and rows and all(map(self._is_plain, rows)):
            return self._take_largest(logits, len(rows))
        changed = [
            r
            for r, row in enumerate(rows)
            if row.matcher is not None or self._processors(row).active(row.step)
        ]
        # The raw row decides whether the model is at fault, so a row that is changed is looked at before.
        raw = _Options(rows, greedy=set(changed))
        arrays, count = raw.arrays, len(raw.arrays)
        wanting = [r for r, row in enumerate(rows) if row.params.logprobs is not None]
        tensors = upload([*arrays.values(), np.array(wanting, dtype=np.int64)], logits.device)
        options = dict(zip(arrays, tensors[:count], strict=True))
        token_ids, status = ops.sample_tokens(logits, **options, num_ids=self.num_ids)
        after = torch.zeros_like(status)
        failed: dict[int, str] = {}
        for part in _groups(changed, self.vocab_size, logits.device):
            failed |= self._sample_changed(logits, rows, part, token_ids, after)
        outputs = [token_ids, status, after]
        if wanting:
            most = min(self.num_ids, max(rows[r].params.logprobs or 0 for r in wanting))
            at = tensors[-1]
            outputs += ops.token_logprobs(
                logits, token_ids.index_select(0, at), most, rows=at, num_ids=self.num_ids
            )
        counts = [row.params.logprobs for row in rows]
        return PendingSamples(token_ids, Download(outputs), counts, failed)

    def _is_plain(self, row: SampleRow) -> bool:
        if row.plain is None:
            params = row.params
            row.plain = (
                params.greedy
                and params.logprobs is None
                and params.structured_outputs is None
                and not self._processors(row).ever_active
            )
        return row.plain

    def _take_largest(self, logits: torch.Tensor, count: int) -> PendingSamples:
        kept = self._plain_rows
        if kept.count != count:
            kept = self._plain_rows = _PlainRows(count)
        ops.take_largest(kept.token_ids, kept.status, logits, kept.zeros, self.num_ids)
        tokens = kept.tokens.tolist()
        if not kept.statuses.any():
            return DoneSamples(kept.token_ids, [SampleResult(token) for token in tokens])
        errors = [_ERRORS.get(status) for status in kept.statuses.tolist()]
        results = [
            SampleResult(None if error else token, error=error)
            for token, error in zip(tokens, errors, strict=True)
        ]
        return DoneSamples(kept.token_ids, results)

    def _processors(self, row: SampleRow) -> LogitsProcessors:
        if row.processors is None:
            row.processors = LogitsProcessors(row.params, row.prompt_token_ids, self.num_ids)
        return row.processors

    def _sample_changed(
        self,
        logits: torch.Tensor,
        rows: Sequence[SampleRow],
        members: list[int],
        token_ids: torch.Tensor,
        status: torch.Tensor,
    ) -> dict[int, str]:
        """Sample rows whose logits are to be changed first; writes their ``token_ids`` and ``status``.

        Returns the rows whose grammar failed, and why.
        """
        chosen = [rows[r] for r in members]
        arrays = _Options(chosen).arrays
        *tensors, at = upload([*arrays.values(), np.array(members, dtype=np.int64)], logits.device)
        x = logits.index_select(0, at).float()
        ending, failed = apply_matchers(x, [row.matcher for row in chosen], -(-self.num_ids // 32))
        # As if the least number of tokens were there already.
        steps = [row.step + row.params.min_tokens * (r in ending) for r, row in enumerate(chosen)]
        lists = [
            self._processors(row).lists(row.output_token_ids, step)
            for row, step in zip(chosen, steps, strict=True)
        ]
        apply_processors(x, lists, self.num_ids)
        options = dict(zip(arrays, tensors, strict=True))
        tokens, statuses = ops.sample_tokens(x, **options, num_ids=self.num_ids)
        token_ids.index_copy_(0, at, tokens)
        status.index_copy_(0, at, statuses)
        return {members[r]: message for r, message in failed.items()}

    def prompt_logprobs(
        self, logits: torch.Tensor, next_token_ids: Sequence[int], k: int
    ) -> list[TokenLogprobs]:
        """``compute_prompt_logprobs`` with this sampler's tokenizer vocabulary."""
        return compute_prompt_logprobs(logits, next_token_ids, k, self.num_ids)


class _Options:
    """The rows' options as the arguments of ``ops.sample_tokens``; what no row uses is left out."""

    def __init__(self, rows: Sequence[SampleRow], greedy: Collection[int] = ()) -> None:
        params = [row.params for row in rows]
        heat = [0.0 if p.greedy or r in greedy else p.temperature for r, p in enumerate(params)]
        self.arrays: dict[str, np.ndarray] = {"temperature": np.array(heat, dtype=np.float32)}
        if not any(heat):
            return
        if any(p.top_k > 0 for p in params):
            self.arrays["top_k"] = np.array([p.top_k for p in params], dtype=np.int32)
        if any(p.top_p < 1.0 for p in params):
            self.arrays["top_p"] = np.array([p.top_p for p in params], dtype=np.float64)
        if any(p.min_p > 0.0 for p in params):
            self.arrays["min_p"] = np.array([p.min_p for p in params], dtype=np.float64)
        seeds = np.array([row.seed_key % 2**64 for row in rows], dtype=np.uint64)
        self.arrays["seed"] = seeds.view(np.int64)
        self.arrays["step"] = np.array([row.step for row in rows], dtype=np.int64)
        if any(row.index for row in rows):
            self.arrays["index"] = np.array([row.index for row in rows], dtype=np.int64)


def _groups(rows: list[int], vocab_size: int, device: torch.device) -> Iterator[list[int]]:
    """All at once on a GPU; on the CPU runs of rows whose logits fit the cache."""
    size = max(1, _GROUP_ELEMENTS // vocab_size) if device.type == "cpu" else len(rows)
    for start in range(0, len(rows), max(1, size)):
        yield rows[start : start + size]


def _entries(listed: Sequence[torch.Tensor], counts: Sequence[int]) -> list[TokenLogprobs]:
    """What ``ops.token_logprobs`` gave, each row cut to its count of alternatives."""
    ids, logprobs, ranks = (tensor.tolist() for tensor in listed)
    return [
        TokenLogprobs(token_ids=i[: 1 + count], logprobs=p[: 1 + count], rank=rank)
        for i, p, rank, count in zip(ids, logprobs, ranks, counts, strict=True)
    ]


_NO_LEGAL_TOKEN = (
    f"{NO_LEGAL_TOKEN}: allowed_token_ids, bad_words, min_tokens, the grammar and the model's own "
    "logits exclude all"
)
_ERRORS = {
    SampleStatus.NAN: "non-finite logits (NaN) from the model",
    SampleStatus.ALL_MINUS_INF: "non-finite logits (all -inf) from the model",
    SampleStatus.NO_LEGAL_TOKEN: _NO_LEGAL_TOKEN,
}


def compute_prompt_logprobs(
    logits: torch.Tensor, next_token_ids: Sequence[int], k: int, tokenizer_vocab_size: int | None = None
) -> list[TokenLogprobs]:
    """Log-probability, rank and ``k`` best alternatives of the token that follows each position.

    ``logits [n, V]``, ``next_token_ids`` n ids in [0, V).  Raises RequestFailedError when a row is NaN
    or all -inf, ValueError on a wrong shape or id.
    """
    if logits.ndim != 2 or logits.shape[0] != len(next_token_ids):
        raise ValueError(
            f"logits must have shape [{len(next_token_ids)}, V] (one row per next token), "
            f"got {list(logits.shape)}"
        )
    vocab = logits.shape[1]
    for token in next_token_ids:
        if not 0 <= token < vocab:
            raise ValueError(f"next_token_ids must be in [0, {vocab}), got {token}")
    if logits.dtype not in _FLOATS:
        logits = logits.float()
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    (tokens,) = upload([np.array(next_token_ids, dtype=np.int64)], logits.device)
    num_ids = min(vocab, tokenizer_vocab_size or vocab)
    _, status = ops.sample_tokens(logits, torch.zeros(len(next_token_ids), device=logits.device))
    listed = ops.token_logprobs(logits, tokens, min(k, num_ids), num_ids=num_ids)
    statuses, *listed_here = Download([status, *listed]).wait()
    for value in statuses.tolist():
        if value:
            raise RequestFailedError(_ERRORS[value])
    return _entries(listed_here, [k] * len(next_token_ids))
