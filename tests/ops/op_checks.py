"""Checks and inputs that the tests of the small ops share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inferx import ops

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def assert_close(
    actual: Tensor, expected: Tensor, float32_eps: float | Tensor = 4.0, floor: float = 1e-30
) -> None:
    """``actual`` is ``expected`` (float64), computed in float32 and rounded once to its dtype.

    float32 may be off by ``float32_eps`` times 2^-23, relative.  The 16-bit types have half a step of their
    own besides that.  ``floor`` is the magnitude below which the error counts absolutely; subnormal results
    have steps of the smallest subnormal.
    """
    assert actual.shape == expected.shape
    info = torch.finfo(actual.dtype)
    scale = expected.abs().clamp_min(floor)
    limit = float32_eps * 2.0**-23 * scale
    if actual.dtype != torch.float32:
        step = info.eps * torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
        limit = limit + 0.5 * step.clamp_min(info.smallest_normal * info.eps)
    error = (actual.double() - expected).abs()
    if not bool((error <= limit).all()):
        excess = (error / limit).flatten()
        worst = int(excess.nan_to_num(nan=float("inf")).argmax())
        raise AssertionError(
            f"element {worst} of {tuple(expected.shape)}: {actual.flatten()[worst].item()} instead of "
            f"{expected.flatten()[worst].item()}, {excess[worst].item():.3g} times the limit"
        )


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal bit for bit: 0.0 is not -0.0 here, and a NaN is itself."""
    integer = {4: torch.int32, 2: torch.int16, 8: torch.int64}[actual.element_size()]
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(actual.contiguous().view(integer), expected.contiguous().view(integer))


def strided_views(make: Callable[..., Tensor], rows: int, columns: int) -> dict[str, Tensor]:
    """Matrices [rows, columns] that lie in memory in different ways, all with a contiguous last dimension."""
    return {
        "contiguous": make(rows, columns),
        "columns of a wider matrix": make(rows, columns + 29)[:, 13 : 13 + columns],
        "every other row": make(2 * rows, columns)[::2],
        "rows from the middle": make(rows + 5, columns)[2 : rows + 2],
        "one row expanded": make(1, columns).expand(rows, columns),
    }


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter, with some environment variables set."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check_on_instruction_set(isa: str, names: Sequence[str], deselect: str, *, int8: bool = False) -> None:
    """Runs the test files ``names`` of this folder again with ``isa``; skips where that shows nothing new.

    deselect: word in the names of tests to leave out.  int8: the files test integer products.
    """
    info = ops.build_info()
    same = ["v4", "v4vnni"] if not int8 else []  # they differ in integer products only
    if isa not in info["simd_targets"] or isa == info["simd_target"] or {isa, info["simd_target"]} == {*same}:
        pytest.skip(f"{isa} is not compiled, or is what all tests run on")
    files = [str(Path(__file__).parent / name) for name in names]
    code = f"""
import sys, pytest
from inferx import ops
if ops.build_info()["simd_target"] != {isa!r}:
    sys.exit(77)  # this machine has less
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "not {deselect}", *{files!r}]))
"""
    result = run_python(code, INFERX_CPU_ISA=isa)
    if result.returncode == 77:
        pytest.skip(f"this machine has no {isa}")
    assert result.returncode == 0, result.stdout + result.stderr
