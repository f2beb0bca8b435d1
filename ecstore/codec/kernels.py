"""Compiled kernels over row bytes. The cold algebra is in `field` and `matrix`; callers use `ecstore.codec`.

How a byte is multiplied by a constant c. Multiplication by c is linear over GF(2), so c*x is the XOR of
c*2^j over the set bits j of x. The bits are taken from the top: as a signed byte, x < 0 says that bit 7 is
set, and x + x brings the next one up. Compare, mask, XOR, add: four byte-wise instructions a bit, none of
which crosses a byte, so the compiler makes 16 or 32 lanes of it on any machine with vector registers, from
plain code, without tables or shuffles. Multiplication by 2 is one such step.

Here a *row of products* is `int8[8]`, `field.bit_products(c)`: entry j is c*2^j, so entry 0 is c itself.
Callers have checked all arrays (C-contiguous, writable, equal sizes, what is written overlaps nothing else);
`scatter` checks what only it can see cheaply. Kernels allocate nothing that grows with their input.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ecstore.jit import kernel

#: Bytes as the kernels see them: the sign is the top bit.
Lanes: TypeAlias = NDArray[np.int8]

#: Slot numbers: as rows carry them on the wire, or as indexes.
Slots: TypeAlias = NDArray[np.uint32] | NDArray[np.int64]

#: Bytes of an output block: two of them and a block of each of two sources fit an L1 cache of 32 KiB.
BLOCK_BYTES = 4096

#: Bytes of deltas scaled at once before they are spread over parity rows; L1 again. Rows as short as 24 bytes
#: are scaled at full vector width this way, and only XORed row by row.
SCATTER_BLOCK_BYTES = 16384

#: What `scatter` answers; nothing was written unless DONE.
DONE, SLOT_OUT_OF_RANGE, NOT_ALIGNED = 0, 1, 2

_ZERO = np.int8(0)
_REDUCTION = np.int8(0x1D)  # the polynomial 0x11d without its x^8


def _pointer(typing_context: Any, address: Any) -> Any:
    """numba intrinsic: an integer as `int8*`, so that any number of arrays can be handed to one kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    pointer: Any = types.CPointer(types.int8)  # type: ignore[no-untyped-call]
    return pointer(address), generate


# Typed loosely: numba's own annotations describe the Python side of these, not what a kernel calls.
_bytes_at: Any = intrinsic(_pointer)
_array_at: Any = numba.carray  # type: ignore[attr-defined]


@kernel
def _doubled(x: np.int8) -> np.int8:
    return np.int8(np.int8(x + x) ^ (_REDUCTION if x < _ZERO else _ZERO))


