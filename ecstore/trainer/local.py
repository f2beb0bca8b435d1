"""`LocalStore`: the whole store in one process, in plain NumPy; the model that a cluster is compared with.

It shares the definition of a row with the nodes (`ecstore.optim.reference_update`, initial weights), and
nothing else: no shards, no index kernels, no deltas, no code. So when a training run on a cluster ends with
the same bits as one on a `LocalStore`, the cluster's routing, summing, coding and decoding have lost nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ecstore.errors import (
    DtypeError,
    KeyRangeError,
    NonFiniteError,
    ShapeError,
    TableExistsError,
    UnknownTableError,
)
from ecstore.hashing import initial_weights
from ecstore.optim import Optimizer, new_rows, reference_update
from ecstore.tables import Initializer, TableSpec
from ecstore.trainer.source import FloatArray, KeyArray, Store, Table

ByteArray = npt.NDArray[np.uint8]


class LocalTable:
    """One table. Rows lie in order of their first push; a sorted list of keys finds them."""

    def __init__(self, spec: TableSpec, lock: threading.Lock) -> None:
        self.spec = spec
        self._lock = lock
        self._keys: KeyArray = np.empty(0, np.uint64)  # ascending
        self._slots: npt.NDArray[np.int64] = np.empty(0, np.int64)  # row of each key
        self._rows: ByteArray = np.zeros((0, spec.row_bytes), np.uint8)  # grows by doubling; the first `_used` count
        self._used = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def dim(self) -> int:
        return self.spec.dim

    def __len__(self) -> int:
        return len(self._keys)

    def pull(self, ids: npt.ArrayLike) -> FloatArray:
        """Weights f32[n, dim] of ids (n,); initial weights where a key was never pushed. Creates no rows."""
        keys = as_keys(ids)
        with self._lock:
            return self._pull(keys)

    def push(self, ids: npt.ArrayLike, grads: npt.NDArray[Any]) -> None:
        """Apply gradients f32[n, dim]; duplicate ids are summed first, in input order, in float32.

        Raises ShapeError, DtypeError, KeyRangeError, or NonFiniteError; then nothing is applied.
        """
        keys, gradients = self._checked(ids, grads)
        with self._lock:
            self._push(keys, gradients)

    def load(self, keys: npt.ArrayLike, rows: npt.NDArray[Any]) -> None:
        """Set rows: f32[n, dim] weights with fresh optimizer state, or whole rows u8[n, row_bytes].

        Of a duplicate key the last row counts.
        """
        wanted = as_keys(keys)
        if rows.dtype == np.float32 and rows.shape == (len(wanted), self.dim):
            whole = new_rows(self.spec.optimizer, np.ascontiguousarray(rows))
        elif rows.dtype == np.uint8 and rows.shape == (len(wanted), self.spec.row_bytes):
            whole = rows
        else:
            raise ShapeError(
                f"table {self.name!r}: load takes float32 ({len(wanted)}, {self.dim}) or uint8 "
                f"({len(wanted)}, {self.spec.row_bytes}), not {rows.dtype} {rows.shape}"
            )
        with self._lock:
            self._create(np.unique(wanted))
            self._rows[self._find(wanted)] = whole

    def export(self, *, state: bool = False) -> tuple[KeyArray, npt.NDArray[Any]]:
        """Keys u64[n] ascending and their weights f32[n, dim]; with `state` whole rows u8[n, row_bytes]."""
        with self._lock:
            rows = self._rows[self._slots]
            keys = self._keys.copy()
        if state:
            return keys, rows
        return keys, np.ascontiguousarray(rows[:, : 4 * self.dim]).view(np.float32)

    def delete(self, ids: npt.ArrayLike) -> None:
        """Forget rows; the keys have their initial weights again. Absent keys are ignored."""
        keys = as_keys(ids)
        with self._lock:
            kept = ~np.isin(self._keys, keys)
            self._rows = self._rows[self._slots[kept]]
            self._keys = self._keys[kept]
            self._used = len(self._keys)
            self._slots = np.arange(self._used)

    # -- with the lock held

    def _pull(self, keys: KeyArray) -> FloatArray:
        weights = initial_weights(self.spec.init, self.spec.seed, keys, self.dim)
        slots = self._find(keys)
        present = slots >= 0
        weights[present] = self._rows.view(np.float32)[slots[present], : self.dim]
        return weights

    def _push(self, keys: KeyArray, gradients: FloatArray) -> None:
        if len(keys) == 0:
            return  # an empty push is a push of nothing
        unique, sums = sum_duplicates(keys, gradients)
        self._create(unique)
        slots = self._find(unique)
        self._rows[slots] = reference_update(self.spec.optimizer, self._rows[slots], sums)

    def _checked(self, ids: npt.ArrayLike, grads: npt.NDArray[Any]) -> tuple[KeyArray, FloatArray]:
        keys = as_keys(ids)
        if grads.dtype != np.float32:
            raise DtypeError(f"table {self.name!r}: gradients are {grads.dtype}; convert them to float32")
        if grads.shape != (len(keys), self.dim):
            raise ShapeError(f"table {self.name!r}: gradients {grads.shape}, expected ({len(keys)}, {self.dim})")
        if not np.isfinite(grads).all():
            raise NonFiniteError(f"table {self.name!r}: NaN or infinite gradients; skip the batch or clip them")
        return keys, grads

    def _find(self, keys: KeyArray) -> npt.NDArray[np.int64]:
        """Row of each key, -1 where absent."""
        if len(self._keys) == 0:
            return np.full(len(keys), -1, np.int64)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._slots[place], -1)

    def _create(self, keys: KeyArray) -> None:
        """Make the absent ones of distinct `keys` rows with initial weights and first optimizer state."""
        new = np.sort(keys[self._find(keys) < 0])
        used = self._used + len(new)
        if used > len(self._rows):
            grown = np.zeros((max(used, 2 * len(self._rows), 1024), self.spec.row_bytes), np.uint8)
            grown[: self._used] = self._rows[: self._used]
            self._rows = grown
        weights = initial_weights(self.spec.init, self.spec.seed, new, self.dim)
        self._rows[self._used : used] = new_rows(self.spec.optimizer, weights)
        place = np.searchsorted(self._keys, new)
        self._slots = np.insert(self._slots, place, np.arange(self._used, used))
        self._keys = np.insert(self._keys, place, new)
        self._used = used


class LocalStore:
    """Tables by name. Calls from several threads are safe: one lock, held for the length of a call."""

    def __init__(self) -> None:
        self._tables: dict[str, LocalTable] = {}
        self._lock = threading.Lock()

    def create_table(
        self, name: str, *, dim: int, optimizer: Optimizer, code: str, init: Initializer, seed: int
    ) -> LocalTable:
        """Make a table, or open the one with the same options; `code` is kept, but nothing is coded here."""
        spec = TableSpec(name=name, dim=dim, optimizer=optimizer, init=init, seed=seed, code=code)
        existing = self._tables.get(name)
        if existing is not None and existing.spec != spec:
            raise TableExistsError(f"table {name!r} exists with other options; use them, or another name")
        return existing if existing is not None else self._tables.setdefault(name, LocalTable(spec, self._lock))

    def table(self, name: str) -> LocalTable:
        """Open an existing table."""
        if name not in self._tables:
            raise UnknownTableError(f"no table {name!r}; create it, or use one of {sorted(self._tables)}")
        return self._tables[name]

    def pull_many(self, requests: Mapping[LocalTable, npt.ArrayLike]) -> dict[LocalTable, FloatArray]:
        """Pull from several tables at once, all of the same moment."""
        wanted = {table: as_keys(ids) for table, ids in requests.items()}
        with self._lock:
            return {table: table._pull(keys) for table, keys in wanted.items()}

    def push_many(self, updates: Mapping[LocalTable, tuple[npt.ArrayLike, npt.NDArray[Any]]]) -> None:
        """Push to several tables at once: all of it, or, when any input is wrong, nothing."""
        checked = {table: table._checked(ids, grads) for table, (ids, grads) in updates.items()}
        with self._lock:
            for table, (keys, gradients) in checked.items():
                table._push(keys, gradients)

    def flush(self) -> None:
        """Nothing to wait for: a push is applied when it returns."""

    def close(self) -> None:
        """Nothing to close."""


def as_keys(ids: npt.ArrayLike) -> KeyArray:
    """Ids (n,) of any integer type -> u64[n]. Raises ShapeError, DtypeError, KeyRangeError (negative ids)."""
    array = ids if isinstance(ids, np.ndarray) else _from_sequence(ids)
    if array.ndim != 1:
        raise ShapeError(f"ids have shape {array.shape}; pass them as (n,)")
    if array.dtype.kind not in "iu":
        raise DtypeError(f"ids are {array.dtype}; pass integers from 0 to 2**64 - 1")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise KeyRangeError(f"id {array.min()} is negative; ids are 0 to 2**64 - 1")
    return array.astype(np.uint64)


def _from_sequence(ids: npt.ArrayLike) -> npt.NDArray[Any]:
    """A sequence as an array. NumPy alone would turn a mix of small and large ints into float64."""
    array = np.array(ids, dtype=object)
    if array.ndim != 1 or any(isinstance(key, bool) or not isinstance(key, int | np.integer) for key in array):
        return np.asarray(ids)
    for key in array:
        if not 0 <= key < 2**64:
            raise KeyRangeError(f"id {key} is out of range; ids are 0 to 2**64 - 1")
    return array.astype(np.uint64)


def sum_duplicates(keys: KeyArray, gradients: FloatArray) -> tuple[KeyArray, FloatArray]:
    """Distinct keys, ascending, and the sum f32[u, dim] of the gradients of each.

    The first gradient of a key is taken as it is; later ones are added one by one in input order, in float32.
    """
    unique, first, place = np.unique(keys, return_index=True, return_inverse=True)
    sums = np.ascontiguousarray(gradients[first])
    if len(unique) < len(keys):
        later = np.ones(len(keys), np.bool_)
        later[first] = False
        add_rows(sums, place.reshape(-1)[later], gradients[later])
    return unique, sums


def add_rows(sums: FloatArray, places: npt.NDArray[np.integer[Any]], rows: FloatArray) -> None:
    """sums[places[i]] += rows[i] for each i in order; sums f32[u, dim] C-contiguous, rows f32[n, dim].

    On flat arrays `np.add.at` takes its fast path, and it adds strictly in order.
    """
    dim = sums.shape[1]
    cells = places.reshape(-1, 1).astype(np.int64) * dim + np.arange(dim)
    np.add.at(sums.reshape(-1), cells.reshape(-1), rows.reshape(-1))


@dataclass(frozen=True, slots=True)
class TableDifference:
    """Where one table differs between two stores."""

    table: str
    rows: int  #: keys that either store has
    only_first: int  #: keys that only the first store has
    only_second: int  #: keys that only the second store has
    different: int  #: keys of both whose rows (weights, state, padding) are not the same bytes
    first_key: int | None  #: the smallest key that differs in any of these ways; None when the tables are equal

    @property
    def equal(self) -> bool:
        return self.first_key is None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two stores, bit for bit."""

    tables: tuple[TableDifference, ...]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)

    @property
    def rows(self) -> int:
        """Rows compared, in all tables."""
        return sum(table.rows for table in self.tables)

    def describe(self) -> str:
        """One sentence for a person: equal, or the first difference and the counts."""
        for table in self.tables:
            if not table.equal:
                return (
                    f"table {table.table!r} differs, first at key {table.first_key}: of {table.rows} rows "
                    f"{table.different} have other bytes, {table.only_first} are only in the first store, "
                    f"{table.only_second} only in the second"
                )
        return f"all {self.rows} rows of {len(self.tables)} tables are equal, bit for bit"


