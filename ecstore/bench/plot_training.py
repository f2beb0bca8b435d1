"""Figures of the training benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ecstore.bench.plots import COLOURS, figure, save
from ecstore.bench.report import Record

_GREY: Final = "#8C8C8C"
_MARKERS: Final = "osD^vP*X"


def plot(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write every figure to `folder`; the paths of all files."""
    by_name = {(record.case, record.metric): record for record in records}
    cases = [record.case for record in records if record.metric == "samples_per_s"]
    modes = list(dict.fromkeys(case.rpartition("/")[0] for case in cases))
    sizes = list(dict.fromkeys(case.rpartition("/")[2] for case in cases))
    return [
        *_overhead(by_name, [mode for mode in modes if mode != "none"], sizes, folder),
        *_memory(by_name, modes, sizes[0], folder),
        *_processor(by_name, [mode for mode in modes if not mode.startswith("checkpoint")], sizes[0], folder),
    ]


_Records = dict[tuple[str, str], Record]


def colour(mode: str, modes: Sequence[str]) -> str:
    """Checkpoints are the peer: grey, whatever else is there."""
    return _GREY if mode.startswith("checkpoint") else COLOURS[modes.index(mode) % len(COLOURS)]


def _overhead(by_name: _Records, modes: list[str], sizes: list[str], folder: Path) -> list[Path]:
    made, axes = figure(
        "How much training time does fault tolerance cost? (strict mode, beside none)",
        "size of the embedding table (x1 = smallest; x2w2 = twice the rows, twice the width)",
        "additional training time [%]",
    )
    width = 0.84 / max(1, len(modes))
    for number, mode in enumerate(modes):
        places, heights = [], []
        for place, size in enumerate(sizes):
            record = by_name.get((f"{mode}/{size}", "samples_per_s"))
            if record is not None and record.ratio:
                places.append(place + (number - (len(modes) - 1) / 2) * width)
                heights.append(100 * (1 / record.ratio - 1))
        later = sum(other.startswith("checkpoint") for other in modes[:number])
        axes.bar(
            places, heights, 0.92 * width, label=mode, color=colour(mode, modes),
            hatch="//" * later if mode.startswith("checkpoint") else None, edgecolor="white", linewidth=0.4,
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.legend(ncols=2, fontsize=9, title="grey: the peer, a checkpoint every T seconds", title_fontsize=9)
    return save(made, folder, "training_overhead")


def _memory(by_name: _Records, modes: list[str], size: str, folder: Path) -> list[Path]:
    made, axes = figure(
        f"What does a mode give for its memory? ({size}; up and left is better)",
        "memory of all nodes [multiples of none]",
        "training throughput [% of none]",
    )
    plain = [mode for mode in modes if not mode.startswith("checkpoint")]
    for mode in plain:
        memory = by_name[f"{mode}/{size}", "memory_ratio"].value
        for metric, filled in (("samples_per_s", True), ("samples_per_s_store_bound", False)):
            record = by_name.get((f"{mode}/{size}", metric))
            if record is not None and record.ratio:
                axes.plot(
                    memory, 100 * record.ratio, _MARKERS[plain.index(mode) % len(_MARKERS)], markersize=10,
                    color=colour(mode, plain), fillstyle="full" if filled else "none",
                    label=f"{mode}, {'training' if filled else 'store-bound (no dense step)'}",
                )  # fmt: skip
    axes.axhline(100, color=_GREY, linestyle="--", linewidth=1, label="none")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(made, folder, "training_memory")


def _processor(by_name: _Records, modes: list[str], size: str, folder: Path) -> list[Path]:
    made, axes = figure(
        f"Where do the processor seconds of a batch go? ({size}, strict mode)", "mode", "processor time per batch [ms]"
    )
    below = [0.0] * len(modes)
    parts = (
        ("trainer (dense step, routing)", "trainer"),
        ("nodes: pulls, optimizer", "nodes"),
        ("nodes: making and applying deltas", "parity"),
    )
    for number, (label, part) in enumerate(parts):
        heights = [1000 * _part(by_name, f"{mode}/{size}", part) for mode in modes]
        axes.bar(range(len(modes)), heights, 0.7, bottom=below, label=label, color=COLOURS[number])
        below = [low + height for low, height in zip(below, heights, strict=True)]
    none = by_name.get((f"none/{size}", "cpu_s_per_batch"))
    if none is not None:
        axes.axhline(1000 * none.value, color=_GREY, linestyle="--", linewidth=1, label="none, all of it")
    axes.set_xticks(range(len(modes)), modes)
    axes.legend(fontsize=9)
    return save(made, folder, "training_cpu")


def _part(by_name: _Records, case: str, part: str) -> float:
    def value(name: str) -> float:
        record = by_name.get((case, f"cpu_{name}_s_per_batch"))
        return max(0.0, record.value) if record is not None else 0.0

    return value("nodes") - value("parity") if part == "nodes" else value(part)
