"""Mixtures of experts from GGUF files, end to end: transformers with the weights that the file holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_metadata import MOE_ARCHITECTURES
from gguf_tensors import Layout
from gguf_writer import round_to_blocks, write_gguf
from model_harness import check_against_oracle, load, prompt, tiny_model
from moe_configs import GROUPS, deepseek_v2, deepseek_v3, gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe
from transformers import PretrainedConfig

from inferx.layers.moe import MoE

# Whole blocks of 32 in every row.
WIDE = {"hidden_size": 64, "intermediate_size": 64}
EXPERTS = {**WIDE, "moe_intermediate_size": 32}
LATENT = {**EXPERTS, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}

FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": lambda: mixtral(**WIDE),
    "qwen2-moe": lambda: qwen2_moe(**EXPERTS, shared_expert_intermediate_size=96),
    "qwen3-moe": lambda: qwen3_moe(**EXPERTS, norm_topk_prob=True, head_dim=32),
    "olmoe": lambda: olmoe(**WIDE),
    "deepseek-v2": lambda: deepseek_v2(**{**LATENT, "q_lora_rank": None}, **GROUPS),
    "deepseek-v3": lambda: deepseek_v3(**LATENT),
    "gpt-oss": lambda: gpt_oss(**WIDE, head_dim=32),
}


def mixed(name: str) -> str:
    """As real files: another type for the down projections, and for gate than for up."""
    if "down_proj" in name:
        return "Q8_0"
    if ".experts." in name and "gate_proj" in name:
        return "Q5_1"
    return "Q4_0"


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "mixed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_matches_transformers(name: str, kind: str, tmp_path: Path) -> None:
    check(FAMILIES[name](), tmp_path, mixed if kind == "mixed" else lambda tensor: kind)


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3"])
def test_older_layouts(name: str, tmp_path: Path) -> None:
    """Experts one by one, and keys and values of latent attention in one matrix."""
    check(FAMILIES[name](), tmp_path, mixed, Layout(one_by_one=True, kv_b=True))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_super_blocks(kind: str, tmp_path: Path) -> None:
    """Blocks of 256, the types that most files have."""
    config = mixtral(hidden_size=256, intermediate_size=256, num_local_experts=3, num_hidden_layers=1)
    check(config, tmp_path, lambda name: kind if "experts" in name else "Q8_0")


def test_gpt_oss_as_published(tmp_path: Path) -> None:
    """Experts in MXFP4."""
    config = FAMILIES["gpt-oss"]()
    check(config, tmp_path, lambda name: "MXFP4" if ".experts." in name else "Q8_0")


def check(
    config: PretrainedConfig,
    tmp_path: Path,
    matrix_type: Callable[[str], str],
    layout: Layout | None = None,
) -> None:
    def type_of(name: str) -> str:
        # gpt-oss's biases are stacked too.
        return "F32" if name.endswith("bias") else matrix_type(name)

    oracle = tiny_model(config, seed=3)
    architecture = MOE_ARCHITECTURES[config.model_type]
    blocks = round_to_blocks(oracle, architecture, type_of, layout)
    model = load(write_gguf(oracle, tmp_path / "m.gguf", architecture, type_of, layout, blocks))
    mlp = model.layers[-1].mlp
    assert isinstance(mlp, MoE)
    # They stay as the file has them.
    part = "model.layers.0.mlp.experts.{}_proj.weight"
    gate, up, down = (type_of(part.format(name)) for name in ("gate", "up", "down"))
    assert (*mlp.experts.w13.dtypes, *mlp.experts.w2.dtypes) == (gate, up, down)  # type: ignore[union-attr]
    check_against_oracle(oracle, model, prompt(45))


@pytest.mark.parametrize(
    "config",
    [deepseek_v3(**LATENT, first_k_dense_replace=99), qwen2_moe(**EXPERTS, mlp_only_layers=list(range(9)))],
    ids=["deepseek-v3", "qwen2-moe"],
)
def test_only_plain_layers(config: PretrainedConfig, tmp_path: Path) -> None:
    """Metadata that counts experts, and no layer that has any."""
    oracle = tiny_model(config, seed=3)
    architecture = MOE_ARCHITECTURES[config.model_type]
    model = load(write_gguf(oracle, tmp_path / "m.gguf", architecture))
    assert not any(isinstance(layer.mlp, MoE) for layer in model.layers)
    check_against_oracle(oracle, model, prompt(45))
