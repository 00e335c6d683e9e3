"""The experts' MLPs: the CUDA source against a loop over tokens in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from harness import Device, simt_module
from op_checks import FLOATS, assert_same_bits
from torch import Tensor

from inferx import ops
from inferx.ops._lib import use_kernels
from inferx.ops.fused_moe import ACTIVATIONS, fused_moe, tokens_of_tile

# Relative to the largest element of a result.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-2}
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@dataclass
class Layer:
    w13: Tensor
    w2: Tensor
    activation: str = "silu"
    w13_bias: Tensor | None = None
    w2_bias: Tensor | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    @property
    def experts(self) -> int:
        return self.w2.shape[0]

    @property
    def hidden(self) -> int:
        return self.w2.shape[1]

    def run(
        self, device: Device, x: Tensor, weights: Tensor, ids: Tensor, out: Tensor | None = None
    ) -> Tensor:
        def put(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else device.put(tensor)

        here = replace(
            self,
            w13=device.put(self.w13),
            w2=device.put(self.w2),
            w13_bias=put(self.w13_bias),
            w2_bias=put(self.w2_bias),
        )
        arguments = [device.put(t) for t in (x, here.w13, here.w2, weights, ids)]
        arguments[1:3] = here.w13, here.w2
        options: dict[str, Any] = vars(here).copy()
        del options["w13"], options["w2"]
        with device:
            return fused_moe(*arguments, **options, out=out).cpu()

    def expected(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64)
        for t, j in torch.cartesian_prod(torch.arange(ids.shape[0]), torch.arange(ids.shape[1])).tolist():
            e = int(ids[t, j])
            if 0 <= e < self.experts:
                out[t] += weights[t, j].double() * self.mlp(x[t].double(), e)
        return out

    def mlp(self, x: Tensor, e: int) -> Tensor:
        both = self.w13[e].double() @ x
        if self.w13_bias is not None:
            both = both + self.w13_bias[e].double()
        gate, up = both.chunk(2)
        functional = torch.nn.functional
        if self.activation == "silu":
            act = functional.silu(gate) * up
        elif self.activation == "gelu":
            act = functional.gelu(gate) * up
        elif self.activation == "gelu_pytorch_tanh":
            act = functional.gelu(gate, approximate="tanh") * up
        else:
            gate, up = gate.clamp(max=self.swiglu_limit), up.clamp(-self.swiglu_limit, self.swiglu_limit)
            act = (up + 1) * gate * torch.sigmoid(self.swiglu_alpha * gate)
        out = self.w2[e].double() @ act
        return out if self.w2_bias is None else out + self.w2_bias[e].double()


def make_layer(
    dtype: torch.dtype, experts: int, hidden: int, width: int, bias: torch.dtype | None = None, **options: Any
) -> Layer:
    def biases(columns: int) -> Tensor | None:
        return None if bias is None else torch.randn(experts, columns).to(bias)

    return Layer(
        (torch.randn(experts, 2 * width, hidden) * hidden**-0.5).to(dtype),
        (torch.randn(experts, hidden, width) * width**-0.5).to(dtype),
        w13_bias=biases(2 * width),
        w2_bias=biases(hidden),
        **options,
    )


def make_routing(tokens: int, experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    """Distinct experts for each token, where there are enough."""
    if top_k > experts:
        return torch.rand(tokens, top_k), torch.randint(experts, (tokens, top_k), dtype=torch.int32)
    ids = torch.rand(tokens, experts).topk(top_k, dim=1).indices
    return torch.rand(tokens, top_k), ids.to(torch.int32)


def check(device: Device, layer: Layer, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    out = layer.run(device, x, weights, ids)
    expected = layer.expected(x, weights, ids)
    assert out.dtype == x.dtype
    assert out.shape == expected.shape
    if expected.numel():
        error = (out.double() - expected).abs().max().item()
        assert error <= TOLERANCE[x.dtype] * expected.abs().max().item()
    return out


# Few pairs find their tiles themselves, many are sorted; neither hidden size nor width fills its last tile.
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"),
    [
        (0, 5, 2), (1, 1, 1), (1, 5, 8), (2, 60, 8), (17, 5, 2), (17, 160, 1), (70, 1, 1), (70, 5, 2),
        (70, 60, 8), (17, 257, 8), (70, 512, 2),
    ],
)  # fmt: skip
def test_values(device: Device, tokens: int, experts: int, top_k: int) -> None:
    layer = make_layer(torch.bfloat16, experts, 72, 40)
    x = torch.randn(tokens, 72).bfloat16()
    check(device, layer, x, *make_routing(tokens, experts, top_k))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("hidden", "width"), [(8, 8), (136, 72), (64, 200)])
def test_sizes(device: Device, dtype: torch.dtype, hidden: int, width: int) -> None:
    layer = make_layer(dtype, 3, hidden, width)
    for tokens in (3, 35):
        check(device, layer, torch.randn(tokens, hidden).to(dtype), *make_routing(tokens, 3, 2))


def test_float32_takes_any_size(device: Device) -> None:
    layer = make_layer(torch.float32, 4, 37, 33, torch.float32)
    for tokens in (2, 40):
        check(device, layer, torch.randn(tokens, 37), *make_routing(tokens, 4, 2))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(device: Device, dtype: torch.dtype, activation: str) -> None:
    for bias in (torch.float32, dtype):
        layer = make_layer(dtype, 3, 40, 48, bias, activation=activation, swiglu_limit=1.5, swiglu_alpha=1.3)
        check(device, layer, 2 * torch.randn(5, 40).to(dtype), *make_routing(5, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expert", [0, 5])
def test_all_tokens_to_one_expert(device: Device, dtype: torch.dtype, expert: int) -> None:
    layer = make_layer(dtype, 6, 40, 24)
    for tokens, top_k in ((17, 2), (70, 1)):  # an expert twice; 70 unlike 64 are sorted
        ids = torch.full((tokens, top_k), expert, dtype=torch.int32)
        check(device, layer, torch.randn(tokens, 40).to(dtype), torch.rand(tokens, top_k), ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [4, 40])
def test_ids_without_an_expert_add_exactly_nothing(device: Device, dtype: torch.dtype, tokens: int) -> None:
    layer = make_layer(dtype, 3, 40, 72, torch.float32)
    x = torch.randn(tokens, 40).to(dtype)
    weights, ids = make_routing(tokens, 3, 2)
    ids[0] = -1
    ids[1, 0], ids[2, 1], ids[3] = 3, -(2**31), 2**31 - 1
    weights[0] = math.nan  # is not looked at
    weights[1, 0] = math.inf
    out = layer.run(device, x, weights, ids)
    assert_same_bits(out[[0, 3]], torch.zeros(2, 40, dtype=dtype))
    # What is left of a token is what it would be with that expert alone.
    for t, j in ((1, 1), (2, 0)):
        alone = layer.run(device, x[t : t + 1], weights[t : t + 1, j : j + 1], ids[t : t + 1, j : j + 1])
        assert_same_bits(out[t : t + 1], alone)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_token_does_not_depend_on_the_batch(device: Device, dtype: torch.dtype) -> None:
    hidden, width, experts, top_k = 136, 40, 4, 2
    layer = make_layer(dtype, experts, hidden, width, dtype)
    x = torch.randn(71, hidden).to(dtype)
    x[50] = math.inf  # stays with itself
    weights, ids = make_routing(71, experts, top_k)
    everything = layer.run(device, x, weights, ids)
    for begin, end in ((7, 8), (0, 17), (3, 36)):
        part = layer.run(device, x[begin:end], weights[begin:end], ids[begin:end])
        assert_same_bits(part, everything[begin:end])


def align(ids: Tensor, block_size: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """moe_align_block_size, as a loop, with garbage behind what there is."""
    flat, places, tiles = ids.flatten().tolist(), [], []
    for e in range(experts):
        pairs = [i for i, other in enumerate(flat) if other == e]
        count = -(-len(pairs) // block_size)
        places += pairs + [len(flat)] * (count * block_size - len(pairs))
        tiles += [e] * count
    used = len(places)
    surplus = -(-len(flat) // block_size) + 1
    places += [-5] * (surplus * block_size)
    tiles += [experts + 3] * surplus
    return (
        torch.tensor(places, dtype=torch.int32),
        torch.tensor(tiles, dtype=torch.int32),
        torch.tensor([used], dtype=torch.int32),
    )


@HALF
@pytest.mark.parametrize("activation", [None, "silu"])
def test_tiles_of_all_sizes_give_the_same_bits(
    device: Device, dtype: torch.dtype, activation: str | None
) -> None:
    tokens, top_k, experts, k, n = 40, 2, 3, 472, 80  # K goes round the ring of stages more than once
    weights, ids = make_routing(tokens, experts, top_k)
    ids[5, 0] = -1
    inputs = torch.randn(tokens, k).to(dtype), (torch.randn(experts, n, k) * k**-0.5).to(dtype)
    x, weight, topk_weights, topk_ids = (device.put(t) for t in (*inputs, weights, ids))
    results = []
    with device:
        for block_size in (None, 8, 16, 32, 64, 128):
            out = torch.empty(
                (tokens * top_k, n if activation is None else n // 2), dtype=dtype, device=x.device
            )
            tiles: tuple[Tensor | None, ...] = (None, None, None)
            if block_size is not None:
                tiles = tuple(device.put(t) for t in align(ids, block_size, experts))
            torch.ops.inferx.moe_gemm(
                out, x, weight, None, topk_ids, topk_weights, *tiles, block_size or 8, activation
            )
            results.append(out.cpu())
    for result in results[1:]:
        assert_same_bits(result, results[0])
    products = torch.einsum("tk,enk->ten", inputs[0].double(), inputs[1].double())
    chosen = products.gather(1, ids.clamp_min(0).long()[:, :, None].expand(-1, -1, n))
    if activation is not None:
        gate, up = chosen.chunk(2, dim=2)
        chosen = torch.nn.functional.silu(gate) * up
    expected = (chosen * weights[:, :, None] * (ids >= 0)[:, :, None]).flatten(0, 1)
    assert not results[0][10].any()
    assert (results[0] - expected).abs().max() <= TOLERANCE[dtype] / 4 * expected.abs().max()


def test_strides_change_no_bit(device: Device) -> None:
    layer = make_layer(torch.bfloat16, 3, 40, 24)
    for tokens, top_k in ((5, 1), (40, 2)):
        wide = torch.randn(2 * tokens, 64).bfloat16()
        x = wide[::2, 8:48]
        weights, ids = make_routing(tokens, 3, top_k)
        expected = layer.run(device, x.contiguous(), weights, ids)
        other = replace(
            layer,
            w13=torch.cat([layer.w13, layer.w13], dim=2)[:, :, :40],
            w2=torch.stack([layer.w2, layer.w2], dim=1)[:, 1],
        )
        out = device.put(torch.zeros(tokens, 48, dtype=torch.bfloat16))
        other.run(device, x, weights.t().contiguous().t(), ids.t().contiguous().t(), out=out[:, 8:])
        assert_same_bits(out[:, 8:].cpu().contiguous(), expected)
        assert not out[:, :8].any()


def test_offsets_beyond_two_to_the_31() -> None:
    """Memory that is reserved and, but for a few pages, never touched."""
    far, hidden, width = 2**31 + 64, 40, 24
    layer = make_layer(torch.bfloat16, 2, hidden, width)
    x, (weights, ids) = torch.randn(2, hidden).bfloat16(), make_routing(2, 2, 2)
    expected = layer.expected(x, weights, ids)
    space = torch.empty(far + 2**30, dtype=torch.bfloat16)

    def spread(tensor: Tensor, *strides: int) -> Tensor:
        return space.as_strided(tensor.shape, strides).copy_(tensor)

    layer.w13 = spread(layer.w13, far, hidden, 1)
    space = space[2 * width * hidden :]
    layer.w2 = spread(layer.w2, width, 2**26 + 4096, 1)
    space = space[2 * width :]
    x = spread(x, far, 1)
    with use_kernels(simt_module("inferx_simt_fast")):
        out = fused_moe(x, layer.w13, layer.w2, weights, ids)
    assert (out - expected).abs().max() <= 2e-2 * expected.abs().max()


def test_no_bank_conflicts(device: Device) -> None:
    if device.module is None:
        pytest.skip("the executor counts them")
    sizes = set()
    for tokens, experts in ((3, 2), (40, 8), (35, 3), (40, 2), (60, 2)):
        for dtype in (torch.float32, torch.bfloat16):
            layer = make_layer(dtype, experts, 136, 64)
            weights, ids = make_routing(tokens, experts, 2)
            sizes.add(tokens_of_tile(tokens * 2, experts, dtype))
            device.module.stats(), device.module.bank_conflicts()
            device.module.configure({"bank_conflicts": 1})
            layer.run(device, torch.randn(tokens, 136).to(dtype), weights, ids)
            stats = device.module.stats()
            lines = [line for line in device.module.bank_conflicts() if not line[0].startswith("moe_")]
            device.module.configure({"bank_conflicts": 0})
            assert (stats["ldmatrix"] > 0) == (dtype != torch.float32)
            assert stats["ldmatrix_extra"] == 0
            assert bool(lines) == device.module.is_checked()
            assert [line for line in lines if line[2] > 0] == []
    assert sizes == {8, 16, 32, 64, 128}


def test_compiled_code_gives_the_same() -> None:
    layer = make_layer(torch.bfloat16, 3, 40, 24, torch.float32)
    x, (weights, ids) = torch.randn(40, 40).bfloat16(), make_routing(40, 3, 2)

    def run(x: Tensor) -> Tensor:
        return fused_moe(x * 2, layer.w13, layer.w2, weights, ids, w13_bias=layer.w13_bias)

    with use_kernels(simt_module("inferx_simt_fast")):
        assert_same_bits(torch.compile(run, backend="aot_eager", fullgraph=True)(x), run(x))


def test_packed_experts_take_the_cpus_way() -> None:
    layer = make_layer(torch.float32, 3, 32, 24, torch.float32, activation="swigluoai")
    x, (weights, ids) = torch.randn(5, 32), make_routing(5, 3, 2)
    out = fused_moe(
        x, ops.pack_experts(layer.w13, "F32", (3, 48, 32), parts=2),
        ops.pack_experts(layer.w2, "F32", (3, 32, 24)), weights, ids,
        activation="swigluoai", w13_bias=layer.w13_bias, w2_bias=layer.w2_bias,
    )  # fmt: skip
    assert (out - layer.expected(x, weights, ids)).abs().max() < 1e-5


def test_wrong_arguments(device: Device) -> None:
    layer = make_layer(torch.bfloat16, 3, 40, 24)
    x, (weights, ids) = torch.randn(2, 40).bfloat16(), make_routing(2, 3, 2)
    wrong: list[tuple[str, Layer, tuple[Tensor, Tensor, Tensor]]] = [
        (r"x: expected float32, float16 or bfloat16 \[T, H\]", layer, (x[0], weights, ids)),
        (r"x: expected \[T, H\] with w2's H = 40, got \[2, 48\]", layer,
         (torch.zeros(2, 48).bfloat16(), weights, ids)),
        (r"w13: expected .* \[3, 48, 40\]", replace(layer, w13=layer.w13[:, :, :32]), (x, weights, ids)),
        (r"w13: expected .* \[3, 48, 40\]", replace(layer, w13=layer.w13[:, :46]), (x, weights, ids)),
        (r"w2: expected .* \[3, 40, 24\]", replace(layer, w2=layer.w2[:, :32]), (x, weights, ids)),
        (r"w2: expected \[E, H, I\] with 1 to 512", replace(layer, w2=torch.zeros(513, 40, 24).bfloat16()),
         (x, weights, ids)),
        (r"topk_ids: expected torch.int32", layer, (x, weights, ids.long())),
        (r"topk_weights: expected torch.float32 \[2, 2\]", layer, (x, weights[:1], ids)),
        (r"activation: expected silu", replace(layer, activation="relu"), (x, weights, ids)),
        (r"w2_bias: expected", replace(layer, w2_bias=torch.zeros(3, 41)), (x, weights, ids)),
        ("x: expected rows of a multiple of 8 elements", make_layer(torch.bfloat16, 3, 44, 24),
         (torch.zeros(2, 44).bfloat16(), weights, ids)),
        ("w2: expected rows of a multiple of 8 elements", make_layer(torch.bfloat16, 3, 40, 20),
         (x, weights, ids)),
    ]  # fmt: skip
    for message, other, arguments in wrong:
        with pytest.raises(ValueError, match=f"^fused_moe: {message}"):
            other.run(device, *arguments)


def apart(tensor: Tensor) -> Tensor:
    """The same values, their last dimension strided."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def shifted(tensor: Tensor) -> Tensor:
    """The same values, rows at odd multiples of an element's size."""
    return torch.cat([tensor[..., :1], tensor], dim=-1)[..., 1:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [1, 2])
