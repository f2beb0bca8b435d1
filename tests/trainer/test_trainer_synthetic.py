"""The synthetic log: a function of its seed, Zipf ids, a truth worth learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ecstore.errors import ConfigError
from ecstore.trainer.data import BLOCK_SAMPLES, Batch, concatenate
from ecstore.trainer.metrics import auc
from ecstore.trainer.synthetic import SyntheticConfig, SyntheticLog


def bits(batch: Batch) -> tuple[bytes, bytes, bytes]:
    return batch.labels.tobytes(), batch.dense.tobytes(), batch.keys.tobytes()


def test_samples_depend_on_seed_and_number_alone() -> None:
    one, other = SyntheticLog(SyntheticConfig(samples=5000)), SyntheticLog(SyntheticConfig(samples=9000))
    assert bits(one.block(3)) == bits(other.block(3))  # made first here, and whatever the length of the log
    whole = concatenate(list(one.train_batches(700)))
    assert len(whole) == one.train_samples == 5000 - 5000 // 7
    assert bits(whole) == bits(concatenate(list(one.train_batches(128))))
    assert bits(whole.slice(BLOCK_SAMPLES, 2 * BLOCK_SAMPLES)) == bits(one.block(1))
    assert bits(one.block(0)) != bits(one.block(1))
    assert bits(one.block(0)) != bits(SyntheticLog(SyntheticConfig(seed=2)).block(0))


def test_test_part_follows_the_training_part() -> None:
    log = SyntheticLog(SyntheticConfig(samples=3000))
    both = concatenate([*log.train_batches(512), *log.test_batches(512)])
    blocks = concatenate([log.block(number) for number in range(3)])
    assert bits(both) == bits(blocks.slice(0, 3000))


def test_shapes_shares_and_ids() -> None:
    log = SyntheticLog(SyntheticConfig(samples=20_000))
    batch = concatenate([log.block(number) for number in range(20)])
    assert 0.1 < batch.labels.mean() < 0.5
    assert set(np.unique(batch.labels)) == {0.0, 1.0}
    assert (batch.dense < 0).mean() == pytest.approx(0.02, abs=0.005)
    missing = (batch.keys >> np.uint64(40)) == 1
    assert missing.mean() == pytest.approx(0.1, abs=0.01)
    assert np.array_equal((batch.keys >> np.uint64(32)) & np.uint64(0xFF), np.tile(np.arange(26), (len(batch), 1)))
    for feature in range(26):
        present = batch.keys[~missing[:, feature], feature]
        assert len(np.unique(present)) <= log.sizes[feature]


def test_ids_are_zipf_distributed() -> None:
    log = SyntheticLog(SyntheticConfig())
    largest = int(np.argmax(log.sizes))
    keys = np.concatenate([log.block(number).keys[:, largest] for number in range(40)])
    keys = keys[(keys >> np.uint64(40)) == 0]
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    ranks = np.arange(3, 100)
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.15)


def test_the_truth_is_worth_learning() -> None:
    log = SyntheticLog(SyntheticConfig())
    labels = np.concatenate([log.block(number).labels for number in range(10)])
    truth = np.concatenate([log.truth(number) for number in range(10)])
    assert auc(labels, truth) > 0.8
    assert truth.mean() == pytest.approx(labels.mean(), abs=0.02)  # calibrated: labels are drawn from it


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"seed": -1}, {"categories": 2}, {"categories": 2**32}, {"exponent": 1.0}]
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SyntheticConfig(**wrong)


def test_largest_and_smallest_feature_sizes() -> None:
    for categories in (10, 2**32 - 1):
        batch = SyntheticLog(SyntheticConfig(categories=categories)).block(0)
        assert np.isfinite(batch.dense).all()
        assert batch.keys.max() < 1 << 41
