"""Small charts of a figure over time, with marks for kills. Pure: points in, SVG out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ecstore_admin.dashboard.words import duration, short

_WIDTH: Final = 320.0
_HEIGHT: Final = 110.0
_LEFT: Final = 40.0  # room for the numbers of the axis
_TOP: Final = 14.0  # room for the names of killed nodes
_BOTTOM: Final = 16.0
_RIGHT: Final = 4.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: a kill, or the return of a node."""

    at: float
    text: str
    bad: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """`points`: (unix seconds, value), oldest first."""

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...]
    since: float
    until: float

    @property
    def latest(self) -> str:
        return f"{short(self.points[-1][1])} {self.unit}".strip() if self.points else "–"


def chart_svg(chart: Chart) -> str:
    """A line, its highest and lowest value, the span of time, and marks as dashed lines with a word."""
    shown = [point for point in chart.points if chart.since <= point[0] <= chart.until]
    if not shown:
        return ""
    low, high = _bounds([value for _, value in shown])
    span = max(chart.until - chart.since, 1e-9)

    def x(at: float) -> float:
        return _LEFT + (at - chart.since) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in shown)
    marks = [mark for mark in chart.marks if chart.since <= mark.at <= chart.until]
    spoken = (
        f"{chart.title}: {chart.latest} now, between {short(min(v for _, v in shown))} and "
        f"{short(max(v for _, v in shown))} in the last {duration(span)}"
        + "".join(f"; {mark.text} {duration(chart.until - mark.at)} ago" for mark in marks)
    )
    base = _HEIGHT - _BOTTOM
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(spoken)}">'
        f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{base:g}H{_WIDTH - _RIGHT:g}"/>'
        f'<text class="tick" x="{_LEFT - 4:g}" y="{_TOP + 8:g}" text-anchor="end">{escape(short(high))}</text>'
        f'<text class="tick" x="{_LEFT - 4:g}" y="{base:g}" text-anchor="end">{escape(short(low))}</text>'
        f'<text class="tick" x="{_LEFT:g}" y="{_HEIGHT - 3:g}">{duration(span)} ago</text>'
        f'<text class="tick" x="{_WIDTH - _RIGHT:g}" y="{_HEIGHT - 3:g}" text-anchor="end">now</text>'
    ]
    free = 0.0  # left edge of the room for the next word: names of kills that come together must not overlap
    for mark in sorted(marks, key=lambda mark: mark.at):
        place = x(mark.at)
        parts.append(f'<path class="mark {"bad" if mark.bad else "good"}" d="M{place:.1f} {_TOP:g}V{base:g}"/>')
        width = 5.6 * len(mark.text)
        left = min(place + 2, _WIDTH - width)
        if left >= free:
            parts.append(f'<text class="tick" x="{left:.1f}" y="{_TOP - 4:g}">{escape(mark.text)}</text>')
            free = left + width + 4
    parts.append(f'<polyline class="line" points="{line}"/></svg>')
    return "".join(parts)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value of the axis: from zero where the values are far from each other."""
    low, high = min(values), max(values)
    if low >= 0 and low < high / 2:
        low = 0.0
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return (low if low == 0 else low - room), high + room
