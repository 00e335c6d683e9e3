"""Real weights in a mixture of experts: SmolLM2's MLPs upcycled into a Mixtral-type file, still quantised.

Identical experts answer as the dense model; perturbed ones, with a random router, as transformers' Mixtral
with the dequantised weights.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model_harness import LOGIT_TOLERANCE, PagedRunner, load, oracle_greedy, oracle_logits
from tools.upcycle import upcycle
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel

from inferx import ops
from inferx.loader import Tokenizer, load_tokenizer, open_checkpoint
from inferx.models import Model

NEW_TOKENS = 32
PROMPTS = (
    "The lighthouse keeper climbed the stairs every evening, and on the night of the storm he",
    "def fibonacci(n: int) -> int:\n    ",
)

pytestmark = pytest.mark.real_model


def encode(path: Path, text: str) -> torch.Tensor:
    checkpoint = open_checkpoint(path)
    try:
        tokenizer: Tokenizer = load_tokenizer(checkpoint)
        return torch.tensor(tokenizer.encode(text))
    finally:
        checkpoint.close()


@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (5, 3), (1, 1)])
def test_identical_experts_answer_as_the_dense_model(
    smollm2_gguf: Path, tmp_path: Path, experts: int, top_k: int
) -> None:
    path = upcycle(smollm2_gguf, tmp_path / "moe.gguf", experts=experts, top_k=top_k)
    dense, routed = load(smollm2_gguf), load(path)
    expected_type = dense.layers[0].mlp.down.weight.dtype
    assert routed.layers[0].mlp.experts.w2.dtypes == (expected_type,), "weights stay quantised"
    for text in PROMPTS:
        ids = encode(path, text)
        first, tokens = PagedRunner(routed, block_size=16).continued(ids, NEW_TOKENS)
        dense_first, dense_tokens = PagedRunner(dense, block_size=16).continued(ids, NEW_TOKENS)
        assert tokens == dense_tokens
        # The weights sum to one but for rounding.
        assert (first - dense_first).abs().max() <= LOGIT_TOLERANCE


def mixtral_of(path: Path) -> PreTrainedModel:
    """transformers' Mixtral in float32 with the file's weights, dequantised."""
    checkpoint = open_checkpoint(path)
    config, moe = checkpoint.config, checkpoint.config.moe
    assert moe is not None
    oracle = AutoModelForCausalLM.from_config(
        MixtralConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=moe.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope.theta,
            num_local_experts=moe.num_experts,
            num_experts_per_tok=moe.top_k,
            tie_word_embeddings=config.tie_word_embeddings,
        ),
        attn_implementation="eager",
        dtype=torch.float32,
    )

    def matrix(name: str) -> torch.Tensor:
        raw = checkpoint.read(name)
        return ops.pack_weight(raw.data, raw.info.dtype, raw.info.shape).dequantize()

    loaded = set()
    for name, parameter in oracle.named_parameters():
        stem = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        with torch.no_grad():
            if name.endswith("experts.gate_up_proj"):
                for e in range(moe.num_experts):
                    parts = [matrix(f"{stem}{e}.{part}_proj.weight") for part in ("gate", "up")]
                    parameter[e] = torch.cat(parts)
            elif name.endswith("experts.down_proj"):
                for e in range(moe.num_experts):
                    parameter[e] = matrix(f"{stem}{e}.down_proj.weight")
            elif parameter.dim() == 2:
                parameter.copy_(matrix(name))
            else:
                parameter.copy_(checkpoint.read(name).data)
        loaded.add(name)
    assert any("mlp.gate.weight" in name for name in loaded)
    checkpoint.close()
    return oracle.eval()


@pytest.fixture(scope="module")
def perturbed(
    smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, PreTrainedModel, Model]]:
    path = tmp_path_factory.mktemp("upcycled") / "moe.gguf"
    upcycle(smollm2_gguf, path, experts=3, top_k=2, noise=0.3, seed=1)
    yield path, mixtral_of(path), load(path)
    path.unlink()
    gc.collect()


@pytest.mark.parametrize("text", PROMPTS)
def test_perturbed_experts_answer_as_transformers(
    perturbed: tuple[Path, PreTrainedModel, Model], text: str
) -> None:
    path, oracle, model = perturbed
    ids = encode(path, text)
    logits = PagedRunner(model, block_size=16).whole(ids)
    expected = oracle_logits(oracle, ids)
    error = (logits - expected).abs().max().item()
    print(f"logit error {error:.2e}, largest logit {expected.abs().max():.1f}")
    assert error <= LOGIT_TOLERANCE
    tokens = PagedRunner(model, block_size=16).greedy(ids, NEW_TOKENS)
    assert tokens == oracle_greedy(oracle, ids, NEW_TOKENS)


def test_experts_are_not_alike(perturbed: tuple[Path, PreTrainedModel, Model]) -> None:
    """Else the comparison above would show little: every expert is used, and they differ."""
    _, oracle, model = perturbed
    w2 = model.layers[3].mlp.experts.w2
    assert (w2.dequantize(0) - w2.dequantize(1)).abs().max() > 0.01
    with torch.no_grad():
        hidden = torch.randn(64, oracle.config.hidden_size, generator=torch.Generator().manual_seed(5))
        chosen = oracle.model.layers[3].mlp.gate(hidden)[2]
    assert set(chosen.flatten().tolist()) == {0, 1, 2}


def test_chunks_and_batches_change_no_bit(perturbed: tuple[Path, PreTrainedModel, Model]) -> None:
    path, _, model = perturbed
    ids, other = encode(path, PROMPTS[0]), encode(path, PROMPTS[1])
    whole = PagedRunner(model).whole(ids)
    assert torch.equal(PagedRunner(model, seed=2).chunked(ids, [5, 1, 7]), whole)
    assert torch.equal(PagedRunner(model, seed=3).batched(ids, [other, ids[:9]], 4), whole)
