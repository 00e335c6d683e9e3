"""gpt-oss with its experts in MXFP4, from both kinds of files, against transformers with the dequantised
weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_writer import round_to_blocks, write_gguf
from model_harness import check_against_oracle, load, prompt, tiny_model
from moe_configs import gpt_oss
from mxfp4_files import save_mxfp4
from transformers import GptOssConfig, PreTrainedModel

from inferx.loader import open_checkpoint
from inferx.models import Model, dense


def config() -> GptOssConfig:
    return gpt_oss(intermediate_size=96, num_local_experts=7, num_experts_per_tok=3)


def type_of(name: str) -> str:
    return "MXFP4" if ".experts." in name and name.endswith(".weight") else "F32"


def save_gguf(model: PreTrainedModel, folder: Path) -> Path:
    """The model gets the values of the file."""
    blocks = round_to_blocks(model, "gpt-oss", type_of)
    return write_gguf(model, folder / "m.gguf", "gpt-oss", type_of, blocks=blocks)


SAVE = {"safetensors": save_mxfp4, "gguf": save_gguf}


def expert_bytes(model: Model) -> int:
    stacks = [layer.mlp.experts for layer in model.layers]
    return sum(weight.nbytes for stack in stacks for weight in (stack.w13, stack.w2))


@pytest.mark.parametrize("file", SAVE)
def test_matches_transformers(file: str, tmp_path: Path) -> None:
    oracle = tiny_model(config(), seed=1)
    model = load(SAVE[file](oracle, tmp_path))
    check_against_oracle(oracle, model, prompt(61, seed=1))
    elements = 2 * 7 * 3 * 96 * 64
    assert elements * 17 / 32 <= expert_bytes(model) < elements * 0.6  # still quantised


@pytest.mark.parametrize("file", SAVE)
def test_on_a_device_the_experts_are_dequantised(file: str, tmp_path: Path) -> None:
    oracle = tiny_model(config(), seed=1)
    checkpoint = open_checkpoint(SAVE[file](oracle, tmp_path))
    experts = oracle.model.layers[1].mlp.experts
    for expert in range(7):
        expected = {
            "gate": experts.gate_up_proj[expert, :, 0::2].T,
            "up": experts.gate_up_proj[expert, :, 1::2].T,
            "down": experts.down_proj[expert].T,
        }
        for part, value in expected.items():
            raw = checkpoint.read(f"model.layers.1.mlp.experts.{expert}.{part}_proj.weight")
            for dtype in (torch.float32, torch.bfloat16):
                target = torch.empty(value.shape, dtype=dtype)
                dense.fill(target, raw)
                assert torch.equal(target, value.to(dtype))
