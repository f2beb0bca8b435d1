"""Checks of the memory of all nodes at once: what no client could see from outside."""

from __future__ import annotations

import numpy as np

from ecstore import limits
from ecstore.cluster.map import Group, parse_code
from ecstore.codec import apply_delta, encode
from ecstore.node.data_shard import DataShard
from ecstore.node.runtime import Runtime
from ecstore.node.sink_shard import SinkShard
from tests.sim.cluster import SimCluster
from tests.sim.watch import Watch


class Checks:
    def __init__(self, cluster: SimCluster, watch: Watch) -> None:
        self._cluster, self._watch = cluster, watch
        self._decoded: dict[int, tuple[object, int]] = {}
        self.parity_checks = 0

    # -- at any moment

    def bounds(self) -> None:
        """Guarantee G7: nothing is above its bound."""
        for name, runtime in self._cluster.runtimes().items():
            for owned in runtime.data.values():
                if owned.shard is not None:
                    self._log_bound(name, f"data shard {owned.key}", owned.shard)
            for sink in runtime.sinks.values():
                for src, source in sink.shard.sources.items():
                    unneeded = [f for f in source.log.after(source.log.first - 1) if f.seq <= source.acked_by_all]
                    size = sum(frame.nbytes for frame in unneeded)
                    if len(unneeded) > limits.MAX_LOG_FRAMES or size > limits.MAX_RECENT_BYTES + _LARGEST_FRAME:
                        self._watch.fail("bound", f"{name}: sink {sink.key} keeps {size} bytes of source {src}")
            for waiting in runtime._waiting.values():
                if waiting.requests > limits.MAX_WAITING_REQUESTS:
                    self._watch.fail("bound", f"{name}: {waiting.requests} requests wait")

    def _log_bound(self, name: str, what: str, shard: DataShard) -> None:
        # One push may be as large as a frame and is let in while the log is below its bound.
        if shard.log.nbytes > limits.MAX_UNACKED_BYTES + _LARGEST_FRAME or len(shard.log) > limits.MAX_LOG_FRAMES:
            self._watch.fail(
                "bound", f"{name}: the log of {what} holds {shard.log.nbytes} bytes, {len(shard.log)} frames"
            )

    def progress(self) -> None:
        """A recovery never goes back, and never beyond its end."""
        for name, runtime in self._cluster.runtimes().items():
            for recovery in runtime.recoveries._all:
                _, before = self._decoded.get(id(recovery), (recovery, 0))
                if recovery.kind == "data" and recovery.rows_decoded < before:
                    self._watch.fail("progress", f"{name}: recovery of {recovery.gid}/{recovery.shard} went back")
                if recovery.kind == "data" and recovery.rows_decoded > recovery.rows_total:
                    self._watch.fail(
                        "progress",
                        f"{name}: {recovery.rows_decoded} of {recovery.rows_total} rows of {recovery.gid}/"
                        f"{recovery.shard}",
                    )
                self._decoded[id(recovery)] = (recovery, recovery.rows_decoded)

    def parity(self, *, final: bool = False) -> None:
        """The parity equation, byte for byte, of each group whose shards can be seen, at the cut of each parity."""
        runtimes = self._cluster.runtimes()
        for group in self._cluster.map.groups:
            if group.lost:
                continue
            code = parse_code(group.code)
            data = [_data(runtimes, group, index) for index in range(code.k)]
            if any(shard is None or shard.undecoded for shard in data):
                if final:
                    self._watch.fail("liveness", f"group {group.gid} is not whole at the end")
                continue
            for index in range(code.k, code.width):
                sink = _sink(runtimes, group, index)
                if sink is not None:
                    self._parity_of(group, [shard for shard in data if shard is not None], sink, final)
                elif final:
                    self._watch.fail("liveness", f"group {group.gid} has no parity shard {index} at the end")

    def _parity_of(self, group: Group, data: list[DataShard], sink: SinkShard, final: bool) -> None:
        code = parse_code(group.code)
        where = f"group {group.gid} parity {sink.index}"
        for shard in data:
            applied = sink.sources[shard.index].applied
            if applied > shard.seq or not shard.log.reaches(applied):
                known = shard.log.first - 1
                self._watch.fail("parity", f"{where} stands at {applied} of shard {shard.index}, whose log is {known}.."
                                 f"{shard.seq}")  # fmt: skip
                return
            if final and applied != shard.seq:
                self._watch.fail("parity", f"{where} has not applied the last deltas of shard {shard.index}")
        self.parity_checks += 1
        for table in self._cluster.map.tables.values():
            if table.spec.code != group.code:
                continue
            row_bytes = table.spec.row_bytes
            slab = sink.slabs.get(table.id)
            used = max((shard.tables[table.id].used for shard in data if table.id in shard.tables), default=0)
            rows = [_rows_at(shard, table.id, used, row_bytes, sink.sources[shard.index].applied) for shard in data]
            wanted = encode(code, rows)[sink.index - code.k]
            found = np.zeros((used, row_bytes), np.uint8) if slab is None else slab.rows[:used]
            if not np.array_equal(wanted, found):
                bad = np.flatnonzero((wanted != found).any(axis=1))
                self._watch.fail("parity", f"{where} table {table.id}: {bad.size} of {used} rows wrong, first {bad[0]}")
            for shard in data:
                self._keys_of(where, table.id, shard, sink)

    def _keys_of(self, where: str, table_id: int, shard: DataShard, sink: SinkShard) -> None:
        """A parity shard that stands where the data shard does has its key list and its request numbers."""
        source = sink.sources[shard.index]
        if source.applied != shard.seq:
            return
        store, keylist = shard.tables.get(table_id), source.keys.get(table_id)
        ours = {} if store is None else _allocated(store.keylist)
        theirs = {} if keylist is None else _allocated(keylist)
        if ours != theirs:
            self._watch.fail("keys", f"{where} table {table_id}: key list of shard {shard.index} differs")
        if {c: n for c, n, _ in shard.requests.entries()} != {c: n for c, n, _ in source.requests.entries()}:
            self._watch.fail("keys", f"{where}: request numbers of shard {shard.index} differ")

    # -- at the end

    def leftovers(self) -> None:
        """Nothing waits any more once all is calm: no request, no decode, no push, no message."""
        for name, runtime in self._cluster.runtimes().items():
            if any(waiting.requests or waiting.nbytes for waiting in runtime._waiting.values()):
                waiting = sorted(task.get_name() for task in runtime._tasks._tasks)
                self._watch.fail("deadline", f"{name}: requests still wait: {runtime._waiting}, tasks {waiting}")
            for owned in runtime.data.values():
                if owned.shard is not None and owned.shard._waiting:
                    self._watch.fail("deadline", f"{name}: pushes to shard {owned.key} still wait for parity")
                if owned.decoder is not None and owned.decoder._jobs:
                    self._watch.fail("deadline", f"{name}: decodes of shard {owned.key} still run")
        now = self._cluster.loop.time()
        for transport in self._cluster.network.connections():
            table = transport.protocol._requests
            late = [deadline for deadline, rid in table._deadlines if rid in table._pending and deadline < now - 0.01]
            if late and transport.process.running:
                self._watch.fail("deadline", f"{transport.process.name}: {len(late)} requests are past their deadline")


