"""Whether a row costs the same in a table a hundred times as large: time, memory, and recovery.

First all tables stand in one cluster: their repetitions take turns, so that what disturbs one disturbs all. A table has
some requests to itself before it is timed, or the other ones would have taken its place in the caches. Then each table
has a cluster of its own, for its memory (resident memory of all nodes, less that of the same nodes after the same
traffic and without rows) and for the loss of one node.
"""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ecstore
from ecstore.bench.report import Record, Report, machine, spread
from ecstore.cluster.map import parse_code
from ecstore.errors import ConfigError, UnavailableError
from ecstore.launcher import ClusterOptions, LocalCluster, local_cluster
from ecstore.launcher.nodes import NodeSettings

#: Bytes a row beyond the rows themselves and m/k of them for parity: the store's promise.
BOUND_BYTES: Final = 40

#: Rows of one call while a table is loaded.
LOAD_ROWS: Final = 50_000

#: Requests to one table in a row: those that only bring it back into the caches, and those that are timed.
WARM_REQUESTS: Final = 2
TIMED_REQUESTS: Final = 3

#: Until deltas that were kept for readers of an earlier cut are forgotten, and nodes have given memory back.
SETTLE_S: Final = 8.0

#: Longest wait for a recovery.
RECOVERY_S: Final = 300.0

_FEW: Final = 400  # rows that concern about every shard
_MIB_PER_S: Final = 4096.0  # background decoding: as fast as the machine can
_SEED: Final = 20_231
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOptions:
    """What to measure. Raises ConfigError for what cannot be."""

    rows: tuple[int, ...] = (10**5, 10**6, 10**7)  #: of each table
    row_bytes: int = 128  #: weights of one row
    request_rows: int = 20_000
    repetitions: int = 15
    code: str = "rs(4,2)"
    settle_s: float = SETTLE_S  #: before memory is looked at

    def __post_init__(self) -> None:
        if not self.rows or any(not 100 <= rows <= 10**8 for rows in self.rows):
            raise ConfigError(f"--rows are 100 to {10**8} each, not {self.rows}")
        if not 4 <= self.row_bytes <= 1024 or self.row_bytes % 4:
            raise ConfigError(f"--row-bytes is a multiple of 4 from 4 to 1024, not {self.row_bytes}")
        if self.request_rows < 1 or self.repetitions < 1:
            raise ConfigError("--request-rows and --repetitions are at least 1")
        parse_code(self.code)

    @property
    def nodes(self) -> int:
        """One more than a group is wide: somebody takes over what the lost one had."""
        return parse_code(self.code).width + 1


def case(rows: int) -> str:
    """1e5 for 100,000."""
    exponent = len(str(rows)) - 1
    return f"1e{exponent}" if rows == 10**exponent else f"{rows / 10**exponent:g}e{exponent}"


