"""Mixtures of experts over packed matrices, against float64 and, bit for bit, against ops.linear."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from op_checks import assert_same_bits, check_on_instruction_set, strided_views
from packed_weights import FLOATS, FORMATS, dequantised, odd_k, random_source, with_scales
from torch import Tensor

from inferx import ops
from inferx.ops.experts import (
    PackedExperts,
    batched_linear,
    fused_moe_packed,
    pack_experts,
)

ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "swigluoai"]
GATED = {
    "silu": ops.silu_and_mul,
    "gelu": ops.gelu_and_mul,
    "gelu_pytorch_tanh": ops.gelu_tanh_and_mul,
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = ops.get_num_threads()
    yield
    ops.set_num_threads(before)


def source(dtype: str, rows: int, k: int) -> Tensor:
    """As random_source, with a size of weights that keeps activations around 1."""
    data = random_source(dtype, rows, k)
    return data / math.sqrt(k) if dtype in FLOATS else data


@dataclass
class Layer:
    """Experts of one layer: as packed, as single matrices, and as what those mean."""

    w13: PackedExperts
    w2: PackedExperts
    gate_up: list[tuple[ops.PackedWeight, ops.PackedWeight]]
    down: list[ops.PackedWeight]
    dense13: Tensor  # [E, 2 I, H]
    dense2: Tensor  # [E, H, I]


def make_layer(e: int, h: int, i: int, gate: str = "F32", up: str = "", down: str = "") -> Layer:
    up, down = up or gate, down or gate
    w13, w2 = PackedExperts((e, 2 * i, h), (gate, up)), PackedExperts((e, h, i), (down,))
    layer = Layer(w13, w2, [], [], torch.empty(e, 2 * i, h), torch.empty(e, h, i))
    for expert in range(e):
        parts = (source(gate, i, h), source(up, i, h))
        for part, data in enumerate(parts):
            w13.pack(expert, part, data)
        layer.gate_up.append((ops.pack_weight(parts[0], gate, (i, h)), ops.pack_weight(parts[1], up, (i, h))))
        layer.dense13[expert] = torch.cat([dequantised(parts[0], gate), dequantised(parts[1], up)])
        data = source(down, h, i)
        w2.pack(expert, 0, data)
        layer.down.append(ops.pack_weight(data, down, (h, i)))
        layer.dense2[expert] = dequantised(data, down)
    return layer


def routing(tokens: int, top_k: int, experts: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]) if tokens else None
    if ids is None or ids.shape[1] < top_k:
        ids = torch.randint(0, experts, (tokens, top_k))
    return torch.rand(tokens, top_k) / top_k, ids.int()


def activate(activation: str, gate: Tensor, up: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    if activation == "swigluoai":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(alpha * gate)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    approximate = "none" if activation == "gelu" else "tanh"
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def reference(
    x: Tensor,
    layer: Layer,
    weights: Tensor,
    ids: Tensor,
    activation: str = "silu",
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:
    """In float64, token by token."""
    out = torch.zeros(x.shape[0], layer.dense2.shape[1], dtype=torch.float64)
    for t in range(x.shape[0]):
        for weight, e in zip(weights[t].double(), ids[t].tolist(), strict=True):
            if e < 0:
                continue
            both = layer.dense13[e].double() @ x[t].double()
            if w13_bias is not None:
                both = both + w13_bias[e].double()
            act = activate(activation, *both.chunk(2))
            y = layer.dense2[e].double() @ act
            out[t] += weight * (y if w2_bias is None else y + w2_bias[e].double())
    return out


def by_linear(
    x: Tensor,
    layer: Layer,
    weights: Tensor,
    ids: Tensor,
    activation: str = "silu",
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:
    """The ops that it stands for, token by token: the very bits."""
    out = torch.zeros(x.shape[0], layer.w2.shape[1])
    i = layer.w2.shape[2]
    for t in range(x.shape[0]):
        for weight, e in zip(weights[t], ids[t].tolist(), strict=True):
            if e < 0:
                continue
            biases = (None, None) if w13_bias is None else (w13_bias[e, :i], w13_bias[e, i:])
            pair = zip(layer.gate_up[e], biases, strict=True)
            both = torch.cat([ops.linear(x[t], matrix, bias) for matrix, bias in pair])
            y = ops.linear(GATED[activation](both), layer.down[e], None if w2_bias is None else w2_bias[e])
            out[t] += weight * y
    return out


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-4 of what is large in the row; bit for bit is tested against ops.linear."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs()
    assert bool((error <= 1e-4 * expected.abs().amax(1, keepdim=True).clamp_min(1)).all()), error.max().item()


@pytest.mark.parametrize("e", [1, 5, 60, 160, 257, 512])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_values(e: int, top_k: int) -> None:
    layer = make_layer(e, 40, 37)
    for tokens in (0, 1, 2, 17):
        x = torch.randn(tokens, 40)
        weights, ids = routing(tokens, top_k, e)
        everything = [ids, torch.zeros_like(ids), torch.full_like(ids, e - 1)]
        some = ids.clone()
        some[torch.rand(ids.shape) < 0.4] = -1
        for chosen in (*everything, some, torch.full_like(ids, -1)):
            y = fused_moe_packed(x, layer.w13, layer.w2, weights, chosen)
            assert_near(y, reference(x, layer, weights, chosen))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("i", [1, 31, 32, 45, 100])
def test_activations_and_biases(activation: str, i: int) -> None:
    layer = make_layer(4, 33, i)
    x = 3 * torch.randn(9, 33)
    weights, ids = routing(9, 3, 4)
    b13, b2 = 4 * torch.randn(4, 2 * i), torch.randn(4, 33)
    for biases in ((None, None), (b13, None), (None, b2), (b13, b2)):
        y = fused_moe_packed(
            x, layer.w13, layer.w2, weights, ids, activation=activation, w13_bias=biases[0], w2_bias=biases[1]
        )
        assert_near(y, reference(x, layer, weights, ids, activation, *biases))
        if activation in GATED:
            assert_same_bits(y, by_linear(x, layer, weights, ids, activation, *biases))


def test_swigluoai_limits() -> None:
    """alpha and limit are the caller's; both signs of up are cut, only the upper end of gate; NaN stays."""
    layer = make_layer(1, 2, 33)
    layer.dense13.zero_()
    layer.dense13[0, :33, 0] = layer.dense13[0, 33:, 1] = 1
    layer.dense2[:] = 0
    layer.dense2[0, 0] = 1 / 33
    w13, w2 = pack_experts(layer.dense13, "F32", (1, 66, 2), 2), pack_experts(layer.dense2, "F32", (1, 2, 33))
    values = [-1e30, -9.0, -2.0, 0.0, 1.0, 2.5, 9.0, 1e30]
    x = torch.tensor([[gate, up] for gate in values for up in values])
    weights, ids = torch.ones(64, 1), torch.zeros(64, 1, dtype=torch.int32)
    options = {"activation": "swigluoai", "swiglu_alpha": 0.5, "swiglu_limit": 3.0}
    y = fused_moe_packed(x, w13, w2, weights, ids, **options)  # type: ignore[arg-type]
    expected = activate("swigluoai", x[:, 0].double(), x[:, 1].double(), 0.5, 3.0)
    assert torch.allclose(y[:, 0].double(), expected, rtol=1e-6, atol=1e-30)
    for bad in ([float("nan"), 1.0], [1.0, float("nan")]):
        bad_x = torch.tensor([bad])
        y = fused_moe_packed(bad_x, w13, w2, weights[:1], ids[:1], **options)  # type: ignore[arg-type]
        assert bool(y[0, 0].isnan())


