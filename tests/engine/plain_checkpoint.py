"""A tiny Llama written without transformers, for machines that have only what the engine needs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.engine.core_harness import EOS, VOCAB, save_tokenizer

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 64, 2


def save_plain_llama(directory: Path, seed: int = 0) -> Path:
    """Weights so large that logits differ by whole units, as in tests/models."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 1.5 / HIDDEN**0.5, mean: float = 0.0) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * std + mean

    tensors = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN, std=1.0),
        "model.norm.weight": normal(HIDDEN, std=0.4, mean=1.0),
        "lm_head.weight": normal(VOCAB, HIDDEN, std=3 / HIDDEN**0.5),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        tensors |= {
            layer + "input_layernorm.weight": normal(HIDDEN, std=0.4, mean=1.0),
            layer + "post_attention_layernorm.weight": normal(HIDDEN, std=0.4, mean=1.0),
            layer + "self_attn.q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM),
            layer + "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            layer + "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            layer + "mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE),
        }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_tokenizer(directory)
    return directory
