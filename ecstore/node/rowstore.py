"""Row store: one table's rows in one data shard. No clocks, no I/O; every change gives a delta."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore import buffers, limits
from ecstore.errors import CapacityError, FrameError, ShapeError
from ecstore.hashing import weight_seed
from ecstore.node import kernels
from ecstore.node.index import KeyIndex
from ecstore.node.keylist import MAX_SLOTS, FreeSlots, KeyList
from ecstore.node.slab import Slab
from ecstore.optim import SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from ecstore.routing import as_plain, unique
from ecstore.tables import Constant, TableSpec, Uniform, Zeros

ByteArray: TypeAlias = npt.NDArray[np.uint8]
FloatArray: TypeAlias = npt.NDArray[np.float32]
KeyArray: TypeAlias = npt.NDArray[np.uint64]
SlotArray: TypeAlias = npt.NDArray[np.int64]
StoredSlots: TypeAlias = npt.NDArray[np.uint32]


@dataclass(slots=True)
class RowDelta:
    """What one change did to the shard: enough for a parity shard to follow. Arrays are the receiver's to
    keep.

    `delta[i]` is old bytes XOR new bytes of slot `slots[i]`; a slot may repeat, and XOR of all its deltas is
    right in any order. A new row's old bytes are zeros; a deleted row's new bytes are zeros.
    """

    slots: StoredSlots  #: u32[n]
    delta: ByteArray  #: u8[n, row_bytes]; without a delta both are empty
    new_slots: StoredSlots  #: u32[a], each also in `slots`
    new_keys: KeyArray  #: u64[a]
    freed_slots: StoredSlots  #: u32[f], each also in `slots`, none in `new_slots`


def _no_slots() -> StoredSlots:
    return np.empty(0, np.uint32)


def _settings(optimizer: Optimizer) -> tuple[Callable[..., None], FloatArray]:
    """The update kernel of an optimizer, and its settings as the kernel takes them."""
    match optimizer:
        case SGD():
            return kernels.push_sgd, np.array([optimizer.lr], np.float32)
        case Adagrad():
            values = [optimizer.lr, optimizer.eps, optimizer.initial_accumulator]
            return kernels.push_adagrad, np.array(values, np.float32)
        case RowWiseAdagrad():
            values = [optimizer.lr, optimizer.eps, optimizer.initial_accumulator]
            return kernels.push_rowwise_adagrad, np.array(values, np.float32)
        case Adam():
            values = [optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps]
            return kernels.push_adam, np.array(values, np.float32)


class RowStore:
    """Rows, key list, index and free slots of one table in one data shard.

    Arrays of keys are u64[n] as `ecstore.routing.as_keys` makes them. No method changes its arguments. A
    method that raises has changed nothing. Not checked: that gradients are finite
    (`ecstore.routing.all_finite` does it). A new key takes the lowest free slot, else the next never used
    one: a function of the key list alone, so a store that has adopted a key list goes on as the lost one
    would have.
    """

    def __init__(self, spec: TableSpec, *, max_rows: int) -> None:
        self.spec = spec
        self.dim = spec.dim
        self.row_bytes = spec.row_bytes
        self.max_rows = min(max_rows, MAX_SLOTS)
        low, span, top = spec.init.affine()
        self._initial: kernels.Initial = (weight_seed(spec.seed), low, span, top)
        self._update, self._settings = _settings(spec.optimizer)
        self._reset()

    def _reset(self) -> None:
        self.keylist = KeyList()
        self._index = KeyIndex(self.keylist, self.max_rows)
        self._free = FreeSlots()
        self._use(Slab(self.row_bytes, self.max_rows))

    def _use(self, slab: Slab) -> None:
        self._slab = slab
        self._rows: FloatArray = self._slab.rows.view(np.float32)
        self._words: npt.NDArray[np.uint32] = self._slab.rows.view(np.uint32)

    def __len__(self) -> int:
        """Live rows."""
        return self.keylist.live

    @property
    def used(self) -> int:
        """Slots [0, used) were allocated at some time."""
        return self.keylist.used

    @property
    def raw_rows(self) -> ByteArray:
        """The rows themselves, u8[max_rows, row_bytes]: who writes here changes them without a delta."""
        return self._slab.rows

    def find(self, keys: KeyArray) -> SlotArray:
        """Slots i64[n]; -1 where a key has no row."""
        return self._index.find(as_plain(keys, np.uint64))

    def pull(self, keys: KeyArray, out: FloatArray) -> None:
        """Weights to `out` f32[n, dim] (C-contiguous, written whole); a key without a row has its initial
        weights.
        """
        if out.shape != (len(keys), self.dim) or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ShapeError(f"out must be C-contiguous float32 ({len(keys)}, {self.dim}), not {out.dtype} {out.shape}")
        keys = as_plain(keys, np.uint64)
        kernels.gather(self._rows, self._index.find(keys), keys, self._initial, out)

    def push(self, keys: KeyArray, grads: FloatArray, *, with_delta: bool = True) -> RowDelta:
        """Apply the optimizer to each key's row with grads f32[n, dim]; absent keys get a row first.

        A key that repeats is updated once for each occurrence, in order. `with_delta` False: nobody follows this
        shard, and the delta's bytes need not be written to memory. CapacityError when the new rows do not fit.
        """
        if grads.shape != (len(keys), self.dim):
            raise ShapeError(f"gradients must have shape ({len(keys)}, {self.dim}), not {grads.shape}")
        keys, grads = as_plain(keys, np.uint64), as_plain(grads, np.float32)
        slots, fresh, new_slots, new_keys = self._find_or_allocate(keys)
        delta = self._delta_for(len(keys), with_delta)
        self._update(
            self._rows,
            self._words,
            slots,
            fresh,
            keys,
            grads,
            delta.view(np.uint32),
            self._initial,
            self._settings,
        )
        return self._changed(slots, delta, new_slots, new_keys, with_delta)

    def put(self, keys: KeyArray, rows: ByteArray, *, with_delta: bool = True) -> RowDelta:
        """Store raw rows u8[n, row_bytes]; absent keys get a row. The last of a repeated key stays."""
        if rows.shape != (len(keys), self.row_bytes):
            raise ShapeError(f"rows must have shape ({len(keys)}, {self.row_bytes}), not {rows.shape}")
        keys, rows = as_plain(keys, np.uint64), as_plain(rows, np.uint8)
        slots, _, new_slots, new_keys = self._find_or_allocate(keys)
        delta = self._delta_for(len(keys), with_delta)
        kernels.put_rows(self._words, slots, _words_of(rows), delta.view(np.uint32))
        return self._changed(slots, delta, new_slots, new_keys, with_delta)

    def delete(self, keys: KeyArray) -> RowDelta:
        """Remove keys and bring their slots back to zeros; absent keys are ignored."""
        keys = unique(as_plain(keys, np.uint64))[0]
        slots = self._index.find(keys)
        present = slots >= 0
        keys, slots = keys[present], slots[present]
        delta = np.empty((len(keys), self.row_bytes), np.uint8)
        kernels.clear_rows(self._words, slots, delta.view(np.uint32))
        freed = slots.astype(np.uint32)
        self._index.remove(keys)
        self.keylist.apply(_no_slots(), np.empty(0, np.uint64), freed)
        self._free.put(freed)
        return RowDelta(freed, delta, _no_slots(), np.empty(0, np.uint64), freed.copy())

    def read(self, slots: npt.NDArray[Any]) -> ByteArray:
        """Copy of the rows at slots (i64[n] or u32[n]); zeros outside [0, used)."""
        out = np.empty((len(slots), self.row_bytes), np.uint8)
        kernels.read_rows(self._words, as_plain(slots, np.int64), self.used, out.view(np.uint32))
        return out

    def read_run(self, start: int, most: int) -> ByteArray:
        """Copy of the rows at slots [start, start + most), no further than the last slot in use: beyond, all are zeros
        that nobody needs to send or store.
        """
        return self.read(np.arange(start, max(start, min(start + most, self.used)), dtype=np.int64))

    def write(self, slots: npt.NDArray[Any], rows: ByteArray) -> None:
        """Store decoded rows u8[n, row_bytes] at their slots: no delta, no change of keys.

        FrameError when a slot is not below `used`, ShapeError when the rows do not belong to the slots.
        """
        if rows.shape != (len(slots), self.row_bytes):
            raise ShapeError(f"rows must have shape ({len(slots)}, {self.row_bytes}), not {rows.shape}")
        plain: SlotArray = as_plain(slots, np.int64)
        if len(plain) and (int(plain.min()) < 0 or int(plain.max()) >= self.used):
            raise FrameError(f"decoded rows name slots beyond {self.used}, the end of the key list; decode again")
        kernels.write_rows(self._words, plain, _words_of(as_plain(rows, np.uint8)))

    def adopt(self, keys: KeyArray, allocated: ByteArray) -> None:
        """Become the shard that this key list describes, all rows zero (they are decoded later, by `write`).

        `keys` u64[n], `allocated` u8[n] as `KeyList.snapshot` gives them. Replaces whatever was here.
        """
        for _ in self.adopting(keys, allocated):
            pass

    def adopting(self, keys: KeyArray, allocated: ByteArray) -> Iterator[None]:
        """`adopt` in steps of `limits.ADOPT_SLOTS` slots: a long key list takes seconds. Not usable before the last."""
        if len(keys) > self.max_rows:
            raise CapacityError(
                f"table {self.spec.name!r}: a key list of {len(keys)} slots exceeds the limit of "
                f"{self.max_rows} rows of a shard; raise the node's row limit"
            )
        if len(keys) != len(allocated):
            raise FrameError(f"a key list came with {len(keys)} keys and {len(allocated)} flags; ask for it again")
        self._reset()
        free: list[StoredSlots] = [_no_slots()]
        for start in range(0, len(keys), limits.ADOPT_SLOTS):
            if start:
                yield
            flags = allocated[start : start + limits.ADOPT_SLOTS]
            self.keylist.extend(keys[start : start + limits.ADOPT_SLOTS], flags)
            live: SlotArray = start + np.flatnonzero(flags)
            self._index.insert(self.keylist.keys[live], live)
            free.append((start + np.flatnonzero(flags == 0)).astype(np.uint32))
        self._free = FreeSlots(self.keylist.used, np.concatenate(free))

    def take_rows(self, slab: Slab) -> None:
        """The rows of `slab` are those of this store, which has adopted their key list, from now on: nothing is copied.

        Slots that hold no key must be zero. ShapeError when its rows are others.
        """
        if slab.rows.shape != self._slab.rows.shape:
            raise ShapeError(f"a copy has rows {slab.rows.shape}, not {self._slab.rows.shape}; build it again")
        self._use(slab.share())

    def memory(self) -> dict[str, int]:
        """Bytes in use: rows, index, keys (key list)."""
        return {
            "rows": self.used * self.row_bytes,
            "index": self._index.memory(),
            "keys": self.keylist.memory(),
        }

    def close(self) -> None:
        """Give the memory up. The store is not usable afterwards."""
        self._rows, self._words = np.empty((0, 0), np.float32), np.empty((0, 0), np.uint32)
        self._slab.close()
        self._index.close()

    def _delta_for(self, count: int, wanted: bool) -> ByteArray:
        """Where a kernel writes the delta of `count` rows: one row for all of them when nobody wants it."""
        return buffers.empty((count if wanted else min(count, 1), self.row_bytes), np.uint8)

    def _changed(
        self, slots: SlotArray, delta: ByteArray, new_slots: StoredSlots, new_keys: KeyArray, with_delta: bool
    ) -> RowDelta:
        if not with_delta:
            return RowDelta(_no_slots(), delta[:0], new_slots, new_keys, _no_slots())
        return RowDelta(slots.astype(np.uint32), delta, new_slots, new_keys, _no_slots())

    def _find_or_allocate(self, keys: KeyArray) -> tuple[SlotArray, ByteArray, StoredSlots, KeyArray]:
        """(slots i64[n], fresh u8[n] = 1 where a key's new row is first met, new slots, new keys)."""
        slots, absent = self._index.find_counted(keys)
        fresh = np.zeros(len(keys), np.uint8)
        if absent == 0:
            return slots, fresh, _no_slots(), np.empty(0, np.uint64)
        missing = np.flatnonzero(slots < 0)
        new_keys, inverse = unique(keys[missing])
        if len(self) + len(new_keys) > self.max_rows:
            raise CapacityError(
                f"table {self.spec.name!r}: {len(new_keys)} new rows do not fit, {len(self)} of "
                f"{self.max_rows} rows of this shard are in use; delete rows or raise the node's row limit"
            )
        new_slots = self._free.take(len(new_keys))
        self.keylist.apply(new_slots, new_keys, _no_slots())
        wide = new_slots.astype(np.int64)
        self._index.insert(new_keys, wide)
        slots[missing] = wide[inverse]
        first = np.empty(len(new_keys), np.int64)
        first[inverse[::-1]] = missing[::-1]  # the last write wins: the first occurrence
        fresh[first] = 1
        return slots, fresh, new_slots, new_keys


def _words_of(rows: ByteArray) -> npt.NDArray[np.uint32]:
    """The same memory as u32[n, row_floats]; copied only when it does not start at a multiple of 4."""
    if rows.ctypes.data % 4 != 0:
        rows = rows.copy()
    return rows.view(np.uint32)


def warm_up() -> None:
    """Compile (or load from the cache) every kernel a row store runs, with the types used in production."""
    keys = np.array([3, 4, 3], np.uint64)
    optimizers: tuple[Optimizer, ...] = (SGD(0.1), Adagrad(0.1), RowWiseAdagrad(0.1), Adam(0.1))
    for optimizer in optimizers:
        for init in (Uniform(-0.1, 0.1), Zeros(), Constant(1.0)):
            store = RowStore(TableSpec("warm-up", 3, optimizer, init, 1, "none"), max_rows=8)
            store.push(keys, np.ones((3, 3), np.float32))
            store.pull(keys, np.empty((3, 3), np.float32))
            slots = store.find(keys)
            store.write(slots, store.read(slots))
            store.put(keys, store.read(slots.astype(np.uint32)))
            saved = store.keylist.snapshot()
            store.delete(keys)
            store.adopt(*saved)
            store.close()
