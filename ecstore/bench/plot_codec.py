"""Figures of the codec benchmark: throughput by code, one group of bars for each code, one bar for each side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ecstore.bench.plots import COLOURS, figure, save
from ecstore.bench.report import Record

#: Side -> its colour in every figure.
_COLOURS: Final = dict(zip(("ecstore", "isa-l", "zfec", "galois", "numpy", "one thread"), COLOURS, strict=False))

_QUESTIONS: Final = {
    "encode": "How fast is parity made?",
    "decode1": "How fast does one lost shard come back?",
    "decodem": "How fast do m lost shards come back?",
}

#: Figure -> its bars in the order of the report: name of a group -> side -> GB/s.
Bars = dict[str, dict[str, float]]


def plot(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """A figure for each operation and size, and one for deltas and threads; the paths of all files."""
    figures: dict[tuple[str, str], Bars] = {}
    for record in records:
        operation, code, size = record.case.split("/")
        if record.peer is None or record.peer_value is None:
            continue
        key = (operation, size) if operation in _QUESTIONS else ("others", "")
        group = code if operation in _QUESTIONS else f"{operation}\n{code}, {size}"
        bars = figures.setdefault(key, {}).setdefault(group, {})
        bars["ecstore"] = record.value
        bars[record.peer] = record.peer_value
    paths = []
    for (operation, size), bars_of in figures.items():
        if operation == "others":
            title = "How fast does parity follow changed rows, and do two threads help?"
            paths += _draw(title, "operation", bars_of, folder, "codec-delta")
        else:
            title = f"{_QUESTIONS[operation]} Shards of {size}, one core"
            paths += _draw(title, "code (data shards, parity shards)", bars_of, folder, f"codec-{operation}-{size}")
    return paths


def _draw(title: str, xlabel: str, groups: Bars, folder: str | Path, name: str) -> list[Path]:
    drawing, axes = figure(title, xlabel, "GB/s of source bytes (higher is better)")
    sides = [side for side in _COLOURS if any(side in bars for bars in groups.values())]
    width = 0.8 / len(sides)
    for position, bars in enumerate(groups.values()):
        there = [side for side in sides if side in bars]
        for number, side in enumerate(there):
            at = position + (number - (len(there) - 1) / 2) * width
            drawn = axes.bar(at, bars[side], width * 0.95, color=_COLOURS[side], edgecolor="black", linewidth=0.4)
            axes.bar_label(drawn, fmt=_label(bars[side]), fontsize=8, padding=1)
    axes.set_xticks(range(len(groups)), list(groups))
    handles = [_swatch(side) for side in sides]
    axes.legend(handles=handles, frameon=False, ncols=len(sides), loc="upper center", bbox_to_anchor=(0.5, -0.14))
    axes.margins(y=0.12)
    return save(drawing, folder, name)


def _label(value: float) -> str:
    return "%.0f" if value >= 10 else "%.1f" if value >= 1 else "%.2f"


def _swatch(side: str) -> object:
    from matplotlib.patches import Patch

    return Patch(facecolor=_COLOURS[side], edgecolor="black", linewidth=0.4, label=side)
