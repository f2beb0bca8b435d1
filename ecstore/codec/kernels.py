"""Compiled kernels over row bytes. The cold algebra is in `field` and `matrix`, the instructions in `lanes`.

Here a *table* is `uint8[32]`, `field.nibble_products(c)`: all that a kernel needs of a constant c; entry 1 is c.
Callers have checked all arrays (C-contiguous, writable, equal sizes, what is written overlaps nothing else);
`scatter` checks what only it can see cheaply. Kernels allocate nothing that grows with their input. They release the
GIL: threads that write different outputs, or different parts of them, work side by side.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from ecstore.codec.lanes import TABLE_BYTES, addition, combination
from ecstore.jit import inlined, kernel
from ecstore.prefetch import LINE_BYTES, prefetch_write

Bytes: TypeAlias = NDArray[np.uint8]
Int: TypeAlias = int | np.int64
Addresses: TypeAlias = NDArray[np.uint64]

#: Slot numbers: as rows carry them on the wire, or as indexes.
Slots: TypeAlias = NDArray[np.uint32] | NDArray[np.int64]

#: Bytes of each source that all passes over them are done with before the next: what later passes read again is
#: still in a cache near the core.
BLOCK_BYTES = 4096

#: Least size of an output that is done in steps of several vectors: the longest step.
STEP_BYTES = 128

#: Outputs of one pass, at most: sums of two vectors each, and what multiplying takes, fill 16 registers.
PASS_OUTPUTS = 4

#: Parity rows lie at random in memory: how many rows ahead they are asked for, and how much of a row, in bytes. The
#: processor sees for itself where a longer one goes on.
_AHEAD, _AHEAD_BYTES = 8, 2048

#: What `scatter` answers; nothing was written unless DONE.
DONE, SLOT_OUT_OF_RANGE, NOT_ALIGNED = 0, 1, 2

#: Rows of a matrix that need no tables, by how many of its first rows are so: row 0 all ones, row 1 the powers of 2.
GENERAL, XOR_FIRST, XOR_AND_POWERS = 0, 1, 2

# How many vectors of each output are summed at once: they share one reading of each table, and must leave registers
# for the arithmetic. Two or four are whole cache lines of page-aligned rows: with more streams than a cache has ways,
# a line that is left half-read would have to come again.
_xor = combination(["xor"], 4)
_xor_powers = combination(["xor", "powers"], 4)
_xor_1 = combination(["xor", "any"], 4)
_xor_2 = combination(["xor", "any", "any"], 2)
_xor_3 = combination(["xor", "any", "any", "any"], 2)
_any_1 = combination(["any"], 4)
_any_2 = combination(["any", "any"], 4)
_any_3 = combination(["any", "any", "any"], 2)
_any_4 = combination(["any", "any", "any", "any"], 2)
_any_word = combination(["any"], 1, width=8)

_add_step = addition("xor", 4)
_add_vector = addition("xor", 1)
_add_word = addition("xor", 1, width=8)
_add_times_step = addition("any", 4)
_add_times_vector = addition("any", 1)
_add_times_word = addition("any", 1, width=8)
_VECTOR_BYTES, _WORD_BYTES = 32, 8


def _emit_bytes_at(typing_context: Any, address: Any) -> Any:
    """An integer as `uint8*`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    pointer: Any = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]
    return pointer(address), generate


_bytes_at: Any = inlined(_emit_bytes_at)
_array_at: Any = numba.carray  # type: ignore[attr-defined]


@kernel
def source_address(rows: Bytes, count: Int, row_bytes: Int) -> Int:
    """First byte of `uint8[count, row_bytes]`, rows of whole words; -1 when it has another shape.

    All that is asked of a source in one call, in a quarter of the time that NumPy takes to tell the address alone.
    Once `load` has run, anything but a C-contiguous array of bytes in two dimensions is a TypeError.
    """
    if rows.shape[0] != count or rows.shape[1] != row_bytes or row_bytes % _WORD_BYTES:
        return -1
    return np.int64(rows.ctypes.data)


@kernel
def output_address(rows: Bytes, count: Int, row_bytes: Int) -> Int:
    """The same for what is written: `load` compiles it for writable arrays alone."""
    if rows.shape[0] != count or rows.shape[1] != row_bytes or row_bytes % _WORD_BYTES:
        return -1
    return np.int64(rows.ctypes.data)


def load() -> None:
    """Make `source_address` and `output_address` refuse, and not compile for, arrays that no kernel takes."""
    writable = np.zeros((1, _WORD_BYTES), np.uint8)
    frozen = writable.copy()
    frozen.flags.writeable = False
    for rows in (writable, frozen):
        source_address(rows, 1, _WORD_BYTES)
    output_address(writable, 1, _WORD_BYTES)
    for each in (source_address, output_address):
        dispatcher: Any = each
        dispatcher.disable_compile()


@kernel
def _add(dst: Int, src: Int, size: Int) -> None:
    """The `size` bytes at address `dst` ^= those at `src`."""
    at = 0
    while at + STEP_BYTES <= size:
        _add_step(dst + at, src + at, 0)
        at += STEP_BYTES
    while at + _VECTOR_BYTES <= size:
        _add_vector(dst + at, src + at, 0)
        at += _VECTOR_BYTES
    while at + _WORD_BYTES <= size:
        _add_word(dst + at, src + at, 0)
        at += _WORD_BYTES
    if at < size:
        to, source = _array_at(_bytes_at(dst + at), size - at), _array_at(_bytes_at(src + at), size - at)
        for i in range(size - at):
            to[i] ^= source[i]


