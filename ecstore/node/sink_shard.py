"""A shard that applies other shards' deltas: a parity shard, or the copy of a data shard that is moving. Pure.

For each slot, bytes = XOR over sources i of coefficient_i * row_i (DESIGN of the codec: docs/CODEC.md). A parity
shard has the k data shards as sources, with the code's coefficients; the copy of data shard j has j alone, with 1.

Rule 1: per source, frames are applied in seq order; `applied` is the highest. Duplicates are ignored, a gap is refused.
Rule 2: while a sink is being built, a source's rows arrive in blocks *within* the stream of its deltas, so a block
stands exactly at seq `applied`. Deltas to slots whose block has not come are counted as applied (keys and request
numbers are recorded) without touching bytes: the block will bring them.
Rule 3: `rows_at` gives bytes as of a cut by taking later frames out of a copy again (a delta is its own inverse).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ecstore import limits
from ecstore.codec import apply_delta
from ecstore.errors import FrameError, KeyRangeError, ShapeError
from ecstore.node.dedupe import RequestTable
from ecstore.node.deltalog import DeltaFrame, FrameLog
from ecstore.node.keylist import KeyList, digest
from ecstore.node.slab import Slab

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]


class Applied(Enum):
    """What became of a frame."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    GAP = "gap"
    UNSYNCED = "unsynced"  # this source has not been subscribed to yet


class CutNotReached(Exception):
    """The sink has not applied all frames of the cut yet: wait."""


class LogTooShort(Exception):
    """Frames beyond the cut have left the log: ask again with a fresher cut."""


@dataclass(slots=True)
class TableSnapshot:
    """Key list of one table in one data shard: keys uint64 (used,), allocated uint8 (used,)."""

    table_id: int
    row_bytes: int
    keys: U64
    allocated: U8


@dataclass(slots=True, eq=False)
class Source:
    """What the sink knows of one data shard."""

    coefficient: int
    applied: int = 0
    #: Number of the present stream of deltas; 0 for the stream a fresh group starts with.
    subscription: int = 0
    #: False until the snapshot of a sink under construction has arrived.
    synced: bool = True
    keys: dict[int, KeyList] = field(default_factory=dict)
    requests: RequestTable = field(default_factory=RequestTable)
    log: FrameLog = field(default_factory=FrameLog)
    #: Lowest seq that every sink of the source has acknowledged, as its owner last said.
    acked_by_all: int = 0
    #: table -> bool (blocks,): True where the block of rows has not arrived. Absent = nothing missing.
    unloaded: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def loaded(self) -> bool:
        return self.synced and not self.unloaded


