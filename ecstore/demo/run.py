"""One demonstration from the start of the cluster to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import ecstore
from ecstore.demo.admin import Admin
from ecstore.demo.killer import Killer
from ecstore.demo.options import DemoOptions
from ecstore.demo.watch import Kill, Watch
from ecstore.errors import DataLossError, EcstoreError
from ecstore.launcher import ClusterOptions, local_cluster
from ecstore.trainer import (
    BatchReport,
    Comparison,
    Dataset,
    LocalStore,
    TrainConfig,
    TrainReport,
    compare_stores,
    progress,
    train,
)
from ecstore.verify import VerifyReport, verify

#: The admin service looks at the cluster four times a second: after a loss it is given this long to see it.
SEE_LOSS_S = 2.0
#: Deadline of one pull or push. A recovery takes far less; a bug should not hold the demonstration up for long.
CALL_TIMEOUT_S = 30.0


@dataclass(slots=True)
class DemoResult:
    """All that was seen; `ecstore.demo.report` makes the JSON report and the summary of it."""

    options: DemoOptions
    config: TrainConfig
    dataset: Dataset
    batches_planned: int
    batches: list[tuple[float, BatchReport]] = field(default_factory=list)  #: unix seconds when each was acknowledged
    kills: list[Kill] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    trained: TrainReport | None = None
    verified: VerifyReport | None = None
    undisturbed: TrainReport | None = None
    comparison: Comparison | None = None
    lost_groups: list[int] = field(default_factory=list)
    loss_noticed_s: float | None = None  #: last kill -> the error of the training, when data was lost
    held_s: float = 0.0
    error: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Training finished, every kill was recovered from, parity is right, and no bit differs."""
        return bool(
            self.error is None
            and not self.lost_groups
            and self.trained is not None
            and self.trained.batches == self.batches_planned
            and len(self.kills) == self.options.kill * self.options.rounds
            and all(kill.recovered_at is not None for kill in self.kills)
            and self.verified is not None
            and self.verified.ok
            and self.comparison is not None
            and self.comparison.equal
        )


def run_demo(
    options: DemoOptions,
    stream: TextIO,
    tell: Callable[[str], None],
    *,
    on_start: Callable[[str], None] = lambda url: None,
    on_finish: Callable[[DemoResult], None] = lambda result: None,
) -> DemoResult:
    """Run it. `stream` shows the progress of the training, `tell` gets one line for each thing that happens.

    `on_start` gets the address of the live page; `on_finish` the result, while the cluster is still there: the cluster
    ends when it returns.

    Errors of the input (data, ports, options) are raised; what goes wrong later is in the result.
    """
    began = time.monotonic()
    dataset = options.dataset()
    config = options.train_config()
    result = DemoResult(options, config, dataset, config.batches(dataset))
    tell(
        f"data: {dataset.name}, {dataset.train_samples:,} samples to train on, "
        f"the last {dataset.test_samples:,} held out"
    )
    if dataset.bad_lines.count:
        first = dataset.bad_lines.first[0]
        tell(f"{dataset.bad_lines.count} bad lines were skipped; the first is line {first.number}: {first.reason}")
    settings = replace(options.settings, decode_mib_per_s=options.decode_mib_per_s(dataset), allow_faults=True)
    with ExitStack() as stack:
        started = time.monotonic()
        chosen = ClusterOptions(nodes=options.nodes, seed=options.seed, settings=settings, restart_crashed=False)
        cluster = stack.enter_context(local_cluster(options=chosen, progress=tell))
        result.seconds["start"] = time.monotonic() - started
        tell(f"{options.nodes} nodes are up; watch them live at {cluster.admin_url}/ (REST: {cluster.admin_url}/docs)")
        on_start(f"{cluster.admin_url}/")
        admin = Admin(cluster.admin_url)
        stack.callback(admin.close)
        store = stack.enter_context(ecstore.connect(cluster.address, timeout=CALL_TIMEOUT_S))
        _train(result, store, admin, stream, tell)
        if result.error is None:
            _prove(result, store, cluster.address, stream, tell)
        elif result.lost_groups:
            _check_the_others(result, cluster.address, tell)
        on_finish(result)
        ended = time.monotonic()
    result.seconds["stop"] = time.monotonic() - ended
    result.seconds["total"] = time.monotonic() - began
    return result


def _train(result: DemoResult, store: ecstore.Store, admin: Admin, stream: TextIO, tell: Callable[[str], None]) -> None:
    watch = Watch(store)
    killer = Killer(result.options, admin, watch, result.batches_planned, tell)
    started = time.monotonic()
    result.kills = watch.kills
    watch.start()
    killer.start()
    try:
        with progress(stream) as show:

            def on_batch(report: BatchReport) -> None:
                result.batches.append((time.time(), report))
                show(report)
                killer.on_batch(report.batch)

            tell(f"training: {result.batches_planned} batches of {result.config.batch_size}, code {result.config.code}")
            result.trained = train(store, result.dataset, result.config, on_batch=on_batch)
        killer.finish(failed=False)
    except EcstoreError as error:
        _note_failure(result, watch, error)
        killer.finish(failed=True)
    finally:
        watch.stop()
        result.seconds["training"] = time.monotonic() - started
    result.held_s = killer.held_s
    result.lost_groups = sorted({*result.lost_groups, *watch.lost_groups()})
    if result.lost_groups and result.error is None:
        result.error = str(DataLossError(groups=result.lost_groups))
    _take_recoveries(result, admin)


def _note_failure(result: DemoResult, watch: Watch, error: EcstoreError) -> None:
    result.error = str(error)
    result.lost_groups = watch.lost_groups()
    if isinstance(error, DataLossError):
        result.lost_groups = sorted({*result.lost_groups, *error.groups})
        if watch.kills:
            result.loss_noticed_s = time.time() - max(kill.at for kill in watch.kills)


def _take_recoveries(result: DemoResult, admin: Admin) -> None:
    """What /decoding says; after a loss once it says `lost` of every lost group."""
    deadline = time.monotonic() + SEE_LOSS_S
    try:
        while True:
            result.recoveries = admin.recoveries()
            said = {entry["group"] for entry in result.recoveries if entry["state"] == "lost"}
            if said >= set(result.lost_groups) or time.monotonic() > deadline:
                return
            time.sleep(0.1)
    except EcstoreError as error:
        result.error = result.error or str(error)


def _check_the_others(result: DemoResult, address: str, tell: Callable[[str], None]) -> None:
    """Groups were lost: those that were not must be whole again, with the right parity."""
    tell("checking the parity of the groups that were not lost, once they are whole again")
    started = time.monotonic()
    try:
        result.verified = verify(address)
        tell(result.verified.describe())
    except EcstoreError as error:
        tell(f"could not check: {error}")
    result.seconds["verify"] = time.monotonic() - started


def _prove(result: DemoResult, store: ecstore.Store, address: str, stream: TextIO, tell: Callable[[str], None]) -> None:
    """Check the parity equation, then train the same once more without a cluster and compare every row."""
    try:
        started = time.monotonic()
        tell("checking that every group's parity is that of its data")
        result.verified = verify(address)
        result.seconds["verify"] = time.monotonic() - started
        tell(result.verified.describe())
        started = time.monotonic()
        tell("training the same undisturbed, in one process without a cluster, to compare with")
        local = LocalStore()
        with progress(stream) as show:
            result.undisturbed = train(local, result.dataset, result.config, on_batch=show)
        result.seconds["undisturbed"] = time.monotonic() - started
        result.comparison = compare_stores(store, local, result.config.tables)
        tell(result.comparison.describe())
    except EcstoreError as error:
        result.error = str(error)
