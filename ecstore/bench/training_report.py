"""From what was measured of each mode to the records of the training benchmark."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ecstore.bench.checkpoint import Written
from ecstore.bench.report import Record, spread, throughput_beside
from ecstore.cluster.map import parse_code


@dataclass(frozen=True, slots=True)
class Segment:
    """A few batches of one mode in a row; everything for one batch."""

    seconds: float
    trainer_cpu_s: float  #: of this process, which trains
    nodes_cpu_s: float  #: of all node processes together


@dataclass(slots=True)
class Figures:
    """What was measured of one mode."""

    samples: int  #: of a batch
    memory: int  #: bytes of rows, parity, indexes and key lists
    resident: int  #: by how much the resident memory of all nodes grew when the tables were filled
    bytes_per_batch: float = 0.0
    segments: dict[str, list[Segment]] = field(
        default_factory=lambda: {"strict": [], "prefetch": [], "store_bound": []}
    )
    checkpoints: list[Written] = field(default_factory=list)

    def seconds(self, drive: str) -> list[float]:
        return [segment.seconds for segment in self.segments[drive]]

    def cpu(self, who: str) -> float:
        """Processor seconds of a batch in strict mode (median): of "trainer", "nodes" or "all"."""
        return statistics.median(
            {"trainer": s.trainer_cpu_s, "nodes": s.nodes_cpu_s, "all": s.trainer_cpu_s + s.nodes_cpu_s}[who]
            for s in self.segments["strict"]
        )


_METRICS = {
    "strict": "samples_per_s",
    "prefetch": "samples_per_s_prefetch",
    "store_bound": "samples_per_s_store_bound",
}


def records(size: str, figures: Mapping[str, Figures], intervals: Sequence[float]) -> list[Record]:
    """All records of one size; `figures` by code, with "none" among them."""
    none = figures["none"]
    found: list[Record] = []
    for code, own in figures.items():
        case = f"{code}/{size}"
        for drive, metric in _METRICS.items():
            if not own.segments[drive]:
                continue
            found.append(
                throughput_beside(
                    case, own.samples, "samples/s", metric, own.seconds(drive), "none", none.seconds(drive)
                )
            )
        found += _costs(case, own, none, coded=parse_code(code).m > 0)
    found += _per_memory(size, figures)
    for interval in intervals:
        found += _checkpointing(size, none, interval)
    return [record for record in found if math.isfinite(record.value)]


def _less_is_better(case: str, metric: str, value: float, unit: str, none: float) -> Record:
    return Record(case, metric, value, unit, "none", none, none / value if value else None)


def _costs(case: str, own: Figures, none: Figures, *, coded: bool) -> Iterator[Record]:
    yield _less_is_better(case, "cpu_s_per_batch", own.cpu("all"), "s", none.cpu("all"))
    yield _less_is_better(case, "cpu_trainer_s_per_batch", own.cpu("trainer"), "s", none.cpu("trainer"))
    yield _less_is_better(case, "cpu_nodes_s_per_batch", own.cpu("nodes"), "s", none.cpu("nodes"))
    if coded:  # pulls, optimizer and acknowledgement of clients are the same: the rest is making and applying deltas
        yield Record(case, "cpu_parity_s_per_batch", own.cpu("nodes") - none.cpu("nodes"), "s")
    yield _less_is_better(case, "bytes_per_batch", own.bytes_per_batch, "B", none.bytes_per_batch)
    yield _less_is_better(case, "memory_ratio", own.memory / none.memory, "x", 1.0)
    if none.resident > 0 < own.resident:
        yield _less_is_better(case, "resident_ratio", own.resident / none.resident, "x", 1.0)


def _per_memory(size: str, figures: Mapping[str, Figures]) -> Iterator[Record]:
    """Throughput for each byte that a row takes in all, beside the replication that bears as many losses."""
    none = figures["none"]

    def value(of: Figures) -> float:
        return of.samples / statistics.median(of.seconds("strict")) / (of.memory / none.memory)

    for code, own in figures.items():
        peer = f"replicate({parse_code(code).m + 1})"
        if code.startswith("rs") and peer in figures:
            yield Record(
                f"{code}/{size}", "samples_per_s_per_memory", value(own), "samples/s", peer, value(figures[peer]),
                value(own) / value(figures[peer]),
            )  # fmt: skip


def _checkpointing(size: str, none: Figures, interval: float) -> Iterator[Record]:
    """Mode none, stopped for a checkpoint after every `interval` seconds of training."""
    case = f"checkpoint({interval:g}s)/{size}"
    taken = [written.seconds for written in none.checkpoints]
    seconds = [plain * (1 + written / interval) for plain, written in zip(none.seconds("strict"), taken, strict=True)]
    yield throughput_beside(case, none.samples, "samples/s", "samples_per_s", seconds, "none", none.seconds("strict"))
    yield Record(case, "checkpoint_s", statistics.median(taken), "s", spread=spread(taken))
    yield Record(case, "checkpoint_disk_s", statistics.median(w.disk_s for w in none.checkpoints), "s")
    yield Record(case, "checkpoint_bytes", float(none.checkpoints[-1].nbytes), "B")
    yield _less_is_better(case, "memory_ratio", 1.0, "x", 1.0)
