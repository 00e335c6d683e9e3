"""The engine in its own process: streams, leaving early, a process that dies, start-up errors."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.engine.core_harness import save_tiny_llama

from inferx.engine.args import EngineArgs
from inferx.engine.async_engine import AsyncEngine
from inferx.engine.llm_engine import LLMEngine
from inferx.errors import EngineDeadError, InvalidRequestError, LoadError, MemoryBudgetError
from inferx.outputs import RequestOutput
from inferx.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def args(path: Path, **options: object) -> EngineArgs:
    return EngineArgs(
        model=str(path), **{"num_blocks": 128, "block_size": 8, "num_threads": 1, "seed": 0, **options}
    )


@pytest_asyncio.fixture
async def engine(tiny: Path) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(args(tiny))
    await engine.start()
    yield engine
    await engine.shutdown()


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


async def collect(engine: AsyncEngine, name: str, prompt: list[int], params: SamplingParams) -> RequestOutput:
    whole = RequestOutput.empty(name, None, prompt, params.n)
    async for delta in engine.generate(prompt, params, name):
        whole.add(delta)
    return whole


async def wait_idle(engine: AsyncEngine) -> None:
    async def idle() -> None:
        while True:
            stats = engine.stats()
            if not stats.num_running and not stats.num_waiting and stats.num_free_blocks == stats.num_blocks:
                return
            await asyncio.sleep(0.01)

    await asyncio.wait_for(idle(), 5)


async def test_streams_equal_the_engine_in_process(tiny: Path, engine: AsyncEngine) -> None:
    prompts = [[i + 3] * (5 * i + 1) for i in range(6)]
    params = [greedy(12, logprobs=2, stop=["zz"], n=1 + i % 2) for i in range(6)]
    streamed = await asyncio.gather(
        *(collect(engine, f"r{i}", p, q) for i, (p, q) in enumerate(zip(prompts, params, strict=True)))
    )
    local = LLMEngine(args(tiny))
    for i, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        local.add_request("x", prompt, p)
        whole = RequestOutput.empty("x", None, prompt, p.n)
        while local.has_work:
            for _, item in local.step():
                assert isinstance(item, RequestOutput)
                whole.add(item)
        for ours, theirs in zip(streamed[i].outputs, whole.outputs, strict=True):
            assert (ours.text, ours.token_ids, ours.finish_reason) == (
                theirs.text,
                theirs.token_ids,
                theirs.finish_reason,
            )
            assert [(e.token_ids, e.logprobs, e.rank) for e in ours.logprobs] == [
                (e.token_ids, e.logprobs, e.rank) for e in theirs.logprobs
            ]
    await wait_idle(engine)


async def test_leaving_a_stream_aborts_the_request(engine: AsyncEngine) -> None:
    stream = engine.generate([1, 2, 3], greedy(400, n=2), "r")
    async for _ in stream:
        break
    await stream.aclose()
    await wait_idle(engine)
    task = asyncio.create_task(collect(engine, "s", [5], greedy(400)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_idle(engine)
    assert (await collect(engine, "t", [5], greedy(3))).finished


async def test_refusals_disturb_nobody(engine: AsyncEngine) -> None:
    running = asyncio.create_task(collect(engine, "long", [1, 2], greedy(100)))
    await asyncio.sleep(0)  # it is sent
    with pytest.raises(InvalidRequestError, match="in use"):
        await collect(engine, "long", [1], greedy(3))
    for prompt, params, field in (
        ([], greedy(3), "prompt"),
        ([999], greedy(3), "prompt"),
        ([-1], greedy(3), "prompt"),
        ([1] * 512, greedy(3), "prompt"),
        ([1], greedy(3, logit_bias={9999: 1.0}), "logit_bias"),
        ([1], SamplingParams(temperature=-1.0), "temperature"),
        ([1], greedy(3, n=100), "n"),
        ([1], greedy(3, min_tokens=2, allowed_token_ids=[257]), "allowed_token_ids"),
        ([1], greedy(3, allowed_token_ids=[7], bad_words=["("]), "allowed_token_ids"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await collect(engine, "bad", prompt, params)
        assert caught.value.param == field
    assert len((await running).outputs[0].token_ids) == 100
    await wait_idle(engine)


async def test_a_dead_process_is_noticed(engine: AsyncEngine) -> None:
    assert engine.is_healthy() == (True, "ok")
    os.kill(engine.process_id, signal.SIGSTOP)  # or it would be done before it dies
    running = [asyncio.create_task(collect(engine, f"r{i}", [i + 1], greedy(500))) for i in range(3)]
    await asyncio.sleep(0.1)
    os.kill(engine.process_id, signal.SIGKILL)
    for task in running:
        with pytest.raises(EngineDeadError, match="signal 9"):
            await task
    healthy, reason = engine.is_healthy()
    assert not healthy
    assert "signal 9" in reason
    assert "signal 9" in engine.failure
    stats = engine.stats()
    assert (stats.num_running, stats.num_free_blocks) == (0, stats.num_blocks)
    with pytest.raises(EngineDeadError):
        await collect(engine, "late", [1], greedy(3))


async def test_health_means_progress(tiny: Path) -> None:
    engine = AsyncEngine(args(tiny), stall_seconds=0.3)
    await engine.start()
    try:
        os.kill(engine.process_id, signal.SIGSTOP)
        task = asyncio.create_task(collect(engine, "r", [1], greedy(5)))
        await asyncio.sleep(0.6)
        assert not engine.is_healthy()[0]
        os.kill(engine.process_id, signal.SIGCONT)
        await task
        assert engine.is_healthy()[0]
    finally:
        await engine.shutdown()


async def test_the_process_ends_with_its_parent(tiny: Path) -> None:
    engine = AsyncEngine(args(tiny))
    await engine.start()
    process, directory = engine._process, Path(engine._directory)
    stats, info = engine.stats(), engine.info
    assert info is not None
    assert stats.num_free_blocks == 128
    # Known before the first step.
    assert stats.total_parameters == stats.active_parameters == info.total_parameters > 20_000
    process.stdin.close()  # what the kernel does when the front end is killed
    assert await asyncio.wait_for(process.wait(), 5) == 1
    assert not directory.exists()
    await engine.shutdown()


async def test_shutdown_is_clean(tiny: Path) -> None:
    engine = AsyncEngine(args(tiny))
    await engine.start()
    await collect(engine, "r", [1, 2], greedy(3))
    await engine.shutdown()
    assert engine._process.returncode == 0
    with pytest.raises(EngineDeadError):
        await collect(engine, "late", [1], greedy(3))


async def test_start_up_errors_keep_their_type(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="nowhere"):
        AsyncEngine(args(tmp_path / "nowhere"))
    engine = AsyncEngine(args(tiny, num_blocks=10**10))
    with pytest.raises(MemoryBudgetError, match="KV cache per token"):
        await engine.start()
    engine = AsyncEngine(args(tiny, max_model_len=10**6))
    with pytest.raises(InvalidRequestError, match="512"):
        await engine.start()
    broken = save_tiny_llama(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"model\.safetensors"):
        await AsyncEngine(args(broken)).start()
