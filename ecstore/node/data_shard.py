"""One data shard in the memory of its owner: rows, seq, request numbers, and who has acknowledged what. Pure.

Rule 1: every change of rows happens in `push`, `put` or `delete`; each takes the next seq and leaves one frame in
the log, which stays there until every sink has acknowledged it. (`restore` and `repair` write what the sinks already
hold to be right: they leave no frame.)
Rule 2: a row that has not been decoded yet (`undecoded`) is neither read nor changed here; callers decode first.

Sinks are the shards that apply this shard's deltas: the parity shards of the group, and during a move the copy
that is being built on the new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecstore import limits
from ecstore.errors import CapacityError, EcstoreError, UnknownTableError
from ecstore.node.dedupe import RequestTable
from ecstore.node.deltalog import DeltaFrame, FrameLog
from ecstore.node.rowstore import RowDelta, RowStore
from ecstore.tables import TableSpec

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

Acknowledged = Callable[[EcstoreError | None], None]


class Repair(IntEnum):
    """What became of a row that was to be repaired."""

    CHANGED = 0  #: it is not what was judged any more: judge again
    DONE = 1
    FREE = 2  #: the slot holds no key and is all zero, as it should be: parity has kept something of a former row
    NEVER_USED = 3  #: the same of a slot that never held a key: the judgement was wrong


class SinkKey(NamedTuple):
    """One sink of a data shard: shard index within the group, and the life of the node that holds it."""

    index: int  # type: ignore[assignment]  # tuple.index is not missed here
    node: str
    incarnation: int


@dataclass(slots=True, eq=False)
class SinkCursor:
    """How far one sink is. acked <= sent <= seq of the shard.

    subscription: number the sink chose for this stream; acknowledgements of an earlier stream don't count.
    """

    key: SinkKey
    subscription: int
    acked: int
    sent: int
    since: int  # seq at which the stream began: the sink's log holds nothing before it


class DataShard:
    """Owner's side of one data shard. Not thread-safe; owned by the node's event loop."""

    def __init__(
        self,
        gid: int,
        index: int,
        *,
        seq: int = 0,
        requests: RequestTable | None = None,
        max_rows: int = limits.MAX_ROWS_PER_SHARD,
    ) -> None:
        self.gid = gid
        self.index = index
        self.seq = seq
        self.requests = requests or RequestTable()
        self.tables: dict[int, RowStore] = {}
        #: table -> bool (slots,): True where a lost row has not been decoded yet. Tables without one are absent.
        self.undecoded: dict[int, NDArray[np.bool_]] = {}
        self._swept: dict[int, int] = {}  # table -> no slot below is undecoded
        self.log = FrameLog(seq + 1)
        self.sinks: dict[SinkKey, SinkCursor] = {}
        self._waiting: list[tuple[int, Acknowledged]] = []  # (seq, callback), seq ascending
        self._max_rows = max_rows

    # -- tables ---------------------------------------------------------------------------------------

    def open_table(self, table_id: int, spec: TableSpec) -> RowStore:
        """The row store of a table, made on first use."""
        store = self.tables.get(table_id)
        if store is None:
            store = self.tables[table_id] = RowStore(spec, max_rows=limits.slab_rows(self._max_rows, spec.row_bytes))
        return store

    def drop_table(self, table_id: int) -> None:
        self.undecoded.pop(table_id, None)
        self._swept.pop(table_id, None)
        store = self.tables.pop(table_id, None)
        if store is not None:
            store.close()

    def table(self, table_id: int) -> RowStore:
        try:
            return self.tables[table_id]
        except KeyError:
            raise UnknownTableError(f"no table with id {table_id} here; create it, or list tables") from None

    # -- undecoded rows -------------------------------------------------------------------------------

    def lost_slots(self, table_id: int, slots: NDArray[np.integer]) -> I64:
        """Those of `slots` whose rows have not been decoded yet, sorted, each once. Absent keys (-1) are ignored."""
        mask = self.undecoded.get(table_id)
        if mask is None:
            return np.empty(0, np.int64)
        known = slots[(slots >= 0) & (slots < mask.size)].astype(np.int64, copy=False)
        lost = known[mask[known]]
        return lost if bool((lost[1:] > lost[:-1]).all()) else np.unique(lost)

    def restore(self, table_id: int, slots: I64, rows: U8) -> int:
        """Write decoded rows where they are still missing; how many were. Slots decoded meanwhile keep their rows."""
        mask = self.undecoded.get(table_id)
        if mask is None:
            return 0
        missing = mask[slots]
        if not missing.all():
            slots, rows = slots[missing], np.ascontiguousarray(rows[missing])
        if slots.size:
            self.tables[table_id].write(slots, rows)
            mask[slots] = False
            if not mask.any():
                del self.undecoded[table_id]
        return int(slots.size)

    def rows_undecoded(self) -> int:
        return sum(int(mask.sum()) for mask in self.undecoded.values())

    def bytes_undecoded(self) -> int:
        return sum(int(mask.sum()) * self.tables[table_id].row_bytes for table_id, mask in self.undecoded.items())

    def undecoded_table(self) -> int | None:
        """A table that has undecoded rows; None: all are decoded."""
        return next(iter(self.undecoded), None)

    def next_undecoded(self, table_id: int, count: int) -> I64:
        """Undecoded slots among `count` from the lowest one on, for the background sweep."""
        mask = self.undecoded[table_id]
        start = self._swept.get(table_id, 0)  # rows come back and are never lost again: below there are none
        start += int(mask[start:].argmax())
        self._swept[table_id] = start
        return start + np.flatnonzero(mask[start : start + count]).astype(np.int64)

    # -- repair -----------------------------------------------------------------------------------------

    def repair(self, table_id: int, slots: I64, wrong: U8, errors: U8) -> U8:
        """Take `errors` out of rows that are still exactly `wrong` (both uint8 (n, row_bytes)): the sinks encode the
        right bytes, so there is no delta. What became of each row: uint8 (n,) of `Repair`.

        `slots`: sorted, each once. The right bytes of a slot that holds no key are zeros, whatever the code says.
        """
        store = self.table(table_id)
        outcome = np.full(slots.size, Repair.CHANGED, np.uint8)
        rows = store.read(slots)
        same = (rows == wrong).all(axis=1)
        same[np.isin(slots, self.lost_slots(table_id, slots))] = False
        used = slots < store.used
        held = np.zeros(slots.size, np.bool_)
        held[used] = store.keylist.allocated[slots[used]] != 0
        right = rows ^ errors
        right[~held] = 0
        write = same & (right != rows).any(axis=1)
        store.write(slots[write], np.ascontiguousarray(right[write]))
        outcome[same & ~held] = Repair.FREE
        outcome[same & ~used] = Repair.NEVER_USED
        outcome[write] = Repair.DONE
        return outcome

    # -- changes --------------------------------------------------------------------------------------

    def push(self, table_id: int, keys: U64, grads: F32, client: bytes, request_no: int) -> DeltaFrame:
        """Apply the optimizer to `keys` (uint64 (n,)) with `grads` (float32 (n, dim)); the frame is in the log, or,
        while the shard has no sink, nowhere and without its delta.

        The caller has judged the request NEW and decoded every lost row among the keys.
        """
        change = self.table(table_id).push(keys, grads, with_delta=bool(self.sinks))
        return self._commit(table_id, change, client, request_no)

    def put(self, table_id: int, keys: U64, rows: U8, client: bytes, request_no: int) -> DeltaFrame:
        """Set whole rows (uint8 (n, row_bytes)): load."""
        change = self.table(table_id).put(keys, rows, with_delta=bool(self.sinks))
        return self._commit(table_id, change, client, request_no)

    def delete(self, table_id: int, keys: U64, client: bytes, request_no: int) -> DeltaFrame:
        """Remove keys; their slots go back to zeros. Absent keys are ignored."""
        return self._commit(table_id, self.table(table_id).delete(keys), client, request_no)

    def check_room(self, table_id: int, keys: U64, *, growing: bool) -> None:
        """Raise CapacityError unless a change of `keys` is within the bounds of a frame and, growing, of a shard."""
        store = self.table(table_id)
        row_bytes, count = store.row_bytes, keys.size
        if not growing and count * row_bytes > limits.MAX_DELTA_BYTES:
            count = int((store.find(keys) >= 0).sum())  # a delete's delta holds the rows that are there
        if count * row_bytes > limits.MAX_DELTA_BYTES:
            raise CapacityError(f"{count} rows of {row_bytes} bytes exceed one delta; push them in several calls")
        if growing and sum(store.used for store in self.tables.values()) + count > self._max_rows:
            raise CapacityError(
                f"shard {self.index} of group {self.gid} is full: {self._max_rows} rows; delete rows, or use more nodes"
            )

    def _commit(self, table_id: int, change: RowDelta, client: bytes, request_no: int) -> DeltaFrame:
        self.seq += 1
        frame = DeltaFrame(
            self.seq,
            table_id,
            change.slots,
            change.delta,
            change.new_slots,
            change.new_keys,
            change.freed_slots,
            client,
            request_no,
        )
        self.requests.record(client, request_no, self.seq)
        if self.sinks:
            self.log.append(frame)
        else:
            self.log.reset(self.seq + 1)
        return frame

    # -- acknowledgement ------------------------------------------------------------------------------

    @property
    def acked(self) -> int:
        """Highest seq that every sink has applied."""
        acked = self.seq
        for cursor in self.sinks.values():
            if cursor.acked < acked:
                acked = cursor.acked
        return acked

    def when_acked(self, callback: Acknowledged) -> None:
        """Call back with None once all that has been applied so far is acknowledged, or with the error that ends it."""
        if self.acked >= self.seq:
            callback(None)
        else:
            self._waiting.append((self.seq, callback))

    def add_sink(self, key: SinkKey, acked: int, subscription: int = 0) -> SinkCursor:
        """A sink that has everything up to `acked` and gets every later frame."""
        assert acked <= self.seq
        assert acked == self.seq or self.log.reaches(acked), "a new sink starts at the present or inside the log"
        cursor = self.sinks[key] = SinkCursor(key, subscription, acked, acked, acked)
        return cursor

    def remove_sink(self, key: SinkKey) -> None:
        if self.sinks.pop(key, None) is not None:
            self._advance()

    def keep_sinks(self, keys: Iterable[SinkKey]) -> list[SinkKey]:
        """Drop every sink that is not among `keys`; those dropped."""
        wanted = set(keys)
        gone = [key for key in self.sinks if key not in wanted]
        for key in gone:
            del self.sinks[key]
        if gone:
            self._advance()
        return gone

    def acknowledge(self, key: SinkKey, applied: int, subscription: int = 0) -> None:
        """Sink `key` has applied every frame up to `applied` of the stream with that subscription number."""
        cursor = self.sinks.get(key)
        if cursor is None or cursor.subscription != subscription:
            return
        if cursor.acked < applied <= self.seq:
            cursor.acked = applied
            cursor.sent = max(cursor.sent, applied)
            self._advance()

    def _advance(self) -> None:
        acked = self.acked
        self.log.trim(acked)
        if self._waiting and self._waiting[0][0] <= acked:
            ready = [waiter for waiter in self._waiting if waiter[0] <= acked]
            self._waiting = self._waiting[len(ready) :]
            for _seq, callback in ready:
                callback(None)

    @property
    def congested(self) -> bool:
        """True while the unacknowledged frames reach their bound: further pushes wait (G7)."""
        return self.log.nbytes >= limits.MAX_UNACKED_BYTES or len(self.log) >= limits.MAX_LOG_FRAMES

    # -- end of ownership -----------------------------------------------------------------------------

    def retire(self, error: EcstoreError) -> None:
        """This node no longer owns the shard: whoever waits is told, memory is given back."""
        waiting, self._waiting = self._waiting, []
        for _seq, callback in waiting:
            callback(error)
        for store in self.tables.values():
            store.close()
        self.tables.clear()
        self.undecoded.clear()
        self.sinks.clear()

    def memory(self) -> dict[str, int]:
        """Bytes by kind: rows, index, keys, log."""
        total = {"rows": 0, "index": 0, "keys": 0, "log": self.log.nbytes}
        for store in self.tables.values():
            for kind, size in store.memory().items():
                total[kind] = total.get(kind, 0) + size
        return total
