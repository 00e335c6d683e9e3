"""The ``device`` fixture: each test runs on every build of the kernels, in several orders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

from harness import Device

# (build, order, seed, preemption every n-th access).  The fast build finds wrong results, the checked one
# also finds why; order-dependent code differs between the schedules.
SCHEDULES = [
    ("simt-fast", "forward", 1, 0),
    ("simt-fast", "random", 2, 0),
    ("simt-checked", "forward", 1, 0),
    ("simt-checked", "reverse", 1, 0),
    ("simt-checked", "random", 3, 7),
]


def _name(schedule: tuple[str, str, int, int]) -> str:
    build, order, seed, preempt = schedule
    return f"{build}-{order}{seed if order == 'random' else ''}{'-preempt' if preempt else ''}"


@pytest.fixture(
    params=[*SCHEDULES, pytest.param(("cuda", "forward", 0, 0), marks=pytest.mark.gpu)], ids=_name
)
def device(request: pytest.FixtureRequest) -> Device:
    build, order, seed, preempt = request.param
    print(f"build {build}, order {order}, seed {seed}, preempt {preempt}")
    return Device(build, order=order, seed=seed, preempt=preempt)
