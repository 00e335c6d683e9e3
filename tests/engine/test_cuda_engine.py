"""The engine on a GPU: the CPU engine's tokens, graphs, no waiting in a launch, memory as planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.core_harness import Answer, assert_idle, drive, make_core, request
from tests.engine.plain_checkpoint import save_plain_llama

from inferx.engine.core import EngineCore
from inferx.engine.cuda_graphs import CudaGraphBackend, GraphPolicy
from inferx.engine.protocol import EngineRequest
from inferx.engine.runner import ModelRunner
from inferx.sampling_params import SamplingParams

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
PROMPTS = [
    [(7 * i + 3 * j) % 250 for j in range(length)] for i, length in enumerate((1, 9, 130, 17, 300, 64))
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_plain_llama(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def eager_to_capture(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Graphs are captured as soon as a size has come up; the sizes."""
    captured: list[int] = []
    init, note = GraphPolicy.__init__, GraphPolicy.captured

    def at_once(self: GraphPolicy, max_num_seqs: int, **options: Any) -> None:
        init(self, max_num_seqs, interval=1, uses_before_capture=1)

    def noted(self: GraphPolicy, bucket: int) -> None:
        captured.append(bucket)
        note(self, bucket)

    monkeypatch.setattr(GraphPolicy, "__init__", at_once)
    monkeypatch.setattr(GraphPolicy, "captured", noted)
    return captured


def gpu_core(path: Path, **options: Any) -> EngineCore:
    """Small, so that several fit beside one another; float32, so that tokens can be compared."""
    small = {
        "device": DEVICE,
        "dtype": "float32",
        "gpu_memory_utilization": 0.3,
        "max_num_batched_tokens": 128,
    }
    return make_core(path, **{**small, **options})


def greedy(count: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, **options)


def mixed_requests() -> list[EngineRequest]:
    """Greedy, seeded, filtered, penalised and forked samples."""
    stem = PROMPTS[2][:40]
    requests = [request(f"greedy{i}", prompt, greedy(24)) for i, prompt in enumerate(PROMPTS)]
    for i in range(4):
        params = SamplingParams(
            temperature=0.9,
            seed=i,
            n=1 + i % 2,
            top_k=(0, 20)[i % 2],
            top_p=(1.0, 0.9)[i // 2],
            repetition_penalty=(1.0, 1.2)[i == 3],
            max_tokens=20,
            ignore_eos=True,
        )
        requests.append(request(f"sampled{i}", stem + PROMPTS[1][:i], params))
    return requests


def tokens(core: EngineCore, requests: list[EngineRequest], gap: int = 2) -> dict[tuple[str, int], list[int]]:
    found = drive(core, [(gap * i, r) for i, r in enumerate(requests)]).answers
    assert_idle(core)
    assert all(answer.error is None for answer in found.values())
    return {key: answer.tokens for key, answer in found.items()}


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
def test_the_cpus_tokens(tiny: Path, eager: bool, eager_to_capture: list[int]) -> None:
    """In chunks, from cached prefixes, with preemption, and replayed from graphs."""
    requests = mixed_requests()
    expected = tokens(make_core(tiny), requests)
    core = gpu_core(tiny, enforce_eager=eager)
    for gap in (0, 3):
        assert tokens(core, requests, gap) == expected
    crowded = gpu_core(tiny, enforce_eager=eager, num_blocks=64)
    assert tokens(crowded, requests) == expected
    assert crowded.stats().num_preemptions > 0
    assert core.stats().prefix_cache_hits > 0
    assert (len(eager_to_capture) > 3) != eager


def test_graphs_are_captured_while_idle(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = 0
    replay = CudaGraphBackend.replay

    def counted(self: CudaGraphBackend, graph: Any) -> None:
        nonlocal replays
        replays += 1
        replay(self, graph)

    monkeypatch.setattr(CudaGraphBackend, "replay", counted)
    core = gpu_core(tiny)
    requests = [request(f"r{i}", prompt, greedy(30)) for i, prompt in enumerate(PROMPTS)]
    expected = tokens(core, requests)
    while core.runner.capture_graph(idle=True):
        pass
    before = replays
    assert tokens(core, requests) == expected
    assert replays > before + 20


def test_a_launch_does_not_wait(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, eager_to_capture: list[int]
) -> None:
    """torch raises where its own calls would synchronise; capturing, which must, is left out."""
    core = gpu_core(tiny)
    requests = mixed_requests()
    expected = tokens(core, requests)
    while core.runner.capture_graph(idle=True):
        pass
    monkeypatch.setattr(GraphPolicy, "next_capture", lambda self, idle: None)
    launch, launches = ModelRunner.launch, 0

    def strict(self: ModelRunner, *arguments: Any) -> Any:
        nonlocal launches
        launches += 1
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(ModelRunner, "launch", strict)
    assert tokens(core, requests) == expected
    assert launches > 30


def prompt_logprobs(core: EngineCore, ids: list[int]) -> torch.Tensor:
    answer: Answer = drive(core, [(0, request("a", ids, greedy(1, prompt_logprobs=0)))]).answers["a", 0]
    assert answer.prompt_logprobs is not None
    return torch.tensor([entry.logprobs[0] for entry in answer.prompt_logprobs[1:]]).double()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"dtype": "float32"}, 1e-3),
        ({"dtype": "float16"}, 0.05),
        ({"dtype": "bfloat16"}, 0.4),
        ({"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, 1.5),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_logprobs_are_close_to_float32(tiny: Path, options: dict[str, str], bound: float) -> None:
    ids = PROMPTS[4] + PROMPTS[2]
    expected = prompt_logprobs(make_core(tiny), ids)
    actual = prompt_logprobs(gpu_core(tiny, **options), ids)
    assert float((actual - expected).square().mean().sqrt()) < bound


def test_memory_stays_within_the_plan(tiny: Path) -> None:
    """The pool takes what is left, and full steps with all graphs stay below the budget."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    core = gpu_core(tiny, dtype="auto", num_blocks=None, max_num_seqs=64, max_num_batched_tokens=1024)
    total = torch.cuda.mem_get_info()[1]
    pool = sum(k.nbytes + v.nbytes for k, v in core.runner.kv)  # type: ignore[attr-defined]
    assert pool > 0.2 * total
    tokens(core, [request(f"r{i}", PROMPTS[4], greedy(40, logprobs=3)) for i in range(64)], gap=0)
    while core.runner.capture_graph(idle=True):
        pass
    assert torch.cuda.max_memory_reserved() - before < 0.3 * total


def test_aborts_while_two_steps_are_under_way(tiny: Path) -> None:
    core = gpu_core(tiny)
    expected = tokens(core, [request("alone", PROMPTS[3], greedy(12))])
    for stage in range(8):
        for i in range(4):
            core.add_request(request(f"r{i}", PROMPTS[i], greedy(30)))
        for _ in range(stage):
            core.step()
        for i in (2, 0, 3, 1):
            core.abort(f"r{i}")
        while core.has_work:
            core.step()
        assert_idle(core)
    assert tokens(core, [request("alone", PROMPTS[3], greedy(12))]) == expected