def compare_stores(first: Store[Any], second: Store[Any], tables: Iterable[str]) -> Comparison:
    """Compare every row of the named tables, weights and optimizer state, byte for byte.

    A key that only one store has is a difference even if its row still has initial weights.
    """
    return Comparison(tuple(_difference(name, first.table(name), second.table(name)) for name in tables))


def _difference(name: str, first: Table, second: Table) -> TableDifference:
    first_keys, first_rows = _sorted_export(first)
    second_keys, second_rows = _sorted_export(second)
    shared, in_first, in_second = np.intersect1d(first_keys, second_keys, assume_unique=True, return_indices=True)
    if first_rows.shape[1:] == second_rows.shape[1:]:
        changed = (first_rows[in_first] != second_rows[in_second]).any(axis=1)
    else:
        changed = np.ones(len(shared), np.bool_)  # rows of other widths share nothing
    apart = np.concatenate([np.setxor1d(first_keys, second_keys, assume_unique=True), shared[changed]])
    return TableDifference(
        table=name,
        rows=len(first_keys) + len(second_keys) - len(shared),
        only_first=len(first_keys) - len(shared),
        only_second=len(second_keys) - len(shared),
        different=int(np.count_nonzero(changed)),
        first_key=int(apart.min()) if len(apart) else None,
    )


def _sorted_export(table: Table) -> tuple[KeyArray, ByteArray]:
    keys, rows = table.export(state=True)
    order = np.argsort(keys, kind="stable")
    return keys[order], cast("ByteArray", rows[order])
