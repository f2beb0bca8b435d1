"""The peer of both benchmarks: a plain checkpoint. Training waits until every row is on disk.

One file for each table, keys and whole rows (weights and optimizer state), written through the public client and
flushed to the device: what somebody does whose parameter store has no redundancy. Restoring reads the files and
writes all rows back: without redundancy the whole table goes back to the checkpoint, as in the paper, since rows that
were updated after it can't be mixed with older ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import ecstore
from ecstore.bench.workload import LOAD_ROWS

TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Written:
    """What a checkpoint took."""

    seconds: float  #: all of it: training waits so long
    disk_s: float  #: of that, writing and flushing the files
    nbytes: int


def write(tables: Sequence[ecstore.Table], folder: Path) -> Written:
    """Write every row of the tables to `folder`."""
    started, disk_s, nbytes = time.perf_counter(), 0.0, 0
    for table in tables:
        keys, rows = table.export(state=True, timeout=TIMEOUT_S)
        begun = time.perf_counter()
        with (folder / f"{table.name}.checkpoint").open("wb") as file:
            np.save(file, keys)
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        disk_s += time.perf_counter() - begun
        nbytes += keys.nbytes + rows.nbytes
    return Written(time.perf_counter() - started, disk_s, nbytes)


def restore(tables: Sequence[ecstore.Table], folder: Path) -> tuple[float, float]:
    """Put every row back as it was written; (seconds, of that reading the files)."""
    started, disk_s = time.perf_counter(), 0.0
    for table in tables:
        begun = time.perf_counter()
        with (folder / f"{table.name}.checkpoint").open("rb") as file:
            keys, rows = np.load(file), np.load(file)
        disk_s += time.perf_counter() - begun
        for start in range(0, keys.size, LOAD_ROWS):
            part = slice(start, start + LOAD_ROWS)
            table.load(keys[part], rows[part], timeout=TIMEOUT_S)
    return time.perf_counter() - started, disk_s
