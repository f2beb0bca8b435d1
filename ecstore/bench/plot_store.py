"""The figures of `ecstore bench store`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ecstore.bench.plots import COLOURS, figure, save
from ecstore.bench.report import Record

_OPERATIONS = {"pull": "MGET", "push": "MSET"}


def plot(records: Sequence[Record], folder: Path) -> list[Path]:
    """One figure for each size of a row: rows a second by code, beside Redis and the copy rate of the machine."""
    speeds = [record for record in records if record.metric == "rows_per_s"]
    sizes = list(dict.fromkeys(record.case.rpartition("/")[2] for record in speeds))
    return [
        file for size in sizes for file in _plot_size([r for r in speeds if r.case.endswith(f"/{size}")], size, folder)
    ]


def _plot_size(speeds: Sequence[Record], size: str, folder: Path) -> list[Path]:
    codes = list(dict.fromkeys(record.case.split("/")[1] for record in speeds))
    made, axes = figure(
        f"How many rows of {size[:-1]} bytes move in a second, beside Redis and a plain copy?",
        "code of the table (acknowledged by all parity shards; Redis keeps one copy)",
        "rows per second (above the bars: times Redis)",
    )
    for offset, (operation, command) in enumerate(_OPERATIONS.items()):
        values = {
            r.case.split("/")[1]: r for r in speeds if r.case.startswith(f"{operation}/") and r.peer in (None, "redis")
        }
        places = [codes.index(code) + 0.4 * offset - 0.2 for code in values]
        bars = axes.bar(places, [r.value for r in values.values()], 0.36, color=COLOURS[offset], label=operation)
        axes.bar_label(bars, [f"{r.ratio:.1f}x" if r.ratio is not None else "" for r in values.values()], fontsize=9)
        for peer, style, name in (
            ("redis", "--", f"Redis {command}"),
            ("loopback", ":", f"copy of a {operation}'s bytes"),
        ):
            beside = [
                r.peer_value for r in speeds if r.case.startswith(f"{operation}/") and r.peer == peer and r.peer_value
            ]
            if beside:
                middle = sorted(beside)[len(beside) // 2]
                axes.axhline(middle, color=COLOURS[offset], linestyle=style, linewidth=1.5, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(codes)), codes)
    axes.legend(ncols=3, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return save(made, folder, f"store_{size}")