#: Bytes of the largest delta that the clients of the simulation cause.
_LARGEST_FRAME = 16384


def _data(runtimes: dict[str, Runtime], group: Group, index: int) -> DataShard | None:
    shard = group.shards[index]
    runtime = runtimes.get(shard.owner)
    if runtime is None or runtime.incarnation != shard.incarnation:
        return None
    owned = runtime.data.get((group.gid, index))
    return owned.shard if owned is not None and owned.owner_epoch == shard.owner_epoch else None


def _sink(runtimes: dict[str, Runtime], group: Group, index: int) -> SinkShard | None:
    """A parity shard that the map and its node call whole, and that follows the present owners."""
    shard = group.shards[index]
    runtime = runtimes.get(shard.owner)
    if runtime is None or runtime.incarnation != shard.incarnation or shard.state != "active":
        return None
    sink = runtime.sinks.get((group.gid, index))
    if sink is None or sink.building or runtime.map.groups[group.gid].epoch != group.epoch:
        return None
    owners = {src: (group.shards[src].owner, group.shards[src].incarnation) for src in sink.senders}
    return sink.shard if sink.senders == owners else None


def _rows_at(shard: DataShard, table_id: int, used: int, row_bytes: int, seq: int) -> np.ndarray:  # type: ignore[type-arg]
    """The first `used` rows as of `seq`, uint8 (used, row_bytes): later deltas are taken out again."""
    rows = np.zeros((used, row_bytes), np.uint8)
    store = shard.tables.get(table_id)
    if store is not None:
        rows[: store.used] = store.read(np.arange(store.used, dtype=np.int64))
    for frame in shard.log.after(seq):
        if frame.table_id == table_id and frame.slots.size:
            apply_delta(rows, frame.slots, np.ascontiguousarray(frame.delta), 1)
    return rows


def _allocated(keylist: object) -> dict[int, int]:
    keys, allocated = keylist.keys, keylist.allocated  # type: ignore[attr-defined]
    return {int(slot): int(keys[slot]) for slot in np.flatnonzero(allocated)}
