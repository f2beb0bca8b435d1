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
import numpy.typing as npt

from ecstore.jit import kernel

Bytes = bytes | bytearray | memoryview

#: Arrays from this size on are folded; for smaller ones CRC-32 costs less than the call of a kernel.
FOLD_FROM_BYTES: Final = 16 << 10

_SUM: Final = struct.Struct("<Q")


def add(data: Bytes, checksum: int = 0) -> int:
    """The checksum (32 bits) after `data`, which follows whatever gave `checksum`."""
    return zlib.crc32(data, checksum)


def add_array(data: memoryview, checksum: int) -> int:
    """The same for a large array: a byte view whose size is at least FOLD_FROM_BYTES."""
    whole = data.nbytes & ~31
    words = np.frombuffer(data, np.uint64, count=whole // 8)
    checksum = zlib.crc32(_SUM.pack(int(fold(words))), checksum)
    return zlib.crc32(data[whole:], checksum)


@kernel
def fold(words: npt.NDArray[np.uint64]) -> np.uint64:
    """64 bits of `words` (uint64, a multiple of 4 of them), each of which counts, and its place too.

    Fletcher's checksum (Fletcher 1982, "An arithmetic checksum for serial transmissions") modulo 2**64 in four
    lanes: only additions, so it runs as fast as memory is read. Any change of one word changes the result.
    """
    a0, a1, a2, a3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    b0, b1, b2, b3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(words.size // 4):
        a0 += words[4 * i]
        a1 += words[4 * i + 1]
        a2 += words[4 * i + 2]
        a3 += words[4 * i + 3]
        b0 += a0
        b1 += a1
        b2 += a2
        b3 += a3
    odd = np.uint64(0x9E3779B97F4A7C15)
    result = np.uint64(words.size)
    for part in (a0, b0, a1, b1, a2, b2, a3, b3):
        result = (result ^ part) * odd
        result ^= result >> np.uint64(32)
    return result


def warm_up() -> None:
    """Compile the kernel: for words that may be written to or not, aligned and not."""
    for raw in (bytearray(65), bytes(65)):
        fold(np.frombuffer(memoryview(raw)[:64], np.uint64))
        fold(np.frombuffer(memoryview(raw)[1:65], np.uint64))
