"""Tensors of mixtures of experts from Hugging Face directories, in every layout that transformers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import moe_models
import pytest
import torch
from safetensors.torch import load_file, save_file

from inferx.errors import LoadError
from inferx.loader import Checkpoint, open_checkpoint
from inferx.loader.hf import HFCheckpoint


def save(name: str, folder: Path, original: bool = True, **changes: Any) -> dict[str, torch.Tensor]:
    """original: the layout of the hub's files, one tensor per expert; else the modules' own stacks."""
    model = moe_models.build(name, **changes)
    model.save_pretrained(folder, save_original_format=original)
    return moe_models.canonical_tensors(model)


def check(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert set(checkpoint.tensors) == set(expected)
    for name, value in expected.items():
        raw = checkpoint.read(name)
        assert raw.info.shape == tuple(value.shape) == tuple(raw.data.shape), name
        assert raw.data.is_contiguous()
        assert torch.equal(raw.data, value), name


def rewrite(folder: Path, change: Any) -> None:
    """change: called with the dict of all stored tensors, returns another."""
    path = folder / "model.safetensors"
    save_file({name: value.contiguous() for name, value in change(load_file(path)).items()}, path)


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("name", list(moe_models.CONFIGS))
def test_every_tensor_is_the_modules(name: str, original: bool, tmp_path: Path) -> None:
    expected = save(name, tmp_path, original)
    stored = load_file(tmp_path / "model.safetensors")
    stacked = any(key.endswith("experts.down_proj") for key in stored)
    assert stacked == (not original or name == "gpt_oss")
    check(open_checkpoint(tmp_path), expected)


def test_rows_in_halves_stay(tmp_path: Path) -> None:
    """rope_interleave false: stored as models want them."""
    model = moe_models.build("deepseek_v3", rope_interleave=False)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    for leaf in ("q_b_proj.weight", "kv_a_proj_with_mqa.weight"):
        name = f"model.layers.1.self_attn.{leaf}"
        assert torch.equal(checkpoint.read(name).data, model.state_dict()[name])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_stays(kind: torch.dtype, tmp_path: Path) -> None:
    expected = save("gpt_oss", tmp_path)
    rewrite(tmp_path, lambda stored: {name: value.to(kind) for name, value in stored.items()})
    check(open_checkpoint(tmp_path), {name: value.to(kind) for name, value in expected.items()})


@pytest.mark.parametrize("value", ["no", 0])
def test_an_order_of_rows_that_nobody_knows(value: Any, tmp_path: Path) -> None:
    save("deepseek_v3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_interleave": value}))
    with pytest.raises(LoadError, match=f"rope_interleave: expected true or false, got {value}"):
        open_checkpoint(tmp_path)


def mapped_range(checkpoint: HFCheckpoint, stored: str) -> tuple[int, int]:
    """Addresses of a stored tensor in memory."""
    file, name = checkpoint._stored[stored]
    data = file.read(name)
    return data.data_ptr(), data.data_ptr() + data.nbytes


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_an_expert_is_read_where_it_lies(name: str, original: bool, tmp_path: Path) -> None:
    save(name, tmp_path, original)
    checkpoint = HFCheckpoint(tmp_path)
    for canonical, source in checkpoint._sources.items():
        if ".mlp.experts." in canonical:
            start, end = mapped_range(checkpoint, source.stored)
            data = checkpoint.read(canonical).data
            assert start <= data.data_ptr()
            assert data.data_ptr() + data.nbytes <= end


def test_a_transposed_expert_is_copied_alone(tmp_path: Path) -> None:
    save("gpt_oss", tmp_path)
    data = HFCheckpoint(tmp_path).read("model.layers.0.mlp.experts.3.gate_proj.weight").data
    assert data.untyped_storage().nbytes() == 32 * 64 * 4


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    expected = save("deepseek_v3", tmp_path)

    def with_layer(index: int) -> Any:
        extra = {f"model.layers.{index}.eh_proj.weight": torch.zeros(2, 2)}
        return lambda stored: {**stored, **extra}

    rewrite(tmp_path, with_layer(3))
    check(open_checkpoint(tmp_path), expected)
    rewrite(tmp_path, with_layer(4))  # one more than the configuration says: for the model to refuse
    assert "model.layers.4.eh_proj.weight" in open_checkpoint(tmp_path).tensors


def test_a_bare_decoder_gets_its_prefix(tmp_path: Path) -> None:
    expected = save("mixtral", tmp_path)
    rewrite(tmp_path, lambda stored: {name.removeprefix("model."): value for name, value in stored.items()})
    check(open_checkpoint(tmp_path), expected)


STACKS = [
    ("mixtral", "gate_up_proj", r"expected shape \[5, 192, 64\] for 5 experts, got \[4, 192, 64\]"),
    ("qwen2_moe", "down_proj", r"expected shape \[5, 64, 32\] for 5 experts, got \[4, 64, 32\]"),
    ("gpt_oss", "gate_up_proj", r"expected shape \[5, 64, 64\] for 5 experts, got \[4, 64, 64\]"),
    ("gpt_oss", "gate_up_proj_bias", r"expected shape \[5, 64\] for 5 experts, got \[4, 64\]"),
    ("gpt_oss", "down_proj", r"expected shape \[5, 32, 64\] for 5 experts, got \[4, 32, 64\]"),
]


@pytest.mark.parametrize(("name", "leaf", "message"), STACKS)
def test_stacks_of_another_size_are_named(name: str, leaf: str, message: str, tmp_path: Path) -> None:
    save(name, tmp_path, original=False)
    stack = f"model.layers.2.mlp.experts.{leaf}"
    rewrite(tmp_path, lambda stored: {**stored, stack: stored[stack][:4]})
    with pytest.raises(LoadError, match=rf"model\.safetensors: tensor {stack}: {message}"):
        open_checkpoint(tmp_path)


def test_rotary_rows_of_another_size_are_named(tmp_path: Path) -> None:
    save("deepseek_v3", tmp_path)
    for leaf, message in (
        ("q_b_proj", r"expected 4 heads of 24 rows, got shape \[95, 32\]"),
        ("kv_a_proj_with_mqa", r"expected 1 heads of 40 rows, got shape \[39, 64\]"),
    ):
        name = f"model.layers.0.self_attn.{leaf}.weight"
        whole = load_file(tmp_path / "model.safetensors")[name]
        rewrite(tmp_path, lambda stored, name=name: {**stored, name: stored[name][:-1]})
        with pytest.raises(LoadError, match=rf"tensor {name}: {message}"):
            open_checkpoint(tmp_path)
        rewrite(tmp_path, lambda stored, name=name, whole=whole: {**stored, name: whole})


def test_an_expert_twice_is_refused(tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path, original=False)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    rewrite(tmp_path, lambda stored: {**stored, name: torch.zeros(32, 64)})
    with pytest.raises(LoadError, match=rf"tensor {name} occurs twice"):
        open_checkpoint(tmp_path)


def test_quantised_experts_are_refused(tmp_path: Path) -> None:
    save("gpt_oss", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"x": 1}}))
    with pytest.raises(LoadError, match="quantised safetensors are not supported"):
        open_checkpoint(tmp_path)
