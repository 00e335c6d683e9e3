"""Loading of experts and of latent attention: stacks hold the checkpoint's values, in the bytes that were
planned; what is missing, misshapen or of mixed types ends with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf_metadata import MOE_ARCHITECTURES
from gguf_tensors import Layout
from gguf_writer import write_gguf
from model_harness import load, save, tiny_model
from moe_configs import CASES, deepseek_v3, gpt_oss, mixtral, qwen2_moe
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from inferx import ops
from inferx.engine.device_memory import dense_weight_bytes
from inferx.engine.memory import packed_weight_bytes
from inferx.errors import LoadError
from inferx.layers.mla import LatentAttention
from inferx.layers.moe import MoE
from inferx.layers.placement import Placement
from inferx.loader import RawTensor, open_checkpoint
from inferx.models import Model, build_model

CPU = torch.device("cpu")
ROUTER = "model.layers.0.block_sparse_moe.gate.weight"
FAMILIES = ["mixtral", "qwen2-moe-dense-layers", "deepseek-v2-plain-query", "deepseek-v3", "gpt-oss"]


def load_dense(path: Path, dtype: torch.dtype) -> Model:
    checkpoint = open_checkpoint(path)
    try:
        return build_model(checkpoint, placement=Placement(CPU, dtype, dense=True))
    finally:
        checkpoint.close()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_packed_bytes_are_those_planned(name: str, dtype: str, tmp_path: Path) -> None:
    config = CASES[name]()
    # Pieces of one layer are packed together, which makes no difference for whole tiles.
    config.vocab_size = 256
    if "dense" in name or "deepseek" in name:
        config.intermediate_size, config.moe_intermediate_size = 64, 48
    checkpoint = open_checkpoint(save(tiny_model(config), tmp_path))
    model = build_model(checkpoint, dtype)
    assert packed_weight_bytes(checkpoint, dtype) == model.weight_bytes
    checkpoint.close()


@pytest.mark.parametrize("kv_b", [False, True])
def test_packed_bytes_of_a_quantised_file(kv_b: bool, tmp_path: Path) -> None:
    oracle = tiny_model(quantisable())
    checkpoint = open_checkpoint(quantised(oracle, tmp_path / "m.gguf", Layout(kv_b=kv_b)))
    model = build_model(checkpoint)
    assert packed_weight_bytes(checkpoint, "auto") == model.weight_bytes
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttention)
    # What is transposed at load has no type of blocks any more.
    assert attention.w_uk.weight.dtypes == (("F32",) if kv_b else ("Q8_0",))  # type: ignore[union-attr]
    assert attention.w_uv.weight.dtypes == ("Q8_0",)  # type: ignore[union-attr]
    checkpoint.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_dense_bytes_are_those_planned(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path = save(tiny_model(CASES[name]()), tmp_path)
    checkpoint = open_checkpoint(path)
    assert dense_weight_bytes(checkpoint, dtype.itemsize) == load_dense(path, dtype).weight_bytes
    checkpoint.close()


@pytest.mark.parametrize("dense", [False, True])
def test_stacks_hold_the_experts(dense: bool, tmp_path: Path) -> None:
    oracle = tiny_model(mixtral(num_local_experts=5), seed=3)
    path = save(oracle, tmp_path)
    model = load_dense(path, torch.float32) if dense else load(path)
    for layer, expected in zip(model.layers, oracle.model.layers, strict=True):
        assert isinstance(layer.mlp, MoE)
        experts = expected.mlp.experts
        for weight, value in (
            (layer.mlp.experts.w13, experts.gate_up_proj),
            (layer.mlp.experts.w2, experts.down_proj),
        ):
            for e in range(5):
                actual = weight.dequantize(e) if isinstance(weight, ops.PackedExperts) else weight[e]
                assert torch.equal(actual, value[e])


def test_parts_of_different_types(tmp_path: Path) -> None:
    """gate, up and down each have a type; all experts of a stack share it."""

    def type_of(name: str) -> str:
        return {"gate": "Q4_0", "up_p": "Q8_0", "down": "Q5_1"}.get(name.rpartition("experts.")[2][:4], "F32")

    config = mixtral(hidden_size=64, intermediate_size=96)
    path = write_gguf(tiny_model(config), tmp_path / "m.gguf", MOE_ARCHITECTURES["mixtral"], type_of)
    experts = load(path).layers[0].mlp.experts  # type: ignore[attr-defined]
    assert experts.w13.dtypes == ("Q4_0", "Q8_0")
    assert experts.w2.dtypes == ("Q5_1",)


def quantisable() -> object:
    return deepseek_v3(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, n_shared_experts=2, q_lora_rank=32,
        kv_lora_rank=32, qk_nope_head_dim=32, v_head_dim=32, vocab_size=256,
    )  # fmt: skip


def quantised(oracle: PreTrainedModel, path: Path, layout: Layout | None = None) -> Path:
    architecture = MOE_ARCHITECTURES[oracle.config.model_type]
    return write_gguf(oracle, path, architecture, lambda name: "Q8_0", layout)


def edited(
    oracle: PreTrainedModel, directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]
) -> Path:
    """Experts one by one, as older files have them."""
    path = save(oracle, directory) / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})
    return directory


def one_of(tensors: dict[str, torch.Tensor], part: str) -> str:
    names = [name for name in tensors if "layers.1" in name and ".experts.3." in name and part in name]
    assert len(names) == 1, names
    return names[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(one_of(t, "w2")), r"layers\.1\.mlp\.experts\.3\.down_proj\.weight is missing"),
        (
            lambda t: t.update({one_of(t, "w1"): torch.ones(71, 64)}),
            r"layers\.1\.mlp\.experts\.3\.gate_proj\.weight has shape \[71, 64\].*\[72, 64\]",
        ),
        (
            lambda t: t.update({one_of(t, "w3").replace(".3.", ".8."): torch.ones(72, 64)}),
            r"layers\.1\.mlp\.experts\.8\.up_proj\.weight",
        ),
        (lambda t: t.pop(ROUTER), r"layers\.0\.mlp\.gate\.weight is missing"),
        (
            lambda t: t.update({one_of(t, "w3"): torch.ones(72, 64, dtype=torch.bfloat16)}),
            r"experts\.3\.up_proj\.weight is BF16, but .*experts\.0\.up_proj\.weight is F32.*one type",
        ),
    ],
)  # fmt: skip
def test_damaged_experts(
    edit: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path
) -> None:
    """Found before anything is read."""
    path = edited(tiny_model(mixtral()), tmp_path, edit)
    checkpoint = open_checkpoint(path)
    read: list[int] = []
    with pytest.raises(LoadError, match=message):
        build_model(checkpoint, progress=read.append)
    assert read == []
    checkpoint.close()


def test_experts_of_mixed_types_on_a_device_or_converted(tmp_path: Path) -> None:
    def mix(tensors: dict[str, torch.Tensor]) -> None:
        name = one_of(tensors, "w3")
        tensors[name] = tensors[name].bfloat16()

    path = edited(tiny_model(mixtral()), tmp_path, mix)
    load_dense(path, torch.bfloat16)
    assert load(path, dtype="bfloat16").layers[1].mlp.experts.w13.dtypes == ("BF16", "BF16")  # type: ignore[attr-defined]


def test_biases_and_sinks(tmp_path: Path) -> None:
    oracle = tiny_model(gpt_oss(), seed=4)
    path = save(oracle, tmp_path)
    for model, dtype in ((load(path), torch.float32), (load_dense(path, torch.bfloat16), torch.bfloat16)):
        layer, expected = model.layers[0], oracle.model.layers[0]
        experts, theirs = layer.mlp.experts, expected.mlp.experts  # type: ignore[attr-defined]
        gate_up = torch.cat([theirs.gate_up_proj_bias[:, ::2], theirs.gate_up_proj_bias[:, 1::2]], dim=1)
        assert torch.equal(experts.w13_bias, gate_up.to(dtype))
        assert torch.equal(experts.w2_bias, theirs.down_proj_bias.to(dtype))
        sinks = layer.attention.sinks.values  # type: ignore[attr-defined]
        assert sinks.dtype == torch.float32
        assert torch.equal(sinks, expected.self_attn.sinks)


def test_a_router_in_float32_on_a_device(tmp_path: Path) -> None:
    for config, dtype in ((deepseek_v3(), torch.float32), (qwen2_moe(), torch.bfloat16)):
        path = save(tiny_model(config), tmp_path / config.model_type)
        gate = load_dense(path, torch.bfloat16).layers[1].mlp.router.gate  # type: ignore[attr-defined]
        assert gate.weight.tensor.dtype == dtype


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3", "gpt-oss"])
def test_progress_counts_stored_bytes(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(tiny_model(CASES[name]()), tmp_path))
    seen: list[int] = []
    build_model(checkpoint, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == checkpoint.weight_bytes
    checkpoint.close()


def test_one_expert_in_memory_at_a_time(tmp_path: Path) -> None:
    """The largest tensor read for a stack is one part of one expert."""
    checkpoint = open_checkpoint(save(tiny_model(gpt_oss()), tmp_path))
    read, sizes = checkpoint.read, []

    def counted(name: str) -> RawTensor:
        raw = read(name)
        if ".experts." in name:
            sizes.append(raw.data.numel())
        return raw

    checkpoint.read = counted  # type: ignore[method-assign]
    build_model(checkpoint)
    assert max(sizes) == 40 * 64
    checkpoint.close()
