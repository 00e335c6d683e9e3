"""gpt-oss as it is published: its experts as blocks of MXFP4, against transformers' own dequantisation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import moe_models
import pytest
import torch
from mxfp4_files import QUANTIZATION, save_mxfp4
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from inferx import ops
from inferx.errors import LoadError
from inferx.loader import mxfp4, open_checkpoint
from inferx.loader.hf import HFCheckpoint

STACK = "model.layers.1.mlp.experts"


def save(folder: Path) -> PreTrainedModel:
    """The float model of the same values."""
    model = moe_models.build("gpt_oss")
    save_mxfp4(model, folder)
    return model


def rewrite(folder: Path, change: Any) -> None:
    """change: called with the dict of all stored tensors, returns another."""
    path = folder / "model.safetensors"
    save_file({name: value.contiguous() for name, value in change(load_file(path)).items()}, path)


def test_every_scale_and_code() -> None:
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(256, (255, 3, 16), generator=generator).byte()
    blocks[:, 0] = torch.arange(16).byte() | torch.arange(15, -1, -1).byte() << 4
    scales = torch.arange(255).byte()[:, None].expand(255, 3).contiguous()
    rows = mxfp4.ggml_rows(blocks, scales, "x")
    values = ops.pack_weight(rows, "MXFP4", (255, 96)).dequantize()
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    # The negative zero is a zero as any other in GGML.
    assert torch.equal(values.view(torch.int32), (expected + 0.0).contiguous().view(torch.int32))


def test_every_tensor_is_the_modules(tmp_path: Path) -> None:
    expected = moe_models.canonical_tensors(save(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == set(expected)
    quantised = 0
    for name, value in expected.items():
        raw = checkpoint.read(name)
        assert raw.info.shape == tuple(value.shape), name
        assert raw.data.is_contiguous()
        data = raw.data
        if ".mlp.experts." in name and name.endswith(".weight"):
            assert (raw.info.dtype, raw.data.dtype) == ("MXFP4", torch.uint8)
            data = ops.pack_weight(raw.data, "MXFP4", tuple(value.shape)).dequantize()
            quantised += 1
        assert torch.equal(data, value), name
    assert quantised == 3 * 5 * 3


def test_shards_and_a_bare_decoder(tmp_path: Path) -> None:
    """The halves of a tensor in two files, without the prefix of the model around them."""
    expected = moe_models.canonical_tensors(save(tmp_path))
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = {name: f"model-0000{1 + name.endswith('_scales')}-of-00002.safetensors" for name in stored}
    for file in set(names.values()):
        part = {n.removeprefix("model."): value for n, value in stored.items() if names[n] == file}
        save_file(part, tmp_path / file)
    index = {"weight_map": {name.removeprefix("model."): file for name, file in names.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.tensors) == set(expected)
    name = f"{STACK}.4.up_proj.weight"
    data = ops.pack_weight(checkpoint.read(name).data, "MXFP4", (32, 64)).dequantize()
    assert torch.equal(data, expected[name])


def test_an_expert_is_copied_alone(tmp_path: Path) -> None:
    save(tmp_path)
    data = HFCheckpoint(tmp_path).read(f"{STACK}.3.gate_proj.weight").data
    assert data.untyped_storage().nbytes() == 32 * 2 * 17


def test_weight_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).weight_bytes == sum(value.nbytes for value in stored.values())


def test_modules_that_were_not_converted(tmp_path: Path) -> None:
    """Which they are shows in the tensors, whatever the configuration lists."""
    model = save(tmp_path)
    name = f"{STACK}.down_proj"

    def as_floats(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {key: value for key, value in stored.items() if not key.startswith(name + "_")}
        bias = {f"{name}_bias": stored[f"{name}_bias"]}
        return kept | bias | {name: model.state_dict()[name]}

    rewrite(tmp_path, as_floats)
    checkpoint, expected = open_checkpoint(tmp_path), moe_models.canonical_tensors(model)
    assert set(checkpoint.tensors) == set(expected)
    for expert in range(5):
        canonical = f"{STACK}.{expert}.down_proj.weight"
        assert torch.equal(checkpoint.read(canonical).data, expected[canonical])


# ---- what is refused

DAMAGED = [
    (
        "gate_up_proj_blocks",
        lambda t: t[:4],
        r"expected shape \[5, 64, 2, 16\] for 5 experts, got \[4, 64, 2, 16\]",
    ),
    (
        "gate_up_proj_blocks",
        lambda t: t[..., :15],
        r"expected shape \[5, 64, 2, 16\] for 5 experts, got \[5, 64, 2, 15",
    ),
    (
        "gate_up_proj_blocks",
        lambda t: t.flatten(2),
        r"expected shape \[5, 64, 2, 16\] for 5 experts, got \[5, 64, 32\]",
    ),
    ("gate_up_proj_blocks", lambda t: t.view(torch.int8), "expected dtype U8, got I8"),
    (
        "down_proj_blocks",
        lambda t: t[:, :63],
        r"expected shape \[5, 64, 1, 16\] for 5 experts, got \[5, 63, 1, 16\]",
    ),
    (
        "down_proj_scales",
        lambda t: t[:, :63],
        rf"expected shape \[5, 64, 1\] for {STACK}.down_proj_blocks, got \[5, 63",
    ),
    ("down_proj_scales", lambda t: t.float(), "expected dtype U8, got F32"),
    ("down_proj_bias", lambda t: t[:, :63], r"expected shape \[5, 64\] for 5 experts, got \[5, 63\]"),
]


@pytest.mark.parametrize(("leaf", "change", "message"), DAMAGED)
def test_damaged_halves_are_named(leaf: str, change: Any, message: str, tmp_path: Path) -> None:
    save(tmp_path)
    name = f"{STACK}.{leaf}"
    rewrite(tmp_path, lambda stored: {**stored, name: change(stored[name])})
    with pytest.raises(LoadError, match=rf"model\.safetensors: tensor {name}: {message}"):
        open_checkpoint(tmp_path)


def test_one_half_alone(tmp_path: Path) -> None:
    save(tmp_path)
    name = f"{STACK}.down_proj"
    whole = load_file(tmp_path / "model.safetensors")
    rewrite(tmp_path, lambda stored: {k: v for k, v in stored.items() if k != f"{name}_scales"})
    with pytest.raises(LoadError, match=rf"tensor {name}_blocks is there without {name}_scales"):
        open_checkpoint(tmp_path)
    rewrite(tmp_path, lambda stored: {k: v for k, v in whole.items() if k != f"{name}_blocks"})
    assert f"{name}_scales" in open_checkpoint(tmp_path).tensors  # for the model to refuse


def test_an_exponent_that_is_no_number(tmp_path: Path) -> None:
    save(tmp_path)
    name = f"{STACK}.gate_up_proj_scales"

    def damaged(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        stored[name][2, 7, 1] = 255  # row 3 of expert 2's ups
        return stored

    rewrite(tmp_path, damaged)
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.read(f"{STACK}.2.gate_proj.weight")
    with pytest.raises(LoadError, match=rf"tensor {name}: has the exponent 255"):
        checkpoint.read(f"{STACK}.2.up_proj.weight")


def test_floats_beside_blocks_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    name = f"{STACK}.gate_up_proj"
    rewrite(tmp_path, lambda stored: {**stored, name: torch.zeros(5, 64, 64)})
    with pytest.raises(LoadError, match=rf"tensor {STACK}\.0\.gate_proj\.weight occurs twice"):
        open_checkpoint(tmp_path)


def test_rows_of_a_part_of_a_block_are_refused(tmp_path: Path) -> None:
    model = moe_models.build("gpt_oss", intermediate_size=48)
    model.save_pretrained(tmp_path)
    blocks = {f"{STACK}.down_proj_blocks": torch.zeros(5, 64, 2, 16).byte()}
    rewrite(
        tmp_path, lambda stored: stored | blocks | {f"{STACK}.down_proj_scales": torch.zeros(5, 64, 2).byte()}
    )
    with pytest.raises(
        LoadError, match="down_proj_blocks: rows of 48 elements are no multiple of MXFP4's 32"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8"}, {"quant_method": ["mxfp4"]}, {"x": 1}, ["mxfp4"], "mxfp4"]
)
def test_other_methods_are_refused(quantization: Any, tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    with pytest.raises(
        LoadError, match=r"config\.json: quantization_config: quantised safetensors are not supp"
    ):
        open_checkpoint(tmp_path)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    moe_models.build("mixtral").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": QUANTIZATION}))
    with pytest.raises(LoadError, match="quant_method 'mxfp4' of mixtral; only 'mxfp4' of gpt_oss is"):
        open_checkpoint(tmp_path)
