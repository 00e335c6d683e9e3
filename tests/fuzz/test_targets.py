"""A bounded, repeatable run of every fuzzing target; longer ones by hand: `make fuzz MINUTES=10`."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferx.errors import LoadError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from targets import TARGETS  # noqa: E402

RUN = HERE / "run.py"
RUNS = {"gguf": 15_000, "safetensors": 15_000, "tool_calls": 3_000}  # some 10 to 20 seconds each


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this Python or machine")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", list(TARGETS))
def test_nothing_is_found(target: str, seed: int, tmp_path: Path) -> None:
    # By a shell in between: a process inherits the peak memory of the one that it was forked from, and
    # libFuzzer would take pytest's for its own.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, str(RUN), target]
    command += ["--runs", str(RUNS[target]), "--seed", str(seed + 1)]
    command += ["--seconds", "60", "--corpus", str(tmp_path / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "cov: " in done.stderr, "nothing was instrumented"


@pytest.mark.parametrize("target", list(TARGETS))
def test_seeds(target: str) -> None:
    """Without atheris too; and the seeds get beyond the first check, or they would be none."""
    make_target, seeds = TARGETS[target]
    run = make_target()
    for data in seeds():
        run(data)


def test_seeds_are_good_files(tmp_path: Path) -> None:
    from inferx.loader.gguf_file import GGUFFile
    from inferx.loader.safetensors_file import SafetensorsFile

    opened = {"gguf": 0, "safetensors": 0}
    for kind, reader in (("gguf", GGUFFile), ("safetensors", SafetensorsFile)):
        for number, data in enumerate(TARGETS[kind][1]()):
            path = tmp_path / f"{kind}-{number}"
            path.write_bytes(data)
            try:
                reader(path).close()
                opened[kind] += 1
            except LoadError:
                pass
    assert opened["gguf"] == 5
    assert opened["safetensors"] >= 3


@pytest.mark.parametrize(
    ("target", "fault"),
    [("gguf", ValueError), ("safetensors", RecursionError), ("tool_calls", IndexError)],
)
def test_a_fault_is_a_finding(target: str, fault: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness hides nothing but the documented errors."""
    import targets

    def broken(*arguments: object) -> None:
        raise fault

    name = {"gguf": "GGUFFile", "safetensors": "SafetensorsFile", "tool_calls": "make_parser"}[target]
    monkeypatch.setattr(targets, name, broken)
    with pytest.raises(fault):
        TARGETS[target][0]()(b"\x00\x01{}")