@kernel
def _times(
    x: np.int8,
    p0: np.int8,
    p1: np.int8,
    p2: np.int8,
    p3: np.int8,
    p4: np.int8,
    p5: np.int8,
    p6: np.int8,
    p7: np.int8,
) -> np.int8:
    """One byte times the constant whose products these are. Unrolled: eight scalars stay in registers."""
    y = p7 if x < _ZERO else _ZERO
    x = np.int8(x + x)
    y = np.int8(y ^ (p6 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    y = np.int8(y ^ (p5 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    y = np.int8(y ^ (p4 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    y = np.int8(y ^ (p3 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    y = np.int8(y ^ (p2 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    y = np.int8(y ^ (p1 if x < _ZERO else _ZERO))
    x = np.int8(x + x)
    return np.int8(y ^ (p0 if x < _ZERO else _ZERO))


@kernel
def scale(dst: Lanes, src: Lanes, products: Lanes) -> None:
    """dst = c * src. `dst`, `src`: int8[n]; `products`: int8[8]."""
    # Plain loops everywhere: numba's slice assignment looks for overlap first and then copies slowly.
    if products[0] == 0:
        for i in range(dst.size):
            dst[i] = _ZERO
    elif products[0] == 1:
        for i in range(dst.size):
            dst[i] = src[i]
    elif products[0] == 2:
        for i in range(dst.size):
            dst[i] = _doubled(src[i])
    else:
        p0, p1, p2, p3 = products[0], products[1], products[2], products[3]
        p4, p5, p6, p7 = products[4], products[5], products[6], products[7]
        for i in range(dst.size):
            dst[i] = _times(src[i], p0, p1, p2, p3, p4, p5, p6, p7)


@kernel
def scale_add(dst: Lanes, src: Lanes, products: Lanes) -> None:
    """dst ^= c * src. `dst`, `src`: int8[n]; `products`: int8[8]."""
    if products[0] == 0:
        return
    if products[0] == 1:
        for i in range(dst.size):
            dst[i] ^= src[i]
    elif products[0] == 2:
        for i in range(dst.size):
            dst[i] ^= _doubled(src[i])
    else:
        p0, p1, p2, p3 = products[0], products[1], products[2], products[3]
        p4, p5, p6, p7 = products[4], products[5], products[6], products[7]
        for i in range(dst.size):
            dst[i] ^= _times(src[i], p0, p1, p2, p3, p4, p5, p6, p7)


@kernel
def combine(out: Lanes, addresses: NDArray[np.uint64], products: Lanes) -> None:
    """out = sum over i of c_i * source_i, block by block; at least one source, and zeros are not read.

    `out`: int8[n], overwritten. `addresses`: uint64[count], each the first of n readable bytes, which the
    caller keeps alive during the call. `products`: int8[count, 8].
    """
    for start in range(0, out.size, BLOCK_BYTES):
        block = out[start : min(start + BLOCK_BYTES, out.size)]
        for i in range(addresses.size):
            source = _array_at(_bytes_at(addresses[i] + np.uint64(start)), block.size)
            if i == 0:
                scale(block, source, products[i])
            else:
                scale_add(block, source, products[i])


@kernel
def _parity_pair_step(p: Lanes, q: Lanes, high: Lanes, low: Lanes) -> None:
    """Two steps of Horner's rule, `high` being the source with the higher index."""
    for i in range(p.size):
        x, y = high[i], low[i]
        p[i] ^= x ^ y
        q[i] = np.int8(_doubled(np.int8(_doubled(q[i]) ^ x)) ^ y)


@kernel
def parity_pair(p: Lanes, q: Lanes, addresses: NDArray[np.uint64]) -> None:
    """p = sum of source_j, q = sum of 2^j * source_j, in one pass over the sources by Horner's rule.

    `p`, `q`: int8[n], overwritten. `addresses`: uint64[k], k >= 1, as for `combine`.
    """
    for start in range(0, p.size, BLOCK_BYTES):
        stop = min(start + BLOCK_BYTES, p.size)
        p_block, q_block = p[start:stop], q[start:stop]
        size, offset = stop - start, np.uint64(start)
        remaining = addresses.size - 1
        source = _array_at(_bytes_at(addresses[remaining] + offset), size)
        for i in range(size):
            p_block[i] = source[i]
            q_block[i] = source[i]
        while remaining >= 2:
            high = _array_at(_bytes_at(addresses[remaining - 1] + offset), size)
            low = _array_at(_bytes_at(addresses[remaining - 2] + offset), size)
            _parity_pair_step(p_block, q_block, high, low)
            remaining -= 2
        if remaining == 1:
            source = _array_at(_bytes_at(addresses[0] + offset), size)
            for i in range(size):
                p_block[i] ^= source[i]
                q_block[i] = np.int8(_doubled(q_block[i]) ^ source[i])


@kernel
def _scatter_words(parity: NDArray[np.uint64], slots: Slots, delta: NDArray[np.uint64]) -> None:
    for i in range(slots.size):
        slot = slots[i]
        for word in range(parity.shape[1]):
            parity[slot, word] ^= delta[i, word]


@kernel
def scatter(parity: Lanes, slots: Slots, delta: Lanes, products: Lanes) -> int:
    """parity[slots[i]] ^= c * delta[i] for i in order, so that a slot may repeat.

    `parity`: int8[capacity, row_bytes], written. `slots`: uint32[n] or int64[n]. `delta`: int8[n, row_bytes].
    `products`: int8[8]. Rows are XORed in words of 8 bytes, so both arrays must be aligned to that.
    """
    if (parity.ctypes.data | delta.ctypes.data) % 8:
        return NOT_ALIGNED
    for i in range(slots.size):
        if slots[i] < 0 or slots[i] >= parity.shape[0]:
            return SLOT_OUT_OF_RANGE
    row_bytes = parity.shape[1]
    if row_bytes == 0 or products[0] == 0:
        return DONE
    words = parity.view(np.uint64)
    if products[0] == 1:
        _scatter_words(words, slots, delta.view(np.uint64))
        return DONE
    rows = max(1, SCATTER_BLOCK_BYTES // row_bytes)
    scaled = np.empty((min(rows, slots.size), row_bytes), np.int8)
    for start in range(0, slots.size, rows):
        stop = min(start + rows, slots.size)
        block = scaled[: stop - start]
        scale(block.reshape(-1), delta[start:stop].reshape(-1), products)
        _scatter_words(words, slots[start:stop], block.view(np.uint64))
    return DONE
