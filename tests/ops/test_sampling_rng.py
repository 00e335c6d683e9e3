"""Philox4x32-10 against the published known answers, and the use made of it.  The ops equal this one."""

from __future__ import annotations

import pytest
from tests.kernels.sampling_reference import philox4x32, token_bits

# kat_vectors of the Random123 distribution that accompanies the paper: (counter, key, answer).
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(w, 16) for w in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(answer)


def test_token_bits_layout() -> None:
    """Pinned: part of the promise that a seed gives the same answer on every device and release."""
    low, high, _, _ = philox4x32((5, 2, 3, 0), (0x89ABCDEF, 0x01234567))
    assert token_bits(0x0123456789ABCDEF, (2 << 32) + 5, 3) == (high << 32) | low
    assert token_bits(-1, 0) == token_bits(2**64 - 1, 0)


def test_streams_differ_in_every_coordinate() -> None:
    seen = {token_bits(seed, step, index) for seed in range(20) for step in range(20) for index in range(20)}
    assert len(seen) == 8000
    assert all(0 <= bits < 2**64 for bits in seen)
    # Mean of 8000 uniforms: standard deviation 0.0032.
    assert abs(sum(seen) / len(seen) / 2**64 - 0.5) < 0.016
