"""The C library's heap, where it can be told what to do (glibc): give memory back to the system.

By default glibc keeps what large arrays leave behind, up to 32 MiB each and wherever they lay: memory that no array
uses and that the system still counts as ours.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ecstore.buffers import SMALLEST_BYTES

_M_MMAP_THRESHOLD: Final = -3


def _function(name: str) -> Any | None:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):  # another C library
        return None


def map_large_arrays() -> None:
    """From now on each array that `ecstore.buffers` would keep has a mapping of its own, which ends with it."""
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, SMALLEST_BYTES)


def give_back() -> None:
    """Return free pages inside of the heap. Some milliseconds: for idle moments."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)
