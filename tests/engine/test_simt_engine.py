"""The whole engine on the CUDA kernels' source, run by the SIMT executor: the CPU engine's tokens.

Everything is as on a GPU except the GPU: dense weights, staged batches, two steps under way, device ops.
Only matrix products are torch's, there as here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.core_harness import (
    EOS,
    VOCAB,
    Answer,
    assert_idle,
    drive,
    make_core,
    request,
    save_with_tokenizer,
)
from tests.engine.device_harness import StagedRunner, staged_core
from tests.kernels.harness import BUILD
from tests.models.model_harness import tiny_model
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PretrainedConfig, Qwen3Config

from inferx.engine.core import EngineCore
from inferx.engine.device import SIMT_VARIABLE, _simt_module
from inferx.engine.protocol import EngineRequest
from inferx.sampling_params import SamplingParams

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**BASE),
    "qwen3": lambda: Qwen3Config(**{**BASE, "head_dim": 32, "num_key_value_heads": 1}),
    "gemma3": lambda: Gemma3TextConfig(
        **{**BASE, "tie_word_embeddings": True},
        sliding_window=11,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=20,
        final_logit_softcapping=3.0,
    ),
    "dynamic": lambda: LlamaConfig(
        **{**BASE, "max_position_embeddings": 24},
        rope_parameters={"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0},
    ),
}
PROMPTS = [[(7 * i + 3 * j) % 250 for j in range(length)] for i, length in enumerate((1, 9, 30, 17, 44))]


@pytest.fixture(scope="module", autouse=True)
def simt() -> Any:
    """Engines with device "simt" run the fast build."""
    files = list(BUILD.glob("inferx_simt_fast.*so"))
    assert files, f"{BUILD / 'inferx_simt_fast'}: not built; run `make simt`"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SIMT_VARIABLE, str(files[0]))
        _simt_module(str(files[0])).configure({"order": 0, "seed": 1, "preempt": 0})
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama"))


def save_tiny(family: str, directory: Path) -> Path:
    return save_with_tokenizer(tiny_model(FAMILIES[family](), seed=5), directory)


def greedy(count: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **options)


def sampled(count: int, seed: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=seed, max_tokens=count, ignore_eos=True, **options)


def answers(core: EngineCore, requests: list[EngineRequest], gap: int = 2) -> dict[tuple[str, int], Answer]:
    found = drive(core, [(gap * i, r) for i, r in enumerate(requests)]).answers
    assert_idle(core)
    return found


def tokens(found: dict[tuple[str, int], Answer]) -> dict[tuple[str, int], list[int]]:
    return {key: answer.tokens for key, answer in found.items()}


def check_continuous_batching(path: Path, new_tokens: int) -> None:
    """Greedy and seeded, arriving while others run, in chunks, steps under way, graphs; log-probabilities
    agree too."""
    requests = [
        request(f"r{i}", prompt, greedy(new_tokens, logprobs=2) if i % 2 else sampled(new_tokens, seed=i))
        for i, prompt in enumerate(PROMPTS)
    ]
    expected = answers(make_core(path), requests)
    core = staged_core(path, graphs=True, device="simt", max_num_batched_tokens=16)
    actual = answers(core, requests)
    assert tokens(actual) == tokens(expected)
    for key, answer in actual.items():
        for mine, theirs in zip(answer.logprobs, expected[key].logprobs, strict=True):
            assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)  # type: ignore[attr-defined]
    runner = core.runner
    assert isinstance(runner, StagedRunner)
    assert runner.seen.sources > 0
    assert runner.seen.graphs.replays > 0


def check_shared_prefixes_forks_and_preemption(path: Path, seed: int) -> None:
    """Block copies, cached prefixes, recomputation: a pool that is too small, twice."""
    rng = random.Random(seed)
    stem = [rng.randrange(250) for _ in range(13)]
    requests = [request("first", [*stem, 1], greedy(4))]
    requests += [
        request(f"r{i}", stem + PROMPTS[i][: 3 * i], sampled(16, seed=i, n=1 + i % 2)) for i in range(4)
    ]
    requests += [request("greedy", [*stem[:11], 9, 9], greedy(14))]
    expected = tokens(answers(make_core(path), requests))
    core = staged_core(path, graphs=True, device="simt", num_blocks=10, max_num_batched_tokens=24)
    for gap in (0, 2):
        assert tokens(answers(core, requests, gap)) == expected
    stats = core.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert core.runner.seen.copies > 0  # type: ignore[attr-defined]


def test_continuous_batching(tiny: Path) -> None:
    check_continuous_batching(tiny, 10)


def test_shared_prefixes_forks_and_preemption(llama: Path, seed: int) -> None:
    check_shared_prefixes_forks_and_preemption(llama, seed)


def test_prompt_logprobs_and_penalties(llama: Path) -> None:
    requests = [
        request("a", PROMPTS[2], greedy(8, prompt_logprobs=3, repetition_penalty=1.3)),
        request("b", PROMPTS[4], sampled(8, 7, presence_penalty=0.7, top_k=9, top_p=0.9, logprobs=0)),
    ]
    expected = answers(make_core(llama), requests)
    actual = answers(make_core(llama, device="simt", max_num_batched_tokens=16), requests)
    assert tokens(actual) == tokens(expected)
    mine, theirs = actual["a", 0].prompt_logprobs, expected["a", 0].prompt_logprobs
    assert mine is not None
    assert theirs is not None
    assert len(mine) == len(theirs) == len(PROMPTS[2])
    for a, b in zip(mine[1:], theirs[1:], strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)  # type: ignore[attr-defined]


def reference(path: Path, ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    """transformers' log-probability of each token but the first, computed in ``dtype``; float64."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    return logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]


