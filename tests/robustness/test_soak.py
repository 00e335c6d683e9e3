"""The soak in short: the checks are tools/soak.py's own; the long run is `make soak MINUTES=30`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KINDS = 13  # kinds of requests that the cards have; each has to be served


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_mixed_traffic_on_a_tiny_pool(tmp_path: Path, seed: int) -> None:
    output = tmp_path / "soak.json"
    options = ("--minutes", "0.5", "--cards", str(KINDS), "--clients", "16", "--seed", str(seed))
    command = [sys.executable, str(ROOT / "tools" / "soak.py"), *options, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    assert output.exists(), done.stderr[-4000:]
    summary = json.loads(output.read_text())
    assert summary["absent"] == {}
    assert len(summary["kinds"]) == KINDS
    assert summary["passed"], json.dumps(
        {k: summary[k] for k in ("checks", "first_faults", "leaked")}, indent=1
    )
    assert done.returncode == 0
