"""The random numbers of sampling: counter-based, so a token's draw depends on nothing but its request.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) maps
a 128-bit counter and a 64-bit key to 128 random bits.  The key is the request's seed; the counter is
(token number, sample index).  There is no state to carry, to lose at a preemption or to share between
requests, and the same integers come out on every device.
"""

from __future__ import annotations

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
