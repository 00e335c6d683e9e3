"""Mixtures of experts and latent attention from GGUF files of every layout that converters have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import moe_models
import numpy as np
import pytest
import tiny_gguf
import torch
from gguf_metadata import MOE_ARCHITECTURES
from gguf_tensors import Layout
from gguf_writer import round_to_blocks, write_gguf
from transformers import PreTrainedModel

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig
from inferx.loader.gguf_checkpoint import GGUFCheckpoint
from inferx.loader.gguf_file import BLOCK_TYPES, GGUFFile
from inferx.loader.hf_config import model_config
from inferx.models import build_model

LAYOUTS = {"stacked": Layout(), "gate_up": Layout(gate_up=True), "old": Layout(one_by_one=True, kv_b=True)}

# No converter has written gpt-oss in any other way.
FILES = [
    (name, kind) for name in moe_models.CONFIGS for kind in LAYOUTS if name != "gpt_oss" or kind == "stacked"
]


def write(model: PreTrainedModel, folder: Path, layout: Layout | None = None) -> Path:
    architecture = MOE_ARCHITECTURES[model.config.model_type]
    return write_gguf(model, folder / "m.gguf", architecture, layout=layout)


def in_file(model: PreTrainedModel, layout: Layout) -> dict[str, torch.Tensor]:
    """The canonical tensors, with kv_b as the file has it."""
    config, result = model.config, {}
    for name, value in moe_models.canonical_tensors(model).items():
        if not name.endswith("kv_b_proj.weight") or layout.kv_b:
            result[name] = value
            continue
        heads = value.view(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = heads[:, : config.qk_nope_head_dim], heads[:, config.qk_nope_head_dim :]
        transposed = torch.cat([head.T for head in keys])
        result[name.replace("kv_b_proj", "k_b_proj")] = transposed
        result[name.replace("kv_b_proj", "v_b_proj")] = values.reshape(-1, config.kv_lora_rank)
    return result


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_every_tensor_is_the_modules(name: str, kind: str, tmp_path: Path) -> None:
    model, layout = moe_models.build(name), LAYOUTS[kind]
    checkpoint = GGUFCheckpoint(write(model, tmp_path, layout))
    expected = in_file(model, layout)
    assert set(checkpoint.tensors) == set(expected)
    for tensor, value in expected.items():
        raw = checkpoint.read(tensor)
        assert raw.info.shape == tuple(value.shape) == tuple(raw.data.shape), tensor
        assert torch.equal(raw.data, value), tensor


# What neither format's file decides, or GGUF does not say.
NOT_COMPARED = ("bos_token_id", "eos_token_ids", "rope", "query_pre_attn_scalar", "moe", "intermediate_size")


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_the_configuration_is_that_of_config_json(name: str, kind: str, tmp_path: Path) -> None:
    model = moe_models.build(name)
    config = GGUFCheckpoint(write(model, tmp_path, LAYOUTS[kind])).config
    expected = model_config(model.config.to_dict(), Path("config.json"))
    for field in ModelConfig.__dataclass_fields__:
        if field not in NOT_COMPARED:
            value, wanted = getattr(config, field), getattr(expected, field)
            assert value == pytest.approx(wanted) if type(wanted) is float else value == wanted, field
    assert config.intermediate_size == expected.intermediate_size
    assert config.query_pre_attn_scalar == pytest.approx(expected.query_pre_attn_scalar)
    for field in ("rope_type", "theta", "factor", "truncate", "original_max_position_embeddings"):
        if expected.rope.rope_type != "default":
            assert getattr(config.rope, field) == getattr(expected.rope, field), field
    assert config.rope.theta == expected.rope.theta
    assert config.rope.partial_rotary_factor == 1.0
    assert config.rope.mscale_all_dim == pytest.approx(expected.rope.mscale_all_dim)
    assert config.moe == expected.moe


def mapped_range(checkpoint: GGUFCheckpoint, stored: str) -> tuple[int, int]:
    data = checkpoint._file.read(stored)
    return data.data_ptr(), data.data_ptr() + data.nbytes


def wide(name: str) -> PreTrainedModel:
    """Rows of whole blocks of 256."""
    sizes: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 2}
    if name in ("mixtral", "olmoe", "gpt_oss"):
        sizes["intermediate_size"] = 256
    else:
        sizes |= {"moe_intermediate_size": 256}
    kind, options = moe_models.CONFIGS[name]
    model = moe_models.transformers.AutoModelForCausalLM.from_config(kind(**(options | sizes)))
    for value in model.state_dict().values():
        value.normal_(std=0.1)
    return model


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_quantised_stacks_are_read_expert_by_expert(name: str, kind: str, tmp_path: Path) -> None:
    model, architecture = wide(name), MOE_ARCHITECTURES[moe_models.CONFIGS[name][0].model_type]

    def type_of(tensor: str) -> str:
        return kind if ".experts." in tensor else "F32"

    blocks = round_to_blocks(model, architecture, type_of)
    path = write_gguf(model, tmp_path / "m.gguf", architecture, type_of, blocks=blocks)
    checkpoint, expected = GGUFCheckpoint(path), moe_models.canonical_tensors(model)
    type_id = gguf.GGMLQuantizationType[kind]
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    count = 0
    for tensor, value in expected.items():
        if ".mlp.experts." not in tensor or tensor.endswith(".bias"):
            continue
        raw, source = checkpoint.read(tensor), checkpoint._sources[tensor]
        assert (raw.info.dtype, raw.info.shape) == (kind, tuple(value.shape))
        assert np.array_equal(gguf.quants.dequantize(raw.data.numpy(), type_id), value.numpy())
        # The whole stack by the package's own reader.
        expert = int(tensor.split(".")[5])
        whole = gguf.quants.dequantize(reader[source.stored].data, type_id)
        assert np.array_equal(whole[expert], value.numpy())
        start, end = mapped_range(checkpoint, source.stored)
        assert start <= raw.data.data_ptr()
        assert raw.data.data_ptr() + raw.data.nbytes <= end
        count += 1
    assert count == 3 * checkpoint.config.moe.num_experts * sum(checkpoint.config.moe.layers)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K"])
def test_quantised_rotary_rows_change_places_whole(kind: str, tmp_path: Path) -> None:
    """q and kv_a of latent attention: what is stored in pairs comes in halves, still quantised."""
    model = wide("deepseek_v2")
    paired = ("q_proj.weight", "kv_a_proj_with_mqa.weight")

    def type_of(tensor: str) -> str:
        return kind if tensor.endswith(paired) else "F32"

    blocks = round_to_blocks(model, "deepseek2", type_of)
    path = write_gguf(model, tmp_path / "m.gguf", "deepseek2", type_of, blocks=blocks)
    checkpoint, expected = GGUFCheckpoint(path), moe_models.canonical_tensors(model)
    for leaf in paired:
        name = f"model.layers.1.self_attn.{leaf}"
        raw = checkpoint.read(name)
        assert raw.info.dtype == kind
        values = gguf.quants.dequantize(raw.data.numpy(), gguf.GGMLQuantizationType[kind])
        assert np.array_equal(values, expected[name].numpy())


# ---- what files say and leave out


def rewrite(
    path: Path, change: Any, leave: Any = lambda name: False, cut: Any = lambda name, data: data
) -> Path:
    """The same file with other metadata (change: called with {key: value}), without some tensors, or with
    others."""
    file = GGUFFile(path)
    metadata = {key: value for key, value in file.metadata.items() if not key.startswith("general.")}
    change(metadata)
    target = path.with_name("changed.gguf")
    writer = gguf.GGUFWriter(target, file.metadata["general.architecture"])
    adders = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}
    for key, value in metadata.items():
        if type(value) in adders:
            getattr(writer, adders[type(value)])(key, value)
    for name in file.tensors:
        if not leave(name):
            writer.add_tensor(name, np.ascontiguousarray(cut(name, file.read(name).numpy())))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(moe_models.build(name), tmp_path_factory.mktemp(name)) for name in moe_models.CONFIGS}


def config_with(path: Path, **changes: Any) -> ModelConfig:
    """Keys below the architecture's prefix, dots as two underscores; None takes one away."""
    prefix = GGUFFile(path).metadata["general.architecture"]

    def change(metadata: dict[str, Any]) -> None:
        for key, value in changes.items():
            name = f"{prefix}.{key.replace('__', '.')}"
            metadata.pop(name, None)
            if value is not None:
                metadata[name] = value

    return GGUFCheckpoint(rewrite(path, change)).config


