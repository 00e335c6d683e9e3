"""The tests of the small ops again, on every instruction set below the one in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from op_checks import run_python

from inferx import ops

FILES = ["test_norm.py", "test_activation.py", "test_rotary.py"]


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_small_ops(isa: str) -> None:
    info = ops.build_info()
    if isa not in info["simd_targets"] or isa == info["simd_target"]:
        pytest.skip(f"{isa} is not compiled, or is what all tests run on")
    files = [str(Path(__file__).parent / name) for name in FILES]
    code = f"""
import sys, pytest
from inferx import ops
if ops.build_info()["simd_target"] != {isa!r}:
    sys.exit(77)  # this machine has less
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not transformers", *{files!r}]))
"""
    result = run_python(code, INFERX_CPU_ISA=isa)
    if result.returncode == 77:
        pytest.skip(f"this machine has no {isa}")
    assert result.returncode == 0, result.stdout + result.stderr
