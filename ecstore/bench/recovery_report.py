"""From what was seen of recoveries to the records of the benchmark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ecstore.bench.checkpoint import Written
from ecstore.bench.recovery_case import WARM_UP_S, Seen
from ecstore.bench.report import Record, spread


@dataclass(frozen=True, slots=True)
class Loopback:
    """Rates of plain copies over the loopback interface, bytes a second."""

    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Checkpointing that costs training as much as the code."""

    written: Written
    restore_s: float  #: of the whole table
    restore_disk_s: float  #: of that, reading the files
    overhead: float  #: of the code, measured; 0.05 is five per cent

    @property
    def interval_s(self) -> float:
        """Between two checkpoints."""
        return self.written.seconds / self.overhead

    @property
    def recovery_s(self) -> float:
        """Restore all rows, and train again what was trained since: half an interval on average."""
        return self.restore_s + self.interval_s / 2

    @property
    def disk_recovery_s(self) -> float:
        """The same for a system in which nothing but the disk takes time, neither to write nor to restore."""
        return self.restore_disk_s + self.written.disk_s / self.overhead / 2


def records(seen: Seen, baseline: Baseline | None, loopback: Loopback | None) -> list[Record]:
    """All records of one case."""
    case = seen.case.name
    found = list(_times(case, seen))
    if seen.case.trains:
        found += _throughput(case, seen)
    if seen.recovered_at is not None and loopback is not None:
        found.append(_decode_rate(case, seen, loopback))
    if seen.case.full and seen.case.trains and seen.recovered_at is not None and baseline is not None:
        found += _beside_checkpoint(case, seen.recovered_at - seen.killed_at, baseline)
    return found


def _times(case: str, seen: Seen) -> Iterator[Record]:
    yield Record(case, "table_bytes", float(seen.table_bytes), "B")
    detected = seen.kills[0].detected_at
    if detected is not None:
        yield Record(case, "detected_ms", 1000 * (detected - seen.killed_at), "ms")
    if seen.first_row_at is not None:
        yield Record(case, "first_decoded_row_ms", 1000 * (seen.first_row_at - seen.killed_at), "ms")
    if seen.recovered_at is not None:
        yield Record(case, "recovered_s", seen.recovered_at - seen.killed_at, "s")
    data = seen.of("data")
    yield Record(case, "rows_decoded", float(sum(entry["rows_decoded"] for entry in data)), "rows")
    yield Record(case, "rows_on_demand", float(sum(entry["rows_on_demand"] for entry in data)), "rows")
    yield Record(case, "moved_bytes", float(seen.moved_bytes), "B")


def _throughput(case: str, seen: Seen) -> Iterator[Record]:
    before = seen.rate(seen.started_at + WARM_UP_S, seen.killed_at)
    end = seen.recovered_at if seen.recovered_at is not None else seen.ended_at
    spans = {"throughput_during": (seen.killed_at, end)}
    if seen.recovered_at is not None:
        spans["throughput_after"] = (end, seen.ended_at)
    for metric, (start, stop) in spans.items():
        value = seen.rate(start, stop)
        if value > 0:
            yield Record(case, metric, value, "samples/s", "before", before, value / before)
    seconds = timeline(seen)["samples_per_s"]
    lowest = min((rate for at, rate in seconds if 0 <= at < max(1.0, end - seen.killed_at)), default=math.nan)
    if lowest > 0:
        yield Record(case, "throughput_worst_second", lowest, "samples/s", "before", before, lowest / before)


def _decode_rate(case: str, seen: Seen, loopback: Loopback) -> Record:
    began = min(entry["started_at"] for entry in seen.recoveries)
    ended = max(entry["finished_at"] or began for entry in seen.recoveries)
    rate, peer = seen.moved_bytes / (ended - began), statistics.median(loopback.rates)
    return Record(case, "decode_rate", rate, "B/s", "loopback", peer, rate / peer, spread(loopback.rates))


def _beside_checkpoint(case: str, taken: float, baseline: Baseline) -> Iterator[Record]:
    for metric, peer in (
        ("recovery_vs_checkpoint", baseline.recovery_s),
        ("recovery_vs_checkpoint_at_disk_speed", baseline.disk_recovery_s),
    ):
        yield Record(case, metric, taken, "s", "checkpoint", peer, peer / taken)
    yield Record(case, "checkpoint_s", baseline.written.seconds, "s")
    yield Record(case, "checkpoint_disk_s", baseline.written.disk_s, "s")
    yield Record(case, "checkpoint_restore_s", baseline.restore_s, "s")
    yield Record(case, "checkpoint_interval_s", baseline.interval_s, "s")
    yield Record(case, "overhead_of_code", 100 * baseline.overhead, "%")


def timeline(seen: Seen) -> dict[str, Any]:
    """For the plot; times in seconds after the first kill. `samples_per_s`: (begin of a second, its throughput)."""
    origin = seen.killed_at
    first, last = math.ceil(seen.started_at - origin), math.floor(seen.ended_at - origin)
    return {
        "samples_per_s": [(at, seen.rate(origin + at, origin + at + 1)) for at in range(first, last)],
        "before": seen.rate(seen.started_at + WARM_UP_S, origin),
        "kills": [(kill.node, kill.at - origin) for kill in seen.kills],
        "first_row_s": None if seen.first_row_at is None else seen.first_row_at - origin,
        "recovered_s": None if seen.recovered_at is None else seen.recovered_at - origin,
    }
