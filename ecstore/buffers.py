"""Memory for large arrays of short life, used again once nobody refers to it.

Fresh memory of some MiB costs more than the copy into it: the system clears each page at its first touch, and takes
the pages back when the array goes. Batches are of about equal size, so their arrays can share a few buffers. A buffer
is free when the pool alone refers to it: whoever keeps any view of it (an array, a memoryview in a write queue) keeps
it from being used again, so nobody has to give anything back and nothing can be given back too early.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Arrays below this come from the allocator: it keeps such pieces itself (glibc maps larger ones one by one).
SMALLEST_BYTES: Final = 128 << 10

#: What one pool keeps: bodies, results and deltas of a few batches. More are simply not kept.
MAX_BUFFERS: Final = 32
MAX_POOL_BYTES: Final = 64 << 20


class BufferPool:
    """Buffers of one thread."""

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.uint8]] = []  # oldest first
        self.reused = 0

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Like `np.empty`: C-contiguous, of any content."""
        kind = np.dtype(dtype)
        size = kind.itemsize * (shape if isinstance(shape, int) else math.prod(shape))
        if size < SMALLEST_BYTES or size > MAX_POOL_BYTES // 2 or _UNUSED is None:
            return np.empty(shape, kind)
        buffer = self._free(size)
        if buffer is None:
            buffer = np.empty(size + size // 8, np.uint8)  # the next batch may be a little larger
            self._keep(buffer)
        return buffer[:size].view(kind).reshape(shape)

    def _free(self, size: int) -> npt.NDArray[np.uint8] | None:
        for buffer in self._buffers:
            # Not much larger: an array that lives long holds the whole buffer, and others count only the array.
            if size <= buffer.size <= size + size // 4 and sys.getrefcount(buffer) == _UNUSED:
                self.reused += 1
                return buffer
        return None

    def _keep(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._buffers.append(buffer)
        while len(self._buffers) > MAX_BUFFERS or sum(kept.size for kept in self._buffers) > MAX_POOL_BYTES:
            del self._buffers[0]


def _count_of_unused() -> int | None:
    """What `sys.getrefcount` says in `_free` of a buffer that the pool alone refers to; None: it can't be relied on."""
    gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not gil_enabled():
        return None
    buffers = [np.empty(1, np.uint8)]
    for buffer in buffers:
        return sys.getrefcount(buffer)
    return None


_UNUSED: Final = _count_of_unused()
_pools = threading.local()


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """`BufferPool.empty` of the calling thread's own pool. The array may be passed to other threads."""
    pool = getattr(_pools, "pool", None)
    if pool is None:
        pool = _pools.pool = BufferPool()
    made: npt.NDArray[Any] = pool.empty(shape, dtype)
    return made