def test_strides_are_those_of_the_callers_arguments(device: Device, dtype: torch.dtype, top_k: int) -> None:
    layer = make_layer(dtype, 3, 40, 24, dtype)
    named: dict[str, Any] = {
        "x": torch.randn(2, 40).to(dtype), "w13": layer.w13, "w2": layer.w2,
        "w13_bias": layer.w13_bias, "w2_bias": layer.w2_bias, "out": torch.empty(2, 40, dtype=dtype),
    }  # fmt: skip
    weights, ids = (device.put(t) for t in make_routing(2, 3, top_k))

    def run(**changed: Tensor) -> Tensor:
        arguments = {name: device.put(t) for name, t in {**named, **changed}.items()}
        with device:
            return fused_moe(topk_weights=weights, topk_ids=ids, **arguments).cpu()

    expected = run()
    for name, tensor in named.items():
        with pytest.raises(ValueError, match=f"^fused_moe: {name}: expected a contiguous last dimension"):
            run(**{name: apart(tensor)})
        if dtype == torch.float32 or "bias" in name or (name == "out" and top_k > 1):
            assert_same_bits(run(**{name: shifted(tensor)}).contiguous(), expected)
        else:
            with pytest.raises(
                ValueError, match=f"^fused_moe: {name}: expected rows that begin at multiples"
            ):
                run(**{name: shifted(tensor)})
    with pytest.raises(ValueError, match=r"^fused_moe: out: expected rows that do not overlap"):
        run(out=named["out"][:1].expand(2, 40))


