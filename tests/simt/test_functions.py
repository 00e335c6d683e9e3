"""Functions of one thread against float64 and Python's integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from selftests import Simt


def floats() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(200, generator=generator) * torch.logspace(-30, 30, 200)
    near = torch.randn(200, generator=generator)
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 126.5, -126.5, -130.0]
    )
    return torch.cat([wide, near, special])


def test_float_functions(simt: Simt) -> None:
    x = floats()
    out = torch.empty(len(x), 12)
    simt.run("float_functions", inputs=[x], outputs=[out], numbers=[len(x)])
    d = x.double()
    flushed = torch.where(d.abs() < 2.0**-126, d * 0, d)  # the fast functions take subnormals for zero
    exact = [
        torch.exp2(flushed),
        torch.log2(flushed),
        1 / flushed,
        flushed.rsqrt(),
        d.tanh(),
        d.exp(),
        d.log(),
        d.rsqrt(),
        d.nan_to_num(0).clamp(0, 1),
        torch.where(d.isnan(), 1, d.clamp(min=1)),
        torch.where(d.isnan(), 1, d.clamp(max=1)),
        1 / d,
    ]
    for i, reference in enumerate(exact):
        actual, expected = out[:, i].double(), reference.float().double()
        if i < 4:  # and give zero for subnormal results
            expected = torch.where(expected.abs() < 2.0**-126, expected * 0, expected)
        close = (actual - expected).abs() <= 2e-6 * expected.abs() + (2e-6 if i == 1 else 1e-44)
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        if i == 4 and not simt.is_simt:  # tanh.approx: relative error 2^-11
            close = (actual - expected).abs() <= 6e-4 * expected.abs()
        if i in (5, 6) and not simt.is_simt:  # __expf, __logf: see the programming guide
            close = (actual - expected).abs() <= 1e-4 * expected.abs() + 1e-6
        assert (close | same).all(), (i, x[~(close | same)], actual[~(close | same)])


def test_float_to_integer(simt: Simt) -> None:
    x = torch.cat(
        [
            floats(),
            torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 4294967040.0]),
        ]
    )
    out = torch.empty(len(x), 7, dtype=torch.int64)
    simt.run("float_to_integer", inputs=[x], outputs=[out], numbers=[len(x)])
    down, up = -(2**31), 2**31 - 1
    kinds = [(np.rint, down, up), (np.trunc, down, up), (np.floor, down, up), (np.ceil, down, up)]
    kinds += [(np.rint, 0, 2**32 - 1), (np.trunc, 0, 2**32 - 1), (np.rint, -(2**63), 2**63 - 1)]
    for row, value in zip(out.tolist(), x.tolist(), strict=True):
        for actual, (rounded, low, high) in zip(row, kinds, strict=True):
            if math.isnan(value):
                # the instruction gives 0 for 32 bits (for 64 another value, which nobody should rely on)
                assert actual in (0, -(2**63))
            elif math.isinf(value):
                assert actual == (high if value > 0 else low)
            else:
                assert actual == min(max(int(rounded(value)), low), high)


def test_integer_functions(simt: Simt) -> None:
    generator = torch.Generator().manual_seed(0)
    triples = torch.randint(-(2**31), 2**31, (200, 3), generator=generator).int()
    triples[:8, 0] = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 16, 255, 0])
    triples[7] = 0
    out = torch.empty(200, 15, dtype=torch.int64)
    simt.run("integer_functions", inputs=[triples], outputs=[out], numbers=[200])
    m32, m64 = 2**32 - 1, 2**64 - 1

    def bytes_of(v: int) -> list[int]:
        return [v >> 8 * i & 255 for i in range(4)]

    def signed_bytes(v: int) -> list[int]:
        return [b - 256 if b > 127 else b for b in bytes_of(v & m32)]

    def first_set(v: int) -> int:
        return (v & -v).bit_length()

    for row, (a, b, c) in zip(out.tolist(), triples.tolist(), strict=True):
        ua, ub, uc = a & m32, b & m32, c & m32
        wide = ua << 32 | ub
        pool = [*bytes_of(ua), *bytes_of(ub)]
        permuted = 0
        for i in range(4):
            selector = uc >> 4 * i & 15
            byte = pool[selector & 7]
            if selector & 8:
                byte = 255 if byte & 128 else 0
            permuted |= byte << 8 * i
        dot = c + sum(x * y for x, y in zip(signed_bytes(a), signed_bytes(b), strict=True))
        expected = [
            bin(ua).count("1"),
            first_set(ua),
            32 - ua.bit_length(),
            int(f"{ua:032b}"[::-1], 2),
            bin(wide).count("1"),
            first_set(wide),
            64 - wide.bit_length(),
            int(f"{wide:064b}"[::-1], 2),
            a * b >> 32,
            ua * ub >> 32,
            wide * wide >> 64,
            permuted,
            ((ub << 32 | ua) << (uc & 31)) >> 32 & m32,
            (ub << 32 | ua) >> (uc & 31) & m32,
            dot,
        ]
        for i, (actual, value) in enumerate(zip(row, expected, strict=True)):
            mask = m64 if i in (7, 10) else m32
            assert actual & mask == value & mask, (i, a, b, c)


@pytest.mark.parametrize(("name", "dtype"), [("half_fma", torch.float16), ("bfloat_fma", torch.bfloat16)])
def test_fma_of_16_bit_floats(simt: Simt, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[:8, 2] = -(x[:8, 0].double() * x[:8, 1].double()).to(dtype)  # what is left is the product's rounding
    out = torch.empty(64, dtype=dtype)
    simt.run(name, inputs=[x], outputs=[out], numbers=[64], block=(64,))
    a, b, c = x.double().unbind(1)
    assert torch.equal(out, (a * b + c).to(dtype))


def test_packed_pairs(simt: Simt) -> None:
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 64)[:, None]
    x[0] = torch.tensor([math.nan, 1e9])
    out = torch.empty(64, 4, 2)
    simt.run("packed", inputs=[x], outputs=[out], numbers=[64], block=(64,))
    formats = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
    for i, dtype in enumerate(formats):
        limit = torch.finfo(dtype).max if i >= 2 else math.inf  # fp8 saturates
        expected = x.clamp(-limit, limit).to(dtype).float()
        assert torch.equal(out[:, i].nan_to_num(-7), expected.nan_to_num(-7)), dtype