def prompt_logprobs(core: EngineCore, ids: list[int]) -> torch.Tensor:
    found = answers(core, [request("a", ids, greedy(1, prompt_logprobs=0))])["a", 0].prompt_logprobs
    assert found is not None
    return torch.tensor([entry.logprobs[0] for entry in found[1:]]).double()  # type: ignore[attr-defined]


def rms(difference: torch.Tensor) -> float:
    return float(difference.square().mean().sqrt())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(tiny: Path, dtype: str) -> None:
    """As close to float32 as transformers in the same type."""
    ids = PROMPTS[4] + PROMPTS[1]
    exact = reference(tiny, ids, torch.float32)
    theirs = rms(reference(tiny, ids, getattr(torch, dtype)) - exact)
    core = make_core(tiny, device="simt", dtype=dtype, max_num_batched_tokens=32)
    assert core.runner.kv[0][0].dtype == getattr(torch, dtype)  # type: ignore[attr-defined]
    mine = rms(prompt_logprobs(core, ids) - exact)
    assert 0.1 * theirs < mine < 1.25 * theirs


@pytest.mark.parametrize("scale", [None, 0.02])
def test_float8_cache(tmp_path: Path, scale: float | None) -> None:
    """A cache of 3 bits of mantissa instead of 7, with the checkpoint's scales where it has some."""
    path, ids = save_tiny("llama", tmp_path), PROMPTS[4] + PROMPTS[1]
    exact = reference(path, ids, torch.float32)
    theirs = rms(reference(path, ids, torch.bfloat16) - exact)
    if scale is not None:
        file = path / "model.safetensors"
        scales = {
            f"model.layers.{i}.self_attn.{name}_scale": torch.tensor(scale) for i in range(2) for name in "kv"
        }
        save_file({**load_file(file), **scales}, file, metadata={"format": "pt"})
    core = make_core(path, device="simt", dtype="bfloat16", kv_cache_dtype="fp8", max_num_batched_tokens=32)
    assert core.runner.kv[0][0].dtype == torch.float8_e4m3fn  # type: ignore[attr-defined]
    mine = rms(prompt_logprobs(core, ids) - exact)
    assert 1.25 * theirs < mine < 8 * theirs