@kernel
def _add_times(dst: Int, src: Int, size: Int, table: Int) -> None:
    """The `size` bytes at address `dst` ^= c times those at `src`."""
    at = 0
    while at + STEP_BYTES <= size:
        _add_times_step(dst + at, src + at, table)
        at += STEP_BYTES
    while at + _VECTOR_BYTES <= size:
        _add_times_vector(dst + at, src + at, table)
        at += _VECTOR_BYTES
    while at + _WORD_BYTES <= size:
        _add_times_word(dst + at, src + at, table)
        at += _WORD_BYTES
    if at < size:
        to, source = _array_at(_bytes_at(dst + at), size - at), _array_at(_bytes_at(src + at), size - at)
        products = _array_at(_bytes_at(table), TABLE_BYTES)
        for i in range(size - at):
            to[i] ^= products[source[i] & 15] ^ products[16 + (source[i] >> 4)]


@kernel
def scale_add(dst: Bytes, src: Bytes, table: Bytes) -> None:
    """dst ^= c * src. `dst`, `src`: uint8[n]; `table`: uint8[32]."""
    if table[1] == 1:
        _add(np.int64(dst.ctypes.data), np.int64(src.ctypes.data), dst.size)
    elif table[1] != 0:
        _add_times(np.int64(dst.ctypes.data), np.int64(src.ctypes.data), dst.size, np.int64(table.ctypes.data))


@kernel
def _pass(
    first: Int, outputs: Int, count: Int, sources: Int, width: Int, tables: Int, stride: Int, start: Int, stop: Int
) -> None:
    """`count` <= PASS_OUTPUTS outputs, of which the first rows are as `first` says (GENERAL, ...)."""
    if first == GENERAL:
        if count == 1:
            _any_1(outputs, sources, tables, stride, width, start, stop)
        elif count == 2:
            _any_2(outputs, sources, tables, stride, width, start, stop)
        elif count == 3:
            _any_3(outputs, sources, tables, stride, width, start, stop)
        else:
            _any_4(outputs, sources, tables, stride, width, start, stop)
    elif count == 1:
        _xor(outputs, sources, tables, stride, width, start, stop)
    elif count == 2 and first == XOR_AND_POWERS:
        _xor_powers(outputs, sources, tables, stride, width, start, stop)
    elif count == 2:
        _xor_1(outputs, sources, tables, stride, width, start, stop)
    elif count == 3:
        _xor_2(outputs, sources, tables, stride, width, start, stop)
    else:
        _xor_3(outputs, sources, tables, stride, width, start, stop)


@kernel
def combine(addresses: Addresses, tables: Bytes, first: int, size: int) -> None:
    """Each output is a linear combination of all sources: output i = sum over j of c_ij * source_j.

    `addresses`: uint64[m + k], first of the outputs, then of the sources, both at least one: where the first of
    `size` bytes is, a multiple of 8; the caller keeps the arrays alive during the call. `tables`: uint8[k, m, 32];
    [j, i] is that of c_ij. `first`: what is known of the first rows of c: GENERAL (nothing), XOR_FIRST (row 0 is all
    ones), or XOR_AND_POWERS (row 0 is, and row 1 is 1, 2, 4, ...).
    """
    width, outputs = tables.shape[0], tables.shape[1]
    to, table, stride = np.int64(addresses.ctypes.data), np.int64(tables.ctypes.data), TABLE_BYTES * outputs
    source = to + 8 * outputs
    if size < STEP_BYTES:
        for i in range(outputs if size else 0):
            _any_word(to + 8 * i, source, table + TABLE_BYTES * i, stride, width, 0, size)
        return
    for start in range(0, size, BLOCK_BYTES):
        stop = min(start + BLOCK_BYTES, size)
        i = 0
        while i < outputs:
            count = min(outputs - i, PASS_OUTPUTS)
            known = first if i == 0 else GENERAL
            _pass(known, to + 8 * i, count, source, width, table + TABLE_BYTES * i, stride, start, stop)
            i += count


@kernel
def scatter(parity: Bytes, slots: Slots, delta: Bytes, table: Bytes) -> int:
    """parity[slots[i]] ^= c * delta[i] for i in order, so that a slot may repeat.

    `parity`: uint8[capacity, row_bytes], written. `slots`: uint32[n] or int64[n]. `delta`: uint8[n, row_bytes].
    `table`: uint8[32]. Rows and both arrays are aligned to 8 bytes.
    """
    to, source = np.int64(parity.ctypes.data), np.int64(delta.ctypes.data)
    if (to | source) % 8:
        return NOT_ALIGNED
    for i in range(slots.size):
        if slots[i] < 0 or slots[i] >= parity.shape[0]:
            return SLOT_OUT_OF_RANGE
    row_bytes = parity.shape[1]
    if row_bytes == 0 or table[1] == 0:
        return DONE
    constant = np.int64(table.ctypes.data)
    seen = min(row_bytes, _AHEAD_BYTES)
    for i in range(slots.size):
        if i + _AHEAD < slots.size:
            ahead = np.int64(slots[i + _AHEAD]) * row_bytes
            for line in range(0, seen, LINE_BYTES):
                prefetch_write(parity, ahead + line)
        row = to + np.int64(slots[i]) * row_bytes
        if table[1] == 1:
            _add(row, source + i * row_bytes, row_bytes)
        else:
            _add_times(row, source + i * row_bytes, row_bytes, constant)
    return DONE
