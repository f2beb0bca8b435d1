"""What a client does with a batch of ids before it sends them: check, route, sum duplicates. No per-key
Python.

Arrays given back may share memory with the arguments where the text says so; nothing here writes to an
argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore import buffers
from ecstore.errors import DtypeError, KeyRangeError, ShapeError
from ecstore.hashing import KeyArray, shard_seed
from ecstore.jit import kernel
from ecstore.prefetch import prefetch_read

FloatArray: TypeAlias = npt.NDArray[np.float32]
IndexArray: TypeAlias = npt.NDArray[np.int64]
WordArray: TypeAlias = npt.NDArray[np.uint32]
Ids: TypeAlias = npt.NDArray[np.integer[Any]] | Sequence[int]

#: How many rows ahead to prefetch where rows are met in no order, and how much of each, in words.
_AHEAD = 8
_AHEAD_WORDS = 512
_LINE_WORDS = 16

_RANGE_HINT = "keys are integers from 0 to 2**64-1; map negative ids to another range before the call"


def as_keys(ids: Ids) -> KeyArray:
    """Ids as keys: u64[n], C-contiguous, writable, native byte order.

    Takes one-dimensional arrays of any integer type and sequences of Python ints. Every uint64 is a key, 0
    and 2**64-1 too. An int64 or uint64 array that is already fit is not copied: the result is a view of it.
    Raises KeyRangeError (negative or above 2**64-1), DtypeError (not integers), ShapeError (not
    one-dimensional).
    """
    try:
        array = np.asarray(ids)
    except (OverflowError, ValueError):
        array = np.empty(0, object)
    if not isinstance(ids, np.ndarray) and array.dtype.kind not in "iu":
        array = _ints_from_sequence(ids, array)
    if array.ndim != 1:
        raise ShapeError(f"ids must have shape (n,), not {array.shape}; use ids.ravel()")
    if array.dtype.kind not in "iu":
        raise DtypeError(f"ids must be integers, not {array.dtype}; use ids.astype(np.int64) if they are whole numbers")
    if array.dtype.kind == "i" and len(array) and int(array.min()) < 0:
        raise KeyRangeError(f"id {int(array.min())} is negative; {_RANGE_HINT}")
    if array.dtype == np.int64:
        array = array.view(np.uint64)
    return as_plain(array, np.uint64)


def _ints_from_sequence(ids: Sequence[int], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A sequence that NumPy did not take for integers: empty, mixed beyond int64, out of range, or no
    integers.
    """
    if array.ndim > 1:
        return array
    values = list(ids)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise DtypeError(f"ids must be integers, not {type(value).__name__}; convert them before the call")
        if not 0 <= value <= 2**64 - 1:
            raise KeyRangeError(f"id {value} is out of range; {_RANGE_HINT}")
    return np.array(values, np.uint64)


