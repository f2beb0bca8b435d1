"""The figures of `ecstore bench scale`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecstore.bench.plots import COLOURS, figure, save
from ecstore.bench.report import Record

#: What a row of the largest table may cost, in terms of the smallest one's.
MOST_TIMES = 1.3

_XLABEL = "rows of the table"


def plot(records: Sequence[Record], folder: Path) -> list[Path]:
    """Time, memory and recovery by size of the table."""
    return [*_times(records, folder), *_memory(records, folder), *_recovery(records, folder)]


def _of(records: Sequence[Record], metric: str) -> tuple[list[str], list[float]]:
    chosen = [record for record in records if record.metric == metric]
    return [record.case for record in chosen], [record.value for record in chosen]


def _times(records: Sequence[Record], folder: Path) -> list[Path]:
    made, axes = figure("Does a row of a larger table take longer?", _XLABEL, "nanoseconds a row")
    for colour, operation in zip(COLOURS, ("pull", "push"), strict=False):
        cases, values = _of(records, f"{operation}_ns_per_row")
        axes.plot(cases, values, marker="o", color=colour, label=operation)
        axes.axhline(MOST_TIMES * values[0], color=colour, linestyle="--", linewidth=1,
                     label=f"{MOST_TIMES:g} times the {operation} of {cases[0]}")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(ncols=4, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return save(made, folder, "scale_time")


def _memory(records: Sequence[Record], folder: Path) -> list[Path]:
    made, axes = figure(
        "How much memory does a row take beside itself and its parity?", _XLABEL, "bytes a row, of resident memory"
    )
    cases, values = _of(records, "overhead_bytes_per_row")
    bars = axes.bar(cases, values, 0.5, color=COLOURS[0], label="measured")
    axes.bar_label(bars, fmt="%.1f")
    bounds = [r.peer_value for r in records if r.metric == "overhead_bytes_per_row" and r.peer_value is not None]
    if bounds:
        axes.axhline(bounds[0], color=COLOURS[3], linestyle="--", label=f"bound: {bounds[0]:g} bytes")
    axes.legend()
    return save(made, folder, "scale_memory")


def _recovery(records: Sequence[Record], folder: Path) -> list[Path]:
    made, axes = figure(
        "How long does the loss of a node take to heal?", _XLABEL, "seconds for each GB that the node held, logarithmic"
    )
    cases, values = _of(records, "recovery_s_per_gb")
    bars = axes.bar(cases, values, 0.5, color=COLOURS[2], label="death noticed, taken over, decoded")
    axes.bar_label(bars, fmt="%.2f")
    axes.set_yscale("log")
    axes.legend()
    return save(made, folder, "scale_recovery")
