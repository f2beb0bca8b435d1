"""Small charts of a figure over time, with marks for kills. Pure: points in, HTML with an SVG line out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ecstore_admin.dashboard.words import duration, short

#: Per cent of a chart's width that one letter of a mark's word takes on the narrowest page.
_LETTER: Final = 2.2


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a node: a kill, or its return."""

    at: float
    node: str
    word: str
    bad: bool


@dataclass(frozen=True, slots=True)
class Label:
    """The words of one mark, or of several that would cover each other. `left`: per cent of the width."""

    left: float
    text: str


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

    def left(self, at: float) -> float:
        """Where a moment is, in per cent of the width."""
        return 100 * (at - self.since) / max(self.until - self.since, 1e-9)


def chart_html(chart: Chart) -> str:
    """A line, its highest and lowest value, the span of time, and marks as dashed lines with a word.

    The line is stretched to the room there is; words are not, so they stay readable at any width.
    """
    shown = [point for point in chart.points if chart.since <= point[0] <= chart.until]
    if not shown:
        return ""
    low, high = _bounds([value for _, value in shown])
    line = " ".join(f"{chart.left(at):.2f},{100 * (high - value) / (high - low):.2f}" for at, value in shown)
    marks = sorted((mark for mark in chart.marks if chart.since <= mark.at <= chart.until), key=lambda mark: mark.at)
    lines = "".join(
        f'<path class="mark {"bad" if mark.bad else "good"}" d="M{chart.left(mark.at):.2f} 0V100"/>' for mark in marks
    )
    words = "".join(
        f'<span class="tick word" style="left:{label.left:.1f}%">{escape(label.text)}</span>'
        for label in labels_of(chart, marks)
    )
    return (
        f'<div class="plot" role="img" aria-label="{escape(_spoken(chart, shown, marks))}">'
        f'<span class="tick high">{short(high)}</span><span class="tick low">{short(low)}</span>'
        f'<div class="area">{words}<svg viewBox="0 0 100 100" preserveAspectRatio="none">{lines}'
        f'<polyline class="line" points="{line}"/></svg></div>'
        f'<span class="tick since">{duration(chart.until - chart.since)} ago</span><span class="tick until">now</span>'
        "</div>"
    )


def labels_of(chart: Chart, marks: Sequence[Mark]) -> list[Label]:
    """Marks that come so close that their words would overlap share one: "n2, n5 killed"."""
    clusters: list[list[Mark]] = []
    free = 0.0
    for mark in marks:
        left = chart.left(mark.at)
        if clusters and left < free:
            clusters[-1].append(mark)
        else:
            clusters.append([mark])
        free = chart.left(clusters[-1][0].at) + _LETTER * len(_text(clusters[-1])) + 1
    labels = []
    for cluster in clusters:
        text = _text(cluster)
        labels.append(Label(max(0.0, min(chart.left(cluster[0].at), 100 - _LETTER * len(text))), text))
    return labels


def _text(marks: Sequence[Mark]) -> str:
    words: dict[str, list[str]] = {}
    for mark in marks:
        nodes = words.setdefault(mark.word, [])
        if mark.node not in nodes:
            nodes.append(mark.node)
    return "; ".join(f"{', '.join(nodes)} {word}" for word, nodes in words.items())


def _spoken(chart: Chart, shown: Sequence[tuple[float, float]], marks: Sequence[Mark]) -> str:
    values = [value for _, value in shown]
    text = f"{chart.title}: {chart.latest} now, between {short(min(values))} and {short(max(values))} in the last "
    happened = "".join(f"; {mark.node} {mark.word} {duration(chart.until - mark.at)} ago" for mark in marks)
    return text + duration(chart.until - chart.since) + happened


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value of the axis: from zero where the values are far from each other."""
    low, high = min(values), max(values)
    if low >= 0 and low < high / 2:
        low = 0.0
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return (low if low == 0 else low - room), high + room
