"""One recovery: a cluster full of rows, a training on it, SIGKILL of a node, and what happens then."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

import ecstore
from ecstore.bench.workload import LOAD_ROWS, PATIENT_S, Workload, fill, train_config, weights_of
from ecstore.cluster.map import parse_code
from ecstore.demo.watch import Kill
from ecstore.errors import EcstoreError, UnavailableError
from ecstore.launcher import ClusterOptions, NodeSettings, local_cluster
from ecstore.trainer import BatchReport, ModelConfig, train

#: Between two looks at the client's map: a few microseconds of work each.
POLL_S: Final = 0.005
#: A recovery that takes longer has failed.
LIMIT_S: Final = 180.0
#: The first batches of a training are not counted as "before".
WARM_UP_S: Final = 1.5
#: The second node dies when the first one's loss has been decoded for so long.
SECOND_KILL_S: Final = 1.0
#: Rows that are compared after a recovery.
CHECKED_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What to do. `name`: as in the report."""

    name: str
    code: str
    victims: int = 1  #: nodes killed together
    again: bool = False  #: kill a node that decodes the loss of the first one, while it does
    settings: NodeSettings = field(default_factory=NodeSettings)
    trains: bool = True  #: a training goes on meanwhile
    ends: bool = True  #: whether the recovery ends by itself; otherwise it is watched for `unfinished_s`
    full: bool = False  #: with all the rows; ablations make do with fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large and how long."""

    nodes: int
    before_s: float
    after_s: float
    unfinished_s: float
    model: ModelConfig


@dataclass(slots=True)
class Seen:
    """What was seen. Times are unix seconds."""

    case: Case
    kills: list[Kill] = field(default_factory=list)
    started_at: float = 0.0  #: of the training
    ended_at: float = 0.0
    finishes: list[float] = field(default_factory=list)  #: when each batch was acknowledged
    samples: int = 0  #: of a batch
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    table_bytes: int = 0  #: of all rows of the embedding table, parity not counted

    @property
    def killed_at(self) -> float:
        return self.kills[0].at

    @property
    def recovered_at(self) -> float | None:
        """All that was lost is back, data and parity; None: it is not."""
        times = [kill.recovered_at for kill in self.kills]
        return None if None in times else max(time for time in times if time is not None)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Recoveries of "data" or "parity" shards."""
        return [entry for entry in self.recoveries if entry["kind"] == kind]

    @property
    def first_row_at(self) -> float | None:
        return min((entry["first_row_at"] for entry in self.of("data") if entry["first_row_at"]), default=None)

    @property
    def moved_bytes(self) -> int:
        """Bytes that recovery had to move: k rows for every lost row, of data shards and of parity shards."""
        k = parse_code(self.case.code).k
        # A parity shard counts the rows that it got from each of its k data shards.
        return int(
            k * sum(e["bytes_decoded"] for e in self.of("data")) + sum(e["bytes_decoded"] for e in self.of("parity"))
        )

    def samples_between(self, start: float, end: float) -> float:
        """Samples trained in a span of time; a batch counts evenly over the time it took."""
        edges = [self.started_at, *self.finishes]
        done = np.interp([start, end], edges, np.arange(len(edges)) * self.samples)
        return float(done[1] - done[0])

    def rate(self, start: float, end: float) -> float:
        return self.samples_between(start, end) / (end - start) if end > start else 0.0


class _Enough(Exception):
    """The training has lasted long enough."""


def run_case(case: Case, scale: Scale, workload: Workload, tell: Callable[[str], None]) -> Seen:
    """Start, fill, train, kill, wait, compare. Raises EcstoreError when rows differ or never come back."""
    seen = Seen(case)
    settings = replace(case.settings, suspect_after_s=PATIENT_S)
    options = ClusterOptions(nodes=scale.nodes, settings=settings, restart_crashed=False, seed=1)
    with local_cluster(options=options) as cluster, ecstore.connect(cluster.address, timeout=60.0) as store:
        config = train_config(case.code, 0, scale.model, max_batches=1)
        train(store, workload.clicks, config)  # makes both tables
        table = store.table(config.embedding_table)
        fill(table, workload.keys)
        seen.table_bytes = workload.keys.size * table.spec.row_bytes
        tell(f"{case.name}: {seen.table_bytes / 1e9:.2f} GB of rows on {scale.nodes} nodes, code {case.code}")
        if case.trains:
            _train(seen, scale, workload, store)
        else:
            _Killer(seen, scale, store).run()
        seen.recoveries = _recoveries(seen, store)
        _compare(table, workload)
    tell(f"{case.name}: {_told(seen)}")
    return seen


def _train(seen: Seen, scale: Scale, workload: Workload, store: ecstore.Store) -> None:
    config = train_config(seen.case.code, 0, scale.model)
    seen.samples = config.batch_size

    def on_batch(report: BatchReport) -> None:
        seen.finishes.append(time.time())
        if killer.over:
            raise _Enough

    killer = _Killer(seen, scale, store)
    seen.started_at = time.time()
    with _in_thread(killer.run), suppress(_Enough):
        train(store, workload.clicks, config, on_batch=on_batch)
    seen.ended_at = seen.finishes[-1]
    if killer.error is not None:
        raise killer.error


@contextmanager
def _in_thread(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work, name="kill nodes", daemon=True)
    thread.start()
    yield
    thread.join()  # not when the training failed: nobody waits for a recovery then


class _Killer:
    """Kills, watches the client's map until all is whole, and says when the training may end."""

    def __init__(self, seen: Seen, scale: Scale, store: ecstore.Store) -> None:
        self._seen = seen
        self._scale = scale
        self._store = store
        self.over = False
        self.error: EcstoreError | None = None

    def run(self) -> None:
        try:
            time.sleep(WARM_UP_S + (self._scale.before_s if self._seen.case.trains else 0.0))
            self._kill_and_wait()
            if self._seen.case.trains:
                time.sleep(self._scale.after_s)
        except EcstoreError as error:
            self.error = error
            if not self._seen.case.trains:
                raise
        finally:
            self.over = True

    def _kill_and_wait(self) -> None:
        case, seen = self._seen.case, self._seen
        pids = {name: node["statistics"]["pid"] for name, node in self._store.status()["nodes"].items()}
        names = sorted(pids)
        for name in names[: case.victims]:
            self._kill(name, pids[name])
        limit = LIMIT_S if case.ends else self._scale.unfinished_s
        deadline = time.time() + limit
        while seen.recovered_at is None:
            time.sleep(POLL_S)
            self._look(time.time())
            if case.again and len(seen.kills) == case.victims:
                self._kill_again(pids)
            if time.time() > deadline:
                if case.ends:
                    raise UnavailableError(f"{case.name}: not recovered after {limit:g} s; see the nodes' logs")
                return

    def _kill(self, name: str, pid: int) -> None:
        current = self._store.cluster_map
        incarnation = current.nodes[name].incarnation
        shards = tuple((group.gid, shard.index) for group, shard in current.shards_on(name, incarnation))
        self._seen.kills.append(
            Kill(
                node=name, round=1, at_batch=len(self._seen.finishes), at=time.time(), incarnation=incarnation,
                shards=shards, at_risk_before=False, others_decoding=bool(self._seen.kills),
            )
        )  # fmt: skip
        os.kill(pid, signal.SIGKILL)

    def _kill_again(self, pids: dict[str, int]) -> None:
        first = self._seen.kills[0]
        if first.detected_at is None or time.time() < first.detected_at + SECOND_KILL_S:
            return
        current = self._store.cluster_map
        owners = [current.groups[gid].shards[index] for gid, index in first.shards]
        decoding = [shard.owner for shard in owners if shard.state == "recovering"] or [s.owner for s in owners]
        self._kill(decoding[0], pids[decoding[0]])

    def _look(self, now: float) -> None:
        current = self._store.cluster_map
        lost = [group.gid for group in current.groups if group.lost]
        if lost:
            raise UnavailableError(
                f"{self._seen.case.name}: groups {lost} are lost; the code does not bear such a loss"
            )
        for kill in self._seen.kills:
            if kill.detected_at is None and not current.is_alive(kill.node, kill.incarnation):
                kill.detected_at = now
            if kill.detected_at is not None and kill.recovered_at is None and kill.settled(current):
                kill.recovered_at = now


