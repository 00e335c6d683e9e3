"""fp8 conversions against torch's: every pair of e4m3 numbers, and floats around each rounding boundary."""

from __future__ import annotations

import torch


def bits16(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


def same_numbers(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Bit for bit, but any NaN for a NaN."""
    nan = want.float().isnan()
    return torch.equal(got.float().isnan(), nan) and torch.equal(
        got.view(torch.uint8 if got.element_size() == 1 else torch.int16)[~nan],
        want.view(torch.uint8 if got.element_size() == 1 else torch.int16)[~nan],
    )


def test_widening_is_exact(simt) -> None:
    n = 1 << 16
    pairs = torch.arange(n, dtype=torch.int32).to(torch.int16)
    out = torch.empty(6, n, dtype=torch.int32)
    simt.run("fp8_widen", inputs=[pairs], outputs=[out], numbers=[n], grid=(n // 256,), block=(256,))
    e4m3 = pairs.view(torch.float8_e4m3fn)
    e5m2 = pairs.view(torch.float8_e5m2)
    flipped = pairs.flip(0).view(torch.float8_e4m3fn)
    assert same_numbers(out[0].view(torch.float16), e4m3.half())
    assert torch.equal(out[1].view(torch.int16), out[0].view(torch.int16))  # NaN too: both ways are the same
    assert same_numbers(out[2].view(torch.bfloat16), e4m3.bfloat16())
    assert same_numbers(out[3].view(torch.float16), e5m2.half())
    assert same_numbers(out[4].view(torch.float16), flipped.half())
    assert same_numbers(out[5].view(torch.bfloat16), flipped.bfloat16())


def boundaries(numbers: torch.Tensor) -> torch.Tensor:
    """All finite numbers of a type, the midpoints between neighbours, and the floats beside those."""
    x = numbers.float()
    x = x[x.isfinite()].unique()
    middle = (x[1:] + x[:-1]) / 2
    inf = torch.tensor(float("inf"))
    return torch.cat([x, middle, torch.nextafter(middle, inf), torch.nextafter(middle, -inf)])


def test_narrowing_rounds_to_nearest_even_and_saturates(simt) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    special = torch.tensor(
        [447.9, 448.1, 463.9, 464.0, 465.0, 1e9, float("inf"), float("nan"), 0.0, 1e-9, 6e4, 7e4]
    )
    x = torch.cat(
        [boundaries(every.view(torch.float8_e4m3fn)), boundaries(every.view(torch.float8_e5m2)), special]
    )
    x = torch.cat([x, -x])
    x = torch.cat([x, torch.zeros(-len(x) % 4)])
    n = len(x) // 4
    out = torch.empty(3, n, dtype=torch.int32)
    simt.run("fp8_narrow", inputs=[x], outputs=[out], numbers=[n], grid=((n + 63) // 64,), block=(64,))

    def narrow(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return values.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)  # NaN stays

    assert same_numbers(out[0].view(torch.float8_e4m3fn), narrow(x, torch.float8_e4m3fn))
    halves = x.half().float()  # infinite above 65504, and then the largest e4m3
    assert same_numbers(out[1].view(torch.float8_e4m3fn), narrow(halves, torch.float8_e4m3fn))
    assert same_numbers(out[2].view(torch.float8_e5m2), narrow(x, torch.float8_e5m2))
