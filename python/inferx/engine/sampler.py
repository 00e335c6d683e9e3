"""Choose the next token of every sample of a step.

The order, for each row (as in vLLM):

1. log-probabilities, if asked for, of the raw distribution;
2. ids the tokenizer does not know (padding of the vocabulary) are out of reach;
3. allowed_token_ids, bad_words, min_tokens (no end or stop token yet), logit_bias;
4. repetition_penalty (prompt and output), then frequency_penalty and presence_penalty (output);
5. greedy: the largest logit, the lowest id among equals;
6. otherwise temperature, min_p, top_k, top_p, and a draw by inverse CDF in order of token id, from one
   64-bit random integer that depends on (seed, sample index, token number) only.

A row's token and log-probabilities are the same bits whatever else is in the batch (see
``sampling_ops``).  A row that cannot be answered (NaN, no legal token) fails alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from inferx.engine import sampling_ops as ops
from inferx.engine.logits_processors import LogitsProcessors
from inferx.engine.protocol import TokenLogprobs
from inferx.engine.rng import token_bits
from inferx.errors import RequestFailedError
from inferx.sampling_params import SamplingParams


@dataclass(slots=True)
class SampleRow:
    """One sample of one request, for as long as it runs: what its next token depends on.

    Keep one object per sample and update ``output_token_ids`` (appended to) and ``step``; what the
    sampler caches for it hangs on the object and goes with it.  A fresh object per step gives the same
    answers, only slower.

    ``seed_key``: params.seed, or any integer the engine chose for an unseeded request.
    ``step``: number of output tokens so far.  ``index``: number of the sample when n > 1.
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    seed_key: int
    step: int
    index: int = 0
    processors: LogitsProcessors | None = field(default=None, repr=False, compare=False)


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

    def __init__(self, token_ids: torch.Tensor, results: list[SampleResult]) -> None:
        self.token_ids = token_ids
        self._results = results

    def results(self) -> list[SampleResult]:
        """One result per row; waits for the device."""
        return self._results


class _Kind(NamedTuple):
    """What a row needs beyond its raw argmax.  draw: "few" candidates (a small top_k), "all" of the
    vocabulary, or all of it "filtered" by top_k or top_p."""

    processed: bool
    draw: Literal["none", "few", "all", "filtered"]


_RAW_ARGMAX = _Kind(False, "none")


class Sampler:
    """Samples the rows of a step.

    ``vocab_size``: width of the logits.  ``tokenizer_vocab_size``: ids from there on have no text and
    are never sampled nor listed as alternatives (the raw normaliser covers all of ``vocab_size``).
    """

    def __init__(self, vocab_size: int, tokenizer_vocab_size: int | None = None) -> None:
        if not 0 < vocab_size <= ops.MAX_VOCAB:
            raise ValueError(f"vocab_size must be in [1, {ops.MAX_VOCAB}], got {vocab_size}")
        self.vocab_size = vocab_size
        self.num_ids = min(vocab_size, tokenizer_vocab_size or vocab_size)

    def launch(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> PendingSamples:
        """``sample`` without waiting for the answer: the work is queued on the logits' device.

        The rows are read before this returns, so they may change afterwards.
        """
        results = self.sample(logits, rows)
        ids = [0 if r.token_id is None else r.token_id for r in results]
        return PendingSamples(torch.tensor(ids, dtype=torch.int64, device=logits.device), results)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampleResult]:
        """One result per row of ``logits [R, vocab_size]`` (any float type; read only, computed in f32).

        Raises ValueError when the shapes do not fit together; what is wrong with a single row is its
        result's ``error``.
        """
        if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] != self.vocab_size:
            raise ValueError(
                f"logits must have shape [{len(rows)}, {self.vocab_size}] (rows, vocab_size), "
                f"got {list(logits.shape)}"
            )
        if not rows:
            return []
        logits = logits.float().contiguous()
        results, best = self._greedy(logits)
        groups: dict[_Kind, list[int]] = defaultdict(list)
        for r, row in enumerate(rows):
            kind = self._kind(row)
            if kind != _RAW_ARGMAX and results[r].error is None:
                groups[kind].append(r)
        for kind, members in groups.items():
            for part in ops.row_groups(members, self.vocab_size):
                self._sample_group(kind, logits, rows, part, best, results)
        wanted = [r for r, row in enumerate(rows) if row.params.logprobs is not None]
        self._add_logprobs(logits, rows, [r for r in wanted if results[r].error is None], results)
        return results

    def _greedy(self, logits: torch.Tensor) -> tuple[list[SampleResult], list[float]]:
        """The greedy result of every row, errors included, and the raw maximum over the known ids."""
        index = ops.first_argmax(logits)
        best = logits.gather(1, index[:, None]).squeeze(1).tolist()
        results = []
        for r, token in enumerate(index.tolist()):
            if math.isnan(best[r]) or best[r] == -math.inf:
                results.append(SampleResult(None, error=_non_finite(best[r])))
                continue
            if token >= self.num_ids:
                token = int(ops.first_argmax(logits[r : r + 1, : self.num_ids])[0])
                best[r] = float(logits[r, token])
            if best[r] == -math.inf:
                results.append(SampleResult(None, error=_NO_LEGAL_TOKEN))
            else:
                results.append(SampleResult(token))
        return results, best

    def _kind(self, row: SampleRow) -> _Kind:
        p = row.params
        if row.processors is None:
            row.processors = LogitsProcessors(p, row.prompt_token_ids, self.num_ids)
        processed = row.processors.active(row.step)
        if p.greedy:
            return _Kind(processed, "none")
        if 0 < p.top_k <= ops.FEW:
            return _Kind(processed, "few")
        plain = p.top_p >= 1.0 and not 0 < p.top_k < self.num_ids
        return _Kind(processed, "all" if plain else "filtered")

    def _sample_group(
        self,
        kind: _Kind,
        logits: torch.Tensor,
        rows: Sequence[SampleRow],
        members: list[int],
        best: list[float],
        results: list[SampleResult],
    ) -> None:
        """Sample rows of one kind; writes their ``results``."""
        x = logits[members, : self.num_ids]
        maxima = [best[r] for r in members]
        if kind.processed:
            for i, r in enumerate(members):
                processors = rows[r].processors
                assert processors is not None
                processors.apply(x[i], rows[r].output_token_ids, rows[r].step)
            index = ops.first_argmax(x)
            maxima = x.gather(1, index[:, None]).squeeze(1).tolist()
            for r, token, m in zip(members, index.tolist(), maxima, strict=True):
                legal = m > -math.inf
                results[r] = SampleResult(token) if legal else SampleResult(None, error=_NO_LEGAL_TOKEN)
        if kind.draw == "none":
            return
        # +inf is certain, so the argmax already is the answer.
        keep = [i for i, m in enumerate(maxima) if math.isfinite(m)]
        if len(keep) < len(members):
            x = x[keep]
            members = [members[i] for i in keep]
        if members:
            tokens = _draw(kind.draw, x, [rows[r] for r in members])
            for r, token in zip(members, tokens, strict=True):
                results[r] = SampleResult(token)

    def _add_logprobs(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], members: list[int], results: list[SampleResult]
    ) -> None:
        for part in ops.row_groups(members, self.vocab_size):
            x = logits if len(part) == len(logits) else logits[part]
            tokens = []
            for r in part:
                token = results[r].token_id
                assert token is not None
                tokens.append(token)
            counts = [rows[r].params.logprobs or 0 for r in part]
            for r, entry in zip(part, _token_logprobs(x, tokens, counts, self.num_ids), strict=True):
                results[r].logprobs = entry

    def prompt_logprobs(
        self, logits: torch.Tensor, next_token_ids: Sequence[int], k: int
    ) -> list[TokenLogprobs]:
        """``compute_prompt_logprobs`` with this sampler's tokenizer vocabulary."""
        return compute_prompt_logprobs(logits, next_token_ids, k, self.num_ids)


