"""What the demonstration is to do, checked before anything is started."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ecstore.codec import Code
from ecstore.errors import ConfigError
from ecstore.launcher import NodeSettings
from ecstore.launcher.nodes import MIB

if TYPE_CHECKING:
    from ecstore.trainer import Dataset, TrainConfig

#: Samples of the synthetic log: some 280 batches, 15 seconds on two busy cores.
SYNTHETIC_SAMPLES: Final = 21_000
#: Files up to this size are read into memory; larger ones are streamed.
IN_MEMORY_BYTES: Final = 200 * MIB
#: Seconds that bringing back what one lost node held would take at the end of the training, when every row is there.
#: The nodes are killed earlier, so it takes less; but long enough to watch it.
DECODE_S: Final = 3.0
MIN_MIB_PER_S: Final = 0.02
_ROW_BYTES: Final = 128  # of an embedding: 16 weights and as many numbers of optimizer state, float32
_DENSE_BYTES: Final = 200_000
_LOOK_AT_SAMPLES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Raises ConfigError or CodeError for what cannot be."""

    data: str = "synthetic"  #: or a Criteo TSV file
    strict: bool = False  #: stop at the first bad line of the file
    nodes: int = 6
    code: str = "rs(3,2)"
    kill: int = 2  #: nodes in each round
    kill_together: bool = False  #: all at the same instant, instead of each while the one before is being decoded
    rounds: int = 1  #: in between, the killed nodes are started again and everything moves back
    epochs: int | None = None
    batches: int | None = None
    batch_size: int | None = None
    seed: int = 1
    settings: NodeSettings = field(default_factory=NodeSettings)

    def __post_init__(self) -> None:
        code = Code.parse(self.code)
        if self.nodes < code.width:
            raise ConfigError(
                f"{code.name} needs {code.width} nodes and there are {self.nodes}; give --nodes {code.width} or more"
            )
        if not 0 <= self.kill < self.nodes:
            raise ConfigError(f"--kill {self.kill} must leave at least one of {self.nodes} nodes")
        if self.rounds < 1:
            raise ConfigError("--rounds is at least 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("--seed is 0 to 2**63 - 1")
        if self.kill and not self.kill_together:
            left = self.nodes - (self.kill - 1)
            if code.m < math.ceil(code.width / left):
                raise ConfigError(
                    f"{code.name} on {self.nodes} nodes cannot lose {self.kill} of them one after the other; "
                    "give more --nodes or a smaller --kill (with --kill-together the demonstration shows what a loss "
                    "looks like)"
                )

    def dataset(self) -> Dataset:
        """The data; DataError when it cannot be read."""
        from ecstore.trainer import CriteoFile, SyntheticConfig, SyntheticLog, load_criteo

        if self.data == "synthetic":
            return SyntheticLog(SyntheticConfig(samples=SYNTHETIC_SAMPLES, seed=self.seed))
        path = Path(self.data)
        large = path.is_file() and path.stat().st_size > IN_MEMORY_BYTES
        return CriteoFile(path, strict=self.strict) if large else load_criteo(path, strict=self.strict)

    def train_config(self) -> TrainConfig:
        from ecstore.trainer import TrainConfig

        plain = TrainConfig()
        return TrainConfig(
            code=self.code,
            seed=self.seed,
            epochs=plain.epochs if self.epochs is None else self.epochs,
            batch_size=plain.batch_size if self.batch_size is None else self.batch_size,
            max_batches=self.batches,
        )

    def decode_mib_per_s(self, dataset: Dataset) -> float:
        """The rate of background decoding: as given, or such that one lost node takes up to `DECODE_S`.

        Small data would be back in the blink of an eye otherwise, and no second node could be killed meanwhile.
        """
        if self.settings.decode_mib_per_s is not None:
            return self.settings.decode_mib_per_s
        keys: list[npt.NDArray[np.uint64]] = []
        seen = 0
        for batch in dataset.train_batches(1024):
            keys.append(np.unique(batch.keys))
            seen += len(batch)
            if seen >= _LOOK_AT_SAMPLES:
                break
        distinct = len(np.unique(np.concatenate(keys))) if keys else 1
        rows: float = distinct * (dataset.train_samples / max(1, seen)) ** 0.8  # new keys become rarer
        code = Code.parse(self.code)
        # What the node held of the data is decoded, and the data shards of the parity it held are read.
        lost = (rows * _ROW_BYTES + _DENSE_BYTES) * (1 + code.m) / self.nodes
        return max(MIN_MIB_PER_S, lost / max(1, self.nodes - self.kill) / DECODE_S / MIB)