def as_plain(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`array` as the kernels want it: this dtype, C-contiguous, aligned, writable. Copied only where it is
    not.

    The kernels never write to inputs; but a read-only array is another type to the compiler, and would make
    it compile again in the middle of serving.
    """
    if array.flags.carray and array.dtype == dtype:  # `require` finds the same out, at twenty times the cost
        return array
    return np.require(array, dtype, ["C", "A", "W"])


@kernel
def _mix(value: np.uint64) -> np.uint64:
    # The same text as in ecstore/hashing.py (compiled code is cached per file); a test holds the two together.
    mixed = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def _route(
    keys: KeyArray,
    salt: np.uint64,
    places: npt.NDArray[np.uint32],
    runs: npt.NDArray[np.uint32],
    ordered: KeyArray,
    order: IndexArray,
    offsets: IndexArray,
) -> None:
    # A counting sort. offsets[r + 1] counts run r, then is its write position, and ends as its end: no second
    # array. `runs` is scratch.
    shards = np.uint64(len(places))
    for i in range(len(keys)):
        run = places[((_mix(keys[i] ^ salt) >> np.uint64(32)) * shards) >> np.uint64(32)]
        runs[i] = run
        offsets[run + 1] += 1
    start = 0
    for r in range(len(places)):
        size = offsets[r + 1]
        offsets[r + 1] = start
        start += size
    for i in range(len(keys)):
        r = runs[i] + 1
        at = offsets[r]
        ordered[at] = keys[i]
        order[at] = i
        offsets[r] = at + 1


def route(keys: KeyArray, seed: int, places: npt.NDArray[np.uint32]) -> tuple[KeyArray, IndexArray, IndexArray]:
    """Keys in runs, one run for each data shard: (ordered u64[n], order i64[n], offsets i64[shards+1]).

    `places` u32[shards] is a permutation: the keys of data shard s are run `places[s]`, and run r is
    `ordered[offsets[r]:offsets[r+1]]`; `ordered` is `keys[order]`. Stable: keys of one shard keep their
    order. Linear in n + shards.
    """
    ordered, order = np.empty(len(keys), np.uint64), np.empty(len(keys), np.int64)
    offsets = np.zeros(len(places) + 1, np.int64)
    _route(keys, shard_seed(seed), places, np.empty(len(keys), np.uint32), ordered, order, offsets)
    return ordered, order, offsets


@kernel
def _gather(words: WordArray, order: IndexArray, out: WordArray) -> int:
    # One pass over the rows does both, copying and looking for exponents of ones only (NaN or infinity).
    exponent = np.uint32(0x7F800000)
    found = np.uint32(0)
    width = words.shape[1]
    for i in range(len(order)):
        if i + _AHEAD < len(order):
            start = order[i + _AHEAD] * width
            for offset in range(start, start + min(width, _AHEAD_WORDS), _LINE_WORDS):
                prefetch_read(words, offset)
        row, to = words[order[i]], out[i]
        for c in range(len(row)):
            word = row[c]
            to[c] = word
            found |= np.uint32((word & exponent) == exponent)
    return int(found)


def gather(rows: npt.NDArray[Any], order: IndexArray) -> tuple[npt.NDArray[Any], bool]:
    """(`rows[order]`, whether all numbers in it are finite), in one pass.

    `rows`: C-contiguous, two-dimensional, whole 4-byte words a row; "finite" means something for float32 only.
    The result is a new array of the same dtype.
    """
    out = buffers.empty((len(order), rows.shape[1]), rows.dtype)
    found = _gather(as_plain(rows.view(np.uint32), np.uint32), order, out.view(np.uint32))
    return out, found == 0


@kernel
def _place(rows: FloatArray, where: IndexArray, out: FloatArray) -> None:
    for i in range(len(where)):
        row, to = rows[i], out[where[i]]
        for c in range(len(row)):
            to[c] = row[c]


def place(rows: FloatArray, where: IndexArray, out: FloatArray) -> None:
    """`out[where] = rows`: rows f32[n, d] to their places i64[n] (all inside of `out`) in out f32[m, d]."""
    _place(rows, where, out)


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One-dimensional arrays of one dtype one after the other: a view when they lie so in one array, else a copy."""
    first = parts[0]
    if len(parts) == 1:
        return first
    base = first.base
    if isinstance(base, np.ndarray) and base.flags.c_contiguous:
        expected = start = first.ctypes.data
        for part in parts:
            if part.base is not base or part.ctypes.data != expected:
                break
            expected += part.nbytes
        else:
            return np.ndarray((sum(map(len, parts)),), first.dtype, base, start - base.ctypes.data)
    return np.concatenate(parts)


@kernel
def _unique(keys: KeyArray, table: npt.NDArray[np.int32], first: IndexArray, inverse: IndexArray) -> int:
    # Open addressing with linear probing at a load of at most one half; table holds numbers of unique keys,
    # -1 = free.
    mask = np.uint64(len(table) - 1)
    count = 0
    for i in range(len(keys)):
        key = keys[i]
        mixed = (key ^ (key >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        place = (mixed ^ (mixed >> np.uint64(29))) & mask
        while True:
            known = table[place]
            if known < 0:
                table[place] = count
                first[count] = i
                inverse[i] = count
                count += 1
                break
            if keys[first[known]] == key:
                inverse[i] = known
                break
            place = (place + np.uint64(1)) & mask
    return count


def _first_and_inverse(keys: KeyArray) -> tuple[IndexArray, IndexArray]:
    table = np.full(1 << max(2 * len(keys) - 1, 1).bit_length(), -1, np.int32)
    first = np.empty(len(keys), np.int64)
    inverse = np.empty(len(keys), np.int64)
    count = _unique(keys, table, first, inverse)
    return first[:count], inverse


def unique(keys: KeyArray) -> tuple[KeyArray, IndexArray]:
    """(unique keys u64[u] in order of first occurrence, inverse i64[n]): `unique_keys[inverse] == keys`."""
    first, inverse = _first_and_inverse(keys)
    return keys[first], inverse


@kernel
def _sum_rows(grads: FloatArray, inverse: IndexArray, sums: FloatArray) -> None:
    seen = 0  # numbers of unique keys come in order of first occurrence: number == seen means "new"
    for i in range(len(inverse)):
        row = inverse[i]
        if row == seen:
            for c in range(grads.shape[1]):
                sums[row, c] = grads[i, c]
            seen += 1
        else:
            for c in range(grads.shape[1]):
                sums[row, c] += grads[i, c]


def unique_sum(keys: KeyArray, grads: FloatArray) -> tuple[KeyArray, FloatArray]:
    """(unique keys u64[u] in order of first occurrence, sums f32[u, d] of their gradients f32[n, d]).

    A sum starts as a copy of the first gradient and adds the others in input order, in float32. Without
    duplicates the arguments themselves are returned. Raises ShapeError when the lengths differ.
    """
    if grads.ndim != 2 or len(grads) != len(keys):
        raise ShapeError(f"{len(keys)} ids need gradients of shape ({len(keys)}, dim), not {grads.shape}")
    first, inverse = _first_and_inverse(keys)
    if len(first) == len(keys):
        return keys, grads
    sums = np.empty((len(first), grads.shape[1]), np.float32)
    _sum_rows(as_plain(grads, np.float32), inverse, sums)
    return keys[first], sums


@kernel
def _count_non_finite(bits: npt.NDArray[np.uint32]) -> int:
    exponent = np.uint32(0x7F800000)
    found = np.uint32(0)
    for i in range(len(bits)):
        found += np.uint32((bits[i] & exponent) == exponent)
    return int(found)


def all_finite(grads: FloatArray) -> bool:
    """True unless a number of this f32 array (any shape) is NaN or infinite."""
    return _count_non_finite(as_plain(grads, np.float32).reshape(-1).view(np.uint32)) == 0


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of this module with the types used in production."""
    keys = np.array([5, 7, 5], np.uint64)
    grads = np.ones((3, 2), np.float32)
    order = route(keys, 1, np.arange(2, dtype=np.uint32))[1]
    place(gather(grads, order)[0], order, grads.copy())
    unique(keys)
    unique_sum(keys, grads)
    all_finite(grads)
