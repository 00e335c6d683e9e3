"""Which decode steps run from a graph, and when graphs are captured; no GPU is needed to decide that."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from inferx.engine.cuda_graphs import DecodeGraphs, GraphPolicy, decode_buckets


@pytest.mark.parametrize(
    ("largest", "buckets"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (9, [1, 2, 4, 8, 9]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
        (37, [1, 2, 4, 8, 16, 24, 32, 37]),
    ],
)
def test_buckets(largest: int, buckets: list[int]) -> None:
    assert decode_buckets(largest) == buckets


@pytest.mark.parametrize("largest", [1, 5, 8, 64, 250, 256])
def test_the_bucket_is_the_smallest_that_holds_the_batch(largest: int) -> None:
    policy = GraphPolicy(largest)
    for batch in range(1, largest + 1):
        assert policy.bucket(batch) == min(b for b in policy.buckets if b >= batch)
        assert policy.bucket(batch) - batch < 8
    assert policy.bucket(0) is None
    assert policy.bucket(largest + 1) is None


def test_a_size_runs_without_a_graph_until_it_is_captured() -> None:
    policy = GraphPolicy(16, interval=10, uses_before_capture=2)
    assert policy.graph_for(3) is None
    assert policy.next_capture(idle=True) is None  # once is not enough
    assert policy.graph_for(4) is None  # the same bucket
    assert policy.next_capture(idle=True) == 4
    assert policy.graph_for(4) is None
    policy.captured(4)
    assert [policy.graph_for(n) for n in (2, 3, 4, 5)] == [None, 4, 4, None]
    assert policy.next_capture(idle=True) is None


def test_captures_keep_their_distance_while_steps_run() -> None:
    policy = GraphPolicy(32, interval=5, uses_before_capture=1)
    moments = []
    for step in range(40):
        bucket = policy.next_capture(idle=False)
        if bucket is not None:
            moments.append(step)
            policy.captured(bucket)
        policy.on_step()
        policy.graph_for(1 + step % 32)
    assert moments[0] == 1  # nothing has been captured yet: no distance to keep
    assert len(moments) == len(policy.buckets)
    assert all(b - a >= 5 for a, b in pairwise(moments))


def test_idle_moments_need_no_distance() -> None:
    policy = GraphPolicy(32, interval=10**6, uses_before_capture=1)
    for batch in (1, 8, 30, 8):
        policy.graph_for(batch)
    captured = []
    while policy.has_queued:
        bucket = policy.next_capture(idle=True)
        assert bucket is not None
        captured.append(bucket)
    assert captured == [8, 32, 1]  # most used first, then the largest


def test_after_a_failure_nothing_is_captured_any_more() -> None:
    policy = GraphPolicy(8, uses_before_capture=1)
    policy.graph_for(1)
    policy.captured(policy.next_capture(idle=True) or 0)
    policy.graph_for(8)
    policy.stop()
    policy.graph_for(4)
    assert not policy.has_queued
    assert policy.next_capture(idle=True) is None
    assert policy.graph_for(1) == 1  # what there is remains


class Recorder:
    """Keeps the function, as a graph keeps its kernels."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def capture(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        if self.error is not None:
            raise self.error
        run()
        return run

    def replay(self, graph: Callable[[], torch.Tensor]) -> None:
        graph()


def test_a_graph_reads_the_tables_of_the_step() -> None:
    graphs = DecodeGraphs(Recorder(), torch.zeros(8, 3), max_blocks=6)

    def forward(tables: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(tables[:, :3])

    graphs.capture(4, forward)
    first = graphs.run(4, torch.arange(20, dtype=torch.int32).view(4, 5))
    assert first.tolist() == [[0, 1, 2], [5, 6, 7], [10, 11, 12], [15, 16, 17]]
    # Fewer blocks: what the step before left behind them is not read by attention.
    second = graphs.run(4, torch.full((4, 2), 7, dtype=torch.int32))
    assert (second[:, :2] == 7).all()


@pytest.mark.parametrize("error", [RuntimeError("capture failed"), MemoryError("reserve used up")])
def test_a_failed_capture_costs_only_the_graph(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    graphs = DecodeGraphs(Recorder(error), torch.zeros(8, 3), max_blocks=6)
    for _ in range(5):
        assert graphs.policy.graph_for(4) is None
    bucket = graphs.policy.next_capture(idle=True)
    assert bucket == 4
    graphs.capture(bucket, lambda tables, out: out)
    assert str(error) in caplog.text
    assert graphs.policy.graph_for(4) is None
    assert not graphs.policy.has_queued
