"""What a client has attempted and what was acknowledged, in a file that other processes read at the same time.

An increment is added to `attempted` before it is pushed and to `acknowledged` after its acknowledgement. So at any
moment, whoever reads all ledgers' `acknowledged`, then pulls, then reads their `attempted`, must find every value in
between; and once nothing is in flight and nothing timed out, both are equal and the value is exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

#: Numbers in the head of a ledger, by name.
HEAD: Final = ("pushes", "pulls", "in_doubt")
_HEAD_NUMBERS: Final = 8


class Ledger:
    """`attempted`, `acknowledged`: int64[keys, dim], in memory that processes share. One writes, all may read."""

    def __init__(self, path: Path, keys: int, dim: int, *, create: bool = False) -> None:
        size = _HEAD_NUMBERS + 2 * keys * dim
        numbers = np.memmap(path, np.int64, mode="w+" if create else "r+", shape=(size,))
        self._head = numbers[:_HEAD_NUMBERS]
        self.attempted: IntArray = numbers[_HEAD_NUMBERS : _HEAD_NUMBERS + keys * dim].reshape(keys, dim)
        self.acknowledged: IntArray = numbers[_HEAD_NUMBERS + keys * dim :].reshape(keys, dim)

    def count(self, name: str, by: int = 1) -> None:
        self._head[HEAD.index(name)] += by

    def get(self, name: str) -> int:
        return int(self._head[HEAD.index(name)])


def total(parts: list[IntArray]) -> IntArray:
    """Their sum; each is read once."""
    result: IntArray = np.sum([np.array(part) for part in parts], axis=0, dtype=np.int64)
    return result
