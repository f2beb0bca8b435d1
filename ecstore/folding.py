"""The kernel of `ecstore.checksum`, in a module of its own: importing the compiler takes a third of a second."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ecstore.jit import kernel


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
