"""Memory for large arrays of short life, used again once nobody refers to it.

Fresh memory of some MiB costs more than the copy into it: the system clears each page at its first touch, and takes
the pages back when the array goes. Batches are of about equal size, so their arrays can share a few buffers. A buffer
is free when the pool alone refers to it: whoever keeps any view of it (an array, a memoryview in a write queue) keeps
it from being used again, so nobody has to give anything back and nothing can be given back too early.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Arrays below this come from the allocator: it keeps such pieces itself (glibc maps larger ones one by one).
SMALLEST_BYTES: Final = 128 << 10

#: What one pool keeps: bodies, results and deltas of a few batches, and what logs hold of them. More are simply not
#: kept.
MAX_BUFFERS: Final = 512
MAX_POOL_BYTES: Final = 128 << 20

#: Buffers of one size that are looked at, oldest first. Arrays are mostly dropped in the order in which they were made,
#: so that the oldest is free or none is.
_LOOKS: Final = 4


class BufferPool:
    """Buffers of one thread."""

    def __init__(self) -> None:
        #: By size class: those of one class differ in size by less than an eighth. Oldest use first.
        self._classes: dict[int, deque[npt.NDArray[np.uint8]]] = {}
        self.count = self.nbytes = 0
        self._asked: set[int] = set()  # classes, since the last `trim`
        self.reused = 0

    def trim(self) -> None:
        """Forget the free buffers of sizes that nobody has asked for since the last call."""
        for size in [size for size in self._classes if size not in self._asked]:
            buffers = self._classes[size]
            for _ in range(len(buffers)):
                if sys.getrefcount(buffers[0]) == _UNUSED:
                    buffers.popleft()
                    self.count -= 1
                    self.nbytes -= size
                else:
                    buffers.rotate(-1)
            if not buffers:
                del self._classes[size]
        self._asked.clear()

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Like `np.empty`: C-contiguous, of any content."""
        kind = np.dtype(dtype)
        size = kind.itemsize * (shape if isinstance(shape, int) else math.prod(shape))
        if size < SMALLEST_BYTES or size > MAX_POOL_BYTES // 2 or _UNUSED is None:
            return np.empty(shape, kind)
        return self._buffer(size)[:size].view(kind).reshape(shape)

    def _buffer(self, size: int) -> npt.NDArray[np.uint8]:
        """One that nobody refers to and that is at least as large, by a quarter at most: an array that lives long holds
        the whole buffer, and others count only the array.
        """
        step = 1 << (size.bit_length() - 4)  # an eighth of the power of two below
        capacity = -(-size // step) * step
        self._asked.add(capacity)
        buffers = self._classes.get(capacity)
        if buffers is None:
            buffers = self._classes[capacity] = deque()
        for _ in range(min(_LOOKS, len(buffers))):
            if sys.getrefcount(buffers[0]) == _UNUSED:
                self.reused += 1
                buffers.rotate(-1)
                return buffers[-1]
            buffers.rotate(-1)
        made = np.empty(capacity, np.uint8)
        buffers.append(made)
        self.count += 1
        self.nbytes += capacity
        if self.count > MAX_BUFFERS or self.nbytes > MAX_POOL_BYTES:
            self._shrink(capacity)
        return made

    def _shrink(self, capacity: int) -> None:
        """Forget old buffers, of other sizes first: those of the size just made are in demand."""
        others = [size for size in self._classes if size != capacity]
        for size in itertools.chain(others, (capacity,)):
            buffers = self._classes[size]
            while buffers and (self.count > MAX_BUFFERS or self.nbytes > MAX_POOL_BYTES):
                buffers.popleft()
                self.count -= 1
                self.nbytes -= size
            if not buffers:
                del self._classes[size]


def _count_of_unused() -> int | None:
    """What `sys.getrefcount` says in `_buffer` of a buffer that the pool alone refers to; None: no reliance on it."""
    gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not gil_enabled():
        return None
    buffers = deque([np.empty(1, np.uint8)])
    return sys.getrefcount(buffers[0])


_UNUSED: Final = _count_of_unused()
_pools = threading.local()


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`BufferPool.empty` of the calling thread's own pool. The array may be passed to other threads."""
    return _own_pool().empty(shape, dtype)


def trim() -> None:
    """`BufferPool.trim` of the calling thread's own pool. Call it every few seconds where memory is dear."""
    _own_pool().trim()


def _own_pool() -> BufferPool:
    pool: BufferPool | None = getattr(_pools, "pool", None)
    if pool is None:
        pool = _pools.pool = BufferPool()
    return pool
