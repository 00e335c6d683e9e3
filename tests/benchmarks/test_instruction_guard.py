"""The guard of instruction counts: it reads callgrind's files, and it can fail."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {"compiler": "gcc 12.2.0", "isa": "v3", "python": "3.11.7", "torch": "2.13.0"}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("instruction_guard", ROOT / "tools/instruction_guard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


guard = load()

# A profile as callgrind writes it: objects by number once named, calls with the callee's cost behind them.
PROFILE = """\
# callgrind format
version: 1
desc: Trigger: Client Request: decode 1
positions: line
events: Ir
ob=(1) /usr/bin/python3.11
fl=(1) ???
fn=(1) eval
10 100
+2 20
cob=(2) /site-packages/inferx/_C.cpython-311.so
cfn=(2) linear
calls=3 40
* 5000
12 7
ob=(2)
fl=(2) linear.cpp
fn=(2)
40 4000
-1 900
* 60
cob=(3) /lib/libgomp.so.1
cfn=(3) start
calls=1 0
41 40
ob=(3)
fn=(3)
0 40
totals: 5127
"""


def counts(factor: float = 1.0) -> dict[str, dict[str, int]]:
    return {step: {guard.KERNELS: int(1e6 * factor), guard.WHOLE: int(2e6 * factor)} for step in guard.STEPS}


def baseline(**changes: Any) -> dict[str, Any]:
    return {"about": ABOUT, "margin": 0.05, "instructions": counts(), **changes}


def test_costs_count_where_they_arise() -> None:
    assert guard.parse(PROFILE) == {guard.KERNELS: 4960, guard.WHOLE: 5127}


def test_steps_are_found_by_their_trigger(tmp_path: Path) -> None:
    for number, step in enumerate(guard.STEPS):
        (tmp_path / f"callgrind.out.{number}").write_text(PROFILE.replace("decode 1", step))
    (tmp_path / "callgrind.out").write_text("desc: Trigger: Program termination\n")
    assert set(guard.read_counts(tmp_path.iterdir())) == set(guard.STEPS)
    (tmp_path / "callgrind.out.1").unlink()
    with pytest.raises(SystemExit, match=f"counted nothing for {guard.STEPS[1]}"):
        guard.read_counts(tmp_path.iterdir())


def test_within_the_margin_all_is_well() -> None:
    assert guard.compare(counts(1.04), ABOUT, baseline()) == ([], [])


def test_a_dearer_step_fails() -> None:
    now = counts()
    now[guard.STEPS[1]][guard.KERNELS] = 1_060_000
    problems, _ = guard.compare(now, ABOUT, baseline())
    assert len(problems) == 1
    assert "decode 1, kernels: 1,000,000 -> 1,060,000 (+6.0%)" in problems[0]


def test_a_cheaper_step_is_told() -> None:
    problems, remarks = guard.compare(counts(0.9), ABOUT, baseline())
    assert not problems
    assert len(remarks) == 2 * len(guard.STEPS)


def test_another_compiler_is_not_compared() -> None:
    problems, _ = guard.compare(counts(), {**ABOUT, "compiler": "gcc 12.9.0"}, baseline())
    assert len(problems) == 1
    assert "gcc 12.2.0" in problems[0]


def test_another_python_leaves_the_kernels() -> None:
    newer = {**ABOUT, "python": "3.13.1"}
    problems, remarks = guard.compare(counts(1.1), newer, baseline())
    assert len(problems) == len(guard.STEPS)
    assert all("kernels" in p for p in problems)
    assert "Python" in remarks[0] or "python 3.11.7" in remarks[0]


def test_steps_must_be_the_same() -> None:
    now = counts()
    del now["decode 1"]
    now["decode 2"] = counts()["decode 1"]
    problems, _ = guard.compare(now, ABOUT, baseline())
    assert [p.split(";")[0] for p in problems] == ["decode 1: not measured", "decode 2: no baseline"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guard, "count", lambda: (counts(), ABOUT))
    place = guard.baseline_path
    monkeypatch.setattr(guard, "baseline_path", lambda compiler: place(compiler, tmp_path))
    return tmp_path


def test_the_command_fails_without_a_baseline_and_with_a_doctored_one(results: Path) -> None:
    assert guard.main([]) == 1
    assert guard.main(["--update"]) == 0
    assert guard.main([]) == 0
    file = results / "instructions-gcc-12.json"
    record = json.loads(file.read_text())
    record["instructions"][guard.STEPS[0]][guard.WHOLE] //= 2
    file.write_text(json.dumps(record))
    assert guard.main([]) == 1


def test_the_committed_baselines_are_whole() -> None:
    files = sorted((ROOT / "benchmarks/results").glob("instructions-*.json"))
    assert files
    for file in files:
        record = json.loads(file.read_text())
        assert guard.baseline_path(record["about"]["compiler"]).name == file.name
        assert set(record["instructions"]) == set(guard.STEPS)
        assert 0 < record["margin"] <= 0.1


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="valgrind is not installed"):
        guard.count()
