"""Cliffs, curves and the stopwatch."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from benchmarks.cpu.perplexity import perplexity, windows
from benchmarks.cpu.plot import Line, Panel, svg, ticks
from benchmarks.cpu.report import scaling_plot, scaling_table
from benchmarks.cpu.scaling import Cell, cliffs, grid, segments
from benchmarks.cpu.stopwatch import Stopwatch


def test_the_grid_keeps_to_its_tokens() -> None:
    assert grid([1, 4], [100, 400], 500) == [(1, 100), (1, 400), (4, 100)]


def line(times: list[float], noise: float = 0.0) -> list[tuple[int, float, float]]:
    return [(2**i, t, noise) for i, t in enumerate(times)]


def test_a_knee_is_no_cliff() -> None:
    # Memory first (nearly flat), then arithmetic: doubling streams doubles the time.
    found = segments(line([4.0, 4.2, 4.6, 6.0, 12.0, 24.0, 48.0]))
    assert not any(s.cliff for s in found)
    assert found[0].ratio is None
    assert found[2].ratio == pytest.approx((1.4 / 4) / (0.4 / 2))


def test_a_jump_is_a_cliff() -> None:
    found = segments(line([4.0, 5.0, 7.0, 11.0, 40.0, 80.0]))
    assert [s.cliff for s in found] == [False, False, False, True, False]
    assert (found[3].low, found[3].high) == (8, 16)


def test_noise_is_no_cliff() -> None:
    assert not any(s.cliff for s in segments(line([4.0, 8.0, 21.0], noise=0.3)))
    assert any(s.cliff for s in segments(line([4.0, 8.0, 21.0], noise=0.01)))


def test_cliffs_are_looked_for_along_both_axes() -> None:
    cells = [
        Cell(b, c, b * c / 1000 * (3 if c == 400 else 1), 0.0) for b in (1, 2, 4) for c in (100, 200, 400)
    ]
    bad = [s for s in cliffs(cells) if s["cliff"]]
    assert [(s["along"], s["at"], s["low"], s["high"]) for s in bad] == [
        ("context", b, 200, 400) for b in (1, 2, 4)
    ]


def test_table_and_plot_of_a_grid_with_holes() -> None:
    cells = [Cell(1, 128, 0.004, 0.0), Cell(1, 256, 0.005, 0.0), Cell(2, 128, 0.006, 0.0)]
    rows = scaling_table(cells).splitlines()
    assert rows[-1].split("|")[1:4] == [rows[-1].split("|")[1], rows[-1].split("|")[2], " " * 12]
    assert "6.0 ms" in rows[-1]
    root = ElementTree.fromstring(scaling_plot(cells))
    drawn = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(drawn) == 4  # two contexts, two numbers of streams


def test_a_plot_places_points_by_their_logarithms() -> None:
    panel = Panel("a < b", "x", "y", (Line("l", ((1.0, 1.0), (10.0, 10.0), (100.0, 100.0))),))
    root = ElementTree.fromstring(svg([panel]))
    (polyline,) = (e for e in root.iter() if e.tag.endswith("polyline"))
    (x0, y0), (x1, y1), (x2, y2) = ((float(a) for a in p.split(",")) for p in polyline.get("points").split())
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y2 < y0  # up is more


def test_a_plot_refuses_what_has_no_logarithm() -> None:
    with pytest.raises(ValueError, match="above 0, got 0"):
        svg([Panel("t", "x", "y", (Line("l", ((1.0, 0.0), (2.0, 1.0))),))])
    with pytest.raises(ValueError, match="nothing to draw"):
        svg([Panel("t", "x", "y", ())])


def test_ticks() -> None:
    assert ticks(3, 70) == [5, 10, 20, 50]
    assert ticks(3, 4) == [3]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_moment_counts_for_the_innermost_part() -> None:
    clock = Clock()

    class Engine:
        def outer(self) -> str:
            clock.now += 1.0
            self.inner()
            clock.now += 2.0
            return "answer"

        def inner(self) -> None:
            clock.now += 10.0
            raise_now()

    def raise_now() -> None:
        pass

    engine = Engine()
    watch = Stopwatch("rest", clock)
    watch.wrap(engine, "outer", "out")
    watch.wrap(Engine, "inner", "in")
    with watch.measuring() as parts:
        clock.now += 0.5
        assert engine.outer() == "answer"
    assert parts == {"rest": 0.5, "out": 3.0, "in": 10.0}
    assert watch.calls == 2
    watch.unwrap()
    assert "outer" not in vars(engine)
    with watch.measuring() as parts:
        engine.outer()
    assert parts == {"rest": 13.0}


def test_a_failing_part_still_ends() -> None:
    clock = Clock()

    class Engine:
        def step(self) -> None:
            clock.now += 1.0
            raise RuntimeError("no")

    engine = Engine()
    watch = Stopwatch("rest", clock)
    watch.wrap(engine, "step", "step")
    with watch.measuring() as parts:
        with pytest.raises(RuntimeError, match="no"):
            engine.step()
        clock.now += 2.0
    assert parts == {"rest": 2.0, "step": 1.0}


def test_a_part_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError, match="schedule"):
        Stopwatch("rest").wrap(object(), "schedule", "scheduling")


def test_perplexity_of_equal_chances_is_their_number() -> None:
    assert perplexity([-1.3862943611198906] * 5) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="at least one"):
        perplexity([])


def test_windows_leave_out_a_single_token() -> None:
    assert windows([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]
    assert windows([1, 2, 3, 4, 5], 3) == [[1, 2, 3], [4, 5]]
    with pytest.raises(ValueError, match="at least 2"):
        windows([1], 1)
