"""What a benchmark reports: the machine, records with ratios, a table that shows the ratios first."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

#: Packages whose versions belong to a figure.
_PACKAGES: Final = ("ecstore", "numpy", "numba", "msgpack", "uvloop", "redis", "hiredis")


@dataclass(frozen=True, slots=True)
class Record:
    """One figure. Peer fields are None where there is no peer.

    `ratio`: how many times better than the peer; for a throughput value / peer_value, for a time peer_value / value.
    `spread`: interquartile range over median, of the ratios of the single repetitions where there is a peer (both
    sides of a pair run one right after the other, so what disturbs both cancels out), else of the values. None for
    what was not repeated.
    """

    case: str
    metric: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    spread: float | None = None


@dataclass(slots=True)
class Report:
    """All records of one run."""

    machine: dict[str, Any]
    records: list[Record] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data: {"machine": {...}, "records": [...]}."""
        return {"machine": self.machine, "records": [asdict(record) for record in self.records]}

    def lines(self) -> list[str]:
        """For people: ratios first, then the figures behind them, then the machine."""
        rows = [("ratio", "spread", "case", "metric", "value", "peer")]
        rows += [_row(record) for record in self.records]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return [*table, "", "; ".join(f"{name} {value}" for name, value in self.machine.items() if value is not None)]


def _row(record: Record) -> tuple[str, str, str, str, str, str]:
    peer = "" if record.peer is None else record.peer
    if record.peer_value is not None:
        peer += f" {_number(record.peer_value)}"
    return (
        "" if record.ratio is None else f"{record.ratio:.2f}x",
        "" if record.spread is None else f"{100 * record.spread:.0f} %",
        record.case,
        record.metric,
        f"{_number(record.value)} {record.unit}",
        peer,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def throughput(case: str, amount: float, unit: str, metric: str, seconds: Sequence[float]) -> Record:
    """`amount` of work in each of the repetitions that took `seconds`; no peer."""
    return Record(case, metric, amount / statistics.median(seconds), unit, spread=spread(seconds))


def throughput_beside(
    case: str, amount: float, unit: str, metric: str, seconds: Sequence[float], peer: str, peer_seconds: Sequence[float]
) -> Record:
    """The same beside a peer that did the same amount of work; repetition i of both sides is one pair."""
    value, peer_value = amount / statistics.median(seconds), amount / statistics.median(peer_seconds)
    pairs = [theirs / ours for ours, theirs in zip(seconds, peer_seconds, strict=True)]
    return Record(case, metric, value, unit, peer, peer_value, value / peer_value, spread(pairs))


def spread(values: Sequence[float]) -> float | None:
    """Interquartile range over median; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def interleaved(
    sides: Mapping[str, Callable[[int], object]], repetitions: int, *, warm_up: int = 2
) -> dict[str, list[float]]:
    """Seconds of each side in each repetition: A B C, A B C, ... Each side is called with the repetition's number.

    The first `warm_up` rounds are not counted; their numbers are negative.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(-warm_up, repetitions):
        for name, work in sides.items():
            start = time.perf_counter()
            work(repetition)
            taken = time.perf_counter() - start
            if repetition >= 0:
                seconds[name].append(taken)
    return seconds


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, memory, system, versions, and how busy the machine is."""
    versions: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # no such file outside of Linux
    return platform.processor() or platform.machine()