def test_more_pairs_than_are_counted(device: Device) -> None:
    """Ids of so many tokens exist as one that is expanded."""
    if not device.is_simt:
        pytest.skip("no expanded copy on a GPU")
    layer = make_layer(torch.float32, 2, 8, 8)
    x, ids = torch.zeros(1, 8).expand(2**29, 8), torch.zeros(1, 2, dtype=torch.int32).expand(2**29, 2)
    with pytest.raises(ValueError, match=r"^fused_moe: topk_ids: expected at most 1073741823 pairs"), device:
        fused_moe(x, layer.w13, layer.w2, torch.zeros(1, 2).expand(2**29, 2), ids)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("name", ["x", "w13", "w2", "w2_bias", "topk_weights"])
def test_out_is_apart_from_every_argument(device: Device, name: str, top_k: int) -> None:
    layer = make_layer(torch.float32, 3, 8, 8, torch.float32)
    x, (weights, ids) = torch.randn(2, 8), make_routing(2, 3, top_k)
    named: dict[str, Any] = {
        "x": x, "w13": layer.w13, "w2": layer.w2, "topk_weights": weights, "topk_ids": ids,
        "w13_bias": layer.w13_bias, "w2_bias": layer.w2_bias,
    }  # fmt: skip
    memory = torch.zeros(named[name].numel() + 16)
    named[name] = memory[16 - top_k : 16 - top_k + named[name].numel()].view(named[name].shape)
    with device, pytest.raises(ValueError, match=f"fused_moe: out: .* apart from that of {name}, got"):
        fused_moe(**named, out=memory[:16].view(2, 8))