@pytest.mark.parametrize("dtype", FORMATS)
def test_formats(dtype: str) -> None:
    h, i = odd_k(dtype, 70), odd_k(dtype, 45)
    layer = make_layer(6, h, i, dtype)
    for tokens in (1, 3, 40):
        x = torch.randn(tokens, h) / 4
        weights, ids = routing(tokens, 2, 6)
        y = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
        assert_near(y, reference(x, layer, weights, ids))
        assert_same_bits(y, by_linear(x, layer, weights, ids))


@pytest.mark.parametrize("types", [("Q4_0", "Q5_1", "Q8_0"), ("F16", "Q4_1", "F32"), ("Q4_1", "F32", "Q6_K")])
def test_a_type_for_each_part(types: tuple[str, str, str]) -> None:
    layer = make_layer(3, 64, 256, *types)
    x = torch.randn(20, 64)
    weights, ids = routing(20, 2, 3)
    y = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
    assert_same_bits(y, by_linear(x, layer, weights, ids))
    assert (layer.w13.dtypes, layer.w2.dtypes) == (types[:2], types[2:])
    for expert in range(3):
        assert_same_bits(layer.w13.dequantize(expert), layer.dense13[expert])
        assert_same_bits(layer.w2.dequantize(expert), layer.dense2[expert])


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q4_0", "Q4_1", "Q5_K", "Q6_K"])
def test_a_token_has_one_result(dtype: str) -> None:
    """Alone and in batches of every size, with any number of threads, and however many share its experts."""
    h = odd_k(dtype, 65)
    layer = make_layer(5, h, h, dtype)
    x = torch.randn(150, h) / 4
    weights, ids = routing(150, 3, 5)
    ids[:, 0] = torch.where(torch.rand(150) < 0.8, 4, ids[:, 0])  # much to do for one of them
    ops.set_num_threads(1)
    alone = torch.cat(
        [fused_moe_packed(x[[t]], layer.w13, layer.w2, weights[[t]], ids[[t]]) for t in range(150)]
    )
    for threads in (1, 2, 3, 7):
        ops.set_num_threads(threads)
        for rows in (1, 2, 3, 5, 8, 13, 29, 64, 121, 150):
            start = int(torch.randint(0, 151 - rows, ()))
            part = slice(start, start + rows)
            y = fused_moe_packed(x[part], layer.w13, layer.w2, weights[part], ids[part])
            assert_same_bits(y, alone[part])


