"""What a node that allows faults answers to clients and the admin service: `fault.*`. Refused by every other node."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecstore.errors import ConfigError, KeyRangeError, NotOwnerError, NotReadyError, UnknownTableError
from ecstore.faults.control import Faults
from ecstore.node.data_shard import DataShard
from ecstore.node.messages import integer
from ecstore.node.runtime import Runtime
from ecstore.node.sink_shard import SinkShard
from ecstore.transport import Connection
from ecstore.wire import Frame


class FaultApi:
    """`faults` None: the node was started without them."""

    def __init__(self, runtime: Runtime, faults: Faults | None) -> None:
        self._runtime = runtime
        self._faults = faults
        self._kinds = {
            "fault.set": self._set, "fault.list": self._list, "fault.clear": self._clear, "fault.flip": self._flip,
        }  # fmt: skip

    async def answer(self, conn: Connection, frame: Frame) -> None:
        """Answer a `fault.*` request. ConfigError where faults are not allowed, or for what makes no sense."""
        if self._faults is None:
            raise ConfigError(
                f"node {self._runtime.name} takes no faults: it was started without --allow-faults, which is for tests"
            )
        handler = self._kinds.get(frame.kind)
        if handler is None:
            raise ConfigError(f"there is no {frame.kind!r}; there are {', '.join(self._kinds)}")
        await handler(conn, frame, self._faults)

    async def _set(self, conn: Connection, frame: Frame, faults: Faults) -> None:
        rule = faults.check(frame.meta)
        conn.reply(frame.rid, {"id": rule.id})
        await conn.drain()  # the answer goes out before the fault begins, which may concern it
        faults.add(rule)
        peers = f" with {', '.join(rule.peers)} ({rule.direction})" if rule.peers else ""
        self._runtime.event("fault", f"fault {rule.id}: {rule.kind}{peers} was set", fault=frame.meta)

    async def _list(self, conn: Connection, frame: Frame, faults: Faults) -> None:
        conn.reply(frame.rid, {"faults": faults.to_wire()})

    async def _clear(self, conn: Connection, frame: Frame, faults: Faults) -> None:
        rule_id = frame.meta.get("id")
        cleared = faults.clear(None if rule_id is None else str(rule_id))
        if cleared:
            self._runtime.event("fault", f"{cleared} faults were cleared")
        conn.reply(frame.rid, {"cleared": cleared})

    async def _flip(self, conn: Connection, frame: Frame, faults: Faults) -> None:
        """Flip one bit of a row in memory, behind the back of everybody: what a faulty memory does."""
        del faults
        gid, index, table_id, slot, byte, bit = (
            integer(frame.meta, name) for name in ("group", "shard", "table", "slot", "byte", "bit")
        )
        owned, sink = self._runtime.data.get((gid, index)), self._runtime.sinks.get((gid, index))
        shard: DataShard | SinkShard | None = owned.shard if owned is not None else sink.shard if sink else None
        if owned is None and sink is None:
            raise NotOwnerError(f"node {self._runtime.name} does not hold shard {index} of group {gid}")
        if shard is None:
            raise NotReadyError(f"shard {index} of group {gid} is being taken over; ask again")
        rows, used = _rows(shard, table_id)
        if not (0 <= slot < used and 0 <= byte < rows.shape[1] and 0 <= bit < 8):
            raise KeyRangeError(
                f"slot {slot}, byte {byte}, bit {bit} is not within {used} rows of {rows.shape[1]} bytes"
            )
        if isinstance(shard, DataShard) and shard.lost_slots(table_id, np.array([slot])).size:
            raise NotReadyError(f"slot {slot} has not been decoded yet; ask again")
        rows[slot, byte] ^= 1 << bit
        self._runtime.event("fault", f"bit {bit} of byte {byte} of slot {slot} was flipped", fault=frame.meta)
        conn.reply(frame.rid, {"value": int(rows[slot, byte])})


def _rows(shard: DataShard | SinkShard, table_id: int) -> tuple[Any, int]:
    """The bytes of a table in a shard, u8[capacity, row_bytes], and the slots in use."""
    if isinstance(shard, DataShard):
        store = shard.tables.get(table_id)
        if store is not None:
            return store.raw_rows, store.used
    elif table_id in shard.slabs:
        used = (source.keys[table_id].used for source in shard.sources.values() if table_id in source.keys)
        return shard.slabs[table_id].rows, max(used, default=0)
    raise UnknownTableError(f"shard {shard.index} of group {shard.gid} holds no rows of table {table_id}")