def test_what_absent_keys_mean(files: dict[str, Path]) -> None:
    for name, norm in {"mixtral": True, "qwen2_moe": False, "qwen3_moe": True, "olmoe": False}.items():
        config = config_with(files[name], expert_weights_norm=None, expert_feed_forward_length=None)
        assert config.moe is not None
        assert config.moe.renormalize == norm
        assert config.moe.intermediate_size == (96 if name == "mixtral" else 32)
    bare = config_with(
        files["deepseek_v3"],
        expert_gating_func=None,
        expert_weights_norm=None,
        expert_weights_scale=None,
        expert_group_count=None,
        expert_group_used_count=None,
        rope__scaling__yarn_log_multiplier=None,
    )
    assert bare.architecture == "deepseek_v2"
    assert bare.query_pre_attn_scalar is None
    assert bare.moe is not None
    assert (bare.moe.scoring, bare.moe.renormalize) == ("softmax", False)
    assert (bare.moe.routed_scaling_factor, bare.moe.num_groups, bare.moe.top_groups) == (1.0, 1, 1)


def test_what_given_keys_mean(files: dict[str, Path]) -> None:
    for name in ("mixtral", "qwen2_moe"):
        for norm in (True, False):
            moe = config_with(files[name], expert_weights_norm=norm).moe
            assert moe is not None
            assert moe.renormalize == norm
    moe = config_with(files["deepseek_v2"], expert_gating_func=3).moe
    assert moe is not None
    assert (moe.scoring, moe.renormalize) == ("softmax", True)
    # A softmax over the chosen sums to 1.
    for changes in ({"expert_gating_func": 3}, {"expert_gating_func": None}):
        moe = config_with(files["gpt_oss"], expert_weights_norm=False, **changes).moe
        assert moe is not None
        assert moe.renormalize
    assert config_with(files["olmoe"], attention__clamp_kqv=8.0).clip_qkv == 8.0
    assert config_with(files["gpt_oss"], attention__sliding_window=77).sliding_window == 77


