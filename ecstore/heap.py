"""The C library's heap, where it can be told what to do (glibc): give memory back to the system.

By default glibc keeps the pages of arrays that are gone, wherever they lay: memory that no array uses and that the
system still counts as ours. (To give every large array a mapping of its own would do the same at once, and was tried:
the page faults cost a sixth of a push's time.)
"""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return free pages inside of the heap. Some milliseconds: for idle moments."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another C library
        return
    trim(0)