def test_several_passes() -> None:
    """More pairs than scratch memory takes at once: 64 MB."""
    layer = make_layer(2, 2048, 1)
    tokens = 8300
    x = torch.randn(1, 2048).expand(tokens, 2048)
    weights, ids = torch.rand(tokens, 1), torch.randint(-1, 2, (tokens, 1), dtype=torch.int32)
    y = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
    assert tokens * (2048 + 1) > 16 << 20
    one = [by_linear(x[:1], layer, torch.ones(1, 1), torch.tensor([[e]]))[0] for e in (0, 1)]
    table = torch.stack([*one, torch.zeros(2048)])
    assert_same_bits(y, weights * table[ids[:, 0].long()] + 0.0)


def test_idle_experts_are_not_read() -> None:
    """Their weights lie in pages that nobody may touch."""
    code = """
import ctypes, mmap, torch
from inferx import ops
w13, w2 = ops.PackedExperts((8, 256, 64), ("F32", "F32")), ops.PackedExperts((8, 64, 128), ("F32",))
for expert in (2, 5):
    w13.pack(expert, 0, torch.ones(128, 64)), w13.pack(expert, 1, torch.ones(128, 64))
    w2.pack(expert, 0, torch.ones(64, 128))
libc = ctypes.CDLL(None, use_errno=True)
for stack in (w13, w2):
    each = stack.nbytes // 8
    for expert in set(range(8)) - {2, 5}:
        begin = -(-(stack._buffer.data_ptr() + expert * each) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (stack._buffer.data_ptr() + (expert + 1) * each) // mmap.PAGESIZE * mmap.PAGESIZE
        assert end - begin >= 4 * mmap.PAGESIZE
        assert libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 0) == 0
ids = torch.tensor([[2, 5], [5, IDLE]], dtype=torch.int32)
y = ops.fused_moe(torch.ones(2, 64), w13, w2, torch.ones(2, 2), ids)
assert y.isfinite().all()
print("done", flush=True)
"""
    for other, survives in ((2, True), (3, False)):  # expert 3 shows that reading would be seen
        child = subprocess.run([sys.executable, "-c", code.replace("IDLE", str(other))], capture_output=True)
        assert (b"done" in child.stdout) == survives, child.stderr.decode()


def test_duplicates() -> None:
    """An expert twice in a token's list counts twice, in order."""
    layer = make_layer(3, 32, 40)
    x = torch.randn(6, 32)
    weights = torch.randn(6, 4)
    ids = torch.tensor([1, 1, 2, 1], dtype=torch.int32).repeat(6, 1)
    y = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
    assert_same_bits(y, by_linear(x, layer, weights, ids))


def test_nan_stays_in_its_token() -> None:
    layer = make_layer(4, 48, 40)
    x = torch.randn(12, 48)
    weights, ids = routing(12, 2, 4)
    clean = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
    x[2, 7] = weights[5, 1] = weights[6, 0] = float("nan")
    ids[6, 0] = -1
    y = fused_moe_packed(x, layer.w13, layer.w2, weights, ids)
    assert bool(y[[2, 5]].isnan().all())
    assert not bool(y[6].isnan().any())  # the weight of nobody
    others = [t for t in range(12) if t not in (2, 5, 6)]
    assert_same_bits(y[others], clean[others])