def test_experts_of_some_layers(files: dict[str, Path]) -> None:
    moe = GGUFCheckpoint(files["qwen2_moe"]).config.moe
    assert moe is not None
    assert moe.layers == (True, False, True)


def test_no_layer_has_experts(files: dict[str, Path], tmp_path: Path) -> None:
    """As from config.json, whatever the number of experts."""
    for name, dense in (
        ("deepseek_v3", {"first_k_dense_replace": 3}),
        ("qwen2_moe", {"mlp_only_layers": [0, 1, 2]}),
    ):
        model = moe_models.build(name, **dense)
        path = write(model, tmp_path)
        checkpoint = GGUFCheckpoint(path)
        prefix = checkpoint._file.metadata["general.architecture"]
        assert checkpoint._file.metadata[f"{prefix}.expert_count"] in (5, 8)
        assert checkpoint.config.moe is None
        assert model_config(model.config.to_dict(), Path("config.json")).moe is None
        assert config_with(path, expert_used_count=None).moe is None
    llama = tiny_gguf.write(tmp_path / "l.gguf", metadata=lambda writer: writer.add_expert_count(8))
    config = GGUFCheckpoint(llama).config
    assert (config.architecture, config.moe) == ("llama", None)


def test_groups_that_early_files_of_deepseek_v3_do_not_name(tmp_path: Path) -> None:
    path = write(moe_models.build("deepseek_v3", n_routed_experts=256, num_hidden_layers=2), tmp_path)
    absent = {"expert_group_count": None, "expert_group_used_count": None}

    def groups(path: Path, **changes: Any) -> tuple[int, int]:
        moe = config_with(path, **changes).moe
        assert moe is not None
        return moe.num_groups, moe.top_groups

    assert groups(path) == (4, 2)
    assert groups(path, **absent) == (8, 4)
    assert groups(path, **{**absent, "expert_group_count": 1}) == (1, 1)
    assert groups(path, **{**absent, "expert_group_count": 0}) == (1, 1)
    for gating in (None, 1, 3):
        assert groups(path, **absent, expert_gating_func=gating) == (1, 1)
    fewer = write(moe_models.build("deepseek_v3", n_routed_experts=128), tmp_path)
    assert groups(fewer, **absent) == (1, 1)
    unbiased = rewrite(path, lambda metadata: None, leave=lambda name: "exp_probs_b" in name)
    assert groups(unbiased.rename(tmp_path / "unbiased.gguf"), **absent) == (1, 1)
    qwen = write(moe_models.build("qwen3_moe", num_experts=256), tmp_path)
    assert groups(qwen, expert_gating_func=2) == (1, 1)


