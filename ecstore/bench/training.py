"""What each code costs training, beside training without redundancy and beside checkpointing.

One cluster holds the tables of every mode, so all modes run on the same processes; only one of them is driven at a
time, a few batches each, in turns. Repetition i of all modes lies within seconds, and what disturbs the machine
cancels out of their ratios. Three ways of driving: strict (the bundled trainer: pull, forward, backward, push,
acknowledged by all parity shards), prefetch (push and next pull overlap the computation), and store-bound (the same
pulls and pushes with nothing in between).

Checkpointing is timed, too: mode none writes all rows to disk while training waits. How much of the time that takes
depends on the interval, so `samples_per_s` of `checkpoint(T)` is the measured training of mode none, stopped for the
measured checkpoint once every T seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

import ecstore
from ecstore.bench import checkpoint
from ecstore.bench.report import Report, machine
from ecstore.bench.training_report import Figures, Segment, records
from ecstore.bench.workload import PATIENT_S, Workload, calibrated, cpu_s, describe, fill, train_config
from ecstore.cluster.map import parse_code
from ecstore.errors import ConfigError
from ecstore.launcher import ClusterOptions, NodeSettings, local_cluster
from ecstore.trainer import BatchReport, ModelConfig, TrainConfig, train

Drive = Literal["strict", "prefetch", "store_bound"]
DRIVES: Final[tuple[Drive, ...]] = ("strict", "prefetch", "store_bound")

CODES: Final = ("none", "rs(2,1)", "rs(4,1)", "rs(4,2)", "replicate(2)", "replicate(3)")
#: Table sizes: rows, and width, in multiples of those of x1.
SIZES: Final = {"x1": (1, 1), "x2": (2, 1), "x4": (4, 1), "x8": (8, 1), "x2w2": (2, 2)}
#: Batches that are made beforehand and repeated.
BATCHES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What to measure. Raises ConfigError for what cannot be."""

    codes: tuple[str, ...] = CODES
    sizes: tuple[str, ...] = tuple(SIZES)
    nodes: int = 6  #: for every mode the same ones: as many as the widest code needs
    categories: int = 200_000  #: ids of the largest feature of x1
    dim: int = 32  #: of x1
    dense_step_s: float = 0.085  #: wanted cost of forward and backward, processor seconds
    rounds: int = 4  #: repetitions; twice as many at x1
    batches: int = 6  #: in each repetition of each mode
    intervals: tuple[float, ...] = (30.0, 60.0)  #: of checkpoints, seconds; none: no checkpoints
    drives: tuple[Drive, ...] = DRIVES
    folder: Path | None = None  #: where checkpoints are written; None: a temporary folder

    def __post_init__(self) -> None:
        widest = max((parse_code(code).width for code in self.codes), default=1)
        if "none" not in self.codes:
            raise ConfigError("--codes needs none: everything is compared with it")
        if self.nodes < widest:
            raise ConfigError(f"--nodes {self.nodes} are too few: the widest code has {widest} shards in a group")
        for size in self.sizes:
            if size not in SIZES:
                raise ConfigError(f"--sizes are among {', '.join(SIZES)}, not {size!r}")
        if not self.sizes or self.rounds < 1 or self.batches < 1:
            raise ConfigError("--sizes, --rounds and --batches are at least 1")
        if any(not interval > 0 for interval in self.intervals):
            raise ConfigError("checkpoint intervals are above 0 seconds")

    @classmethod
    def quick(cls) -> TrainingOptions:
        """Under a minute: x1 only, smaller, fewer modes."""
        return cls(
            codes=("none", "rs(4,1)", "replicate(2)"), sizes=("x1",), categories=20_000, rounds=1, batches=2,
            dense_step_s=0.05, intervals=(30.0,),
        )  # fmt: skip


@dataclass(slots=True)
class _Mode:
    """One code, its two tables, and what was measured."""

    code: str
    config: TrainConfig
    tables: tuple[ecstore.Table, ecstore.Table]
    figures: Figures


