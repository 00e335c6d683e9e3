"""Tensors, names and configuration from GGUF files."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
import torch

from inferx.errors import LoadError
from inferx.loader import load_tokenizer, open_checkpoint
from inferx.loader.gguf_checkpoint import GGUFCheckpoint
from inferx.loader.gguf_file import BLOCK_TYPES, GGUFFile
from inferx.loader.transforms import uninterleave


def test_header_agrees_with_the_gguf_package(smollm2_gguf: Path) -> None:
    file = GGUFFile(smollm2_gguf)
    reader = gguf.GGUFReader(smollm2_gguf)
    assert list(file.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(tensor.shape.tolist()[::-1])
        assert (info.dtype, info.offset, info.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        data = file.read(tensor.name)
        step = max(1, data.shape[0] // 7)  # a few rows of each
        assert np.array_equal(data[::step].numpy(), tensor.data[::step])
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value, last = file.metadata[key], len(field.data) - 1
        if field.types[0] == gguf.GGUFValueType.ARRAY:  # contents() takes seconds for whole vocabularies
            assert len(value) == len(field.data)
            for index in {0, last // 2, last}:
                assert value[index] == field.contents(index)
        else:
            assert value == field.contents()


def test_smollm2_configuration(smollm2_gguf: Path) -> None:
    checkpoint = open_checkpoint(smollm2_gguf)
    config = checkpoint.config
    assert (config.architecture, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings, config.rope.theta) == (49152, 8192, 1e5)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2, 0)
    assert "lm_head.weight" not in checkpoint.tensors
    assert checkpoint.weight_bytes == sum(t.nbytes for t in GGUFFile(smollm2_gguf).tensors.values())


def test_gemma3_configuration(gemma3_gguf: Path) -> None:
    config = open_checkpoint(gemma3_gguf).config
    assert (config.architecture, config.head_dim, config.num_key_value_heads) == ("gemma3", 256, 1)
    assert (config.sliding_window, config.hidden_act) == (512, "gelu_pytorch_tanh")
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17]
    assert config.rope.theta == 1e6
    assert config.rope_local is not None
    assert config.rope_local.theta == 1e4
    assert config.norm_weight_offset == 0.0  # the converter stored 1 + w
    assert config.embedding_scale == math.sqrt(640)
    assert config.eos_token_ids == (1, 106)


def test_qwen25_configuration(qwen25_gguf: Path) -> None:
    checkpoint = open_checkpoint(qwen25_gguf)
    config = checkpoint.config
    assert (config.attention_bias, config.attention_out_bias, config.tie_word_embeddings) == (
        True,
        False,
        False,
    )
    assert checkpoint.tensors["lm_head.weight"].dtype == "Q8_0"
    assert checkpoint.tensors["model.embed_tokens.weight"].dtype == "Q5_0"
    assert config.eos_token_ids == (151645, 151643)


# ---- rows of q and k (case D04)


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Llama's q and k: halves of each head become pairs."""
    rows = weight.shape[0] // heads
    order = np.arange(rows).reshape(2, rows // 2).T.reshape(-1)
    return np.concatenate([weight[h * rows : (h + 1) * rows][order] for h in range(heads)])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *BLOCK_TYPES])
