"""A synthetic click log with a hidden ground truth, so that a model's AUC means something.

Every sample is drawn from fixed distributions: 13 integers (rounded log-normal, some missing, some negative)
and 26 categories whose ids follow a bounded Zipf law, a few hot ids and a long tail, as in real click logs.
The label is drawn from a logistic model with weights for every category and integer that only this module
knows:

    P(click) = sigmoid(bias + sum over features of weight[feature, id] + sum of slope[i] * dense[i])

The log is made in blocks of `BLOCK_SAMPLES`; block b is a function of (seed, b) alone. So the samples depend
neither on the batch size nor on which blocks were made before, and a log of any length needs the memory of
one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from ecstore.errors import ConfigError
from ecstore.trainer.data import (
    BLOCK_SAMPLES,
    CATEGORICAL_FEATURES,
    DENSE_FEATURES,
    MISSING,
    BadLines,
    Batch,
    category_keys,
    held_out,
    log_transform,
    rebatch,
)

_SPREAD = np.uint32(2_654_435_761)  # odd, so that multiplying by it modulo 2**32 maps no two ids to one
_MISSING_SHARE = 0.1
_NEGATIVE_SHARE = 0.02
_STRONG_FEATURES = 8  # features whose ids matter much for the label; those of the others matter little
_STRONG, _WEAK = 0.75, 0.15  # standard deviations of an id's weight
_SLOPE = 0.5  # standard deviation of the slopes


@dataclass(frozen=True, slots=True)
class SyntheticConfig:
    """Settings of a synthetic log. Raises `ConfigError` when one is out of range."""

    samples: int = 35_000  #: training and test part together
    seed: int = 1
    categories: int = 20_000  #: ids of the largest feature; the others have fewer, down to some ten
    exponent: float = 1.2  #: of the Zipf law: P(rank r) is near r^-exponent; above 1
    bias: float = -1.3  #: sets the share of clicks: some 25 %

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"a synthetic log needs at least 1 sample, not {self.samples}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"the seed of a synthetic log is 0..2**63-1, not {self.seed}")
        if not 10 <= self.categories < 2**32:
            raise ConfigError(f"categories is 10..2**32-1, not {self.categories}")
        if not 1.0 < self.exponent <= 8.0:
            raise ConfigError(f"the Zipf exponent is above 1 and at most 8, not {self.exponent}")


class SyntheticLog:
    """A `Dataset` that makes its samples when they are read."""

    def __init__(self, config: SyntheticConfig | None = None) -> None:
        self.config = config if config is not None else SyntheticConfig()
        self.name = f"synthetic(seed={self.config.seed})"
        self.bad_lines = BadLines()
        self.test_samples = held_out(self.config.samples)
        self.train_samples = self.config.samples - self.test_samples
        # Sizes fall geometrically from `categories` to 10, as those of a real log do, in an order of their
        # own.
        sizes = np.geomspace(10, self.config.categories, CATEGORICAL_FEATURES).round().astype(np.int64)
        truth = np.random.Generator(np.random.PCG64([self.config.seed, 0x7477]))
        self.sizes = truth.permutation(sizes)  #: ids of each feature, int64[26]
        strong = truth.permutation(CATEGORICAL_FEATURES) < _STRONG_FEATURES
        self._strength = np.where(strong, _STRONG, _WEAK)
        self._slopes = truth.standard_normal(DENSE_FEATURES) * _SLOPE
        self._salt = np.uint64(truth.integers(2**63))

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        return rebatch(self._samples(0, self.train_samples), batch_size)

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        return rebatch(self._samples(self.train_samples, self.config.samples), batch_size)

    def _samples(self, start: int, stop: int) -> Iterator[Batch]:
        """Samples start..stop-1, block by block."""
        for number in range(start // BLOCK_SAMPLES, -(-stop // BLOCK_SAMPLES)):
            first = number * BLOCK_SAMPLES
            yield self.block(number).slice(max(start - first, 0), min(stop - first, BLOCK_SAMPLES))

    def block(self, number: int) -> Batch:
        """Block `number` of the log, from 0: always `BLOCK_SAMPLES` samples."""
        return self._block(number)[0]

    def truth(self, number: int) -> npt.NDArray[np.float64]:
        """The hidden P(click) f64[BLOCK_SAMPLES] of the samples of a block; the best any model can know."""
        return self._block(number)[1]

    @staticmethod
    def spread(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Ids of ranks, both of any shape: spread over 32 bits, as hashed categories are."""
        return ranks.astype(np.uint32) * _SPREAD

    def _block(self, number: int) -> tuple[Batch, npt.NDArray[np.float64]]:
        random = np.random.Generator(np.random.PCG64([self.config.seed, 0xDA7A, number]))
        shape = (BLOCK_SAMPLES, CATEGORICAL_FEATURES)
        ranks = self._zipf(random.random(shape))
        missing = random.random(shape) < _MISSING_SHARE
        dense = log_transform(_integers(random))
        effect = np.where(missing, 0.0, self._id_weights(ranks))
        logits = self.config.bias + effect.sum(axis=1) + (dense - 0.4) @ self._slopes
        clicks = 1.0 / (1.0 + np.exp(-logits))
        labels = (random.random(BLOCK_SAMPLES) < clicks).astype(np.float32)
        keys = category_keys(self.spread(ranks), missing)
        return Batch(labels, dense, keys), clicks

    def _zipf(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Ranks 0..size-1 of each feature from numbers in [0, 1): the inverse distribution function.

        The density x^-a on [1, size + 1), rounded down: near Zipf's law, for any number of ids, without a
        table.
        """
        power = 1.0 - self.config.exponent
        last = (self.sizes + 1.0) ** power
        ranks = np.floor((1.0 - uniform * (1.0 - last)) ** (1.0 / power)).astype(np.int64) - 1
        return cast("npt.NDArray[np.int64]", np.clip(ranks, 0, self.sizes - 1))

    def _id_weights(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The hidden weight of each id, mean 0: a hash of (seed, feature, id), no table.

        The sum of four uniform numbers of 16 bits: variance 1/3, near normal.
        """
        feature = np.arange(CATEGORICAL_FEATURES, dtype=np.uint64) << np.uint64(40)
        bits = _mix((ranks.astype(np.uint64) | feature) ^ self._salt)
        total = np.zeros(ranks.shape)
        for shift in (0, 16, 32, 48):
            total += (bits >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.float64)
        return cast("npt.NDArray[np.float64]", (total / 2.0**16 - 2.0) * np.sqrt(3.0) * self._strength)


def _integers(random: np.random.Generator) -> npt.NDArray[np.int64]:
    """int64[BLOCK_SAMPLES, 13]: rounded log-normal counts, some -1, some missing."""
    shape = (BLOCK_SAMPLES, DENSE_FEATURES)
    counts = np.floor(np.exp(random.standard_normal(shape) * 1.5 + 1.5)).astype(np.int64)
    kind = random.random(shape)
    counts[kind < _MISSING_SHARE + _NEGATIVE_SHARE] = -1
    counts[kind < _MISSING_SHARE] = MISSING
    return counts


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A 64-bit mixing function (the finaliser of MurmurHash3, Appleby 2008)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
