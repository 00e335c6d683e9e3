"""The ``simt`` fixture: the executor's self-test kernels in every build and schedule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from selftests import Simt

# (build, order, seed, preemption every n-th access)
SCHEDULES = [
    ("fast", "forward", 1, 0),
    ("fast", "random", 2, 0),
    ("checked", "forward", 1, 0),
    ("checked", "reverse", 1, 0),
    ("checked", "random", 3, 0),
    ("checked", "random", 4, 7),
]


def _name(schedule: tuple[str, str, int, int]) -> str:
    build, order, seed, preempt = schedule
    return f"{build}-{order}{seed if order == 'random' else ''}{'-preempt' if preempt else ''}"


@pytest.fixture(
    params=[*SCHEDULES, pytest.param(("cuda", "forward", 0, 0), marks=pytest.mark.gpu)], ids=_name
)
def simt(request: pytest.FixtureRequest) -> Simt:
    build, order, seed, preempt = request.param
    print(f"build {build}, order {order}, seed {seed}, preempt {preempt}")
    try:
        return Simt(build, order, seed, preempt)
    except FileNotFoundError:
        if build != "cuda":
            raise
        pytest.skip("inferx_selftest_cuda is not built (csrc/simt/selftest/CMakeLists.txt says how)")
