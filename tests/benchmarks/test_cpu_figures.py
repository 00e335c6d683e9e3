"""Figures, ratios, floors and tables of benchmarks.cpu, from made-up times."""

from __future__ import annotations

import pytest
from benchmarks.cpu.floors import (
    Limits,
    ModelShape,
    decode_step_bytes,
    request_flops,
    share_of,
    workload_flops,
)
from benchmarks.cpu.memory import growth, memory, resident_bytes
from benchmarks.cpu.metrics import median_of, median_ratio, ratio, spread, summarize
from benchmarks.cpu.table import markdown, number, workload_table
from benchmarks.cpu.workloads import SHARED_PREFIX, Request, make_workloads

WORKLOADS = make_workloads()
SHAPE = ModelShape(
    layer_parameters=1000, head_parameters=300, attention_flops=7, weight_bytes=5000, kv_bytes=11
)
LIMITS = Limits(bandwidth=1e6, float32=2e6, int8=4e6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("W1", 255 / 8), ("W2", 2048 / 10), ("W3", 4096 / 10), ("W4", 200.0), ("W5", 14351 / 10), ("W6", 10.0)],
)
def test_each_workload_has_its_own_figure(name: str, value: float) -> None:
    figure = summarize(name, WORKLOADS[name], wall=10.0, ttft=2.0)
    assert figure["value"] == pytest.approx(value)
    assert figure["ttft"] == (10.0 if name == "W4" else 2.0)


def test_an_exact_decode_time_is_preferred() -> None:
    figure = summarize("W1", WORKLOADS["W1"], wall=10.0, ttft=2.0, decode_seconds=5.0)
    assert figure["value"] == pytest.approx(51.0)


def test_impossible_times_are_refused() -> None:
    with pytest.raises(ValueError, match="ttft 3"):
        summarize("W2", WORKLOADS["W2"], wall=2.0, ttft=3.0)


def test_ratios_say_how_many_times_faster_we_are() -> None:
    assert ratio("W1", 130.0, 100.0) == pytest.approx(1.3)
    assert ratio("W6", 5.0, 10.0) == pytest.approx(2.0)


def test_the_median_is_of_the_rounds_ratios() -> None:
    # Of medians it would be 20 / 10; a slow round slows both.
    assert median_ratio("W1", [10, 20, 60], [10, 5, 40]) == pytest.approx(1.5)
    assert median_ratio("W1", [10, None, 60], [10, 5, None]) == pytest.approx(1.0)
    assert median_ratio("W1", [10], [None]) is None
    with pytest.raises(ValueError, match="2 rounds of ours, 1"):
        median_ratio("W1", [1, 2], [1])


def test_medians_and_spreads() -> None:
    assert median_of([{"v": 1.0}, None, {"v": 3.0}, {"v": None}, {"v": 9.0}], "v") == 3.0
    assert median_of([None], "v") is None
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.15)


def test_operations_of_a_request_token_by_token() -> None:
    prompt, new_tokens, cached = 5, 4, 2
    expected = 0.0
    for position in range(cached, prompt + new_tokens - 1):  # the last token is not computed with
        expected += 2 * SHAPE.layer_parameters + (position + 1) * SHAPE.attention_flops
        if position >= prompt - 1:
            expected += 2 * SHAPE.head_parameters
    assert request_flops(SHAPE, prompt, new_tokens, cached) == expected


def test_the_shared_prefix_counts_once() -> None:
    requests = WORKLOADS["W6"]
    alone = sum(request_flops(SHAPE, len(r.prompt), r.new_tokens) for r in requests)
    prefix = request_flops(SHAPE, SHARED_PREFIX, 1) - 2 * SHAPE.head_parameters
    assert workload_flops(SHAPE, "W6", requests) == alone - (len(requests) - 1) * prefix


def test_bytes_of_a_decode_step_are_the_mean_of_all_steps() -> None:
    prompt, new_tokens = 6, 5
    contexts = [prompt + i + 1 for i in range(new_tokens - 1)]
    expected = SHAPE.weight_bytes + SHAPE.kv_bytes * sum(contexts) / len(contexts)
    assert decode_step_bytes(SHAPE, prompt, new_tokens) == expected


def test_share_of_memory_is_one_at_the_floor() -> None:
    request = (Request(tuple(range(6)), 5),)
    floor = decode_step_bytes(SHAPE, 6, 5) / LIMITS.bandwidth
    share = share_of("W1", request, SHAPE, LIMITS, {"value": 1 / floor, "wall": 1.0})
    assert share["bound"] == "memory"
    assert share["share"] == pytest.approx(1.0)


def test_share_of_arithmetic_may_pass_one_with_int8() -> None:
    requests = WORKLOADS["W3"]
    flops = workload_flops(SHAPE, "W3", requests)
    share = share_of("W3", requests, SHAPE, LIMITS, {"value": 1.0, "wall": flops / 3e6})
    assert share["share"] == pytest.approx(1.5)
    assert share["share_of_int8"] == pytest.approx(0.75)


def test_share_of_a_prefix_needs_its_parts() -> None:
    requests = WORKLOADS["W6"]
    assert share_of("W6", requests, SHAPE, LIMITS, {"wall": 10.0})["share"] is None
    assert share_of("W6", requests, SHAPE, LIMITS, {"wall": 10.0}, [6.0, 3.0])["share"] == pytest.approx(0.9)


def test_memory_of_this_process() -> None:
    import numpy as np

    now = memory()
    assert now["peak"] >= now["resident"] > 2**20
    pages = 64
    block = np.empty(pages * 4096 * 4, np.uint8)  # mapped, not written
    start = -(-block.ctypes.data // 4096) * 4096
    first = block[start - block.ctypes.data :]
    before = resident_bytes([(start, pages * 4096)])
    first[: pages * 4096] = 1
    assert before <= resident_bytes([(start, pages * 4096)]) == pages * 4096


def test_growth_leaves_imports_and_used_cache_out() -> None:
    record = {
        "after_imports": {"resident": 100.0},
        "after_load": {"resident": 180.0},
        "at_end": {"resident": 300.0, "peak": 350.0},
        "file_bytes": 80,
        "kv_resident_bytes": 110,
    }
    assert growth(record) == {
        "after_load": 80.0,
        "end": 200.0,
        "peak": 250.0,
        "without_kv": 90.0,
        "allowed": 100.0,
    }


def test_table_has_ratios_and_missed_bars() -> None:
    result = {
        "unit": "decode tok/s",
        "value": 150.0,
        "spread": 0.02,
        "ttft": 0.1234,
        "floor": {"bound": "memory", "floor_ms": 4.8, "share": 0.72},
        "bars": {"share": False, "ratio": True},
        "peers": {"other": {"value": 100.0, "ratio": 1.5}},
    }
    head, rule, row = workload_table({"W1": result}, ["other"]).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "W1", "decode tok/s", "150", "2%", "0.123", "100", "1.50 ×", "memory", "4.8", "72%", "missed: share",
    ]  # fmt: skip


def test_markdown_columns_line_up() -> None:
    lines = markdown([["a", "bb"], ["longer", "1"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert number(None) == "–"
    assert number(1234.5) == "1,234"