@pytest.mark.parametrize("tokens", [1, 6, 20])
@pytest.mark.parametrize("dtype", ["F32", "Q4_1"])
def test_strided(dtype: str, tokens: int) -> None:
    layer = make_layer(4, 96, 64, dtype)
    weights, ids = routing(tokens, 2, 4)
    for name, x in strided_views(torch.randn, tokens, 96).items():
        print(name)  # shown when it fails
        expected = fused_moe_packed(x.contiguous(), layer.w13, layer.w2, weights, ids)
        wide = torch.full((tokens, 96 + 8), 5.0)
        out = wide[:, 3 : 3 + 96]
        assert fused_moe_packed(x, layer.w13, layer.w2, weights, ids, out=out) is out
        assert_same_bits(out, expected)
        assert bool((wide[:, :3] == 5).all())
        assert bool((wide[:, 99:] == 5).all())


def test_memory_beyond_the_arguments_is_not_read() -> None:
    """Around x and the biases, and in experts that nobody chose, there is NaN."""
    e, h, i = 5, 33, 37
    layer = make_layer(e, h, i)
    nan = float("nan")
    for expert in (0, 3):
        for part in range(2):
            layer.w13.pack(expert, part, torch.full((i, h), nan))
        layer.w2.pack(expert, 0, torch.full((h, i), nan))
    for tokens in (1, 9):
        x = torch.full((tokens, h + 40), nan)
        x[:, 20 : 20 + h] = torch.randn(tokens, h)
        b13, b2 = torch.full((e, 2 * i), nan), torch.full((e, h), nan)
        for expert in (1, 2, 4):
            b13[expert], b2[expert] = torch.randn(2 * i), torch.randn(h)
        weights, ids = routing(tokens, 2, 3)
        ids = torch.tensor([1, 2, 4], dtype=torch.int32)[ids.long()]
        view = x[:, 20 : 20 + h]
        y = fused_moe_packed(view, layer.w13, layer.w2, weights, ids, w13_bias=b13, w2_bias=b2)
        assert_near(y, reference(view, layer, weights, ids, "silu", b13, b2))


# ---- Arguments of fused_moe_packed ------------------------------------------------------------------

X, WEIGHTS = torch.zeros(3, 32), torch.zeros(3, 2)
IDS = torch.zeros(3, 2, dtype=torch.int32)
W13, W2 = PackedExperts((4, 96, 32), ("F32", "F32")), PackedExperts((4, 32, 48), ("F32",))
WRONG = {
    "x: other H": ({"x": torch.zeros(3, 33)}, r"x: expected shape \[T, H=32\], got \[3, 33\]"),
    "x: dtype": ({"x": X.half()}, "x: expected dtype float32, got float16"),
    "x: columns strided": ({"x": torch.zeros(3, 64)[:, ::2]}, "x: expected a contiguous last dimension"),
    "x: flat": ({"x": X[0]}, r"x: expected shape \[T, H=32\], got \[32\]"),
    "w13: one part": ({"w13": PackedExperts((4, 96, 32), ("F32",))}, r"w13: expected two parts \(gate, up\)"),
    "w2: two parts": ({"w2": PackedExperts((4, 32, 48), ("F32", "F32"))}, "w2: expected 1 part of .*2 parts"),
    "w2: other E": (
        {"w2": PackedExperts((5, 32, 48), ("F32",))},
        r"w2: .*E=4, H=32, I=48\].*\[5, 32",
    ),
    "w2: other I": (
        {"w2": PackedExperts((4, 32, 47), ("F32",))},
        r"w2: .*E=4, H=32, I=48\].*\[4, 32, 47",
    ),
    "w2: other H": (
        {"w2": PackedExperts((4, 33, 48), ("F32",))},
        r"w2: .*E=4, H=32, I=48\].*\[4, 33",
    ),
    "ids: dtype": ({"topk_ids": IDS.long()}, "topk_ids: expected dtype int32, got int64"),
    "ids: no k": ({"topk_ids": IDS[:, :0]}, r"topk_ids: expected k >= 1 ids a token, got \[3, 0\]"),
    "ids: other T": ({"topk_ids": IDS[:2].clone()}, r"topk_ids: expected shape \[T=3, k.*\], got \[2, 2\]"),
    "weights: other k": (
        {"topk_weights": torch.zeros(3, 3)},
        r"topk_weights: expected shape \[T=3, k=2\], got \[3, 3\]",
    ),
    "weights: dtype": ({"topk_weights": WEIGHTS.double()}, "topk_weights: expected dtype float32"),
    "w13_bias: shape": (
        {"w13_bias": torch.zeros(4, 48)},
        r"w13_bias: expected shape \[4, 96\], got \[4, 48\]",
    ),
    "w2_bias: dtype": ({"w2_bias": torch.zeros(4, 32).half()}, "w2_bias: expected dtype float32"),
    "out: shape": ({"out": torch.zeros(3, 31)}, r"out: expected shape \[T=3, H=32\], got \[3, 31\]"),
    "out: is x": ({"out": X}, "out: .*x"),
    "out: one memory for all rows": (
        {"out": torch.zeros(1, 32).expand(3, 32)},
        "out: expected memory of",
    ),
    "activation": (
        {"activation": "relu"},
        "activation: expected one of silu, gelu, gelu_pytorch_tanh, swigluoai, got 'relu'",
    ),
}


