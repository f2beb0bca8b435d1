"""The checksum of a frame: finds bytes that were damaged on the way.

TCP's own checksum is 16 bits and is often computed by the network card, so damage between card and memory passes
it; one wrong byte in a delta would poison parity for good. Arrays are folded by a kernel that reads memory at its
full speed (some 40 GB/s on one core), everything else by CRC-32. This finds errors, it does not keep out forgers.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np

Bytes = bytes | bytearray | memoryview

#: Arrays from this size on are folded; for smaller ones CRC-32 costs less than the call of a kernel.
FOLD_FROM_BYTES: Final = 16 << 10

_SUM: Final = struct.Struct("<Q")


def add(data: Bytes, checksum: int = 0) -> int:
    """The checksum (32 bits) after `data`, which follows whatever gave `checksum`."""
    return zlib.crc32(data, checksum)


def add_array(data: memoryview, checksum: int) -> int:
    """The same for a large array: a byte view whose size is at least FOLD_FROM_BYTES."""
    from ecstore.folding import fold  # here: a process without large arrays does without a compiler

    whole = data.nbytes & ~31
    words = np.frombuffer(data, np.uint64, count=whole // 8)
    checksum = zlib.crc32(_SUM.pack(int(fold(words))), checksum)
    return zlib.crc32(data[whole:], checksum)


def warm_up() -> None:
    """Compile the kernel: for words that may be written to or not, aligned and not."""
    from ecstore.folding import fold

    for raw in (bytearray(65), bytes(65)):
        fold(np.frombuffer(memoryview(raw)[:64], np.uint64))
        fold(np.frombuffer(memoryview(raw)[1:65], np.uint64))
