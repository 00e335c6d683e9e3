"""Peers' commands, rounds in turn, and what counts as a disturbance."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu import contest as contest_module
from benchmarks.cpu.contest import OURS, Contest
from benchmarks.cpu.floors import Limits
from benchmarks.cpu.quiet import CpuTimes, wait_until_quiet
from benchmarks.cpu.spawn import ChildError, Peer, parse_result

SHAPE = {
    "layer_parameters": 1000,
    "head_parameters": 300,
    "attention_flops": 7,
    "weight_bytes": 5000,
    "kv_bytes": 11,
}


def script(tmp_path: Path, body: str) -> str:
    """The command of a peer made of a few lines of Python."""
    file = tmp_path / "peer.py"
    file.write_text(body)
    return f"{sys.executable} {file} {{workload}} {{model}} {{threads}} {{workloads}}"


def test_placeholders_are_filled_word_by_word() -> None:
    peer = Peer.parse("name=run --w={workload} '{model} x' {threads} {workloads}")
    words = peer.arguments("W3", "a b.gguf", 2, Path("w.json"))
    assert words == ["run", "--w=W3", "a b.gguf x", "2", "w.json"]


@pytest.mark.parametrize("text", ["", "name", "=run", "name= "])
def test_peers_need_a_name_and_a_command(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=COMMAND"):
        Peer.parse(text)


def test_a_peer_reads_the_tokens_and_prints_its_figure(tmp_path: Path) -> None:
    body = """
