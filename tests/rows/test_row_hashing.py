"""Hashes: pinned values (they decide where rows lie and what they start with), spread, and agreement of all
forms.
"""

from __future__ import annotations

import numpy as np
import pytest

from ecstore.hashing import initial_weights, mix64, mix64_int, shard_of, shard_seed, weight_seed
from ecstore.node.rowstore import RowStore
from ecstore.optim import SGD
from ecstore.tables import Constant, TableSpec, Uniform, Zeros

WORD = 2**64 - 1
EDGE_KEYS = np.array([0, 1, 2, 2**32, 2**63 - 1, 2**63, WORD], np.uint64)


def plain_mix(value: int) -> int:
    """The published finaliser in Python's unbounded integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def test_mix64_is_splitmix64():
    assert mix64(EDGE_KEYS).tolist() == [plain_mix(int(key)) for key in EDGE_KEYS]
    # First outputs of the published generator from state 0: the finaliser of 1, 2, 3 times the golden number.
    states = np.array([1, 2, 3], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix64(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix64_int(-1) == plain_mix(WORD)


@pytest.mark.parametrize("shards", [1, 2, 7, 60, 1000])
def test_shard_of_is_the_multiply_high_of_the_hash(shards):
    seed = 12345
    expected = [((plain_mix(int(key) ^ int(shard_seed(seed))) >> 32) * shards) >> 32 for key in EDGE_KEYS]
    assert shard_of(EDGE_KEYS, seed, shards).tolist() == expected


@pytest.mark.parametrize("keys", [np.arange(60_000), np.arange(60_000) << 32, np.arange(60_000) * 4096])
def test_shards_are_evenly_filled_by_regular_keys(keys):
    """Chi-square of 60 shards, 1,000 keys each: 59 degrees of freedom, so beyond 120 would be a one in 10^5
    case.
    """
    counts = np.bincount(shard_of(keys.astype(np.uint64), 7, 60), minlength=60)
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 120


def test_seeds_give_unrelated_shards():
    keys = np.arange(20_000, dtype=np.uint64)
    same = (shard_of(keys, 1, 10) == shard_of(keys, 2, 10)).mean()
    assert 0.08 < same < 0.12


def plain_weights(init: Uniform, seed: int, key: int, dim: int) -> list[float]:
    """The documented rule with Python integers and one float32 operation at a time."""
    low, span, top = init.affine()
    state = plain_mix(key ^ int(weight_seed(seed)))
    weights = []
    for column in range(dim):
        bits = plain_mix((state + (column // 2 + 1) * 0x9E3779B97F4A7C15) & WORD)
        part = (bits >> 8) & 0xFFFFFF if column % 2 else bits >> 40
        unit = np.float32(part) * np.float32(2.0**-24)
        weights.append(min(low + unit * span, top))
    return weights


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 63])
def test_initial_weights_follow_the_documented_rule(dim):
    init = Uniform(-0.01, 0.03)
    expected = np.array([plain_weights(init, 9, int(key), dim) for key in EDGE_KEYS], np.float32)
    actual = initial_weights(init, 9, EDGE_KEYS, dim)
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def test_initial_weights_are_pinned():
    """Stored data depends on these bits: a change here is a change of the format."""
    bits = initial_weights(Uniform(-1.0, 1.0), 1, np.array([0, WORD], np.uint64), 3).view(np.uint32)
    assert [hex(value) for value in bits.ravel()] == [
        "0x3e3a9f78",
        "0x3d1a6560",
        "0x3da00c40",
        "0x3e853414",
        "0xbdc908d0",
        "0xbf35f5b4",
    ]


@pytest.mark.parametrize("init", [Uniform(-1.0, 2.0), Zeros(), Constant(0.5)])
@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_a_row_store_starts_rows_with_the_same_bits(init, dim):
    """The rule stands in two compiled files."""
    store = RowStore(TableSpec("t", dim, SGD(0.1), init, 77, "none"), max_rows=16)
    expected = initial_weights(init, 77, EDGE_KEYS, dim)
    out = np.empty((len(EDGE_KEYS), dim), np.float32)
    store.pull(EDGE_KEYS, out)
    np.testing.assert_array_equal(out, expected)
    store.push(EDGE_KEYS, np.zeros_like(out))
    store.pull(EDGE_KEYS, out)
    np.testing.assert_array_equal(out, expected)


def test_uniform_is_spread_over_its_interval_and_stays_below_high():
    weights = initial_weights(Uniform(-0.01, 0.01), 3, np.arange(20_000, dtype=np.uint64), 8)
    assert weights.min() >= np.float32(-0.01)
    assert weights.max() < np.float32(0.01)
    counts = np.histogram(weights, bins=50, range=(-0.01, 0.01))[0]
    assert ((counts - 3200.0) ** 2 / 3200.0).sum() < 100
    assert abs(np.corrcoef(weights, rowvar=False) - np.eye(8)).max() < 0.04
    narrow = initial_weights(Uniform(1.0, 1.0 + 2.0**-22), 3, np.arange(2000, dtype=np.uint64), 4)
    assert narrow.max() < np.float32(1.0 + 2.0**-22)  # rounding alone would reach high


def test_seed_key_and_column_all_matter():
    keys = np.arange(100, dtype=np.uint64)
    weights = initial_weights(Uniform(0.0, 1.0), 1, keys, 10)
    assert len(np.unique(weights)) == weights.size
    assert not (weights == initial_weights(Uniform(0.0, 1.0), 2, keys, 10)).any()
