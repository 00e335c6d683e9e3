"""Writes a tiny transformers model as a GGUF file, in the way of llama.cpp's converter.

Tensor names come from the gguf package.  The converter's own choices are repeated here: rows of q and k are
interleaved for Llama, Gemma's norms are stored as 1 + w, Phi-3 keeps its fused matrices, Llama 3.1's scaling
and longrope's factors become tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from inferx.layers.rotary import inverse_frequencies
from inferx.loader.config import RopeConfig
from inferx.loader.gguf_file import GGUFFile

TypeOf = Callable[[str], str]


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (first half, second half) to pairs."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def all_f32(name: str) -> str:
    return "F32"


def write_gguf(model: PreTrainedModel, path: Path, architecture: str, type_of: TypeOf = all_f32) -> Path:
    """type_of: GGML type name for each Hugging Face matrix name; vectors are F32 always."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, model, architecture)
    names = gguf.get_tensor_name_map(
        {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture], config.num_hidden_layers
    )
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.float().numpy()
        if architecture == "llama" and "q_proj" in name:
            data = _interleave(data, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            data = _interleave(data, config.num_key_value_heads)
        if architecture == "gemma3" and "norm" in name:
            data = data + np.float32(1)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        kind = gguf.GGMLQuantizationType[type_of(name) if data.ndim == 2 else "F32"]
        writer.add_tensor(target, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def without_vocabulary(source: Path, target: Path) -> Path:
    """The same tensors, byte for byte, without the tokenizer.

    transformers parses every string of the vocabulary twice, which takes half a minute for 262,144 of them.
    """
    file = GGUFFile(source)
    writer = gguf.GGUFWriter(target, file.metadata["general.architecture"])
    writers = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in file.metadata.items():
        if type(value) in writers and not key.startswith(("tokenizer.", "general.")):
            writers[type(value)](key, value)
    writer.add_vocab_size(file.tensors["token_embd.weight"].shape[0])
    for name, info in file.tensors.items():
        kind = gguf.GGMLQuantizationType[info.dtype]
        writer.add_tensor(name, file.read(name).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _write_metadata(writer: gguf.GGUFWriter, model: PreTrainedModel, architecture: str) -> None:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    # The converter asks for a vocabulary too; these names are never decoded.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(dim)
    _write_scaling(writer, rope, dim, config.max_position_embeddings)


def _write_scaling(writer: gguf.GGUFWriter, rope: dict, dim: int, context: int) -> None:
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        shared = ("rope_theta", "partial_rotary_factor")
        fields = {key: value for key, value in rope.items() if key not in shared}
        scaled = inverse_frequencies(
            RopeConfig(theta=rope["rope_theta"], **fields),
            dim,
            rope["original_max_position_embeddings"],
        )
        plain = inverse_frequencies(RopeConfig(theta=rope["rope_theta"]), dim, context)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        attention = np.sqrt(1 + np.log(context / original) / np.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(attention))
        for length in ("short", "long"):
            factors = torch.tensor(rope[f"{length}_factor"], dtype=torch.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors.numpy())
