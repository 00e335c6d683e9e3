"""rope_and_cache: equal bit for bit to rotary_embedding and then reshape_and_cache_flash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import Device
from op_checks import FLOATS
from torch import Tensor

from inferx import ops

FP8 = torch.float8_e4m3fn
POSITIONS, BLOCKS, BLOCK = 50, 4, 8


@dataclass
class Call:
    """The arguments of one call; ``qkv`` holds query, key and value, ``storage`` both caches."""

    qkv: Tensor
    storage: Tensor
    positions: Tensor
    slots: Tensor
    table: Tensor
    scales: tuple[Tensor | None, Tensor | None]
    heads: tuple[int, int]
    flat: bool

    def views(self) -> tuple[list[Tensor], list[Tensor]]:
        q, k = self.heads
        dim = self.storage.shape[-1]
        rows = [
            part if self.flat else part.unflatten(1, (-1, dim))
            for part in self.qkv[:, : (q + 2 * k) * dim].split([q * dim, k * dim, k * dim], dim=1)
        ]
        return rows, [self.storage[:, 0], self.storage[:, 1]]

    def put(self, put: Any) -> Call:
        qkv = put(self.qkv.contiguous())
        scales = tuple(None if scale is None else put(scale) for scale in self.scales)
        rest = [put(x) for x in (self.storage, self.positions, self.slots, self.table)]
        return Call(qkv, *rest, scales, self.heads, self.flat)  # type: ignore[arg-type]


def make(
    tokens: int,
    heads: tuple[int, int],
    dim: int,
    rot_dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    *,
    padding: int = 8,
    flat: bool = False,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Call:
    qkv = torch.randn(tokens, (heads[0] + 2 * heads[1]) * dim + padding).to(dtype)
    angles = torch.rand(POSITIONS, rot_dim // 2) * 6
    slots = torch.randperm(BLOCKS * BLOCK)[:tokens]
    slots[1::4] = -1
    return Call(
        qkv,
        torch.ones(BLOCKS, 2, BLOCK, heads[1], dim).to(cache_dtype),
        torch.randint(0, POSITIONS, (tokens,)),
        slots,
        torch.cat([angles.cos(), angles.sin()], 1),
        scales,
        heads,
        flat,
    )


def fused(call: Call, is_neox: bool) -> None:
    rows, caches = call.views()
    k_scale, v_scale = call.scales
    ops.rope_and_cache(
        call.positions, *rows, call.table, *caches, call.slots,
        is_neox=is_neox, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip


def one_by_one(call: Call, is_neox: bool) -> None:
    rows, caches = call.views()
    ops.rotary_embedding(call.positions, *rows[:2], caches[0].shape[-1], call.table, is_neox)
    key, value = (x.unflatten(1, (-1, caches[0].shape[-1])) if call.flat else x for x in rows[1:])
    ops.reshape_and_cache_flash(key, value, *caches, call.slots, *call.scales)


def raw(x: Tensor) -> Tensor:
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]
    return x.cpu().view(integer)


def check(device: Device, call: Call, is_neox: bool) -> Call:
    """All memory of the fused op on the device, of both steps on the CPU, and of the fused op there."""
    expected, on_cpu = call.put(torch.clone), call.put(torch.clone)
    one_by_one(expected, is_neox)
    fused(on_cpu, is_neox)
    with device:
        on_device = call.put(device.put)
        fused(on_device, is_neox)
    for result in (on_cpu, on_device):
        assert torch.equal(raw(result.qkv), raw(expected.qkv))
        assert torch.equal(raw(result.storage), raw(expected.storage))
    changed = raw(expected.qkv) != raw(call.qkv)
    assert changed.any() or call.table.numel() == 0 or len(call.qkv) == 0
    return on_device


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("cache_dtype", [*FLOATS, FP8], ids=str)
def test_types(device: Device, dtype: torch.dtype, cache_dtype: torch.dtype, is_neox: bool) -> None:
    check(device, make(9, (4, 2), 32, 32, dtype, cache_dtype), is_neox)


SHAPES = [  # tokens, query and KV heads, head_dim, rot_dim
    (0, (2, 1), 16, 16),
    (1, (1, 1), 64, 64),
    (3, (5, 1), 80, 80),
    (3, (2, 2), 96, 32),  # partial
    (5, (3, 1), 80, 20),  # half of rot_dim is no vector
    (4, (2, 1), 33, 10),
    (2, (3, 2), 24, 0),
    (21, (9, 3), 64, 64),  # several tokens and CTAs
    (2, (30, 10), 128, 128),  # 560 columns
    (2, (2, 1), 256, 256),
]


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Device, shape: tuple[Any, ...], is_neox: bool) -> None:
    check(device, make(*shape, torch.bfloat16, torch.bfloat16), is_neox)
    check(device, make(*shape, torch.float32, torch.float16, padding=3, flat=True), is_neox)


@pytest.mark.parametrize("is_neox", [True, False])
def test_against_float64(device: Device, is_neox: bool) -> None:
    call = make(6, (3, 2), 48, 32, torch.float32, torch.float32)
    with device:
        after = call.put(device.put)
        fused(after, is_neox)
    cos, sin = call.table[call.positions].double()[:, None].chunk(2, -1)
    (query, key, value), _ = call.views()
    (got_query, got_key, got_value), (key_cache, value_cache) = after.views()
    for x, got in ((query, got_query), (key, got_key)):
        turned = x[..., :32].double()
        a, b = turned.chunk(2, -1) if is_neox else (turned[..., ::2], turned[..., 1::2])
        first, second = a * cos - b * sin, b * cos + a * sin
        both = torch.cat([first, second], -1) if is_neox else torch.stack([first, second], -1).flatten(-2)
        exact = torch.cat([both, x[..., 32:].double()], -1)
        torch.testing.assert_close(got.cpu().double(), exact, atol=2e-6, rtol=0)
    assert torch.equal(got_value.cpu(), value)
    stored = call.slots >= 0
    block, offset = call.slots[stored] // BLOCK, call.slots[stored] % BLOCK
    assert torch.equal(key_cache.cpu()[block, offset], got_key.cpu()[stored])
    assert torch.equal(value_cache.cpu()[block, offset], value[stored])


def test_scales_of_float8(device: Device) -> None:
    scales = torch.tensor([0.3, 0.01]), torch.tensor([7.0])
    check(device, make(7, (4, 2), 32, 24, torch.bfloat16, FP8, scales=scales), True)
    check(device, make(7, (2, 1), 12, 12, torch.float32, FP8, scales=(None, torch.tensor([0.7]))), False)


def test_strided_positions_and_unaligned_table(device: Device) -> None:
    call = make(6, (3, 1), 32, 32, torch.bfloat16, torch.bfloat16)
    expected = call.put(torch.clone)
    one_by_one(expected, True)
    with device:
        got = call.put(device.put)
        wide = device.put(torch.zeros(POSITIONS, 35))
        wide[:, 1:33] = got.table
        spread = device.put(torch.zeros(12, dtype=torch.int64))
        spread[1::2] = got.positions
        got.table, got.positions = wide[:, 1:33], spread[1::2]
        fused(got, True)
    assert torch.equal(raw(got.qkv), raw(expected.qkv))
    assert torch.equal(raw(got.storage), raw(expected.storage))


def test_positions_and_slots_out_of_range(device: Device) -> None:
    call = make(5, (2, 1), 16, 16, torch.float32, torch.float32)
    call.positions[:] = torch.tensor([3, POSITIONS, -1, 2**40, 7])
    call.slots[:] = torch.tensor([BLOCKS * BLOCK, 4, 2**50, 5, -9])
    expected = call.put(torch.clone)
    turned = [0, 4]
    (query, key, value), caches = expected.views()
    for x in (query, key):  # the others stay as they are
        some = x[turned].contiguous()
        ops.rotary_embedding(call.positions[turned], some, None, 16, call.table)
        x[turned] = some
    caches[0][0, 4:6], caches[1][0, 4:6] = key[[1, 3]], value[[1, 3]]
    with device:
        got = call.put(device.put)
        fused(got, True)
    assert torch.equal(got.qkv.cpu(), expected.qkv)
    assert torch.equal(got.storage.cpu(), expected.storage)


def test_a_token_does_not_depend_on_its_batch(device: Device) -> None:
    call = make(13, (4, 2), 32, 32, torch.bfloat16, FP8)
    together = check(device, call, True)
    with device:
        for token in (0, 7, 12):
            alone = call.put(device.put)
            alone.qkv, alone.positions, alone.slots = (
                x[token : token + 1] for x in (alone.qkv, alone.positions, alone.slots)
            )
            fused(alone, True)
            assert torch.equal(raw(alone.qkv), raw(together.qkv[token : token + 1]))


def test_wrong_arguments(device: Device) -> None:
    names = (
        "positions",
        "query",
        "key",
        "value",
        "cos_sin_cache",
        "key_cache",
        "value_cache",
        "slot_mapping",
    )
    call = make(3, (2, 1), 16, 16, torch.float32, torch.float32)
    cases: list[tuple[str, Any, str]] = [
        ("positions", lambda x: x[:2], r"positions: expected shape|query: expected shape \[T=2"),
        ("positions", lambda x: x.int(), "positions: expected dtype int64, got int32"),
        ("query", lambda x: x.half(), "key: expected dtype float16 as query"),
        ("query", lambda x: x[..., :15], "query: expected shape"),
        ("key", lambda x: x[:2], r"value: expected shape \[2, 1, 16\] as key"),
        ("key", lambda x: x.flatten(1)[:, :15], r"key: expected shape \[T, 1, 16\], got \[3, 15\]"),
        ("value", lambda x: x.double(), "value: expected dtype float32 as key, got float64"),
        ("cos_sin_cache", lambda x: x[:, :15], "cos_sin_cache: expected an even rot_dim"),
        ("cos_sin_cache", lambda x: torch.cat([x, x], 1), "cos_sin_cache: expected an even rot_dim"),
        ("key_cache", lambda x: x[0], "key_cache: expected 4 dimensions"),
        ("slot_mapping", lambda x: x[:2], r"slot_mapping: expected shape \[T=3\], got \[2\]"),
    ]
    with device:
        given = call.put(device.put)
        rows, caches = given.views()
        arguments = dict(zip(names, (given.positions, *rows, given.table, *caches, given.slots), strict=True))
        for name, change, message in cases:
            with pytest.raises(ValueError, match=f"^rope_and_cache: ({message})"):
                ops.rope_and_cache(**{**arguments, name: change(arguments[name])})
        with pytest.raises(ValueError, match="key: expected memory apart from that of value"):
            ops.rope_and_cache(**{**arguments, "value": arguments["key"]})
    assert torch.equal(given.qkv.cpu(), call.qkv)
    assert (given.storage == 1).all()


def test_on_the_cpu_nothing_is_changed_by_wrong_values() -> None:
    call = make(3, (2, 1), 16, 16, torch.float32, torch.float32)
    for name, bad, error in (("positions", POSITIONS, IndexError), ("slots", BLOCKS * BLOCK, ValueError)):
        given = call.put(torch.clone)
        getattr(given, name)[2] = bad
        with pytest.raises(error, match=rf"^rope_and_cache: .*{bad}"):
            fused(given, True)
        assert torch.equal(given.qkv, call.qkv)
        assert (given.storage == 1).all()


def test_schema_and_fake() -> None:
    call = make(3, (2, 1), 16, 16, torch.float32, torch.float32)
    rows, caches = call.views()
    arguments = [x.contiguous() for x in (call.positions, *rows, call.table)], [x.clone() for x in caches]
    torch.library.opcheck(
        torch.ops.inferx.rope_and_cache.default,
        (*arguments[0], True, *arguments[1], call.slots),
        test_utils=("test_schema", "test_faketensor"),
    )
