"""The example programs run as they are and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_kernels() -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "kernels.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    difference = re.search(r"to torch: (\S+) \((\w+)", result.stdout)
    assert difference is not None
    assert float(difference[1]) < (1e-4 if difference[2] == "cpu" else 5e-2)
    assert "40 prompt tokens, then [" in result.stdout