def test_blocks_that_predict_further_tokens_are_left_out(files: dict[str, Path]) -> None:
    checkpoint = GGUFCheckpoint(files["deepseek_v3"])
    shorter = rewrite(
        files["deepseek_v3"], lambda metadata: metadata.update({"deepseek2.nextn_predict_layers": 1})
    )
    assert GGUFCheckpoint(shorter).config.num_hidden_layers == 2
    left = {name for name in checkpoint.tensors if not name.startswith("model.layers.2.")}
    assert set(GGUFCheckpoint(shorter).tensors) == left


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "mixtral",
        {"expert_used_count": 6},
        "'llama.expert_used_count' must be at most expert_count = 5, got 6",
    ),
    ("mixtral", {"expert_used_count": None}, "'llama.expert_used_count' must be a positive integer"),
    ("mixtral", {"expert_gating_func": 4}, r"'llama.expert_gating_func' must be 1 \(softmax\), 2"),
    ("mixtral", {"expert_weights_norm": 1}, "'llama.expert_weights_norm' must be true or false, got 1"),
    ("mixtral", {"expert_count": 6}, r"expected shape \[6, 96, 64\] for 6 experts, got \[5, 96, 64\]"),
    ("qwen2_moe", {"expert_feed_forward_length": 31}, r"ffn_gate_exps\.weight: expected shape \[5, 31, 64\]"),
    ("deepseek_v3", {"expert_group_count": 3}, "expert_group_count' must be a divisor of the 8 experts"),
    ("deepseek_v3", {"expert_group_used_count": 5}, "expert_group_used_count' must be at most expert_group"),
    ("deepseek_v3", {"expert_used_count": 5}, "expert_used_count' must be at most 2 groups of 2 experts"),
    ("deepseek_v3", {"expert_group_count": False}, "expert_group_count' must be a number, got False"),
    ("deepseek_v3", {"rope__scaling__factor": False}, "rope.scaling.factor' must be a number, got False"),
    ("deepseek_v3", {"expert_weights_scale": 1e30}, "expert_weights_scale' must be a positive number, got 1"),
    ("mixtral", {"expert_count": False}, "'llama.expert_count' must be a number, got False"),
    ("mixtral", {"expert_count": True}, "'llama.expert_count' must be a number, got True"),
    ("deepseek_v3", {"rope__dimension_count": 24}, "rope.dimension_count' must be an even number below"),
    ("deepseek_v3", {"attention__kv_lora_rank": None}, "attention.kv_lora_rank' must be a positive integer"),
    ("deepseek_v3", {"attention__kv_lora_rank": 31}, r"expected 1 heads of 39 rows, got shape \[40, 64\]"),
    ("deepseek_v3", {"attention__temperature_scale": 0.1}, "temperature_scale"),
    ("deepseek_v3", {"nextn_predict_layers": 3}, "nextn_predict_layers' must be below block_count = 3"),
    ("mixtral", {"nextn_predict_layers": 1}, "'llama.nextn_predict_layers' must be 0 for llama, which has"),
    ("gpt_oss", {"attention__sliding_window": None}, "attention.sliding_window' must be a positive integer"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_senseless_metadata_is_named(
    name: str, changes: dict[str, Any], message: str, files: dict[str, Path]
) -> None:
    with pytest.raises(LoadError, match=message):
        config_with(files[name], **changes)


def test_damaged_stacks_are_named(files: dict[str, Path]) -> None:
    def without_last(part: str) -> Any:
        return lambda name, data: data[:-1] if name.endswith(part) else data

    for name, part, message in (
        ("qwen3_moe", "blk.1.ffn_up_exps.weight", r"expected shape \[5, 32, 64\] for 5 experts"),
        ("gpt_oss", "blk.2.ffn_down_exps.bias", r"expected shape \[5, 64\] for 5 experts"),
        ("deepseek_v2", "blk.0.attn_q.weight", r"expected 4 heads of 24 rows, got shape \[95, 64\]"),
    ):
        path = rewrite(files[name], lambda metadata: None, cut=without_last(part))
        with pytest.raises(LoadError, match=rf"changed\.gguf: tensor {part}: {message}"):
            GGUFCheckpoint(path)


def test_missing_experts(files: dict[str, Path], tmp_path: Path) -> None:
    path = rewrite(files["mixtral"], lambda metadata: None, leave=lambda name: "ffn_gate_inp" in name)
    with pytest.raises(
        LoadError, match=r"blk\.0\.ffn_\w+_exps\.weight is of experts, but no block has .*_inp"
    ):
        GGUFCheckpoint(path)
    old = write(moe_models.build("mixtral"), tmp_path, LAYOUTS["old"])
    path = rewrite(old, lambda metadata: None, leave=lambda name: "_inp" in name or "blk.0.ffn" in name)
    with pytest.raises(
        LoadError, match=r"blk\.1\.ffn_\w+\.\d\.weight is of experts, but no block has .*_inp"
    ):
        GGUFCheckpoint(path)
    path = rewrite(files["mixtral"], lambda metadata: None, leave=lambda name: "blk.0.ffn_gate_inp" in name)
    with pytest.raises(LoadError, match=r"tensor model\.layers\.0\.mlp\.gate_proj\.weight is missing"):
        build_model(GGUFCheckpoint(path))
    path = rewrite(files["mixtral"], lambda metadata: None, leave=lambda name: "ffn_up_exps" in name)
    with pytest.raises(
        LoadError, match=r"tensor model\.layers\.0\.mlp\.experts\.0\.up_proj\.weight is missing"
    ):
        GGUFCheckpoint(path).read("model.layers.0.mlp.experts.0.up_proj.weight")


@pytest.mark.parametrize("name", ["qwen2_moe", "deepseek_v3", "gpt_oss"])
def test_metadata_of_any_type_loads_or_is_refused(name: str, files: dict[str, Path]) -> None:
    prefix = GGUFFile(files[name]).metadata["general.architecture"] + "."
    keys = [key for key in GGUFFile(files[name]).metadata if key.startswith(prefix)]
    outcomes = {"loaded": 0, "refused": 0}
    for key in [*keys, prefix + "nextn_predict_layers", prefix + "expert_weights_norm"]:
        for value in (0, 1, 1 << 31, float("nan"), 1e30, True, "", "yarn", [1, 2], ["a"], [0.5]):
            path = rewrite(files[name], lambda metadata, k=key, v=value: metadata.update({k: v}))
            try:
                GGUFCheckpoint(path)
                outcomes["loaded"] += 1
            except LoadError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes
