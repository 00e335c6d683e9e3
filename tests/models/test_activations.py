"""int8 activations: which layers take them, what they cost in fidelity, and where they are refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from model_harness import PagedRunner
from tests.engine.core_harness import save_tiny_llama, save_tiny_moe

from inferx.engine.args import EngineArgs
from inferx.engine.device import Device, kv_cache_dtype, placement
from inferx.engine.loading import LoadedModel, load_model
from inferx.errors import InvalidRequestError
from inferx.layers.linear import Linear, MergedLinear
from inferx.ops import PackedWeight

TEXT = Path(__file__).parents[2] / "benchmarks" / "cpu" / "text.txt"
FLOATS = ("F32", "F16", "BF16")


def load(path: Path, activations: str, **options: object) -> LoadedModel:
    return load_model(EngineArgs(model=str(path), activations=activations, num_blocks=80, **options))  # type: ignore[arg-type]


def linears(layer: object) -> list[Linear]:
    """Of a decoder layer's attention and MLP."""
    parts = [*vars(layer.attention).values(), *vars(layer.mlp).values()]  # type: ignore[attr-defined]
    pieces = [p for part in parts for p in (part.pieces if isinstance(part, MergedLinear) else [part])]
    return [piece for piece in pieces if isinstance(piece, Linear)]


def log_probabilities(loaded: LoadedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Of each token's successor, [tokens - 1]."""
    logits = PagedRunner(loaded.model, tokens=len(tokens), dtype=loaded.kv_dtype).whole(tokens)
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]


def test_perplexity_stays(smollm2_gguf: Path) -> None:
    """Of a fixed text, within half a percent of float32 activations and cache."""
    reference, default = load(smollm2_gguf, "float32"), load(smollm2_gguf, "auto")
    assert reference.kv_dtype == torch.float32
    assert default.kv_dtype == torch.float16
    tokens = reference.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    windows = [torch.tensor(tokens[i : i + 512]) for i in range(0, 2048, 512)]
    nll = [
        -torch.cat([log_probabilities(loaded, window) for window in windows]).double().mean().item()
        for loaded in (reference, default)
    ]
    assert abs(math.exp(nll[1] - nll[0]) - 1) < 0.005


def test_quantised_weights_only(smollm2_gguf: Path) -> None:
    for activations, wanted in (("auto", True), ("int8", True), ("float32", False)):
        model = load(smollm2_gguf, activations).model
        found = [linear for layer in model.layers for linear in linears(layer)]
        assert len(found) == 4 * len(model.layers)
        for linear in found:
            assert isinstance(linear.weight, PackedWeight)
            assert linear.int8 == (wanted and linear.weight.dtype not in FLOATS)
        assert any(linear.int8 for linear in found) == wanted


@pytest.mark.parametrize("moe", [False, True])
def test_a_float_checkpoint_does_not_look_at_it(tmp_path: Path, moe: bool) -> None:
    path = save_tiny_moe(tmp_path, family="mixtral") if moe else save_tiny_llama(tmp_path)
    tokens = torch.arange(20)
    results = []
    for activations in ("auto", "int8", "float32"):
        loaded = load(path, activations)
        assert loaded.kv_dtype == torch.float32
        assert not loaded.model.placement.int8
        results.append(log_probabilities(loaded, tokens))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_refused_on_a_device(tmp_path: Path) -> None:
    config = load(save_tiny_llama(tmp_path), "auto").checkpoint.config
    simt = Device("simt", torch.device("cpu"), None)
    with pytest.raises(InvalidRequestError, match="activations must be auto or float32 on a device"):
        placement(simt, config, "auto", "int8")
    with pytest.raises(InvalidRequestError, match="activations must be one of auto, float32, int8"):
        EngineArgs(activations="int4").validate()


def test_a_cache_type_that_was_asked_for_is_kept() -> None:
    cpu = Device("cpu", torch.device("cpu"), None)
    assert kv_cache_dtype(cpu, "auto", torch.float32, int8=True) == torch.float16
    assert kv_cache_dtype(cpu, "float32", torch.float32, int8=True) == torch.float32
    assert kv_cache_dtype(cpu, "auto", torch.float32) == torch.float32
