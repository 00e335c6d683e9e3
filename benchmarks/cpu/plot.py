"""Lines in two logarithmic axes as an SVG file, by hand: no plotting library is needed to look at results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 340  # of one panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 92, 34, 46
_COLOURS = ("#1b6ca8", "#c8553d", "#3c8d53", "#8256a8", "#b8860b", "#2b9aa0", "#a33f6f", "#5a5a5a", "#7a9a2a")


@dataclass(frozen=True)
class Line:
    """points: (x, y), both above 0, in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]


def svg(panels: Sequence[Panel]) -> str:
    """The panels beside each other."""
    bodies = "\n".join(
        f'<g transform="translate({index * _WIDTH},0)">\n{_panel(panel)}\n</g>'
        for index, panel in enumerate(panels)
    )
    width = _WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'viewBox="0 0 {width} {_HEIGHT}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>\n{bodies}\n</svg>\n'
    )


class _Axis:
    """From a value to a place between ``start`` and ``end``, by logarithms."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.low <= 0:
            raise ValueError(f"a logarithmic axis needs values above 0, got {self.low}")
        if self.low == self.high:
            self.high = 2 * self.low
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self._start + share * (self._end - self._start)


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade that the range covers, at least one."""
    found = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
        if low <= factor * 10.0**power <= high
    ]
    return found or [low]


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines for point in line.points]
    if not points:
        raise ValueError(f"{panel.title}: nothing to draw")
    x = _Axis([p[0] for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([p[1] for p in points], _HEIGHT - _BOTTOM, _TOP)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts = [f'<text x="{middle}" y="18" text-anchor="middle" font-size="13">{escape(panel.title)}</text>']
    for value in sorted({p[0] for p in points}):
        parts.append(_grid(x(value), _TOP, x(value), _HEIGHT - _BOTTOM))
        parts.append(_text(x(value), _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle"))
    for value in ticks(y.low, y.high):
        parts.append(_grid(_LEFT, y(value), _WIDTH - _RIGHT, y(value)))
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:g}", "end"))
    parts.append(_text(middle, _HEIGHT - 10, panel.x, "middle"))
    centre = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(16,{centre}) rotate(-90)" text-anchor="middle">{escape(panel.y)}</text>'
    )
    for index, line in enumerate(panel.lines):
        if not line.points:
            continue
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.2" fill="{colour}"/>' for a, b in line.points
        ]
        height = _TOP + 8 + 15 * index
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 10}" y="{height}" fill="{colour}">{escape(line.name)}</text>'
        )
    return "\n".join(parts)


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
