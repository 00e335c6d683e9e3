"""What the sampling ops compute, one token at a time, in integers.

``weight`` follows csrc/sampling_math.h operation by operation; all else is written from the docstrings of
inferx.ops.sampling.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

ONE = 1 << 42

_MASK32 = 0xFFFFFFFF
_MUL0 = 0xD2511F53
_MUL1 = 0xCD9E8D57
_WEYL0 = 0x9E3779B9  # golden ratio
_WEYL1 = 0xBB67AE85  # sqrt(3) - 1


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32.  All values are unsigned 32-bit integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0 = _MUL0 * c0
        p1 = _MUL1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK32
        k0 = (k0 + _WEYL0) & _MASK32
        k1 = (k1 + _WEYL1) & _MASK32
    return c0, c1, c2, c3


def token_bits(seed: int, step: int, index: int = 0) -> int:
    """64 uniform random bits for output token number ``step`` of sample ``index``.

    ``seed`` is any integer, taken modulo 2**64; ``step`` < 2**64 and ``index`` < 2**32 count from 0.
    Counter words: step low, step high, index, 0 (the last word is free for further streams).
    """
    key = (seed & _MASK32, (seed >> 32) & _MASK32)
    low, high, _, _ = philox4x32((step & _MASK32, (step >> 32) & _MASK32, index & _MASK32, 0), key)
    return (high << 32) | low


def weights(z: np.ndarray) -> list[int]:
    """floor(exp(z) * 2**42) with the exp of csrc/sampling_math.h, for float32 z <= 0."""
    z = z.astype(np.float32)
    counts = z >= np.float32(-29.2)
    z = np.where(counts, z, np.float32(0))

    def fma(a: np.ndarray, b: float, c: np.ndarray | float) -> np.ndarray:
        # The product is exact in 64 bits, and the sum as good as.
        exact = a.astype(np.longdouble) * np.longdouble(np.float32(b)) + np.longdouble(c)
        return exact.astype(np.float32)

    n = np.rint(fma(z, float.fromhex("0x1.715476p0"), 0.0)).astype(np.float32)
    shifter = np.float32(1.5 * 2**23)
    n = fma(z, float.fromhex("0x1.715476p0"), shifter) - shifter
    r = fma(n, -0.693359375, z)
    r = fma(n, 2.12194440e-4, r)
    p = np.full_like(r, float.fromhex("0x1.685f02p-10"))
    for c in ("0x1.123d3cp-7", "0x1.555b8ep-5", "0x1.55548cp-3", "0x1.fffff8p-2"):
        p = (p.astype(np.longdouble) * r + np.longdouble(float.fromhex(c))).astype(np.float32)
    p = ((r * r).astype(np.longdouble) * p + r).astype(np.float32) + np.float32(1)
    scaled = np.ldexp(p.astype(np.float64), n.astype(np.int64) + 42)  # exact
    return [int(w) if ok else 0 for w, ok in zip(scaled, counts, strict=True)]


def row_weights(x: np.ndarray, temperature: float) -> list[int]:
    """Weights of a row of logits whose maximum is finite."""
    x = x.astype(np.float32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = min(np.float32(1) / np.float32(temperature), np.finfo(np.float32).max)
        return weights((x - x.max()) * np.float32(scale))


def in_order(x: np.ndarray) -> list[int]:
    return sorted(range(len(x)), key=lambda i: (-float(x[i]), i))


def kept_weights(x: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The row's weights after min_p, top_k and top_p."""
    w = row_weights(x, temperature)
    w = [v if Fraction(v) >= Fraction(min_p) * ONE else 0 for v in w] if min_p > 0 else w
    order = in_order(x)
    if top_k > 0:
        for i in order[top_k:]:
            w[i] = 0
    if top_p < 1:
        top_p = max(top_p, 0.0)
        total, before = sum(w), 0
        for rank, i in enumerate(order):
            v = w[i]
            if rank > 0 and not before < Fraction(top_p) * total:
                w[i] = 0
            before += v
    return w


def draw(w: list[int], bits: int) -> int:
    target = bits * sum(w) >> 64
    for i, v in enumerate(w):
        if target < v:
            return i
        target -= v
    raise AssertionError


def sample(
    x: np.ndarray,
    num_ids: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    step: int = 0,
    index: int = 0,
) -> tuple[int, int]:
    """(token, status) of one row."""
    if np.isnan(x).any():
        return 0, 1
    if (x == -np.inf).all():
        return 0, 2
    x = x[:num_ids]
    if (x == -np.inf).all():
        return 0, 3
    if not temperature > 0 or x.max() == np.inf:
        return int(np.argmax(x)), 0
    return draw(kept_weights(x, temperature, top_k, top_p, min_p), token_bits(seed, step, index)), 0


def boundary_row(seed: int, vocab: int, back: int = 0) -> tuple[np.ndarray, int]:
    """A row in which the draw of ``seed`` falls exactly on the start of the last token's share, or ``back``
    units before it, and how many tokens stand before.  The last of those may be a small one."""
    bits = token_bits(seed, 0)
    before = 0
    while before != (before := (bits * (before + ONE) >> 64) + back):  # target = weight before - back
        if before > ONE:
            raise ValueError("this seed draws from the upper half; choose another")
    z = []
    rest = before
    while rest > 0:  # weights of few digits first, then what is left over
        low, high = int(np.float32(-29.2).view(np.uint32)), 1 << 31  # the float's bits; z rises as they fall
        while low - high > 1:
            middle = (low + high) // 2
            if weights(np.array([middle], dtype=np.uint32).view(np.float32))[0] <= rest:
                low = middle
            else:
                high = middle
        z.append(float(np.array([low], dtype=np.uint32).view(np.float32)[0]))
        rest -= weights(np.array([z[-1]]))[0]
    x = np.full(vocab, -np.inf, dtype=np.float32)
    x[: len(z)] = z
    x[-1] = 0.0
    return x, len(z)


def logprobs(x: np.ndarray, token: int, num_top: int, num_ids: int) -> tuple[list[int], list[float], int]:
    """ids, log-probabilities and rank of one row without NaN and not all -inf."""
    best = float(x.max())
    ids = [token, *in_order(x[:num_ids])[:num_top]]
    rank = 1 + int((x[:num_ids] > x[token]).sum())
    if best == math.inf:
        return ids, [0.0 if x[i] == best else -math.inf for i in ids], rank
    normaliser = best + math.log(sum(row_weights(x, 1.0)) / ONE)
    return ids, [float(x[i]) - normaliser for i in ids], rank
