"""Slab: the bytes of a shard's rows, in one address range that is reserved once and filled page by page."""

from __future__ import annotations

import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ByteArray: TypeAlias = npt.NDArray[np.uint8]

# Linux's values, for interpreters whose mmap module does not name them; 0 (no such flag) elsewhere.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MAP_POPULATE") else 0)
_FLAGS = mmap.MAP_PRIVATE | getattr(mmap, "MAP_ANONYMOUS", 0x20) | _NORESERVE


def reserve(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A zero array of `size` numbers in reserved address space: memory is used only for pages once written.

    The range never moves. It is returned to the system when the last array that views it is gone.
    """
    kind = np.dtype(dtype)
    length = max(size * kind.itemsize, mmap.PAGESIZE)
    return np.frombuffer(mmap.mmap(-1, length, flags=_FLAGS), kind, count=size)


class Slab:
    """`rows` u8[max_rows, row_bytes], zero at first, C-contiguous, never moved and never copied.

    The owner writes through `rows`; views of it stay valid for the slab's life. `max_rows` costs address
    space only, so it may be far above what will be used.
    """

    def __init__(self, row_bytes: int, max_rows: int) -> None:
        assert row_bytes > 0
        assert row_bytes % 8 == 0, "rows are whole 8-byte words"
        self.row_bytes = row_bytes
        self.max_rows = max_rows
        self.rows: ByteArray = reserve(max_rows * row_bytes, np.uint8).reshape(max_rows, row_bytes)

    def share(self) -> Slab:
        """Another owner of the same rows: each closes its own."""
        other = Slab.__new__(Slab)
        other.row_bytes, other.max_rows, other.rows = self.row_bytes, self.max_rows, self.rows
        return other

    def close(self) -> None:
        """Give the memory up: at once, or when the last view that others hold is gone."""
        self.rows = np.empty((0, self.row_bytes), np.uint8)
