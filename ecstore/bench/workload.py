"""Training as the benchmarks do it: click batches of Criteo's shape, a DLRM of a wanted cost, and whole tables.

A table has a row for every id of the synthetic log from the start, so its size does not depend on how long a
benchmark trains.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ecstore
from ecstore.optim import RowWiseAdagrad
from ecstore.trainer import Dlrm, ModelConfig, SyntheticConfig, SyntheticLog, TrainConfig
from ecstore.trainer.data import BadLines, Batch, category_keys
from ecstore.trainer.train import Worker

#: The click log never ends: whoever trains on it says how many batches it wants.
_ENDLESS: Final = 1 << 40

U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]

BATCH: Final = 2048  #: samples, as in the paper
#: Rows written by one call while a table is filled: some tens of MiB.
LOAD_ROWS: Final = 1 << 18
#: Close to 1: the flattest law the log has, some 13,000 distinct ids in a batch.
EXPONENT: Final = 1.01
#: Silence after which a node is suspected, here: on a busy machine a live one would be lost now and then, and the
#: figures with it. A process that was killed is noticed by its closed sockets, whatever this says.
PATIENT_S: Final = 5.0
#: Hidden layers (bottom, top) of the models that may be chosen, the cheapest first.
MODELS: Final = (
    ((32,), (64, 32)),
    ((64,), (128, 64)),
    ((128, 64), (192, 96)),
    ((128, 64), (256, 128)),
    ((256, 128), (320, 160)),
    ((256, 128), (448, 224)),
    ((512, 256), (512, 256)),
)


@dataclass(frozen=True, slots=True)
class Clicks:
    """A `Dataset` of a few batches, repeated; nothing is held out."""

    name: str
    batches: tuple[Batch, ...]
    train_samples: int
    test_samples: int = 0
    bad_lines: BadLines = field(default_factory=BadLines)

    def starting_at(self, batch: int) -> Clicks:
        """The same batches, in the same order, beginning with another one."""
        first = batch % len(self.batches)
        return replace(self, batches=self.batches[first:] + self.batches[:first])

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        while True:
            yield from self.batches

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Workload:
    """Batches, and the keys of all rows that a table of it has."""

    clicks: Clicks
    keys: U64

    @classmethod
    def make(cls, categories: int, batches: int, *, batch_size: int = BATCH, seed: int = 1) -> Workload:
        """`categories`: ids of the largest of 26 features; the others have fewer, geometrically, down to ten."""
        log = SyntheticLog(
            SyntheticConfig(samples=2 * batches * batch_size + 1, seed=seed, categories=categories, exponent=EXPONENT)
        )
        made = tuple(islice(log.train_batches(batch_size), batches))
        return cls(Clicks(log.name, made, _ENDLESS), all_keys(log))

    @property
    def unique(self) -> int:
        """Distinct keys of the median batch."""
        return int(np.median([np.unique(batch.keys).size for batch in self.clicks.batches]))


def all_keys(log: SyntheticLog) -> U64:
    """u64[n]: every key that a batch of the log may name, each once, in no particular order."""
    found = []
    for feature, size in enumerate(log.sizes.tolist()):
        ranks = np.zeros((size, log.sizes.size), np.uint32)
        ranks[:, feature] = log.spread(np.arange(size))
        missing = np.zeros(ranks.shape, np.bool_)
        found.append(category_keys(ranks, missing)[:, feature])
    missing = np.ones((1, log.sizes.size), np.bool_)
    found.append(category_keys(np.zeros(missing.shape, np.uint32), missing)[0])
    return np.random.default_rng(0).permutation(np.concatenate(found))


def categories_for(rows: int) -> int:
    """How many `categories` give a table of about `rows` rows."""
    low, high = 10, 1 << 31
    while high - low > 1:
        middle = (low + high) // 2
        if np.geomspace(10, middle, 26).sum() < rows:
            low = middle
        else:
            high = middle
    return high


def train_config(code: str, number: int, model: ModelConfig, **more: Any) -> TrainConfig:
    """Settings of one mode, with tables of its own: row-wise Adagrad everywhere, as it is used on such models."""
    return TrainConfig(
        code=code,
        batch_size=BATCH,
        model=model,
        embedding_optimizer=RowWiseAdagrad(lr=0.01),
        dense_optimizer=RowWiseAdagrad(lr=0.01),
        embedding_table=f"embedding{number}",
        dense_table=f"dense{number}",
        **more,
    )


def fill(table: ecstore.Table, keys: U64) -> None:
    """Give every key of `keys` a row, a block of random weights again and again: `weights_of` knows them."""
    for start in range(0, keys.size, LOAD_ROWS):
        part = keys[start : start + LOAD_ROWS]
        table.load(part, weights_of(start, part.size, table.dim), timeout=120.0)


def weights_of(start: int, count: int, dim: int) -> F32:
    """f32[count, dim]: what `fill` has given to the keys from place `start`, a multiple of LOAD_ROWS, on."""
    rng = np.random.default_rng([start // LOAD_ROWS, dim])
    return (rng.random((count, dim), np.float32) - np.float32(0.5)) * np.float32(0.02)


def dense_step(store: Any, config: TrainConfig, batch: Batch, repetitions: int = 5) -> float:
    """Seconds of processor time of one forward and backward pass (median), pull and push not counted."""
    worker = Worker(store, config)
    pulled = worker.pull(batch)
    taken = []
    for _ in range(repetitions):
        start = time.process_time()
        worker.compute(batch, pulled)
        taken.append(time.process_time() - start)
    return float(np.median(taken))


def calibrated(wanted_s: float, dim: int, batch: Batch) -> tuple[ModelConfig, float]:
    """The model of MODELS whose dense step comes nearest to `wanted_s` on this machine, and what it takes."""
    from ecstore.trainer import LocalStore

    best: tuple[ModelConfig, float] | None = None
    for bottom, top in MODELS:
        model = ModelConfig(dim=dim, bottom_hidden=bottom, top_hidden=top)
        taken = dense_step(LocalStore(), train_config("none", 0, model), batch)
        if best is None or abs(math.log(taken / wanted_s)) < abs(math.log(best[1] / wanted_s)):
            best = (model, taken)
        if taken > wanted_s:
            break
    assert best is not None
    return best


def describe(model: ModelConfig) -> str:
    """Layers and parameters in words."""
    widths = "-".join(map(str, model.bottom_sizes)), "-".join(map(str, model.top_sizes))
    return f"DLRM {widths[0]} and {widths[1]}, {Dlrm(model).parameters:,} dense parameters"


def cpu_s(pid: int) -> float:
    """Processor seconds (user and system) that a process has used; NaN where the system does not tell (no /proc)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
