"""Weights for a device: plain tensors of the activations' type, whatever the checkpoint stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_writer import write_gguf
from model_harness import save, tiny_model
from safetensors.torch import load_file, save_file
from test_families import gemma3, llama, qwen2
from transformers import PreTrainedModel

from inferx import ops
from inferx.errors import LoadError
from inferx.layers.linear import Linear
from inferx.layers.placement import Placement
from inferx.loader import open_checkpoint
from inferx.models import Model, build_model, dense
from inferx.models.weights import K_SCALES, V_SCALES

CPU = torch.device("cpu")


def load_dense(path: Path, dtype: torch.dtype) -> Model:
    checkpoint = open_checkpoint(path)
    try:
        return build_model(checkpoint, placement=Placement(CPU, dtype, dense=True))
    finally:
        checkpoint.close()


def projections(oracle: PreTrainedModel, layer: int) -> dict[str, torch.Tensor]:
    attention, mlp = oracle.model.layers[layer].self_attn, oracle.model.layers[layer].mlp
    return {
        "qkv": torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
        "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        "down": mlp.down_proj.weight,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("piece", [1, 200, dense.PIECE])
def test_values_are_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    monkeypatch.setattr(dense, "PIECE", piece)
    oracle = tiny_model(qwen2(), seed=1)
    model = load_dense(save(oracle, tmp_path), dtype)
    total = 0
    for index, layer in enumerate(model.layers):
        expected = projections(oracle, index)
        assert isinstance(layer.attention.qkv, Linear)
        assert isinstance(layer.mlp.gate_up, Linear)
        for name, linear in (
            ("qkv", layer.attention.qkv),
            ("gate_up", layer.mlp.gate_up),
            ("down", layer.mlp.down),
        ):
            assert isinstance(linear.weight, ops.DenseWeight)
            assert torch.equal(linear.weight.tensor, expected[name].to(dtype))
            total += linear.weight.nbytes
        attention = oracle.model.layers[index].self_attn
        bias = torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
        assert layer.attention.qkv.bias is not None
        assert torch.equal(layer.attention.qkv.bias, bias.to(dtype))
        norm = layer.attention_norm.weight
        assert norm.dtype == torch.float32
        assert torch.equal(norm, oracle.model.layers[index].input_layernorm.weight)
        total += layer.attention.output.weight.nbytes + bias.numel() * dtype.itemsize + 2 * norm.nbytes
    total += model.norm.weight.nbytes + 2 * oracle.lm_head.weight.numel() * dtype.itemsize
    assert model.weight_bytes == total


def test_quantised_weights_are_dequantised(tmp_path: Path) -> None:
    """As the packed weight has it, bit for bit, and pieces of one layer may be of several types."""
    oracle = tiny_model(gemma3(intermediate_size=96, hidden_size=64, head_dim=32), seed=2)

    def type_of(name: str) -> str:
        return "Q8_0" if "k_proj" in name or "down" in name else "Q4_0" if "gate" in name else "F32"

    path = write_gguf(oracle, tmp_path / "m.gguf", "gemma3", type_of)
    checkpoint = open_checkpoint(path)
    model = load_dense(path, torch.float32)
    for index, layer in enumerate(model.layers):
        for name, part in zip("qkv", layer.attention.qkv.weight.tensor.split([128, 64, 64]), strict=True):
            raw = checkpoint.read(f"model.layers.{index}.self_attn.{name}_proj.weight")
            packed = ops.pack_weight(raw.data, raw.info.dtype, raw.info.shape)
            assert torch.equal(part, packed.dequantize())
        assert layer.mlp.down.weight.dtype == "F32"
    checkpoint.close()


def test_overflow_is_refused(tmp_path: Path) -> None:
    oracle = tiny_model(llama(), seed=3)
    oracle.model.layers[1].mlp.up_proj.weight.data[3, 5] = 70000.0
    path = save(oracle, tmp_path)
    load_dense(path, torch.bfloat16)
    with pytest.raises(LoadError, match=r"layers\.1\.mlp\.up_proj.* 1 of .*float16's range"):
        load_dense(path, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_over_a_dense_weight(dtype: torch.dtype, with_bias: bool) -> None:
    weight = ops.DenseWeight(torch.randn(7, 12).to(dtype))
    bias = torch.randn(7).to(dtype) if with_bias else None
    for rows in (0, 1, 5):
        x = torch.randn(rows, 20).to(dtype)[:, 3:15]
        exact = x.double() @ weight.tensor.double().t() + (0 if bias is None else bias.double())
        wide = torch.full((rows, 10), 7.0, dtype=dtype)
        for actual in (ops.linear(x, weight, bias), ops.linear(x, weight, bias, out=wide[:, 2:9])):
            torch.testing.assert_close(
                actual.double(), exact, rtol=2**-7, atol=2**-7 if dtype.itemsize == 2 else 1e-5
            )
        assert (wide[:, [0, 1, 9]] == 7).all()


@pytest.mark.parametrize(
    ("x", "out", "name"),
    [
        (torch.zeros(3, 11), None, "x: expected torch.float32 .*12"),
        (torch.zeros(3, 12, dtype=torch.bfloat16), None, "x: expected torch.float32"),
        (torch.zeros(3, 12), torch.zeros(3, 8), r"out: expected torch.float32 \[3, 7\]"),
        (torch.zeros(3, 12), torch.zeros(2, 7), r"out: expected torch.float32 \[3, 7\]"),
        (torch.zeros(3, 12), torch.zeros(3, 7, dtype=torch.bfloat16), "out: expected torch.float32"),
    ],
)
def test_linear_over_a_dense_weight_refuses(x: torch.Tensor, out: torch.Tensor | None, name: str) -> None:
    with pytest.raises(ValueError, match=f"linear: {name}"):
        ops.linear(x, ops.DenseWeight(torch.zeros(7, 12)), out=out)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(3), torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 8)[:, ::2]]
)
def test_what_is_no_dense_weight(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="DenseWeight: tensor: expected a contiguous"):
        ops.DenseWeight(tensor)


def with_scales(directory: Path, scales: dict[str, torch.Tensor]) -> Path:
    path = save(tiny_model(llama(), seed=4), directory) / "model.safetensors"
    save_file({**load_file(path), **scales}, path, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("names", list(zip(K_SCALES, V_SCALES, strict=True)))
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_scales_of_a_float8_cache(tmp_path: Path, names: tuple[str, str], shape: tuple[int, ...]) -> None:
    """Read where the cache is float8, harmless where it is not; a layer without any has none."""
    prefix = "model.layers.1.self_attn"
    tensors = {f"{prefix}.{name}": torch.full(shape, 0.5 + i) for i, name in enumerate(names)}
    checkpoint = open_checkpoint(with_scales(tmp_path, tensors))
    where = Placement(CPU, torch.bfloat16, dense=True)
    layers = build_model(checkpoint, placement=where, float8_cache=True).layers
    expected = torch.Size(shape or (1,)).numel()
    key, value = layers[1].attention.scales.key, layers[1].attention.scales.value
    assert key is not None
    assert value is not None
    assert key.dtype == value.dtype == torch.float32
    assert key.tolist() == [0.5] * expected
    assert value.tolist() == [1.5] * expected
    assert layers[0].attention.scales.key is None
    for options in ({"placement": where}, {}):
        assert build_model(checkpoint, **options).layers[1].attention.scales.key is None
    checkpoint.close()


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(3), r"shape \[3\], expected one scale or 2"),
        (torch.tensor(0.0), "expected scales above 0"),
        (torch.tensor([1.0, torch.nan]), "expected finite values"),
    ],
)
def test_odd_scales_are_refused(tmp_path: Path, scale: torch.Tensor, message: str) -> None:
    name = "model.layers.0.self_attn.v_scale"
    checkpoint = open_checkpoint(with_scales(tmp_path, {name: scale}))
    with pytest.raises(LoadError, match=rf"{name}.*{message}"):
        build_model(checkpoint, placement=Placement(CPU, torch.bfloat16, dense=True), float8_cache=True)
    checkpoint.close()