def _draw(how: str, x: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    """Step 6 of the module's order for ``x [R, num_ids]``, each row's maximum finite."""
    params = [row.params for row in rows]
    bits = [token_bits(row.seed_key, row.step, row.index) for row in rows]
    temperature = None
    if any(p.temperature != 1.0 for p in params):
        temperature = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=x.device)
    min_p, top_k, top_p = ([getattr(p, name) for p in params] for name in ("min_p", "top_k", "top_p"))
    if how == "few":
        return ops.draw_among_few(x, temperature, min_p, top_k, top_p, bits)
    z = ops.scaled_logits(x, temperature)
    weights = ops.fixed_point_weights(z)
    if any(min_p):
        ops.filter_min_p(weights, min_p)
    if how == "filtered":
        any_k, any_p = any(k > 0 for k in top_k), any(p < 1.0 for p in top_p)
        ops.filter_top_k_top_p(z, weights, top_k if any_k else None, top_p if any_p else None)
    return ops.draw(weights, bits)


_NO_LEGAL_TOKEN = (
    "no legal token is left: allowed_token_ids, bad_words, min_tokens and the model's own logits exclude all"
)


def _non_finite(value: float) -> str:
    what = "NaN" if math.isnan(value) else "all -inf"
    return f"non-finite logits ({what}) from the model"


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
    out: list[TokenLogprobs] = []
    for part in ops.row_groups(range(len(next_token_ids)), vocab):
        x = logits[part[0] : part[-1] + 1].float()
        for value in x.amax(-1).tolist():
            if math.isnan(value) or value == -math.inf:
                raise RequestFailedError(_non_finite(value))
        out += _token_logprobs(
            x, [next_token_ids[i] for i in part], [k] * len(part), tokenizer_vocab_size or vocab
        )
    return out


def _token_logprobs(
    x: torch.Tensor, tokens: list[int], counts: list[int], num_ids: int
) -> list[TokenLogprobs]:
    """Entries for f32 ``x [R, V]``: the token, then its row's ``counts`` best among ``num_ids`` ids."""
    known = x[:, :num_ids]
    index = torch.tensor(tokens, device=x.device)[:, None]
    chosen = x.gather(1, index)
    above = (known > chosen).sum(-1).tolist()
    top_values, top_ids = ops.exact_topk(known, max(counts))
    entries = []
    for i, (z, count) in enumerate(zip(ops.log_normalizer(x), counts, strict=True)):
        values = [float(chosen[i]), *top_values[i][:count]]
        entries.append(
            TokenLogprobs(
                token_ids=[tokens[i], *top_ids[i][:count]],
                logprobs=[_logprob(v, z) for v in values],
                rank=above[i] + 1,
            )
        )
    return entries


def _logprob(value: float, normalizer: float) -> float:
    if value == math.inf:  # certain; without this, inf - inf
        return 0.0
    return value - normalizer
