"""Total and active parameters: exactly transformers' total, and the published figures of known models."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_configs import DEEPSEEK_V3, MIXTRAL_8X7B
from model_harness import load, save, tiny_model
from moe_configs import CASES
from test_families import gemma3, llama
from transformers import PreTrainedModel

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig, MoEConfig
from inferx.models.parameters import count_parameters
from inferx.models.weights import ParameterCount


def counted(oracle: PreTrainedModel) -> ParameterCount:
    """From the module's own tensors: an expert's share of a stack is its first dimension's."""
    total = active = 0
    config = oracle.config
    tensors = {**dict(oracle.named_parameters()), **dict(oracle.named_buffers())}
    for name, tensor in tensors.items():
        if "rotary" in name or "inv_freq" in name or name == "model.embed_tokens.embed_scale":
            continue
        total += tensor.numel()
        if ".experts." in name:
            active += tensor[0].numel() * config.num_experts_per_tok
        else:
            active += tensor.numel()
    return ParameterCount(total, active)


@pytest.mark.parametrize("name", CASES)
def test_counts_are_the_modules(name: str, tmp_path: Path) -> None:
    oracle = tiny_model(CASES[name]())
    model = load(save(oracle, tmp_path))
    assert model.parameters == counted(oracle)
    # From the configuration alone, without a tensor.
    assert count_parameters(model.config) == model.parameters


@pytest.mark.parametrize("config", [llama(), llama(tie_word_embeddings=True, attention_bias=True), gemma3()])
def test_a_dense_model_computes_with_all(config: object, tmp_path: Path) -> None:
    oracle = tiny_model(config)  # type: ignore[arg-type]
    model = load(save(oracle, tmp_path))
    assert model.parameters == counted(oracle)
    assert model.parameters.total == model.parameters.active == oracle.num_parameters()


@pytest.mark.parametrize(
    ("config", "total", "active"), [(MIXTRAL_8X7B, 46.7, 12.9), (DEEPSEEK_V3, 671.0, 37.6)]
)
def test_published_figures(config: ModelConfig, total: float, active: float) -> None:
    count = count_parameters(config)
    assert round(count.total / 1e9, 1) == total
    assert round(count.active / 1e9, 1) == active


def test_what_cannot_run_is_not_counted() -> None:
    broken = MoEConfig(num_experts=8, top_k=9, intermediate_size=8, layers=(True,) * 32)
    with pytest.raises(LoadError, match=r"^here: moe: top_k must be from 1 to num_experts \(8\), got 9"):
        count_parameters(ModelConfig(**{**vars(MIXTRAL_8X7B), "moe": broken}), "here")
