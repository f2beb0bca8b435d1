"""The faster ways give the same bytes as the plain ones: no delta, lists in steps, rows uncopied, reserved memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ecstore import limits
from ecstore.errors import ShapeError
from ecstore.node import keylist
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.keylist import KeyList
from ecstore.node.rowstore import RowStore
from ecstore.node.slab import Slab
from ecstore.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from ecstore.tables import TableSpec, Uniform

OPTIMIZERS = [SGD(0.1), Adagrad(0.1), RowWiseAdagrad(0.1, initial_accumulator=0.5), Adam(0.1)]


def make_spec(optimizer=OPTIMIZERS[1], dim=5) -> TableSpec:
    return TableSpec("t", dim, optimizer, Uniform(-0.5, 0.5), 11, "rs(3,2)")


def whole(store: RowStore) -> np.ndarray:
    return store.read(np.arange(store.used))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_rows_are_the_same_with_and_without_a_delta(optimizer):
    """With repeats, new and old keys, single rows and none."""
    rng = np.random.default_rng(5)
    for dim in (1, 5, 16):
        spec = make_spec(optimizer, dim)
        kept, dropped = RowStore(spec, max_rows=500), RowStore(spec, max_rows=500)
        for count in (1, 0, 2, 40, 40, 1, 200):
            keys = rng.integers(0, 150, count).astype(np.uint64)
            grads = rng.normal(size=(count, dim)).astype(np.float32)
            with_it = kept.push(keys, grads)
            without = dropped.push(keys, grads, with_delta=False)
            assert (without.slots.size, without.delta.shape) == (0, (0, spec.row_bytes))
            np.testing.assert_array_equal(without.new_keys, with_it.new_keys)
            np.testing.assert_array_equal(whole(kept), whole(dropped))
            rows = rng.integers(0, 256, (count, spec.row_bytes), dtype=np.uint8)
            kept.put(keys, rows)
            dropped.put(keys, rows, with_delta=False)
            np.testing.assert_array_equal(whole(kept), whole(dropped))


def test_a_shard_makes_deltas_as_soon_as_it_has_a_sink():
    shard = DataShard(0, 0, max_rows=64)
    shard.open_table(1, make_spec())
    keys, grads = np.arange(4, dtype=np.uint64), np.ones((4, 5), np.float32)
    assert shard.push(1, keys, grads, b"c", 1).delta.shape[0] == 0
    shard.add_sink(SinkKey(1, "n2", 1), shard.seq)
    frame = shard.push(1, keys, grads, b"c", 2)
    assert frame.delta.shape[0] == 4
    assert [each.seq for each in shard.log.after(0)] == [2]


@pytest.mark.parametrize("step", [1, 3, 7, 1 << 14])
def test_a_key_list_adopted_in_steps_is_the_same_list(monkeypatch, step):
    rng = random.Random(step)
    former = RowStore(make_spec(), max_rows=200)
    former.push(np.arange(60, dtype=np.uint64), np.ones((60, 5), np.float32))
    former.delete(np.array(rng.sample(range(60), 25), np.uint64))
    monkeypatch.setattr(limits, "ADOPT_SLOTS", step)
    successor = RowStore(make_spec(), max_rows=200)
    steps = sum(1 for _ in successor.adopting(*former.keylist.snapshot()))
    assert steps == -(-former.used // step) - 1
    assert (successor.used, len(successor)) == (former.used, len(former))
    every = np.arange(70, dtype=np.uint64)
    np.testing.assert_array_equal(successor.find(every), former.find(every))
    more = np.arange(1000, 1040, dtype=np.uint64)  # they take the lowest free slots first
    ours, theirs = (store.push(more, np.ones((40, 5), np.float32)) for store in (successor, former))
    np.testing.assert_array_equal(ours.new_slots, theirs.new_slots)


def test_rows_are_taken_over_without_a_copy_and_closed_one_by_one():
    former = RowStore(make_spec(), max_rows=64)
    former.push(np.arange(9, dtype=np.uint64), np.ones((9, 5), np.float32))
    copy = Slab(former.row_bytes, 64)
    copy.rows[:9] = whole(former)
    successor = RowStore(make_spec(), max_rows=64)
    successor.adopt(*former.keylist.snapshot())
    successor.take_rows(copy)
    assert np.shares_memory(successor.raw_rows, copy.rows)
    copy.close()
    np.testing.assert_array_equal(whole(successor), whole(former))
    for store in (successor, former):
        store.push(np.arange(20, dtype=np.uint64), np.ones((20, 5), np.float32))
    np.testing.assert_array_equal(whole(successor), whole(former))
    with pytest.raises(ShapeError):
        successor.take_rows(Slab(former.row_bytes, 32))


def test_a_key_list_that_has_grown_into_reserved_memory_moves_no_more(monkeypatch):
    monkeypatch.setattr(keylist, "_RESERVE_FROM", 3000)
    monkeypatch.setattr(limits, "MAX_ROWS_PER_SHARD", 20_000)
    keys = KeyList()
    places = []
    for start in range(0, 24_000, 500):
        slots = np.arange(start, start + 500, dtype=np.uint32)
        keys.apply(slots, slots.astype(np.uint64) * 7, np.empty(0, np.uint32))
        places.append(keys.storage.ctypes.data)
    assert len(set(places[6:40])) == 1  # beyond the largest shard it is copied again rather than be wrong
    np.testing.assert_array_equal(keys.keys, np.arange(24_000, dtype=np.uint64) * 7)
    assert keys.allocated.all()
    other = KeyList()
    other.load(*keys.snapshot())
    np.testing.assert_array_equal(other.keys, keys.keys)
    assert other.live == keys.live == 24_000
