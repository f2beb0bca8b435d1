"""Fused kernels over the rows of a slab: gather, update with delta, put, clear. Compiled, GIL released.

All take the slab as `rows` f32[max_rows, row_floats] and, where bits matter, the same memory as `words`
u32[max_rows, row_floats]. `slots` i64[n] are valid slots (the gather: -1 = absent). A slot may repeat:
entries are done one after the other. `delta` u32[n, row_floats] is written whole: old bits XOR new bits. Where
nobody wants it, `delta` has one row, which every entry writes again: it stays in the first-level cache.

The updates give the bits of `ecstore.optim.reference_update`; the order of every operation is copied from
there. Each does three passes over one row while it is in the first-level cache: old bits to the delta
(`_begin`), the arithmetic, NaN bits made canonical and the new bits XORed into the delta (`_finish`). A
batch's rows lie at random in memory, and one row's arithmetic is too long for the processor to look past it:
rows ahead are prefetched.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore.intrinsics import copy as _copy
from ecstore.intrinsics import sum_of_squares as _sum_of_squares
from ecstore.jit import kernel
from ecstore.prefetch import prefetch_read, prefetch_write

FloatArray: TypeAlias = npt.NDArray[np.float32]
WordArray: TypeAlias = npt.NDArray[np.uint32]
KeyArray: TypeAlias = npt.NDArray[np.uint64]
SlotArray: TypeAlias = npt.NDArray[np.int64]
FlagArray: TypeAlias = npt.NDArray[np.uint8]
Int: TypeAlias = int | np.int64
#: (weight seed, low, span, top) of the table's initial weights; see `ecstore.hashing.initial_weights`.
Initial: TypeAlias = tuple[np.uint64, np.float32, np.float32, np.float32]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = np.float32(2.0**-24)
_LOW24 = np.uint64(0xFFFFFF)
#: How many rows ahead to prefetch: enough to hide a memory access behind the arithmetic of the rows between.
_AHEAD = 4
#: The same for a gather, which does nothing but copy.
_AHEAD_GATHER = 16
#: Longest part of a row to prefetch, in words: the processor's own prefetcher takes over on longer runs.
_AHEAD_WORDS = 512
_LINE_WORDS = 16


@kernel
def _prefetch_row(words: WordArray, slots: SlotArray, i: Int) -> None:
    """Bring the row of slots[i] nearer; nothing beyond the end."""
    if i < len(slots):
        width = words.shape[1]
        start = slots[i] * width
        for offset in range(start, start + min(width, _AHEAD_WORDS), _LINE_WORDS):
            prefetch_write(words, offset)


@kernel
def _mix(value: np.uint64) -> np.uint64:
    mixed = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def _initial_row(out: FloatArray, i: Int, dim: Int, key: np.uint64, initial: Initial) -> None:
    """Weights of a key that was never pushed, to out[i, :dim]. The same text as in ecstore/hashing.py."""
    salt, low, span, top = initial
    if span == np.float32(0.0):
        for c in range(dim):
            out[i, c] = low
        return
    state = _mix(key ^ salt)
    for pair in range(dim // 2):
        state += _GOLDEN
        bits = _mix(state)
        even = np.float32(np.int32(bits >> np.uint64(40)))
        odd = np.float32(np.int32((bits >> np.uint64(8)) & _LOW24))
        out[i, 2 * pair] = min(low + even * _UNIT * span, top)
        out[i, 2 * pair + 1] = min(low + odd * _UNIT * span, top)
    if dim % 2 == 1:
        bits = _mix(state + _GOLDEN)
        out[i, dim - 1] = min(low + np.float32(np.int32(bits >> np.uint64(40))) * _UNIT * span, top)


@kernel
def gather(rows: FloatArray, slots: SlotArray, keys: KeyArray, initial: Initial, out: FloatArray) -> None:
    """Weights of each key to out f32[n, dim]: from its slot, or the initial ones where the slot is -1."""
    dim, width = out.shape[1], rows.shape[1]
    for i in range(len(slots)):
        slot = slots[i]
        if i + _AHEAD_GATHER < len(slots):
            # Both ends: the processor's own prefetcher fetches what lies between. Of an absent key any row will do.
            start = max(slots[i + _AHEAD_GATHER], 0) * width
            prefetch_read(rows, start)
            prefetch_read(rows, start + dim - 1)
        if slot < 0:
            _initial_row(out, i, dim, keys[i], initial)
        else:
            _copy(out, i * dim, rows, slot * width, dim)


@kernel
def _begin(words: WordArray, slot: Int, delta: WordArray, i: Int) -> None:
    """delta[i] = old bits (a fresh slot is all zeros until now)."""
    width = words.shape[1]
    _copy(delta, i * width, words, slot * width, width)


@kernel
def _finish(words: WordArray, slot: Int, delta: WordArray, i: Int) -> None:
    """delta[i] ^= new bits, and the one NaN for every NaN: rare, so it is only looked for on the way."""
    row, changes = words[slot], delta[i]
    found = np.uint32(0)
    for c in range(len(row)):
        found |= np.uint32((row[c] & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000))
        changes[c] ^= row[c]
    if found != 0:
        for c in range(len(row)):
            if (row[c] & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
                changes[c] ^= row[c] ^ np.uint32(0x7FC00000)
                row[c] = np.uint32(0x7FC00000)


@kernel
def push_sgd(
    rows: FloatArray,
    words: WordArray,
    slots: SlotArray,
    fresh: FlagArray,
    keys: KeyArray,
    grads: FloatArray,
    delta: WordArray,
    initial: Initial,
    settings: FloatArray,
) -> None:
    """`SGD`; settings = (lr)."""
    dim = grads.shape[1]
    lr = settings[0]
    kept = len(delta) == len(slots)
    for i in range(len(slots)):
        slot = slots[i]
        _prefetch_row(words, slots, i + _AHEAD)
        at = i if kept else 0
        _begin(words, slot, delta, at)
        if fresh[i] != 0:
            _initial_row(rows, slot, dim, keys[i], initial)
        weights, gradient = rows[slot, :dim], grads[i]
        for c in range(dim):
            weights[c] -= lr * gradient[c]
        _finish(words, slot, delta, at)


@kernel
def push_adagrad(
    rows: FloatArray,
    words: WordArray,
    slots: SlotArray,
    fresh: FlagArray,
    keys: KeyArray,
    grads: FloatArray,
    delta: WordArray,
    initial: Initial,
    settings: FloatArray,
) -> None:
    """`Adagrad`; settings = (lr, eps, initial accumulator)."""
    dim = grads.shape[1]
    lr, eps, accumulator = settings[0], settings[1], settings[2]
    kept = len(delta) == len(slots)
    for i in range(len(slots)):
        slot = slots[i]
        _prefetch_row(words, slots, i + _AHEAD)
        at = i if kept else 0
        _begin(words, slot, delta, at)
        if fresh[i] != 0:
            _initial_row(rows, slot, dim, keys[i], initial)
            for c in range(dim, 2 * dim):
                rows[slot, c] = accumulator
        weights, squares, gradient = rows[slot, :dim], rows[slot, dim : 2 * dim], grads[i]
        for c in range(dim):
            g = gradient[c]
            total = squares[c] + g * g
            squares[c] = total
            weights[c] -= (lr * g) / (math.sqrt(total) + eps)
        _finish(words, slot, delta, at)


@kernel
def push_rowwise_adagrad(
    rows: FloatArray,
    words: WordArray,
    slots: SlotArray,
    fresh: FlagArray,
    keys: KeyArray,
    grads: FloatArray,
    delta: WordArray,
    initial: Initial,
    settings: FloatArray,
) -> None:
    """`RowWiseAdagrad`; settings = (lr, eps, initial accumulator)."""
    dim = grads.shape[1]
    lr, eps, accumulator = settings[0], settings[1], settings[2]
    kept = len(delta) == len(slots)
    for i in range(len(slots)):
        slot = slots[i]
        _prefetch_row(words, slots, i + _AHEAD)
        at = i if kept else 0
        _begin(words, slot, delta, at)
        if fresh[i] != 0:
            _initial_row(rows, slot, dim, keys[i], initial)
            rows[slot, dim] = accumulator
        weights, gradient = rows[slot, :dim], grads[i]
        squares = rows[slot, dim] + _sum_of_squares(grads, i * dim, dim) / np.float32(dim)
        rows[slot, dim] = squares
        step = lr / (math.sqrt(squares) + eps)
        for c in range(dim):
            weights[c] -= step * gradient[c]
        _finish(words, slot, delta, at)


@kernel
def push_adam(
    rows: FloatArray,
    words: WordArray,
    slots: SlotArray,
    fresh: FlagArray,
    keys: KeyArray,
    grads: FloatArray,
    delta: WordArray,
    initial: Initial,
    settings: FloatArray,
) -> None:
    """`Adam`; settings = (lr, beta1, beta2, eps)."""
    dim = grads.shape[1]
    one = np.float32(1.0)
    lr, beta1, beta2, eps = settings[0], settings[1], settings[2], settings[3]
    kept = len(delta) == len(slots)
    for i in range(len(slots)):
        slot = slots[i]
        _prefetch_row(words, slots, i + _AHEAD)
        at = i if kept else 0
        _begin(words, slot, delta, at)
        if fresh[i] != 0:
            _initial_row(rows, slot, dim, keys[i], initial)
            rows[slot, 3 * dim] = one
            rows[slot, 3 * dim + 1] = one
        weights, gradient = rows[slot, :dim], grads[i]
        first, second = rows[slot, dim : 2 * dim], rows[slot, 2 * dim : 3 * dim]
        power1 = rows[slot, 3 * dim] * beta1
        power2 = rows[slot, 3 * dim + 1] * beta2
        rows[slot, 3 * dim] = power1
        rows[slot, 3 * dim + 1] = power2
        for c in range(dim):
            g = gradient[c]
            m = beta1 * first[c] + (one - beta1) * g
            v = beta2 * second[c] + (one - beta2) * (g * g)
            first[c] = m
            second[c] = v
            weights[c] -= (lr * (m / (one - power1))) / (math.sqrt(v / (one - power2)) + eps)
        _finish(words, slot, delta, at)


@kernel
def put_rows(words: WordArray, slots: SlotArray, new: WordArray, delta: WordArray) -> None:
    """words[slots[i]] = new[i] u32[n, row_floats], with the delta. No number is looked at: any bytes may be
    put.
    """
    width = words.shape[1]
    kept = len(delta) == len(slots)
    for i in range(len(slots)):
        row, fresh, changes = words[slots[i]], new[i], delta[i if kept else 0]
        for c in range(width):
            changes[c] = row[c] ^ fresh[c]
        _copy(words, slots[i] * width, new, i * width, width)


@kernel
def clear_rows(words: WordArray, slots: SlotArray, delta: WordArray) -> None:
    """words[slots[i]] = 0, with the delta (the old bits)."""
    width = words.shape[1]
    for i in range(len(slots)):
        _copy(delta, i * width, words, slots[i] * width, width)
        words[slots[i], :] = 0


@kernel
def read_rows(words: WordArray, slots: SlotArray, used: Int, out: WordArray) -> None:
    """out[i] = words[slots[i]], zeros for slots outside [0, used)."""
    width = words.shape[1]
    for i in range(len(slots)):
        if slots[i] >= 0 and slots[i] < used:
            _copy(out, i * width, words, slots[i] * width, width)
        else:
            out[i, :] = 0


@kernel
def write_rows(words: WordArray, slots: SlotArray, new: WordArray) -> None:
    """words[slots[i]] = new[i]."""
    width = words.shape[1]
    for i in range(len(slots)):
        _copy(words, slots[i] * width, new, i * width, width)