def _recoveries(seen: Seen, store: ecstore.Store) -> list[dict[str, Any]]:
    """What the living nodes have recovered since the first kill."""
    killed = {kill.node for kill in seen.kills}
    return [
        entry
        for node in store.status()["nodes"].values()
        if node["statistics"] is not None
        for entry in node["statistics"].get("recoveries", ())
        if entry["lost_node"] in killed and entry["started_at"] >= seen.killed_at - 1.0
    ]


def _compare(table: ecstore.Table, workload: Workload) -> None:
    """Rows that the training has not touched are what was loaded, bit for bit."""
    touched = np.unique(np.concatenate([batch.keys.reshape(-1) for batch in workload.clicks.batches]))
    block = workload.keys[:LOAD_ROWS]
    places = np.flatnonzero(~np.isin(block, touched))[:CHECKED_ROWS]
    expected = weights_of(0, block.size, table.dim)[places]
    if table.pull(block[places]).tobytes() != expected.tobytes():
        raise EcstoreError("rows differ after the recovery; its times would mean nothing. Report this as a fault")


def _told(seen: Seen) -> str:
    first = seen.first_row_at
    told = "" if first is None else f"first row decoded {1000 * (first - seen.killed_at):.0f} ms after the kill"
    if seen.recovered_at is not None:
        told += f", all whole after {seen.recovered_at - seen.killed_at:.2f} s"
    if seen.case.trains:
        before = seen.rate(seen.started_at + WARM_UP_S, seen.killed_at)
        during = seen.rate(seen.killed_at, seen.recovered_at or seen.ended_at)
        told += f"; {before:,.0f} samples/s before, {during:,.0f} during"
    return told