def test_a_tensor_of_weights_is_no_argument_on_the_cpu() -> None:
    layer = make_layer(torch.float32, 2, 8, 8)
    with pytest.raises(TypeError, match="pack_experts"):
        fused_moe(torch.zeros(1, 8), layer.w13, layer.w2, *make_routing(1, 2, 1))


def test_a_tile_holds_an_experts_share() -> None:
    half, sizes = torch.bfloat16, {}
    for tokens in (1, 16, 64, 256, 1024, 16384):
        sizes[tokens] = tokens_of_tile(tokens * 8, 128, half)
    assert sizes == {1: 8, 16: 8, 64: 8, 256: 32, 1024: 128, 16384: 128}
    assert tokens_of_tile(10000, 2, torch.float32) == 16


@pytest.mark.gpu
@HALF
@pytest.mark.parametrize("tokens", [1, 8, 33, 300, 4000])
def test_large(dtype: torch.dtype, tokens: int) -> None:
    """Qwen3-30B-A3B's sizes but for the number of experts, and an I that fills no tile."""
    device = Device("cuda")
    layer = make_layer(dtype, 32, 2048, 712)
    x, (weights, ids) = torch.randn(tokens, 2048).to(dtype), make_routing(tokens, 32, 8)
    out = layer.run(device, x, weights, ids)
    some = slice(0, 16)
    expected = layer.expected(x[some], weights[some], ids[some])
    error = (out[some].double() - expected).abs().max().item()
    assert error <= TOLERANCE[dtype] * expected.abs().max().item()
    alone = layer.run(device, x[:1], weights[:1], ids[:1])
    assert_same_bits(alone, out[:1])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [4, 100])
def test_a_captured_graph_holds_for_other_ids(tokens: int) -> None:
    device = Device("cuda")
    layer = make_layer(torch.bfloat16, 8, 256, 128)
    x, (weights, ids) = torch.randn(tokens, 256).bfloat16(), make_routing(tokens, 8, 2)
    arguments = [device.put(t) for t in (x, layer.w13, layer.w2, weights, ids)]
    fused_moe(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_moe(*arguments)
    for _ in range(2):
        weights, ids = make_routing(tokens, 8, 2)
        ids[0] = -1
        arguments[3].copy_(weights)
        arguments[4].copy_(ids)
        graph.replay()
        assert_same_bits(out.cpu(), layer.run(device, x, weights, ids))