class SinkShard:
    """Not thread-safe; owned by the node's event loop."""

    def __init__(
        self,
        gid: int,
        index: int,
        coefficients: Mapping[int, int],
        *,
        building: bool,
        max_rows: int = limits.MAX_ROWS_PER_SHARD,
    ) -> None:
        self.gid = gid
        self.index = index
        self.sources = {src: Source(int(c), synced=not building) for src, c in coefficients.items()}
        self.slabs: dict[int, Slab] = {}
        self.dropped: set[int] = set()  # tables whose late frames carry nothing any more
        self._max_rows = max_rows

    # -- construction ---------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return all(source.loaded for source in self.sources.values())

    def reset(self) -> None:
        """Forget everything and be built again from the start (a source changed in a way that can't be followed)."""
        for slab in self.slabs.values():
            slab.close()
        self.slabs.clear()
        self.sources = {
            src: Source(old.coefficient, subscription=old.subscription, synced=False)
            for src, old in self.sources.items()
        }

    def load_snapshot(
        self, src: int, seq: int, tables: Sequence[TableSnapshot], requests: Iterable[tuple[bytes, int, int]]
    ) -> None:
        """Start following source `src` at `seq`. Its rows are still to come, in blocks."""
        old = self.sources[src]
        assert not old.synced, "a source is subscribed to once"
        source = Source(old.coefficient, seq, requests=RequestTable(requests), log=FrameLog(seq + 1))
        source.acked_by_all, source.subscription = seq, old.subscription
        for table in tables:
            if table.table_id in self.dropped:
                continue
            keylist = source.keys[table.table_id] = KeyList()
            keylist.load(table.keys, table.allocated)
            blocks = -(-table.keys.size // limits.BLOCK_SLOTS)
            if blocks:
                source.unloaded[table.table_id] = np.ones(blocks, np.bool_)
                self._slab(table.table_id, table.row_bytes)
        self.sources[src] = source

    def next_unloaded(self, src: int, most: int) -> tuple[int, int, int] | None:
        """(table, first block, count) of at most `most` blocks in a row that source `src` still owes; None: none."""
        for table_id, mask in self.sources[src].unloaded.items():
            first = int(mask.argmax())
            row = mask[first : first + most]
            return table_id, first, row.size if row.all() else int(row.argmin())
        return None

    def load_blocks(self, src: int, seq: int, table_id: int, first: int, rows: U8) -> bool:
        """Take in the rows of some blocks from `first` on as of `seq`, uint8 (n, row_bytes): all of their slots in use,
        so whole blocks but for the last of the table. False when none of them is wanted any more; ShapeError when rows
        are missing or too many.
        """
        source = self.sources[src]
        mask = source.unloaded.get(table_id)
        if not source.synced or source.applied != seq or mask is None:
            return False
        count = -(-rows.shape[0] // limits.BLOCK_SLOTS)
        if not 0 <= first < mask.size or not mask[first : first + count].any():
            return False
        start, used = first * limits.BLOCK_SLOTS, source.keys[table_id].used
        expected = min(count * limits.BLOCK_SLOTS, used - start)
        if rows.shape[0] != expected or first + count > mask.size:
            raise ShapeError(f"{rows.shape[0]} rows from block {first} of table {table_id} on, of {used} in use")
        slab = self._slab(table_id, rows.shape[1])
        if mask[first : first + count].all():
            apply_delta(slab.rows, np.arange(start, start + expected, dtype=np.uint32), rows, source.coefficient)
        else:  # asked for again, and some of them have come meanwhile
            slots = np.arange(start, start + expected, dtype=np.uint32)
            missing = mask[slots // np.uint32(limits.BLOCK_SLOTS)]
            apply_delta(slab.rows, slots[missing], np.ascontiguousarray(rows[missing]), source.coefficient)
        mask[first : first + count] = False
        if not mask.any():
            del source.unloaded[table_id]
        return True

    def blocks_missing(self) -> int:
        return sum(int(mask.sum()) for source in self.sources.values() for mask in source.unloaded.values())

    # -- deltas ---------------------------------------------------------------------------------------

    def apply(self, src: int, frame: DeltaFrame, acked_by_all: int = 0, now: float = 0.0) -> Applied:
        """Apply one frame of source `src`. The arrays of the frame are kept in the log, not copied. `now`: seconds of
        any clock that never goes back; by it frames that all sinks have are forgotten.
        """
        source = self.sources[src]
        if not source.synced:
            return Applied.UNSYNCED
        if frame.seq <= source.applied:
            return Applied.DUPLICATE
        if frame.seq != source.applied + 1:
            return Applied.GAP
        if frame.table_id not in self.dropped:
            keylist = source.keys.get(frame.table_id) or KeyList()
            self._check_slots(frame, keylist)
            self._apply_bytes(source, frame)
            source.keys[frame.table_id] = keylist
            if frame.new_slots.size or frame.freed_slots.size:
                keylist.apply(frame.new_slots, frame.new_keys, frame.freed_slots)
        source.applied = frame.seq
        source.requests.record(frame.client, frame.request_no, frame.seq)
        source.log.append(frame, now)
        source.acked_by_all = max(source.acked_by_all, acked_by_all)
        _trim(source, now)
        return Applied.APPLIED

    def tidy(self, now: float) -> None:
        """Forget frames that all sinks have and that are too old for any cut, also where no later one comes."""
        for source in self.sources.values():
            _trim(source, now)

    def _check_slots(self, frame: DeltaFrame, keylist: KeyList) -> None:
        """Raise unless the key list can follow the frame. Before bytes are touched: a frame that is refused comes
        again, and what it had changed would then be changed twice. The bytes check themselves (`apply_delta`).
        """
        if frame.freed_slots.size and int(frame.freed_slots.max()) >= keylist.used:
            raise FrameError("a delta frees a slot that was never allocated; the owner must send what came before it")
        slots = limits.slab_rows(self._max_rows, frame.delta.shape[1])
        if frame.new_slots.size and int(frame.new_slots.max()) >= slots:
            raise KeyRangeError(f"a delta allocates a slot beyond the {slots} of a shard; the owner is at fault")

    def _apply_bytes(self, source: Source, frame: DeltaFrame) -> None:
        if not frame.slots.size:
            return
        slots, delta = frame.slots, frame.delta
        mask = source.unloaded.get(frame.table_id)
        if mask is not None:
            blocks = slots // np.uint32(limits.BLOCK_SLOTS)
            known = blocks < mask.size
            arrived = ~(known & mask[np.where(known, blocks, 0)])
            slots, delta = slots[arrived], np.ascontiguousarray(delta[arrived])
        apply_delta(self._slab(frame.table_id, frame.delta.shape[1]).rows, slots, delta, source.coefficient)

    def _slab(self, table_id: int, row_bytes: int) -> Slab:
        slab = self.slabs.get(table_id)
        if slab is None:
            slab = self.slabs[table_id] = Slab(row_bytes, limits.slab_rows(self._max_rows, row_bytes))
        return slab

    # -- reading at a cut -----------------------------------------------------------------------------

    def rows_at(self, table_id: int, slots: I64, row_bytes: int, cut: Mapping[int, int]) -> U8:
        """Bytes of `slots` (sorted, each once) exactly at `cut` (source -> seq): uint8 (n, row_bytes), a copy.

        Raises CutNotReached while a frame of the cut is missing, LogTooShort when a later frame can't be taken out,
        KeyRangeError and ShapeError when the shard has no such slots, or rows of another width.
        """
        slab = self.slabs.get(table_id)
        if slab is not None and slots.size and int(slots[-1]) >= slab.rows.shape[0]:
            raise KeyRangeError(f"slot {int(slots[-1])} is beyond the {slab.rows.shape[0]} of a shard")
        if slab is not None and slab.row_bytes != row_bytes:  # also: memory was counted with `row_bytes`
            raise ShapeError(f"rows of table {table_id} have {slab.row_bytes} bytes here, not {row_bytes}")
        for src, seq in cut.items():
            if self.sources[src].applied < seq:
                raise CutNotReached
            if not self.sources[src].log.reaches(seq):
                raise LogTooShort
        rows = np.zeros((slots.size, row_bytes), np.uint8) if slab is None else slab.rows[slots]
        for src, seq in cut.items():
            source = self.sources[src]
            for frame in source.log.after(seq):
                if frame.table_id == table_id:
                    _take_out(rows, slots, frame, source.coefficient)
        return rows

    def repair(self, table_id: int, slots: I64, wrong: U8, errors: U8, cut: Mapping[int, int]) -> NDArray[np.bool_]:
        """Take `errors` out of rows that at `cut` were exactly `wrong` (both uint8 (n, row_bytes)); which: bool (n,).

        Deltas that came since, or are still to come, commute with it. Raises as `rows_at` does.
        """
        same = np.asarray((self.rows_at(table_id, slots, wrong.shape[1], cut) == wrong).all(axis=1))
        if same.any():
            apply_delta(self._slab(table_id, wrong.shape[1]).rows, slots[same], np.ascontiguousarray(errors[same]), 1)
        return same

    def key_digest(self, src: int, table_id: int, start: int, count: int, seq: int) -> bytes:
        """`keylist.digest` of `count` slots from `start` on in the key list of source `src`, as of its `seq`.

        Raises as `rows_at` does; LogTooShort, too, when a slot was freed and given away again since.
        """
        source = self.sources[src]
        if source.applied < seq:
            raise CutNotReached
        if not source.log.reaches(seq):
            raise LogTooShort
        keys, allocated = source.keys.get(table_id, KeyList()).block(start, count)
        overwritten = np.zeros(count, np.bool_)
        for frame in reversed(source.log.after(seq)):
            if frame.table_id == table_id:
                given = _within(frame.new_slots, start, count)
                allocated[given], overwritten[given] = 0, True
                freed = _within(frame.freed_slots, start, count)
                if overwritten[freed].any():
                    raise LogTooShort
                allocated[freed] = 1
        return digest(keys, allocated)

    def snapshot_keys(self, src: int) -> list[TableSnapshot]:
        """Key lists of source `src`, for the node that takes it over: views, right until the next delta."""
        tables = []
        for table_id, keylist in self.sources[src].keys.items():
            if table_id in self.dropped or not keylist.used:
                continue
            slab = self.slabs.get(table_id)
            row_bytes = slab.rows.shape[1] if slab is not None else 0
            tables.append(TableSnapshot(table_id, row_bytes, keylist.keys, keylist.allocated))
        return tables

    def drop_table(self, table_id: int) -> None:
        self.dropped.add(table_id)
        slab = self.slabs.pop(table_id, None)
        if slab is not None:
            slab.close()
        for source in self.sources.values():
            source.keys.pop(table_id, None)
            source.unloaded.pop(table_id, None)

    def close(self) -> None:
        for slab in self.slabs.values():
            slab.close()
        self.slabs.clear()

    def memory(self) -> dict[str, int]:
        """Bytes by kind: parity (rows of the shard, by the highest slot in use), keys, log."""
        used = {
            table_id: max((s.keys[table_id].used for s in self.sources.values() if table_id in s.keys), default=0)
            for table_id in self.slabs
        }
        return {
            "parity": sum(slab.rows.shape[1] * used[table_id] for table_id, slab in self.slabs.items()),
            "keys": sum(9 * kl.used for s in self.sources.values() for kl in s.keys.values()),
            "log": sum(source.log.nbytes for source in self.sources.values()),
        }


def _trim(source: Source, now: float) -> None:
    source.log.trim(
        source.acked_by_all,
        keep_bytes=limits.MAX_RECENT_BYTES,
        keep_frames=limits.MAX_LOG_FRAMES,
        keep_since=now - limits.MAX_RECENT_S,
    )


def _within(slots: NDArray[np.uint32], start: int, count: int) -> I64:
    """Those of `slots` that lie in [start, start + count), counted from `start`."""
    plain = slots.astype(np.int64) - start
    return plain[(plain >= 0) & (plain < count)]


def _take_out(rows: U8, slots: I64, frame: DeltaFrame, coefficient: int) -> None:
    """XOR coefficient * delta of `frame` out of `rows`, which hold the sorted `slots`."""
    if not frame.slots.size or not slots.size:
        return
    at = np.searchsorted(slots, frame.slots)
    at[at == slots.size] = 0
    hit = slots[at] == frame.slots
    if hit.any():
        apply_delta(rows, at[hit].astype(np.uint32), np.ascontiguousarray(frame.delta[hit]), coefficient)
