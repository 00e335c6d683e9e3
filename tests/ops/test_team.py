"""The team of threads that a step runs on: every item of every job exactly once, whoever does it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferx import _C, ops


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = ops.get_num_threads()
    yield
    ops.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_each_item_once(threads: int) -> None:
    ops.set_num_threads(threads)
    elsewhere = 0
    for seed in range(1, 5):
        wrong, by_others = _C._team_selftest(jobs=3000, seed=seed)
        assert wrong == 0
        elsewhere += by_others
    # Otherwise this would show nothing.
    assert (elsewhere > 0) == (threads > 1)


def test_no_jobs() -> None:
    ops.set_num_threads(2)
    assert _C._team_selftest(jobs=0, seed=1) == (0, 0)
