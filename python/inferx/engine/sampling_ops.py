"""Row-wise operations on logits that the sampler is built from.

Every function treats each row on its own and gives the same bits whatever the other rows, the number
of rows and the number of threads.  Floating-point sums do not have that property (torch splits a
reduction by shape and thread count), so probabilities are summed as integers: a token's weight is
``floor(exp((x - max) / temperature) * 2**42)``.  Integer sums are exact in any order, on any device.
What is lost is below 2**-42 of the best token's probability per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

WEIGHT_BITS = 42
# A row's weights must add up to less than 2**63.
MAX_VOCAB = 1 << (62 - WEIGHT_BITS)
_ONE = float(1 << WEIGHT_BITS)
_NO_LIMIT = 1 << 62

# The draw looks for its block first and then inside it, so only one block needs a running sum.
_BLOCK = 512

# Histogram over -z in [0, 30): beyond 42 ln 2 = 29.1 every weight is 0.  4096 bins keep the bin that
# is cut in the middle (the only one that must be sorted) at some dozens of tokens for real models.
_BINS = 4096
_BIN_SCALE = _BINS / 30.0

# Up to this top_k the candidates are taken out and the rest of the row is never exponentiated.
FEW = 256

# Rows are worked on in groups that stay in the cache (24 bytes per element are live).
_GROUP_ELEMENTS = 1 << 19


def row_groups(rows: Sequence[int], vocab_size: int) -> Iterator[list[int]]:
    """Cut ``rows`` into runs whose logits fit the cache."""
    size = max(1, _GROUP_ELEMENTS // max(1, vocab_size))
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])


def first_argmax(x: torch.Tensor) -> torch.Tensor:
    """Index of the largest value of each row of f32 ``x [R, V]``; the lowest among equals; NaN counts
    as largest.  int64 [R]."""
    if x.device.type == "cpu":
        # numpy's is vectorised where torch's is not: 9 times faster at 50k columns.
        return torch.from_numpy(np.asarray(np.argmax(x.numpy(), axis=-1), dtype=np.int64))
    return x.argmax(-1)


def scaled_logits(x: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """z = (x - max) / temperature for f32 ``x [R, V]`` with a finite maximum in each row.

    Padded with -inf to a multiple of the draw's block, f32 [R, ceil(V / 512) * 512].  Subtracting
    first keeps tiny temperatures from overflowing.  ``temperature`` is f32 [R], None means 1.
    """
    rows, vocab = x.shape
    z = x.new_empty(rows, -(-vocab // _BLOCK) * _BLOCK)
    z[:, vocab:] = -math.inf
    body = z[:, :vocab]
    torch.sub(x, x.amax(-1, keepdim=True), out=body)
    if temperature is not None:
        body.div_(temperature[:, None])
    return z


def fixed_point_weights(z: torch.Tensor) -> torch.Tensor:
    """int64 weights floor(exp(z) * 2**42) of f32 ``z`` <= 0, same shape."""
    return torch.exp(z).mul_(_ONE).to(torch.int64)


def draw(weights: torch.Tensor, bits: Sequence[int]) -> list[int]:
    """One token per row by inverse CDF in order of token id.

    ``weights`` int64 [R, n * 512], each row with a positive sum S; ``bits`` are uniform 64-bit
    integers.  Token i is drawn when floor(bits * S / 2**64) falls into its share of [0, S).
    """
    rows = weights.shape[0]
    blocks = weights.view(rows, -1, _BLOCK)
    ends = blocks.sum(-1).cumsum(-1)
    totals = ends[:, -1].tolist()
    target = _column([(u * t) >> 64 for u, t in zip(bits, totals, strict=True)], weights.device)
    block = torch.searchsorted(ends, target, right=True)
    target -= torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0)
    inside = blocks.gather(1, block[:, :, None].expand(rows, 1, _BLOCK)).squeeze(1).cumsum(-1)
    offset = torch.searchsorted(inside, target, right=True)
    return (block * _BLOCK + offset).squeeze(1).tolist()


def filter_min_p(weights: torch.Tensor, min_p: Sequence[float]) -> None:
    """Zero, in place, the weights below ``min_p`` times the largest (which is 2**42)."""
    least = _column([math.ceil(p * _ONE) for p in min_p], weights.device)
    weights.masked_fill_(weights < least, 0)


def filter_top_k_top_p(
    z: torch.Tensor,
    weights: torch.Tensor,
    top_k: Sequence[int] | None,
    top_p: Sequence[float] | None,
) -> None:
    """Zero, in place, the weights that top_k and then top_p exclude.

    The tokens of a row stand in order of falling ``z``, equal ones by rising id.  top_k keeps the
    first k with a weight (k <= 0: all); top_p keeps those that have less than ``top_p`` of the
    (remaining) mass before them, so always the first.  ``None`` skips a filter for all rows.
    """
    bins = (z * -_BIN_SCALE).clamp_max_(_BINS - 1).to(torch.int64)
    if top_k is not None:
        limits = [k if k > 0 else _NO_LIMIT for k in top_k]
        _keep_prefix(z, weights, bins, (weights > 0).to(torch.int64), limits)
    if top_p is not None:
        _keep_prefix(z, weights, bins, weights, _mass_limits(weights, top_p))


def _mass_limits(weights: torch.Tensor, top_p: Sequence[float]) -> list[int]:
    """ceil(top_p * sum) of each row, exactly, and at least 1."""
    limits = []
    for p, total in zip(top_p, weights.sum(-1).tolist(), strict=True):
        num, den = p.as_integer_ratio()
        limits.append(max(1, -(-num * total // den)))
    return limits


def _keep_prefix(
    z: torch.Tensor, weights: torch.Tensor, bins: torch.Tensor, cost: torch.Tensor, limits: Sequence[int]
) -> None:
    """Zero the weights of tokens that have a cost of ``limit`` or more before them in their row's order.

    A histogram of the costs over ``bins`` (which respect the order) finds the bin where the limit
    falls; bins before it stay, bins behind it go, and only its own tokens are sorted.
    """
    ends = z.new_zeros((z.shape[0], _BINS), dtype=torch.int64).scatter_add_(1, bins, cost).cumsum(-1)
    limit = _column(limits, z.device)
    cut = torch.searchsorted(ends, limit)  # first bin whose end reaches the limit; _BINS when none does
    inside = ends.gather(1, cut.clamp_max(_BINS - 1))
    partial = torch.nonzero((inside > limit).squeeze(1)).squeeze(1).tolist()
    for row in partial:
        at = int(cut[row])
        ids = torch.nonzero(bins[row] == at).squeeze(1)
        ids = ids[torch.sort(z[row, ids], descending=True, stable=True).indices]
        costs = cost[row, ids]
        before = costs.cumsum(0) - costs + (int(ends[row, at - 1]) if at > 0 else 0)
        weights[row, ids[before >= limits[row]]] = 0
    weights.masked_fill_(bins > cut, 0)


def draw_among_few(
    x: torch.Tensor,
    temperature: torch.Tensor | None,
    min_p: Sequence[float],
    top_k: Sequence[int],
    top_p: Sequence[float],
    bits: Sequence[int],
) -> list[int]:
    """One token per row of ``x [R, V]`` with 1 <= top_k <= FEW: bit for bit what scaled_logits,
    fixed_point_weights, filter_min_p, filter_top_k_top_p and draw come to, in a fraction of the time.

    The candidates lie in rows of one fixed width, so that the largest top_k of a batch changes nothing.
    """
    rows, vocab = x.shape
    values, ids = _topk_in_order(x, max(top_k))
    count = values.shape[1]
    z = x.new_full((rows, _BLOCK), -math.inf)
    torch.sub(values, values[:, :1], out=z[:, :count])
    if temperature is not None:
        z[:, :count].div_(temperature[:, None])
    weights = fixed_point_weights(z)
    filter_min_p(weights, min_p)
    weights.masked_fill_(torch.arange(_BLOCK, device=x.device) >= _column(top_k, x.device), 0)
    before = weights.cumsum(-1) - weights
    weights.masked_fill_(before >= _column(_mass_limits(weights, top_p), x.device), 0)
    by_id, order = torch.nn.functional.pad(ids, (0, _BLOCK - count), value=vocab).sort(-1)
    index = torch.tensor(draw(weights.gather(1, order), bits), device=x.device)
    return by_id.gather(1, index[:, None]).squeeze(1).tolist()


def log_normalizer(x: torch.Tensor) -> list[float]:
    """log(sum(exp(x))) of each row of f32 ``x [R, V]`` in double precision.

    A row must hold no NaN and a maximum above -inf.  With +inf in a row its normaliser is +inf.
    """
    top = x.amax(-1)
    totals = fixed_point_weights(scaled_logits(x)).sum(-1).tolist()
    return [
        m if math.isinf(m) else m + math.log(t) - WEIGHT_BITS * math.log(2.0)
        for m, t in zip(top.tolist(), totals, strict=True)
    ]


def exact_topk(x: torch.Tensor, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """Values and ids of the ``k`` largest entries of each row of ``x [R, V]``: falling values, equal
    ones by rising id (torch leaves their order open).  k is cut to V."""
    if k == 0:
        return [[] for _ in x], [[] for _ in x]
    values, ids = _topk_in_order(x, k)
    return values.tolist(), ids.tolist()


def _topk_in_order(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``exact_topk`` as tensors [R, min(k, V)]."""
    vocab = x.shape[-1]
    k = min(k, vocab)
    # One more shows whether the last has equals outside.
    values, ids = torch.topk(x, min(k + 1, vocab))
    tied = torch.nonzero((values[:, 1:] == values[:, :-1]).any(-1)).squeeze(1).tolist()
    values, ids = values[:, :k].contiguous(), ids[:, :k].contiguous()
    for row in tied:
        candidates = torch.nonzero(x[row] >= values[row, -1]).squeeze(1)
        order = torch.sort(x[row, candidates], descending=True, stable=True)
        values[row] = order.values[:k]
        ids[row] = candidates[order.indices[:k]]
    return values, ids


def _column(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, device=device)[:, None]
