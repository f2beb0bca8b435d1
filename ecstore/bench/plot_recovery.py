"""Figures of the recovery benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ecstore.bench.plots import COLOURS, figure, save
from ecstore.bench.report import Record

_GREY: Final = "#8C8C8C"


def plot(records: Sequence[Record], timelines: Mapping[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Write every figure to `folder`; the paths of all files."""
    files: list[Path] = []
    for case in ("rs(4,2)/1-node", "rs(4,2)/2-nodes", "rs(4,1)/1-node", "rs(4,2)/kill-during-recovery"):
        if case in timelines:
            name = "recovery_timeline_" + case.translate(str.maketrans("(),/", "____")).replace("__", "_")
            files += _timeline(case, timelines[case], folder, name)
    if any(record.metric == "recovery_vs_checkpoint" for record in records):
        files += _beside_checkpoint(records, folder)
    if any(record.metric == "throughput_during" for record in records):
        files += _ablations(records, folder)
    return files


def _timeline(case: str, line: dict[str, Any], folder: Path, name: str) -> list[Path]:
    made, axes = figure(
        f"Does training go on while a lost node's rows are decoded? ({case})",
        "seconds after the kill",
        "training throughput [samples/s], each second",
    )
    starts, rates = [at for at, _rate in line["samples_per_s"]], [rate for _at, rate in line["samples_per_s"]]
    if starts:
        axes.stairs(rates, [*starts, starts[-1] + 1], color=COLOURS[0], linewidth=2, label="training throughput")
    axes.axhline(line["before"], color=_GREY, linestyle="--", label="before the kill (mean)")
    for number, (node, at) in enumerate(line["kills"]):
        axes.axvline(at, color=COLOURS[5], linewidth=2, label=f"SIGKILL of {node}", linestyle=("-", ":")[number % 2])
    if line["first_row_s"] is not None:
        axes.axvline(
            line["first_row_s"], color=COLOURS[2], linewidth=1.5,
            label=f"first row decoded: {1000 * line['first_row_s']:.0f} ms",
        )  # fmt: skip
    if line["recovered_s"] is not None:
        axes.axvspan(0, line["recovered_s"], color=COLOURS[4], alpha=0.15)
        axes.axvline(
            line["recovered_s"], color=COLOURS[3], linewidth=1.5,
            label=f"full redundancy: {line['recovered_s']:.1f} s",
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(made, folder, name)


def _beside_checkpoint(records: Sequence[Record], folder: Path) -> list[Path]:
    made, axes = figure(
        "How long until training is where it was? (logarithmic; shorter is better)",
        "case",
        "seconds after the loss",
    )
    found = [record for record in records if record.metric == "recovery_vs_checkpoint"]
    others = {(record.case, record.metric): record for record in records}
    for place, record in enumerate(found):
        first = others.get((record.case, "first_decoded_row_ms"))
        bars = [
            (first.value / 1000 if first is not None else 0.0, COLOURS[2], "first lost row served"),
            (record.value, COLOURS[0], "full redundancy (training goes on)"),
            (record.peer_value or 0.0, _GREY, "checkpoint: restore + half an interval again (training waits)"),
        ]
        for number, (height, shade, label) in enumerate(bars):
            bar = axes.bar(place + 0.27 * (number - 1), height, 0.25, color=shade, label=label if place == 0 else None)
            axes.bar_label(bar, [f"{height:.2g} s"], fontsize=8)
    axes.set_yscale("log")
    highest = max(max(record.value, record.peer_value or 0.0) for record in found)
    ticks = [10.0**power for power in range(-2, 6) if 10.0**power <= 3 * highest]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.05, 4 * highest)
    axes.set_xticks(range(len(found)), [record.case for record in found])
    axes.legend(fontsize=9)
    return save(made, folder, "recovery_vs_checkpoint")


def _ablations(records: Sequence[Record], folder: Path) -> list[Path]:
    made, axes = figure(
        "What do rate, block size and the two ways of decoding do?",
        "time to full redundancy [s]; arrows: not reached",
        "throughput during recovery [% of before]",
    )
    by_name = {(record.case, record.metric): record for record in records}
    cases = [record.case for record in records if record.metric == "throughput_during"]
    known = [by_name[case, "recovered_s"].value for case in cases if (case, "recovered_s") in by_name]
    longest = max(known, default=1.0)
    for number, case in enumerate(cases):
        recovered = by_name.get((case, "recovered_s"))
        ratio = by_name[case, "throughput_during"].ratio or 0.0
        axes.plot(
            recovered.value if recovered is not None else 1.1 * longest, 100 * ratio,
            "osD^vP*X"[number % 8] if recovered is not None else ">", markersize=10,
            color=COLOURS[number % len(COLOURS)], label=case, fillstyle="full" if number < len(COLOURS) else "none",
        )  # fmt: skip
    axes.axhline(100, color=_GREY, linestyle="--", linewidth=1, label="before the kill")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(made, folder, "recovery_ablations")
