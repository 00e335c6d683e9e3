"""reshape_and_cache_flash against indexing with torch's own conversions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferx import ops

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("head_major", [False, True])
def test_stores_every_token(source: torch.dtype, target: torch.dtype, head_major: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for tokens, heads, dim in ((1, 1, 8), (37, 3, 72), (200, 2, 64), (5, 1, 13)):
        qkv = torch.randn(tokens, 4 * heads, dim, generator=generator).to(source)
        key, value = qkv[:, 2 * heads : 3 * heads], qkv[:, 3 * heads :]
        shape = (30, heads, 16, dim) if head_major else (30, 16, heads, dim)
        caches = [torch.full(shape, 5.0, dtype=target) for _ in range(2)]
        if head_major:
            caches = [c.transpose(1, 2) for c in caches]
        slots = torch.randperm(30 * 16, generator=generator)[:tokens]
        slots[::4] = -1
        ops.reshape_and_cache_flash(key, value, caches[0], caches[1], slots)
        for cache, rows in zip(caches, (key, value), strict=True):
            expected = torch.full((30 * 16, heads, dim), 5.0, dtype=target)
            expected[slots[slots >= 0]] = rows[slots >= 0].to(target)
            assert torch.equal(cache.reshape(30 * 16, heads, dim), expected)


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16], ids=str)
def test_rounds_to_nearest_even(target: torch.dtype) -> None:
    """Every exponent, with mantissas at, just below and just above ties; infinities; NaN stays NaN."""
    high = torch.arange(0, 2**16, 3, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000])
    patterns = (high[:, None] | low).flatten()
    values = (patterns - ((patterns >> 31) << 32)).to(torch.int32).view(torch.float32)
    edges = torch.tensor([65504.0, 65519.99, 65520.0, -65520.0, 2.0**-25, 2.0**-24, 3 * 2.0**-25, -0.0])
    values = torch.cat([edges, values])[: len(values) // 16 * 16].view(-1, 1, 16)
    assert torch.isnan(values).any()
    assert torch.isinf(values).any()
    caches = [torch.empty(len(values), 1, 1, 16, dtype=target) for _ in range(2)]
    ops.reshape_and_cache_flash(values, values, *caches, torch.arange(len(values)))
    expected = values.to(target)
    for cache in caches:
        got = cache.view(-1, 1, 16)
        assert torch.equal(got.isnan(), expected.isnan())
        number = ~expected.isnan()
        assert torch.equal(bits(got)[number], bits(expected)[number])


@pytest.mark.parametrize("scale", [None, [0.3], [0.05, 1.0, 7.5]], ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_float8_caches_with_scales(source: torch.dtype, scale: list[float] | None) -> None:
    """Saturates at +-448; ties, subnormals and the largest numbers are among the values."""
    grid = torch.arange(0, 512, 0.5) * 2.0 ** torch.arange(-12, 1)[:, None]
    edges = torch.tensor([float("inf"), -float("inf"), float("nan"), 448.0, 464.0, -1e30, 2.0**-10, -0.0])
    values = torch.cat([edges, grid.flatten(), -grid.flatten()])
    rows = values[: len(values) // 3 * 3].view(-1, 3, 1).expand(-1, 3, 7).contiguous().to(source)
    scales = torch.ones(1) if scale is None else torch.tensor(scale)
    caches = [torch.zeros(1, len(rows), 3, 7).to(torch.float8_e4m3fn) for _ in range(2)]
    given = [None if scale is None else scales] * 2
    ops.reshape_and_cache_flash(rows, -rows, *caches, torch.arange(len(rows)), *given)
    for cache, x in zip(caches, (rows, -rows), strict=True):
        quotient = x.float() / scales[:, None]
        expected = quotient.clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(cache[0].float().isnan(), quotient.isnan())
        number = ~quotient.isnan()
        assert torch.equal(cache[0].view(torch.uint8)[number], expected.view(torch.uint8)[number])


def test_empty() -> None:
    cache = torch.zeros(2, 16, 1, 8)
    ops.reshape_and_cache_flash(
        torch.zeros(0, 1, 8), torch.zeros(0, 1, 8), cache, cache.clone(), torch.zeros(0, dtype=torch.int64)
    )


def arguments(**changes: Any) -> list[Any]:
    given = {
        "key": torch.ones(3, 2, 8),
        "value": torch.ones(3, 2, 8),
        "key_cache": torch.zeros(4, 16, 2, 8),
        "value_cache": torch.zeros(4, 16, 2, 8),
        "slot_mapping": torch.tensor([0, 1, 2]),
    }
    return list({**given, **changes}.values())


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"slot_mapping: expected slots from 0 to 63, or -1 to skip, got 64 at \[2\]",
         {"slot_mapping": torch.tensor([0, 1, 64])}),
        (r"slot_mapping: .*got -2 at \[2\]", {"slot_mapping": torch.tensor([0, 1, -2])}),
        (r"slot_mapping: expected dtype int64, got int32",
         {"slot_mapping": torch.zeros(3, dtype=torch.int32)}),
        (r"slot_mapping: expected shape \[T=3\], got \[2\]", {"slot_mapping": torch.tensor([0, 1])}),
        (r"key: expected shape", {"key": torch.ones(3, 1, 8)}),
        (r"key: expected dtype .*, got float64", {"key": torch.ones(3, 2, 8).double()}),
        (r"value: expected dtype float32 as key, got float16", {"value": torch.ones(3, 2, 8).half()}),
        (r"value: expected shape", {"value": torch.ones(2, 2, 8)}),
        (r"key_cache: expected dtype .*, got uint8",
         {"key_cache": torch.zeros(4, 16, 2, 8, dtype=torch.uint8)}),
        (r"value_cache: expected shape", {"value_cache": torch.zeros(4, 8, 2, 8)}),
        (r"key_cache: expected memory of its own",
         {"key_cache": torch.zeros(1, 16, 2, 8).expand(4, 16, 2, 8)}),
    ],
)  # fmt: skip
def test_wrong_arguments_write_nothing(message: str, changes: dict[str, Any]) -> None:
    call = arguments(**changes)
    with pytest.raises(ValueError, match="reshape_and_cache_flash: " + message):
        ops.reshape_and_cache_flash(*call)
    assert not call[2].any()
    assert not call[3].any()


def test_torch_op() -> None:
    call = arguments()
    torch.ops.inferx.reshape_and_cache_flash(*call)
    assert call[2].sum() == call[3].sum() == 48
