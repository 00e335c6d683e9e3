"""The same tiny models as GGUF: logits equal those of the safetensors files, quantised ones those of the
dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from gguf_writer import write_gguf
from model_harness import (
    LOGIT_TOLERANCE,
    PagedRunner,
    check_against_oracle,
    load,
    oracle_greedy,
    oracle_logits,
    prompt,
    save,
    tiny_model,
)
from test_families import LLAMA3, gemma3, llama, phi3, qwen2, qwen3
from test_rope_models import LONGROPE, YARN
from transformers import PretrainedConfig, PreTrainedModel

CASES: dict[str, tuple[str, Callable[[], PretrainedConfig]]] = {
    # Eight query and two KV heads: un-permuting k with the wrong count shows only here.
    "llama-8q2kv": ("llama", lambda: llama(num_attention_heads=8, num_key_value_heads=2, head_dim=16)),
    "llama-4q4kv": ("llama", lambda: llama(num_key_value_heads=4)),
    "llama-9q3kv-tied": (
        "llama",
        lambda: llama(num_attention_heads=9, num_key_value_heads=3, hidden_size=72, tie_word_embeddings=True),
    ),
    "llama-biases": ("llama", lambda: llama(attention_bias=True, mlp_bias=True)),
    "llama-llama3": ("llama", lambda: llama(rope_parameters=LLAMA3)),
    "llama-yarn": ("llama", lambda: llama(rope_parameters=YARN, max_position_embeddings=1024)),
    "llama-linear": (
        "llama",
        lambda: llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
    ),
    "qwen2": ("qwen2", lambda: qwen2(num_attention_heads=8, num_key_value_heads=2, hidden_size=128)),
    "qwen2-mha-tied": ("qwen2", lambda: qwen2(num_key_value_heads=4, tie_word_embeddings=True)),
    "qwen3": ("qwen3", qwen3),
    # The file says nothing of the attention scale: it is the head's.
    "gemma3": ("gemma3", lambda: gemma3(query_pre_attn_scalar=32)),
    "phi3": ("phi3", phi3),
    "phi3-partial": ("phi3", lambda: phi3(partial_rotary_factor=0.75)),
    "phi3-longrope": (
        "phi3",
        lambda: phi3(
            max_position_embeddings=512, original_max_position_embeddings=64, rope_parameters=LONGROPE
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gguf_equals_safetensors(name: str, tmp_path: Path) -> None:
    architecture, config = CASES[name]
    oracle = tiny_model(config(), seed=len(name))
    from_hf = load(save(oracle, tmp_path / "hf"))
    from_gguf = load(write_gguf(oracle, tmp_path / "model.gguf", architecture))
    for seed in range(3):
        ids = prompt(40 + 30 * seed, seed=seed)
        hf_logits, gguf_logits = PagedRunner(from_hf).whole(ids), PagedRunner(from_gguf).whole(ids)
        # Divisors of frequencies and metadata in float32 round differently; everything else is the same bits.
        if not any(word in name for word in ("llama3", "yarn", "longrope")):
            assert torch.equal(gguf_logits, hf_logits)
        assert (gguf_logits - hf_logits).abs().max() <= LOGIT_TOLERANCE
        assert (gguf_logits - oracle_logits(oracle, ids)).abs().max() <= LOGIT_TOLERANCE
        assert PagedRunner(from_gguf).greedy(ids, 6) == oracle_greedy(oracle, ids, 6)


def quantised_oracle(model: PreTrainedModel, type_of: Callable[[str], str]) -> PreTrainedModel:
    """The model with each matrix rounded to what the file will hold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                kind = gguf.GGMLQuantizationType[type_of(name)]
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind).copy()))
    return model


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_weights(kind: str, tmp_path: Path) -> None:
    config = qwen2(hidden_size=96, intermediate_size=64, num_attention_heads=6, num_key_value_heads=3)
    oracle = quantised_oracle(tiny_model(config, seed=3), lambda name: kind)
    model = load(write_gguf(oracle, tmp_path / "model.gguf", "qwen2", lambda name: kind))
    check_against_oracle(oracle, model, prompt(45))


def test_pieces_of_different_types(tmp_path: Path) -> None:
    """v in another type than q and k, up in another than gate, k between two of one type: as real files mix
    them."""

    def mixed(name: str) -> str:
        if "layers.0" in name:
            return "Q8_0" if "v_proj" in name or "up_proj" in name else "Q4_0"
        return "Q5_1" if "k_proj" in name or "down_proj" in name else "Q4_1"

    config = qwen2(hidden_size=96, intermediate_size=64, num_attention_heads=6, num_key_value_heads=3)
    oracle = quantised_oracle(tiny_model(config, seed=4), mixed)
    model = load(write_gguf(oracle, tmp_path / "model.gguf", "qwen2", mixed))
    check_against_oracle(oracle, model, prompt(45))


def test_conversion_leaves_quantised_weights_alone(tmp_path: Path) -> None:
    def half_quantised(name: str) -> str:
        return "Q8_0" if "mlp" in name else "F32"

    config = qwen2(hidden_size=96, intermediate_size=64, num_attention_heads=6, num_key_value_heads=3)
    path = write_gguf(tiny_model(config, seed=5), tmp_path / "model.gguf", "qwen2", half_quantised)
    as_stored, as_bf16 = load(path), load(path, dtype="bfloat16")
    mlp, attention = as_bf16.layers[0].mlp, as_bf16.layers[0].attention
    assert mlp.down.weight.dtype == "Q8_0"
    assert attention.output.weight.dtype == "BF16"
    assert as_bf16.weight_bytes < as_stored.weight_bytes