def run(options: TrainingOptions, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Measure all modes at all sizes."""
    report = Report(machine())
    with ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(options=_cluster(options.nodes), progress=progress))
        store = stack.enter_context(ecstore.connect(cluster.address, timeout=60.0))
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecstore-bench-")))
        model: ModelConfig | None = None
        for size in options.sizes:
            rows, width = SIZES[size]
            workload = Workload.make(rows * options.categories, BATCHES)
            dim = width * options.dim
            if model is None:
                model, taken = calibrated(options.dense_step_s, dim, workload.clicks.batches[0])
                report.machine |= {"model": describe(model), "dense_step_ms": round(1000 * taken)}
                progress(f"dense step: {1000 * taken:.0f} ms, {describe(model)}")
            progress(f"{size}: {workload.keys.size:,} rows of dim {dim}, {workload.unique:,} distinct ids in a batch")
            bench = _Bench(options, store, replace(model, dim=dim), workload, folder)
            report.machine[f"rows_{size}"] = int(workload.keys.size)
            report.machine[f"ids_{size}"] = workload.unique
            report.records += records(size, bench.measure(size, progress), options.intervals)
    return report


def _cluster(nodes: int) -> ClusterOptions:
    return ClusterOptions(nodes=nodes, settings=NodeSettings(suspect_after_s=PATIENT_S), seed=1)


@dataclass(slots=True)
class _Bench:
    """All modes at one size of the tables."""

    options: TrainingOptions
    store: ecstore.Store
    model: ModelConfig
    workload: Workload
    folder: Path
    pids: list[int] = field(default_factory=list)

    def measure(self, size: str, progress: Callable[[str], None]) -> dict[str, Figures]:
        self.pids = [node["pid"] for node in self._statistics()]
        modes = [self._make(code, number) for number, code in enumerate(self.options.codes)]
        rounds = self.options.rounds * (2 if size == "x1" else 1)
        try:
            for number in range(-1, rounds):  # the first one warms everything up and is not counted
                self._round(modes, number)
                progress(f"{size}: round {number + 1} of {rounds}")
        finally:
            for mode in modes:
                for table in mode.tables:
                    self.store.drop_table(table.name)
        return {mode.code: mode.figures for mode in modes}

    def _make(self, code: str, number: int) -> _Mode:
        """The tables of a mode, filled; what they take of the nodes' memory."""
        before = self._memory()
        config = train_config(code, number, self.model, max_batches=1)
        train(self.store, self.workload.clicks, config)  # makes both tables
        tables = (self.store.table(config.embedding_table), self.store.table(config.dense_table))
        fill(tables[0], self.workload.keys)
        held, resident = (after - former for after, former in zip(self._memory(), before, strict=True))
        return _Mode(code, config, tables, Figures(samples=config.batch_size, memory=held, resident=resident))

    def _round(self, modes: Sequence[_Mode], number: int) -> None:
        clicks = replace(self.workload, clicks=self.workload.clicks.starting_at(max(0, number) * self.options.batches))
        for drive in self.options.drives:
            for mode in _rotated(modes, number):
                before = self._bytes_sent() if number < 0 and drive == "strict" else 0
                segment = self._drive(mode, drive, clicks)
                if number >= 0:
                    mode.figures.segments[drive].append(segment)
                elif drive == "strict":
                    done = self.options.batches + 2
                    mode.figures.bytes_per_batch = self._client_bytes() + (self._bytes_sent() - before) / done
        if number >= 0 and self.options.intervals:
            none = next(mode for mode in modes if mode.code == "none")
            none.figures.checkpoints.append(checkpoint.write(none.tables, self.folder))

    def _drive(self, mode: _Mode, drive: Drive, workload: Workload) -> Segment:
        marks: list[tuple[float, float, float]] = []

        def mark(now: float) -> None:
            marks.append((now, time.process_time(), sum(map(cpu_s, self.pids))))

        counted = self.options.batches
        if drive == "store_bound":
            counted *= 2
            requests = list(self._requests(mode, workload, counted + 1))
            for number, (pulls, pushes) in enumerate(requests):
                self.store.pull_many(pulls)
                self.store.push_many(pushes)
                if number in (0, counted):
                    mark(time.perf_counter())
        else:

            def on_batch(report: BatchReport) -> None:
                # The first batch opens tables, the last one of `prefetch` has no pull to overlap: neither counts.
                if report.batch in (1, counted + 1):
                    mark(report.finished)

            train(
                self.store, workload.clicks, replace(mode.config, mode=drive, max_batches=counted + 2),
                on_batch=on_batch,
            )  # fmt: skip
        (began, trainer_from, nodes_from), (ended, trainer_to, nodes_to) = marks
        return Segment(
            (ended - began) / counted, (trainer_to - trainer_from) / counted, (nodes_to - nodes_from) / counted
        )

    def _requests(self, mode: _Mode, workload: Workload, count: int) -> Iterator[tuple[Any, Any]]:
        """Pulls and pushes of some batches, with gradients of a usual size."""
        embedding, dense = mode.tables
        rng = np.random.default_rng(1)
        chunks = np.arange(len(dense), dtype=np.uint64)
        steps = rng.normal(scale=1e-3, size=(chunks.size, dense.dim)).astype(np.float32)
        for number in range(count):
            keys = np.unique(workload.clicks.batches[number % len(workload.clicks.batches)].keys)
            grads = rng.normal(scale=1e-3, size=(keys.size, embedding.dim)).astype(np.float32)
            yield {embedding: keys, dense: chunks}, {embedding: (keys, grads), dense: (chunks, steps)}

    # -- what the nodes say -----------------------------------------------------------------------------

    def _statistics(self) -> list[dict[str, Any]]:
        return [node["statistics"] for node in self.store.status()["nodes"].values()]

    def _memory(self) -> tuple[int, int]:
        """Bytes of rows, parity, indexes and key lists by the nodes' own count; resident bytes of their processes."""
        told = self._statistics()
        kinds = ("rows", "parity", "index", "keys")
        return sum(node["memory"].get(kind, 0) for node in told for kind in kinds), sum(n["rss_bytes"] for n in told)

    def _bytes_sent(self) -> int:
        """Bytes of deltas that all nodes have sent to parity shards."""
        return sum(node["bytes_sent"] for node in self._statistics())

    def _client_bytes(self) -> float:
        """Bytes of keys, rows and gradients between trainer and nodes in a batch: to and fro, heads not counted."""
        embeddings = self.workload.unique * (8 + 4 * self.model.dim)
        return 2.0 * (embeddings + ecstore.trainer.Dlrm(self.model).chunks * (8 + 4 * self.model.chunk))


def _rotated(modes: Sequence[_Mode], number: int) -> list[_Mode]:
    """Another mode begins in every round: none is always the one that finds the caches full of another's rows."""
    first = number % len(modes)
    return [*modes[first:], *modes[:first]]
