"""What a node answers about scrubbing: to whoever orders a scrub, and to the node that carries it out.

docs/PROTOCOL.md is the normative text. A repair checks and writes without an await in between.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from ecstore import limits
from ecstore.cluster.map import Group
from ecstore.errors import FrameError, NotReadyError
from ecstore.node.data_shard import DataShard, Repair
from ecstore.node.keylist import KeyList, digest
from ecstore.node.messages import integer
from ecstore.node.peer_api import CUT_WAIT_S
from ecstore.node.runtime import OwnedSink, Runtime
from ecstore.node.scrubber import Scrubber, settled
from ecstore.node.scrubbing import DEFAULT_RATE_MIB_S, MAX_RATE_MIB_S, MIN_RATE_MIB_S
from ecstore.node.sink_shard import CutNotReached, LogTooShort
from ecstore.transport import Connection
from ecstore.wire import Frame

Waiting = Callable[[Connection, Frame], Coroutine[Any, Any, None]]

#: Groups that one request may name; a map has no more.
MAX_GROUPS = 65_536


class ScrubApi:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.scrubber = Scrubber(runtime)
        #: From clients, the admin service and nodes.
        self.open: dict[str, Waiting] = {
            "scrub.start": self._start,
            "scrub.status": self._status,
            "scrub.stop": self._stop,
        }
        #: From nodes only.
        self.of_nodes: dict[str, Waiting] = {
            "shard.keys": self._shard_keys,
            "parity.keys": self._parity_keys,
            "shard.repair": self._shard_repair,
            "parity.repair": self._parity_repair,
        }

    # -- orders ---------------------------------------------------------------------------------------

    async def _start(self, connection: Connection, frame: Frame) -> None:
        meta = frame.meta
        run, gids, table_id, rate = meta.get("run"), meta.get("groups"), meta.get("table"), meta.get("rate_mib_s")
        if not isinstance(run, str) or not 1 <= len(run) <= 64:
            raise FrameError("scrub.start names its run: a text of 1 to 64 characters")
        if not isinstance(gids, list) or len(gids) > MAX_GROUPS or any(type(gid) is not int for gid in gids):
            raise FrameError("scrub.start carries a list of group numbers")
        if table_id is not None and type(table_id) is not int:
            raise FrameError("scrub.start names a table by its number, or none")
        if rate is None:
            rate = DEFAULT_RATE_MIB_S
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not MIN_RATE_MIB_S <= rate <= MAX_RATE_MIB_S:
            raise FrameError(f"scrub.start: rate_mib_s is {MIN_RATE_MIB_S:g} to {MAX_RATE_MIB_S:g} MiB a second")
        await self._runtime.at_epoch(integer(meta, "epoch"))
        for gid in gids:
            if not 0 <= gid < len(self._runtime.map.groups):
                raise NotReadyError(f"node {self._runtime.name} does not know group {gid} yet; ask again")
        self.scrubber.start(run, gids, table_id, float(rate), meta.get("repair") is not False)
        connection.reply(frame.rid, {})

    async def _status(self, connection: Connection, frame: Frame) -> None:
        after = integer(frame.meta, "after") if "after" in frame.meta else 0
        job = self.scrubber.job
        connection.reply(frame.rid, {"run": None} if job is None else job.to_wire(max(0, after)))

    async def _stop(self, connection: Connection, frame: Frame) -> None:
        self.scrubber.stop(str(frame.meta.get("run")))
        connection.reply(frame.rid, {})

    # -- shards ---------------------------------------------------------------------------------------

    async def _settled(self, frame: Frame) -> Group:
        """The group, when its owners here are those of the asker and nothing else is under way in it."""
        group = await self._runtime.at_group_epoch(integer(frame.meta, "group"), integer(frame.meta, "group_epoch"))
        if not settled(group):
            raise NotReadyError(f"group {group.gid} is being recovered, or a shard of it moves; ask again after that")
        if integer(frame.meta, "table") not in self._runtime.tables:
            raise NotReadyError(f"table {frame.meta['table']} is not in the map of node {self._runtime.name}")
        return group

    def _data(self, gid: int, index: int) -> DataShard:
        owned = self._runtime.data.get((gid, index))
        if owned is None or owned.shard is None:
            raise NotReadyError(f"node {self._runtime.name} does not serve shard {index} of group {gid}")
        return owned.shard

    def _parity(self, gid: int, index: int) -> OwnedSink:
        sink = self._runtime.sinks.get((gid, index))
        if sink is None or sink.building:
            raise NotReadyError(f"node {self._runtime.name} holds no whole parity shard {index} of group {gid}")
        return sink

    @staticmethod
    def _cut(frame: Frame, sink: OwnedSink) -> dict[int, int]:
        seqs = frame.meta.get("cut")
        if not isinstance(seqs, list) or any(type(seq) is not int for seq in seqs):
            raise FrameError("a cut is a list: one seq for each data shard")
        if len(seqs) != len(sink.shard.sources):
            raise NotReadyError("the cut belongs to another code")
        return dict(enumerate(seqs))

    @staticmethod
    def _block(frame: Frame) -> tuple[int, int]:
        start, count = integer(frame.meta, "start"), integer(frame.meta, "count")
        if not 0 < count <= limits.BLOCK_SLOTS or not 0 <= start <= limits.MAX_ROWS_PER_SHARD:
            raise FrameError(f"a block of keys has 1 to {limits.BLOCK_SLOTS} slots of a shard")
        return start, count

    async def _shard_keys(self, connection: Connection, frame: Frame) -> None:
        group = await self._settled(frame)
        shard = self._data(group.gid, integer(frame.meta, "shard"))
        store = shard.tables.get(integer(frame.meta, "table"))
        keylist = store.keylist if store is not None else KeyList()
        connection.reply(frame.rid, {"seq": shard.seq, "digest": digest(*keylist.block(*self._block(frame)))})

    async def _parity_keys(self, connection: Connection, frame: Frame) -> None:
        """Digest of each source's key list at a cut; waits until the cut is reached."""
        deadline = self._runtime.loop.time() + CUT_WAIT_S
        while True:
            group = await self._settled(frame)
            sink = self._parity(group.gid, integer(frame.meta, "shard"))
            cut, (start, count) = self._cut(frame, sink), self._block(frame)
            try:
                digests = [
                    sink.shard.key_digest(src, integer(frame.meta, "table"), start, count, seq)
                    for src, seq in cut.items()
                ]
            except CutNotReached:
                if self._runtime.loop.time() > deadline:
                    raise NotReadyError(f"the cut of group {group.gid} was not reached in time; ask again") from None
                await self._runtime.deltas_applied(CUT_WAIT_S)
                continue
            except LogTooShort:
                raise NotReadyError("the delta log does not lead back to the cut; ask with a newer one") from None
            connection.reply(frame.rid, {"digests": digests})
            return

    async def _shard_repair(self, connection: Connection, frame: Frame) -> None:
        group = await self._settled(frame)
        shard = self._data(group.gid, integer(frame.meta, "shard"))
        slots, wrong, errors = self._rows(frame)
        table = self._runtime.tables[integer(frame.meta, "table")]
        store = shard.open_table(table.id, table.spec)
        if store.row_bytes != wrong.shape[1]:
            raise FrameError(f"rows of table {table.spec.name!r} have {store.row_bytes} bytes")
        outcome = shard.repair(table.id, slots, wrong, errors)
        self._runtime.count("rows_repaired", int((outcome == Repair.DONE).sum()))
        connection.reply(frame.rid, {}, [outcome])

    async def _parity_repair(self, connection: Connection, frame: Frame) -> None:
        group = await self._settled(frame)
        sink = self._parity(group.gid, integer(frame.meta, "shard"))
        slots, wrong, errors = self._rows(frame)
        try:
            done = sink.shard.repair(integer(frame.meta, "table"), slots, wrong, errors, self._cut(frame, sink))
        except (CutNotReached, LogTooShort):
            raise NotReadyError("the delta log no longer leads back to the cut; judge again") from None
        self._runtime.count("rows_repaired", int(done.sum()))
        connection.reply(frame.rid, {}, [done.astype(np.uint8)])

    @staticmethod
    def _rows(frame: Frame) -> tuple[Any, Any, Any]:
        """Slots int64 (n,), rows as they were judged and their errors, uint8 (n, row_bytes) each."""
        row_bytes = integer(frame.meta, "row_bytes")
        if row_bytes <= 0 or row_bytes % 8:
            raise FrameError("row_bytes is a positive multiple of 8")
        slots = frame.bin(0, np.uint32).astype(np.int64)
        if slots.size and not (np.diff(slots) > 0).all():
            raise FrameError("slots of a repair rise: sorted, each once")
        shape = (slots.size, row_bytes)
        return slots, frame.bin(1, np.uint8, shape), frame.bin(2, np.uint8, shape)