def test_llama_rows_come_back_with_the_right_head_counts(kind: str, tmp_path: Path) -> None:
    """8 query and 2 KV heads: un-permuting K with 8 heads would pass only where both counts are equal."""
    hidden, heads, kv_heads, head_dim = 512, 8, 2, 64
    rng = np.random.default_rng(1)
    rows = {"attn_q": heads * head_dim, "attn_k": kv_heads * head_dim, "attn_v": kv_heads * head_dim}
    type_id = gguf.GGMLQuantizationType[kind]
    stored = {name: random_rows(rng, n, hidden, type_id) for name, n in rows.items()}

    def build(writer: gguf.GGUFWriter) -> None:
        for name, data in stored.items():
            count = heads if name == "attn_q" else kv_heads
            data = data if name == "attn_v" else interleaved(data, count)
            writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=type_id)
        bias = np.arange(heads * head_dim, dtype=np.float32)
        writer.add_tensor("blk.0.attn_q.bias", interleaved(bias, heads))

    for architecture in ("llama", "qwen2"):
        path = tmp_path / f"{architecture}.gguf"
        write_dims(path, architecture, hidden, heads, kv_heads, build)
        checkpoint = GGUFCheckpoint(path)
        for leaf, name in (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj")):
            read = checkpoint.read(f"model.layers.0.self_attn.{name}.weight")
            expected = stored[leaf]
            if architecture == "qwen2" and leaf != "attn_v":  # never permuted, so taken as it lies
                expected = interleaved(expected, heads if leaf == "attn_q" else kv_heads)
            assert read.info.shape == (rows[leaf], hidden)
            raw = read.data if read.data.dtype != torch.bfloat16 else read.data.view(torch.uint8)
            assert raw.numpy().tobytes() == expected.tobytes()
        if architecture == "llama":
            bias = checkpoint.read("model.layers.0.self_attn.q_proj.bias").data
            assert bias.tolist() == list(range(heads * head_dim))


def random_rows(
    rng: np.random.Generator, rows: int, columns: int, kind: gguf.GGMLQuantizationType
) -> np.ndarray:
    if kind.name == "F32":
        return rng.standard_normal((rows, columns)).astype(np.float32)
    if kind.name == "F16":
        return rng.standard_normal((rows, columns)).astype(np.float16)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 256, (rows, columns // block * size), dtype=np.uint8)


def write_dims(path: Path, architecture: str, hidden: int, heads: int, kv_heads: int, build: object) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((8, hidden), np.float32))
    build(writer)  # type: ignore[operator]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_partial_rotary_pairs_only_the_first_rows() -> None:
    rows = torch.arange(12.0)  # two heads of 6, rotary over 4: pairs (0 1)(2 3), rest 4 5
    assert uninterleave(rows, 2, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


# ---- rotary scaling


def config_of(tmp_path: Path, **options: object) -> object:
    return GGUFCheckpoint(tiny_gguf.write(tmp_path / "m.gguf", **options)).config  # type: ignore[arg-type]


def test_rope_scaling_metadata(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    rope = config_of(tmp_path, scaling=linear).rope
    assert (rope.rope_type, rope.factor) == ("linear", 4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_freq_base(5e5)

    config = config_of(tmp_path, scaling=yarn)
    rope = config.rope
    assert (rope.rope_type, rope.factor, rope.original_max_position_embeddings) == ("yarn", 4.0, 32)
    assert rope.theta == 5e5
    assert rope.attention_factor is None  # the usual 0.1 ln(4) + 1
    assert config.max_position_embeddings == 128  # taken as it is, never multiplied (case D06)


def test_llama3_factors_become_part_of_the_configuration(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, tiny_gguf.HIDDEN // tiny_gguf.HEADS // 2).astype(np.float32)
    tensors = tiny_gguf.default_tensors() | {"rope_freqs.weight": factors}
    checkpoint = GGUFCheckpoint(tiny_gguf.write(tmp_path / "m.gguf", tensors=tensors))
    assert checkpoint.config.rope.freq_factors == pytest.approx(factors.tolist())
    assert not any("rope" in name for name in checkpoint.tensors)
    tensors["rope_freqs.weight"] = factors[:-1]
    with pytest.raises(LoadError, match=r"m\.gguf: tensor rope_freqs\.weight: expected 8 floats"):
        GGUFCheckpoint(tiny_gguf.write(tmp_path / "m.gguf", tensors=tensors))


def phi3_tensors() -> dict[str, np.ndarray]:
    tensors = tiny_gguf.default_tensors()
    for layer in range(tiny_gguf.LAYERS):
        q, k, v = (tensors.pop(f"blk.{layer}.attn_{x}.weight") for x in "qkv")
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([q, k, v])
        gate = tensors.pop(f"blk.{layer}.ffn_gate.weight")
        tensors[f"blk.{layer}.ffn_up.weight"] = np.concatenate([gate, tensors[f"blk.{layer}.ffn_up.weight"]])
    half = tiny_gguf.HIDDEN // tiny_gguf.HEADS // 2
    tensors["rope_factors_long.weight"] = np.linspace(1, 9, half).astype(np.float32)
    tensors["rope_factors_short.weight"] = np.linspace(1, 2, half).astype(np.float32)
    return tensors


def test_phi3_is_split_and_scaled(tmp_path: Path) -> None:
    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(1.19)
        writer.add_sliding_window(48)

    path = tiny_gguf.write(tmp_path / "m.gguf", architecture="phi3", tensors=phi3_tensors(), scaling=scaling)
    checkpoint = GGUFCheckpoint(path)
    rope = checkpoint.config.rope
    assert (rope.rope_type, rope.factor, rope.original_max_position_embeddings) == ("longrope", 2.0, 64)
    assert rope.attention_factor == pytest.approx(1.19)
    assert (rope.long_factor[-1], rope.short_factor[-1]) == (9.0, 2.0)
    assert checkpoint.config.sliding_window == 48
    original = tiny_gguf.default_tensors()
    for name, leaf in (
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
    ):
        data = checkpoint.read(f"model.layers.1.{name}.weight").data
        assert np.array_equal(data.numpy(), original[f"blk.1.{leaf}.weight"])


def test_gemma3_names(tmp_path: Path) -> None:
    tensors = tiny_gguf.default_tensors()
    vector = np.ones(tiny_gguf.HIDDEN, np.float32)
    for layer in range(tiny_gguf.LAYERS):
        tensors[f"blk.{layer}.post_attention_norm.weight"] = vector
        tensors[f"blk.{layer}.post_ffw_norm.weight"] = vector
        for name in ("attn_q_norm", "attn_k_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = vector[:16]

    def window(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(32)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    path = tiny_gguf.write(tmp_path / "m.gguf", architecture="gemma3", tensors=tensors, scaling=window)
    checkpoint = GGUFCheckpoint(path)
    names = {n.removeprefix("model.layers.0.") for n in checkpoint.tensors if n.startswith("model.layers.0.")}
    assert names == {
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
        *(f"self_attn.{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
        *(f"mlp.{n}.weight" for n in ("gate_proj", "up_proj", "down_proj")),
    }
    assert checkpoint.config.rope.factor == 8.0
    assert checkpoint.config.rope_local is not None
    assert checkpoint.config.rope_local.rope_type == "default"  # only full layers are scaled


# ---- what is refused


def test_unknown_architectures_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"m\.gguf: architecture 'mamba' is not supported.*gemma3, .*llama"):
        GGUFCheckpoint(tiny_gguf.write(tmp_path / "m.gguf", architecture="mamba"))


def test_unsupported_tensor_types_are_named(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.1.ffn_down.weight") + len(b"blk.1.ffn_down.weight") + 4 + 16
    assert data[at : at + 4] == bytes(4)  # F32
    for type_id, message in ((10, "type Q2_K is not supported"), (99, "unknown tensor type 99")):
        data[at : at + 4] = type_id.to_bytes(4, "little")
        path.write_bytes(data)
        with pytest.raises(LoadError, match=rf"m\.gguf: tensor blk\.1\.ffn_down\.weight: {message}"):
            GGUFCheckpoint(path)


def test_a_truncated_file_names_the_tensor(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"tensor blk\.1\.ffn_down\.weight: needs bytes .* the file ends at"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16 + bytes(64), "impossible tensor count"),
        (b"GGUF\x01\0\0\0" + bytes(64), "version 1 is not supported"),
        (b"GGUF\0\0\0\x03" + bytes(64), "big-endian"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message):
        GGUFCheckpoint(path)


def test_duplicates_overlaps_and_wrong_shapes(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    good = path.read_bytes()

    path.write_bytes(good.replace(b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight", 1))
    with pytest.raises(LoadError, match=r"tensor blk\.1\.ffn_up\.weight occurs twice"):
        GGUFCheckpoint(path)

    at = good.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16 + 4
    path.write_bytes(good[:at] + bytes(8) + good[at + 8 :])
    with pytest.raises(LoadError, match=r"tensors token_embd\.weight and blk\.1\.ffn_up\.weight overlap"):
        GGUFCheckpoint(path)

    tensors = tiny_gguf.default_tensors()
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_k.weight"][:-2]
    with pytest.raises(LoadError, match=r"tensor blk\.0\.attn_k\.weight: expected 2 heads of 16 rows"):
        GGUFCheckpoint(tiny_gguf.write(path, tensors=tensors))

    tensors = phi3_tensors()
    tensors["blk.0.attn_qkv.weight"] = tensors["blk.0.attn_qkv.weight"][:-1]
    with pytest.raises(LoadError, match=r"tensor blk\.0\.attn_qkv\.weight: expected 128 rows"):
        GGUFCheckpoint(tiny_gguf.write(path, architecture="phi3", tensors=tensors))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(tiny_gguf.write(tmp_path / "m.gguf"))
    with pytest.raises(LoadError, match=r"m\.gguf: tensor model\.nope\.weight is missing"):
        checkpoint.read("model.nope.weight")


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf")
    before = path.read_bytes()
    checkpoint = GGUFCheckpoint(path)
    tensor = checkpoint.read("model.norm.weight").data
    checkpoint.close()  # tensors outlive it
    tensor.fill_(7)
    assert tensor.sum() == 7 * tiny_gguf.HIDDEN
    assert path.read_bytes() == before


ODD_VALUES: list[tuple[object, gguf.GGUFValueType]] = [
    (0, gguf.GGUFValueType.UINT32),
    (-1, gguf.GGUFValueType.INT32),
    (1 << 63, gguf.GGUFValueType.UINT64),
    (float("nan"), gguf.GGUFValueType.FLOAT32),
    (1e300, gguf.GGUFValueType.FLOAT64),
    (True, gguf.GGUFValueType.BOOL),
    ("", gguf.GGUFValueType.STRING),
    ("yarn", gguf.GGUFValueType.STRING),
    ([1, 2], gguf.GGUFValueType.ARRAY),
    (["a", "b"], gguf.GGUFValueType.ARRAY),
    ([0.5], gguf.GGUFValueType.ARRAY),
]


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "phi3"])
def test_metadata_of_any_type_loads_or_is_refused(architecture: str, tmp_path: Path) -> None:
    def full(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_attn_factors(1.1)
        writer.add_rope_freq_base(1e4)
        writer.add_rope_dimension_count(16)
        writer.add_sliding_window(48)
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_final_logit_softcapping(30.0)
        writer.add_attention_scale(0.1)
        writer.add_bos_token_id(1)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)
        writer.add_chat_template("{{ messages }}")
        for key in ("attention.sliding_window_pattern", "expert_count", "rope.scale_linear"):
            writer.add_uint32(f"{architecture}.{key}", 0)
        for key in ("general.alignment", "split.count", "tokenizer.ggml.eot_token_id"):
            writer.add_uint32(key, 32 if key == "general.alignment" else 1)

    keys: list[str] = []
    tensors = phi3_tensors() if architecture == "phi3" else None
    path = tmp_path / "m.gguf"
    tiny_gguf.write(
        path,
        architecture=architecture,
        tensors=tensors,
        metadata=lambda w: (full(w), keys.extend(w.kv_data[0])),  # type: ignore[func-returns-value]
    )
    assert load_tokenizer(GGUFCheckpoint(path)).encode("he")
    outcomes = {"loaded": 0, "refused": 0}
    for key in keys:
        for value, kind in ODD_VALUES:

            def change(
                writer: gguf.GGUFWriter, key: str = key, value: object = value, kind: object = kind
            ) -> None:
                full(writer)
                writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, kind)

            tiny_gguf.write(path, architecture=architecture, tensors=tensors, metadata=change)
            try:
                load_tokenizer(GGUFCheckpoint(path)).encode("he")
                outcomes["loaded"] += 1
            except LoadError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes


def test_a_released_checkpoint_can_be_read_again(smollm2_gguf: Path) -> None:
    checkpoint = open_checkpoint(smollm2_gguf)
    name = "model.layers.0.self_attn.q_proj.weight"
    before, description = checkpoint.read(name).data.clone(), checkpoint.tokenizer_json()
    checkpoint.release()
    assert torch.equal(checkpoint.read(name).data, before)
    assert checkpoint.tokenizer_json() == description