def call(change: dict[str, object]) -> Tensor:
    arguments = {"x": X, "w13": W13, "w2": W2, "topk_weights": WEIGHTS, "topk_ids": IDS, **change}
    return fused_moe_packed(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", WRONG)
def test_refuses(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ValueError) as caught:
        call(change)  # type: ignore[arg-type]
    assert re.search(message, str(caught.value)), caught.value
    assert str(caught.value).startswith("fused_moe: ")


def test_strides_of_ids_and_weights_change_no_bit() -> None:
    stack = pack_experts(torch.randn(4, 96, 32), "F32", (4, 96, 32), parts=2)
    down = pack_experts(torch.randn(4, 32, 48), "F32", (4, 32, 48))
    x, weights, ids = torch.randn(3, 32), torch.rand(3, 2), torch.randint(4, (3, 2), dtype=torch.int32)
    expected = fused_moe_packed(x, stack, down, weights, ids)
    for stretch in (
        lambda t: t.t().contiguous().t(),
        lambda t: torch.stack([t, 99 - t], dim=-1)[..., 0],
        lambda t: torch.cat([99 - t, t], dim=1)[:, 2:],
    ):
        assert not stretch(ids).is_contiguous()
        assert_same_bits(fused_moe_packed(x, stack, down, stretch(weights), stretch(ids)), expected)
    one = torch.zeros(1, 1, dtype=torch.int32)
    same = fused_moe_packed(x, stack, down, weights, one.expand(3, 2))
    assert_same_bits(same, fused_moe_packed(x, stack, down, weights, one.expand(3, 2).contiguous()))


@pytest.mark.parametrize("name", ["topk_weights", "topk_ids"])
def test_out_is_apart_from_strided_ids_and_weights(name: str) -> None:
    out = torch.zeros(3, 32)
    strided = out.view(torch.int32 if name == "topk_ids" else torch.float32)[:, ::16]
    with pytest.raises(ValueError, match=f"fused_moe: out: .* apart from that of {name}, got"):
        call({"out": out, name: strided})


@pytest.mark.parametrize("bad", [-2, 4, 1 << 30, -(1 << 31)])
def test_refuses_ids(bad: int) -> None:
    ids = IDS.clone()
    ids[1, 1] = bad
    message = re.escape(f"fused_moe: topk_ids: expected -1 <= id < 4, got {bad} at index [1, 1]")
    with pytest.raises(IndexError, match=message):
        call({"topk_ids": ids})


def test_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="fused_moe: w2: expected PackedExperts, got Tensor"):
        call({"w2": torch.zeros(4, 32, 48)})
    with pytest.raises(TypeError, match="batched_linear: weight: expected PackedExperts or"):
        batched_linear(X, [1])  # type: ignore[arg-type]


def test_large_scales_stay_in_range() -> None:
    """The largest scales and codes of a block format in all three matrices."""
    scales = np.full((32, 1, 1), 64.0, np.float16)
    data = with_scales(torch.full((32, 34), 127, dtype=torch.uint8), "Q8_0", scales)[None]
    w13 = pack_experts(data.repeat(1, 2, 1), "Q8_0", (1, 64, 32), 2)
    w2 = pack_experts(data, "Q8_0", (1, 32, 32))
    x = torch.full((1, 32), 2.0**-10)
    y = fused_moe_packed(x, w13, w2, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))
    z = 64.0 * 127 * 32 / 1024
    assert torch.allclose(y, torch.full((1, 32), z * z * 64 * 127 * 32), rtol=1e-5)


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    check_on_instruction_set(isa, ["test_experts.py"], deselect="instruction")
