"""Embeddings from the engine: transformers' hidden states pooled, the same bits however they come about."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.core_harness import assert_idle, make_core, request, save_tiny_llama, save_tiny_moe

from inferx.engine.core import EngineCore
from inferx.engine.pooling import Pooler
from inferx.engine.protocol import EngineOutput, EngineRequest
from inferx.engine.runner import ModelRunner
from inferx.errors import InvalidRequestError
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams

MEAN, LAST = PoolingParams(pooling="mean"), PoolingParams(pooling="last")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def pooling_request(name: str, prompt: list[int], pooling: PoolingParams, **more: Any) -> EngineRequest:
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    return EngineRequest(name, prompt, params, time.monotonic(), pooling=pooling, **more)


def collect(core: EngineCore, *, check: bool = True) -> dict[str, EngineOutput]:
    """Run to the end: the last message of each request."""
    last: dict[str, EngineOutput] = {}
    while core.has_work:
        for output in core.step():
            if output.finish_reason is not None:
                last[output.request_id] = output
        if check:
            core.scheduler.check_invariants()
    return last


def embed(core: EngineCore, prompt: list[int], pooling: PoolingParams) -> bytes:
    core.add_request(pooling_request("alone", prompt, pooling))
    (output,) = collect(core).values()
    assert (output.finish_reason, output.new_token_ids) == ("stop", [])
    assert output.embedding is not None
    return output.embedding


def vector(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.float32)


def prompts(count: int, longest: int = 150) -> list[list[int]]:
    """Many start alike, so that the cache has something to give."""
    rng = random.Random(0)
    stems = [[rng.randrange(256) for _ in range(size)] for size in (0, 30, 90)]
    tails = [[rng.randrange(256) for _ in range(rng.randint(1, longest - 90))] for _ in range(count)]
    return [rng.choice(stems) + tail for tail in tails]


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_equals_transformers(tmp_path: Path, family: str) -> None:
    from transformers import AutoModel

    path = save_tiny_llama(tmp_path) if family == "llama" else save_tiny_moe(tmp_path, family=family)
    core = make_core(path, max_num_batched_tokens=32)
    oracle = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    for prompt in [[5], [1, 2], *prompts(4)]:
        with torch.no_grad():
            states = oracle(torch.tensor([prompt])).last_hidden_state[0].double().numpy()
        for pooling, wanted in (("mean", states.mean(0)), ("last", states[-1])):
            raw = vector(embed(core, prompt, PoolingParams(pooling=pooling, normalize=False)))
            assert np.abs(raw - wanted).max() < 1e-3
            unit = vector(embed(core, prompt, PoolingParams(pooling=pooling)))
            assert np.abs(unit - wanted / np.linalg.norm(wanted)).max() < 1e-4
            short = vector(embed(core, prompt, PoolingParams(pooling=pooling, dimensions=7)))
            assert short.shape == (7,)
            assert np.abs(short - wanted[:7] / np.linalg.norm(wanted[:7])).max() < 1e-4
    assert_idle(core)


@pytest.mark.parametrize("pooling", [MEAN, LAST], ids=["mean", "last"])
def test_same_bits_however_it_is_computed(tiny: Path, pooling: PoolingParams) -> None:
    """Alone = batched = chunked = beside the cache = preempted."""
    texts = prompts(12)
    plain = make_core(tiny, max_num_batched_tokens=2048, enable_prefix_caching=False)
    alone = [embed(plain, prompt, pooling) for prompt in texts]
    assert len(set(alone)) == len(alone)
    for options in (
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 100, "num_blocks": 20},
        {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 7},
    ):
        core = make_core(tiny, **{"max_num_seqs": 8, "max_model_len": 160, **options})
        for i, prompt in enumerate(texts):
            core.add_request(pooling_request(f"e{i}", prompt, pooling))
            greedy = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
            core.add_request(request(f"g{i}", prompt[:50], greedy))
        outputs = collect(core)
        assert [outputs[f"e{i}"].embedding for i in range(len(texts))] == alone
        # Once more: now the cache knows the prompts.
        for i, prompt in enumerate(texts):
            core.add_request(pooling_request(f"e{i}", prompt, pooling))
        outputs = collect(core)
        assert [outputs[f"e{i}"].embedding for i in range(len(texts))] == alone
        cached = sum(output.num_cached_tokens for output in outputs.values())
        assert (cached == 0) == (pooling.pooling == "mean")
        assert_idle(core)


def test_preempted_in_the_middle_of_a_prompt(tiny: Path) -> None:
    """What was pooled before is kept, and not counted twice."""
    prompt = prompts(1)[0]
    alone = embed(make_core(tiny), prompt, MEAN)
    core = make_core(tiny, max_num_batched_tokens=16, max_num_seqs=4)
    core.add_request(pooling_request("e", prompt, MEAN))
    for _ in range(3):
        core.step()
    (seq,) = core.scheduler.running
    from inferx.engine.scheduler_output import SchedulerOutput

    core.scheduler._preempt(seq, SchedulerOutput())
    assert core._state(seq).pooler.num_pooled == 48  # type: ignore[union-attr]
    assert collect(core)["e"].embedding == alone
    assert_idle(core)


def test_generation_is_untouched_and_tokens_are_not_counted(tiny: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2)

    def answer(core: EngineCore, beside: bool) -> list[Any]:
        core.add_request(request("g", [3, 4, 5], params))
        if beside:
            for i, prompt in enumerate(prompts(5)):
                core.add_request(pooling_request(f"e{i}", prompt, MEAN if i % 2 else LAST))
        found = []
        while core.has_work:
            for output in core.step():
                if output.request_id == "g":
                    found.append((output.new_token_ids, output.logprobs, output.finish_reason))
        assert core.stats().generation_tokens == 20
        return found

    assert answer(make_core(tiny), False) == answer(make_core(tiny), True)


def test_abort_and_full_context(tiny: Path) -> None:
    core = make_core(tiny, max_num_batched_tokens=16, max_model_len=64)
    core.add_request(pooling_request("gone", [7] * 60, MEAN))
    core.step()
    core.abort("gone")
    assert collect(core) == {}
    assert_idle(core)
    assert len(embed(core, [7] * 64, MEAN)) == 40 * 4  # no room for a token is needed
    with pytest.raises(InvalidRequestError, match="64 tokens"):
        core.add_request(pooling_request("long", [7] * 65, MEAN))
    assert_idle(core)


def test_a_failing_step_ends_only_the_guilty(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = prompts(5)
    alone = [embed(make_core(tiny), prompt, MEAN) for prompt in texts]
    core = make_core(tiny, max_num_batched_tokens=32)
    launch = ModelRunner.launch

    def failing(self: ModelRunner, plan: Any, state_of: Any) -> Any:
        if any(e.seq.request_id == "e2" for e in plan.scheduled):
            raise RuntimeError("injected")
        return launch(self, plan, state_of)

    monkeypatch.setattr(ModelRunner, "launch", failing)
    for i, prompt in enumerate(texts):
        core.add_request(pooling_request(f"e{i}", prompt, MEAN))
    outputs = collect(core)
    assert outputs["e2"].finish_reason == "error"
    assert "injected" in (outputs["e2"].error or "")
    others = [0, 1, 3, 4]
    assert [outputs[f"e{i}"].embedding for i in others] == [alone[i] for i in others]
    assert_idle(core)


def test_hidden_states_that_are_not_finite_are_an_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(tiny)
    add = Pooler.add
    monkeypatch.setattr(Pooler, "add", lambda self, first, rows: add(self, first, rows * np.float32("nan")))
    core.add_request(pooling_request("e", [1, 2, 3], MEAN))
    (output,) = collect(core).values()
    assert output.finish_reason == "error"
    assert "not finite" in (output.error or "")
    assert_idle(core)


def test_rows_in_any_cut_give_the_same_sum() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32) * 1e3

    def pooled(cuts: list[tuple[int, int]]) -> bytes:
        pooler = Pooler(MEAN, len(rows))
        for first, end in cuts:
            pooler.add(first, rows[first:end])
        return pooler.result()

    whole = pooled([(0, 40)])
    assert pooled([(0, 7), (7, 40)]) == whole
    assert pooled([(i, i + 1) for i in range(40)]) == whole
    assert pooled([(0, 20), (0, 10), (10, 30), (30, 40)]) == whole  # computed again
    assert pooled([(0, 7), (12, 40), (7, 12), (12, 40)]) == whole  # behind a failed step
    with pytest.raises(ValueError, match="7 of 40"):
        pooled([(0, 7), (12, 40)])


@pytest.mark.parametrize("fails", [None, 1, 4])
def test_chunks_of_two_steps_in_flight(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, fails: int | None
) -> None:
    """The next step is planned and launched before a step's states are pooled; a failed one is run again."""
    texts = prompts(5)
    alone = [embed(make_core(tiny), prompt, MEAN) for prompt in texts]
    core = make_core(tiny, max_num_batched_tokens=32)
    core.runner.steps_in_flight = 2
    launch, count = ModelRunner.launch, 0

    def failing(self: ModelRunner, plan: Any, state_of: Any) -> Any:
        nonlocal count
        count += 1
        handle = launch(self, plan, state_of)
        if count == fails:
            handle._prompts.append(_Broken())
        return handle

    monkeypatch.setattr(ModelRunner, "launch", failing)
    for i, prompt in enumerate(texts):
        core.add_request(pooling_request(f"e{i}", prompt, MEAN))
    outputs = collect(core)
    assert [outputs[f"e{i}"].embedding for i in range(5)] == alone
    assert_idle(core)


class _Broken:
    def compute(self, *args: Any) -> None:
        raise RuntimeError("injected")


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (PoolingParams(pooling="max"), "pooling"),  # type: ignore[arg-type]
        (PoolingParams(dimensions=0), "dimensions"),
        (PoolingParams(dimensions=41), "dimensions"),
        (PoolingParams(dimensions=True), "dimensions"),
        (PoolingParams(normalize=1), "normalize"),  # type: ignore[arg-type]
    ],
)
def test_wrong_params_are_named(params: PoolingParams, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        params.validate(40)
    assert caught.value.param == name