def keys_of(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Different keys for different numbers of rows, spread over all 64 bits."""
    return rows * _ODD


def run(options: ScaleOptions, progress: Callable[[str], None] = lambda line: None) -> Report:
    report = Report(machine())
    settings = NodeSettings(decode_mib_per_s=_MIB_PER_S)
    cluster_options = ClusterOptions(nodes=options.nodes, settings=settings)
    progress(f"starting {options.nodes} nodes for all tables together")
    with local_cluster(options=cluster_options) as cluster, ecstore.connect(cluster.address) as store:
        tables = {rows: _loaded(options, store, rows, progress) for rows in options.rows}
        report.records += _times(options, tables, progress)
    for rows in options.rows:
        progress(f"{case(rows)}: starting {options.nodes} nodes for this table alone")
        with local_cluster(options=cluster_options) as cluster, ecstore.connect(cluster.address) as store:
            report.records += _memory_and_recovery(options, cluster, store, rows, progress)
    return report


# -- tables -----------------------------------------------------------------------------------------------------


def _create(options: ScaleOptions, store: ecstore.Store, name: str) -> ecstore.Table:
    return store.create_table(
        name, dim=options.row_bytes // 4, optimizer=ecstore.RowWiseAdagrad(lr=0.01), code=options.code
    )


def _loaded(
    options: ScaleOptions, store: ecstore.Store, rows: int, progress: Callable[[str], None], name: str = ""
) -> ecstore.Table:
    table = _create(options, store, name or f"rows_{case(rows)}")
    rng = np.random.default_rng(_SEED)
    weights = rng.normal(size=(LOAD_ROWS, options.row_bytes // 4)).astype(np.float32)
    started = time.perf_counter()
    for start in range(0, rows, LOAD_ROWS):
        numbers = np.arange(start, min(start + LOAD_ROWS, rows), dtype=np.uint64)
        table.load(keys_of(numbers), weights[: numbers.size])
    progress(f"{case(rows)}: loaded {rows:,} rows in {time.perf_counter() - started:.1f} s")
    return table


class _Requests:
    """Batches of rows that a table holds, no row twice in a batch."""

    def __init__(self, options: ScaleOptions, rows: int) -> None:
        self._rng = np.random.default_rng(_SEED + rows)
        self._rows = rows
        self.size = min(options.request_rows, rows // 2)
        self.grads = self._rng.normal(size=(self.size, options.row_bytes // 4)).astype(np.float32)

    def next(self) -> NDArray[np.uint64]:
        drawn = np.unique(self._rng.integers(0, self._rows, 2 * self.size, dtype=np.uint64))
        while drawn.size < self.size:
            more = self._rng.integers(0, self._rows, 2 * self.size, dtype=np.uint64)
            drawn = np.unique(np.concatenate([drawn, more]))
        return keys_of(self._rng.permutation(drawn)[: self.size])


# -- time -------------------------------------------------------------------------------------------------------


def _times(options: ScaleOptions, tables: dict[int, ecstore.Table], progress: Callable[[str], None]) -> list[Record]:
    """Nanoseconds a row of pull and push, by table; the peer is the first table."""
    requests = {rows: _Requests(options, rows) for rows in tables}
    taken: dict[tuple[str, int], list[float]] = {(op, rows): [] for rows in tables for op in ("pull", "push")}
    progress(f"{options.repetitions} repetitions of {TIMED_REQUESTS} pulls and pushes to each table")
    for repetition in range(-1, options.repetitions):
        for operation in ("pull", "push"):
            for rows, table in tables.items():
                batch = _block(operation, table, requests[rows])
                if repetition >= 0:
                    taken[operation, rows].append(batch)
    records = []
    first = options.rows[0]
    for (operation, rows), values in taken.items():
        value, peer_value = statistics.median(values), statistics.median(taken[operation, first])
        pairs = [theirs / ours for ours, theirs in zip(values, taken[operation, first], strict=True)]
        records.append(
            Record(case(rows), f"{operation}_ns_per_row", value, "ns", case(first), peer_value, peer_value / value,
                   spread(pairs))
        )  # fmt: skip
    return records


def _block(operation: str, table: ecstore.Table, requests: _Requests) -> float:
    """Nanoseconds a row, the median of the timed requests of one block."""
    values = []
    for number in range(-WARM_REQUESTS, TIMED_REQUESTS):
        keys = requests.next()
        start = time.perf_counter()
        if operation == "pull":
            table.pull(keys)
        else:
            table.push(keys, requests.grads)
        if number >= 0:
            values.append((time.perf_counter() - start) * 1e9 / keys.size)
    return statistics.median(values)


# -- memory and recovery ----------------------------------------------------------------------------------------


def _memory_and_recovery(
    options: ScaleOptions, cluster: LocalCluster, store: ecstore.Store, rows: int, progress: Callable[[str], None]
) -> list[Record]:
    code = parse_code(options.code)
    traffic = _loaded(options, store, min(rows, 4 * LOAD_ROWS), lambda _line: None, "traffic")
    _touch(options, traffic, min(rows, 4 * LOAD_ROWS))
    store.drop_table("traffic")
    time.sleep(options.settle_s)
    empty = _resident(store)
    table = _loaded(options, store, rows, progress)
    _touch(options, table, rows)
    time.sleep(options.settle_s)
    full = _resident(store)
    row_bytes = table.spec.row_bytes
    overhead = (full - empty) / rows - row_bytes * (1 + code.m / code.k)
    progress(f"{case(rows)}: {overhead:.1f} bytes a row beyond rows and parity; losing a node")
    seconds, lost_bytes = _recovery(cluster, store)
    name = case(rows)
    return [
        Record(name, "overhead_bytes_per_row", overhead, "B", "bound", float(BOUND_BYTES), BOUND_BYTES / overhead
               if overhead > 0 else None),
        Record(name, "recovery_s_per_gb", seconds / (lost_bytes / 1e9), "s/GB"),
    ]  # fmt: skip


def _touch(options: ScaleOptions, table: ecstore.Table, rows: int) -> None:
    """Traffic as while it is timed; at last so little that hardly a delta is left that its shard's owner has not yet
    called acknowledged by all.
    """
    requests = _Requests(options, rows)
    for _ in range(3):
        table.pull(requests.next())
        table.push(requests.next(), requests.grads)
    few = requests.next()[:_FEW]
    table.push(few, requests.grads[: few.size])


def _resident(store: ecstore.Store) -> int:
    """Resident bytes of all nodes."""
    return sum(int(node["statistics"]["rss_bytes"]) for node in store.status()["nodes"].values())


def _recovery(cluster: LocalCluster, store: ecstore.Store) -> tuple[float, int]:
    """(seconds from the death of a node until all groups are whole, bytes of rows that it held)."""
    victim, node = next((name, node) for name, node in store.status()["nodes"].items() if _held(node))
    lost = _held(node)
    start = time.perf_counter()
    request = urllib.request.Request(f"{cluster.admin_url}/nodes/{victim}/kill", method="POST")
    with urllib.request.urlopen(request, timeout=10.0):
        pass
    while time.perf_counter() - start < RECOVERY_S:
        status = store.status()
        if status["nodes"][victim]["state"] == "down" and status["health"]["ok"] == status["health"]["groups"]:
            return time.perf_counter() - start, lost
        time.sleep(0.02)
    raise UnavailableError(f"the loss of {victim} was not recovered from in {RECOVERY_S:g} s; look at its peers' logs")


def _held(node: dict[str, Any]) -> int:
    memory = node["statistics"]["memory"]
    return int(memory.get("rows", 0) + memory.get("parity", 0))
