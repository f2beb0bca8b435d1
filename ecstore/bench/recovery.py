"""Recovery after the loss of nodes, beside recovery from a checkpoint, while training goes on.

Each case starts a cluster of its own, fills it, trains on it, and kills. What checkpointing would take is measured
in the same run on mode none: writing all rows, restoring all rows. It depends on the interval between checkpoints;
the fair one is that at which checkpointing costs training as much as the code does, and that cost is measured, too:
interval = time to write / overhead of the code. Recovery from a checkpoint then takes the restore and, on average,
half an interval of training that has to be done again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ecstore
from ecstore.bench import checkpoint, training
from ecstore.bench.loopback_peer import loopback
from ecstore.bench.recovery_case import Case, Scale, Seen, run_case
from ecstore.bench.recovery_report import Baseline, Loopback, records, timeline
from ecstore.bench.report import Report, interleaved, machine
from ecstore.bench.workload import PATIENT_S, Workload, calibrated, categories_for, describe, fill
from ecstore.errors import ConfigError
from ecstore.launcher import ClusterOptions, NodeSettings, local_cluster
from ecstore.optim import RowWiseAdagrad

#: As fast as it can.
FULL = NodeSettings(decode_mib_per_s=1e6)

CASES = (
    Case(name="rs(4,2)/1-node", code="rs(4,2)", full=True),
    Case(name="rs(4,2)/2-nodes", code="rs(4,2)", victims=2, full=True),
    Case(name="rs(4,1)/1-node", code="rs(4,1)", full=True),
    Case(name="rs(4,2)/full-rate", code="rs(4,2)", settings=FULL, trains=False, full=True),
    Case(name="rs(4,2)/base", code="rs(4,2)"),
    Case(name="rs(4,2)/block=256", code="rs(4,2)", settings=NodeSettings(decode_block_rows=256)),
    Case(name="rs(4,2)/block=8192", code="rs(4,2)", settings=NodeSettings(decode_block_rows=8192)),
    Case(name="rs(4,2)/rate=4", code="rs(4,2)", settings=NodeSettings(decode_mib_per_s=4.0)),
    Case(name="rs(4,2)/rate=full", code="rs(4,2)", settings=FULL),
    Case(name="rs(4,2)/sweep-only", code="rs(4,2)", settings=NodeSettings(decode_only="sweep")),
    Case(name="rs(4,2)/on-demand-only", code="rs(4,2)", settings=NodeSettings(decode_only="on-demand"), ends=False),
    Case(name="rs(4,2)/kill-during-recovery", code="rs(4,2)", again=True),
)
QUICK = ("rs(4,2)/1-node", "rs(4,2)/full-rate")

#: Tables that the checkpoint is cut into: one export holds all rows of a table, several times.
CHECKPOINT_TABLES = 4
#: Bytes of one loopback copy.
COPY_BYTES = 64 << 20
#: An overhead below this can't be told from noise; a smaller one would make the fair interval, and our ratio, larger.
LEAST_OVERHEAD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """What to measure. Raises ConfigError for what cannot be."""

    rows_gb: float = 2.0  #: GB (10^9 bytes) of rows in the main cases, parity not counted
    ablation_gb: float = 0.5  #: in the ablations
    nodes: int = 8  #: rs(4,2) needs six; two more take the shards of two that are lost
    dim: int = 64
    dense_step_s: float = 0.085
    before_s: float = 8.0
    after_s: float = 4.0
    rounds: int = 5  #: repetitions of what is not killed: overhead of the codes, loopback copies
    only: tuple[str, ...] = ()  #: names of cases; none: all of them
    baseline: bool = True  #: measure checkpointing
    folder: Path | None = None  #: where checkpoints are written; None: a temporary folder

    def __post_init__(self) -> None:
        if not self.rows_gb > 0 or not self.ablation_gb > 0:
            raise ConfigError("--rows-gb and --ablation-gb are above 0")
        known = {case.name for case in CASES}
        for name in self.only:
            if name not in known:
                raise ConfigError(f"no case {name!r}; there are {', '.join(sorted(known))}")
        widest = 6
        if self.nodes < widest + 2:
            raise ConfigError(f"--nodes {self.nodes} leave no spare ones: rs(4,2) loses up to two of at least 8")

    @classmethod
    def quick(cls) -> RecoveryOptions:
        return cls(
            rows_gb=0.05, ablation_gb=0.05, dim=32, dense_step_s=0.03, before_s=1.5, after_s=1.0, rounds=1, only=QUICK
        )


def run(
    options: RecoveryOptions, progress: Callable[[str], None] = lambda line: None
) -> tuple[Report, dict[str, dict[str, Any]]]:
    """Measure; the report, and the timeline of each case by name (see `recovery_report.timeline`)."""
    report = Report(machine())
    workloads = {gb: _workload(gb, options.dim) for gb in {options.rows_gb, options.ablation_gb}}
    batch = workloads[options.rows_gb].clicks.batches[0]
    model, taken = calibrated(options.dense_step_s, options.dim, batch)
    report.machine |= {"model": describe(model), "dense_step_ms": round(1000 * taken)}
    progress(f"dense step: {1000 * taken:.0f} ms, {describe(model)}")
    scale = Scale(
        nodes=options.nodes, before_s=options.before_s, after_s=options.after_s, unfinished_s=2 * options.before_s,
        model=model,
    )  # fmt: skip
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    seen: list[Seen] = []
    copies: dict[str, Loopback] = {}
    for case in chosen:
        seen.append(run_case(case, scale, workloads[options.rows_gb if case.full else options.ablation_gb], progress))
        if not case.trains:  # beside the case that it is compared with
            copies[case.name] = _loopback(options.rounds)
    baselines = _baselines(options, chosen, workloads[options.rows_gb], progress) if options.baseline else {}
    for one in seen:
        report.records += records(one, baselines.get(one.case.code), copies.get(one.case.name))
    return report, {one.case.name: timeline(one) for one in seen if one.case.trains}


def _workload(gb: float, dim: int) -> Workload:
    row_bytes = 4 * dim + 8  # of row-wise Adagrad
    return Workload.make(categories_for(round(gb * 1e9 / row_bytes)), training.BATCHES)


def _loopback(rounds: int) -> Loopback:
    with loopback(COPY_BYTES) as copier:
        seconds = interleaved({"copy": lambda _number: copier.exchange(COPY_BYTES, 0)}, 3 * rounds)["copy"]
    return Loopback([COPY_BYTES / taken for taken in seconds])


def _baselines(
    options: RecoveryOptions, cases: list[Case], workload: Workload, progress: Callable[[str], None]
) -> dict[str, Baseline]:
    """What checkpointing takes that costs training as much as each code."""
    codes = tuple(dict.fromkeys(case.code for case in cases))
    progress(f"overhead of {', '.join(codes)} without a loss")
    overhead = _overheads(options, codes)
    progress("checkpoint: writing and restoring all rows of mode none")
    with ExitStack() as stack:
        patient = ClusterOptions(nodes=options.nodes, settings=NodeSettings(suspect_after_s=PATIENT_S))
        cluster = stack.enter_context(local_cluster(options=patient))
        store = stack.enter_context(ecstore.connect(cluster.address, timeout=checkpoint.TIMEOUT_S))
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecstore-bench-")))
        tables = []
        for number in range(CHECKPOINT_TABLES):
            table = store.create_table(f"part{number}", dim=options.dim, optimizer=RowWiseAdagrad(lr=0.01), code="none")
            fill(table, workload.keys[number::CHECKPOINT_TABLES])
            tables.append(table)
        written = [checkpoint.write(tables, folder) for _ in range(2)]
        restored = checkpoint.restore(tables, folder)
    best = min(written, key=lambda one: one.seconds)
    progress(f"checkpoint: {best.nbytes / 1e9:.2f} GB written in {best.seconds:.1f} s, restored in {restored[0]:.1f} s")
    return {code: Baseline(best, *restored, overhead=max(LEAST_OVERHEAD, overhead[code])) for code in codes}


def _overheads(options: RecoveryOptions, codes: tuple[str, ...]) -> dict[str, float]:
    """Additional training time of each code, strict mode, in turns with none: 0.05 is five per cent."""
    chosen = training.TrainingOptions(
        codes=("none", *codes), sizes=("x1",), nodes=options.nodes, dim=options.dim, intervals=(), drives=("strict",),
        dense_step_s=options.dense_step_s, rounds=options.rounds, categories=100_000 if options.rounds > 1 else 20_000,
    )  # fmt: skip
    found = training.run(chosen).records
    ratio = {r.case.partition("/")[0]: r.ratio for r in found if r.metric == "samples_per_s"}
    return {code: 1 / (ratio[code] or 1.0) - 1 for code in codes}