import json, sys
name, model, threads, workloads = sys.argv[1:]
requests = json.load(open(workloads))[name]
print("loading", model)
print(json.dumps({"value": len(requests) + int(threads), "unit": "output tok/s", "wall": 1.0}))
"""
    tokens = tmp_path / "w.json"
    tokens.write_text(json.dumps({"W2": [{}] * 16}))
    peer = Peer("p", script(tmp_path, body))
    assert peer.run("W2", "m", 2, tokens, unit="output tok/s", timeout=60)["value"] == 18
    with pytest.raises(ChildError, match="expected 'seconds', got 'output tok/s'"):
        peer.run("W2", "m", 2, tokens, unit="seconds", timeout=60)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys; sys.exit('no such model')", "exit code 1: no such model"),
        ("print('done')", "no JSON line"),
        ('print(\'{"value": -1, "unit": "seconds"}\')', "value above 0"),
        ('print(\'{"value": null, "unit": "seconds"}\')', "value above 0"),
        ("import time; time.sleep(60)", "no result within"),
    ],
)
def test_a_peer_that_fails_says_how(tmp_path: Path, body: str, message: str) -> None:
    peer = Peer("p", script(tmp_path, body))
    with pytest.raises(ChildError, match=message):
        peer.run("W6", "m", 2, tmp_path, unit="seconds", timeout=2 if "sleep" in body else 60)


def test_the_last_json_object_counts() -> None:
    assert parse_result('{"a": 1}\n{"b": 2}\n{broken\n[3]\nbye') == {"b": 2}


class Ours:
    """Stands for our child: each run is faster by a tenth, and says what it was asked."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self.digest = "same"

    def __call__(self, order: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.orders.append(order)
        if order["task"] == "prefix_parts":
            return {"parts": [6.0, 3.0]}
        value = 100.0 + 10 * len(self.orders)
        return {
            "value": value,
            "wall": 10.0,
            "ttft": 1.0,
            "digest": self.digest,
            "shape": SHAPE,
            "quantised": {},
        }


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Ours:
    child = Ours()
    monkeypatch.setattr(contest_module, "run_child", child)
    return child


def make(tmp_path: Path, names: list[str], body: str, **options: Any) -> Contest:
    peers = [Peer("p", script(tmp_path, body))]
    return Contest("m", 2, names, peers, quiet_seconds=0, timeout=60, **options)


PEER = 'print(\'{"value": 55.0, "unit": "decode tok/s"}\')'


def test_rounds_alternate_and_end_in_ratios(tmp_path: Path, ours: Ours) -> None:
    contest = make(tmp_path, ["W1"], PEER, options={"seed": 1})
    said: list[str] = []
    for number in range(3):
        contest.round(number, said.append)
    assert [line.split()[3] for line in said] == [OURS, "p", "p", OURS, OURS, "p"]
    assert ours.orders[0]["options"] == {"seed": 1}
    result = contest.results(Limits(1e8, 1e6))["W1"]
    assert result["value"] == 120.0
    assert result["peers"]["p"]["ratio"] == pytest.approx(120 / 55)
    assert result["bars"] == {"share": False, "ratio": True}


def test_a_failing_peer_leaves_the_others(tmp_path: Path, ours: Ours) -> None:
    contest = make(tmp_path, ["W1"], "raise SystemExit('out of memory')")
    contest.round(0, lambda _: None)
    result = contest.results(Limits(1e6, 1e6))["W1"]
    assert result["peers"]["p"]["ratio"] is None
    assert "ratio" not in result["bars"]
    assert "out of memory" in contest.errors[0]


def test_a_round_of_ours_that_fails_is_left_out(tmp_path: Path, ours: Ours) -> None:
    contest = make(tmp_path, ["W1"], PEER)
    contest.round(0, lambda _: None)
    assert contest.complete
    contest_module.run_child = fail  # type: ignore[assignment]  # the fixture puts it back
    contest.round(1, lambda _: None)
    result = contest.results(Limits(1e6, 1e6))["W1"]
    assert result["peers"]["p"]["ratio"] == pytest.approx(110 / 55)
    assert not contest.complete
    assert contest.errors == ["inferx W1: out of memory"]


def fail(order: dict[str, Any], timeout: float) -> dict[str, Any]:
    raise ChildError("out of memory")


def test_the_prefix_is_held_against_its_parts(tmp_path: Path, ours: Ours) -> None:
    contest = make(tmp_path, ["W6"], 'print(\'{"value": 20.0, "unit": "seconds"}\')')
    contest.round(0, lambda _: None)
    result = contest.results(Limits(1e6, 1e6))["W6"]
    assert result["parts_s"] == [6.0, 3.0]
    assert result["floor"]["share"] == pytest.approx(0.9)
    assert result["bars"]["share"] is True


def test_answers_must_not_change_between_rounds(tmp_path: Path, ours: Ours) -> None:
    contest = make(tmp_path, ["W1"], PEER)
    contest.round(0, lambda _: None)
    contest.check_answers()
    ours.digest = "other"
    contest.round(1, lambda _: None)
    with pytest.raises(RuntimeError, match="W1: runs of the same requests gave different tokens"):
        contest.check_answers()


def test_engines_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="names of their own"):
        Contest("m", 2, ["W1"], [Peer("inferx", "run")])


def test_others_use_of_the_processors() -> None:
    before = CpuTimes(busy=100.0, stolen=1.0, own=10.0, wall=50.0)
    after = CpuTimes(busy=106.0, stolen=1.5, own=13.0, wall=52.0)
    assert after.others_since(before) == pytest.approx((6 - 3 + 0.5) / 2)
    assert CpuTimes.now().busy > 0


@pytest.mark.parametrize(("loads", "expected"), [([1, 0, 1, 0, 0], True), ([1, 0, 1, 0, 1], False)])
def test_quiet_means_two_quiet_seconds_in_a_row(loads: list[int], expected: bool) -> None:
    clock = {"second": 0, "busy": 0.0}

    def now() -> CpuTimes:
        return CpuTimes(clock["busy"], 0.0, 0.0, float(clock["second"]))

    def sleep(_: float) -> None:
        clock["busy"] += loads[int(clock["second"])]
        clock["second"] += 1

    assert wait_until_quiet(5, now, sleep) is expected
