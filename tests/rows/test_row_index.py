"""Slab, key list, free slots and key index."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ecstore.errors import CapacityError, FrameError
from ecstore.node.index import SEGMENT, KeyIndex
from ecstore.node.keylist import FreeSlots, KeyList
from ecstore.node.slab import Slab

WORD = 2**64 - 1
NO_KEYS, NO_SLOTS = np.empty(0, np.uint64), np.empty(0, np.uint32)


def u32(*slots: int) -> np.ndarray:
    return np.array(slots, np.uint32)


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


class Checked:
    """A key index beside a dict, driven by the same operations. Slots are given in order of arrival."""

    def __init__(self, max_rows: int) -> None:
        self.key_list = KeyList()
        self.index = KeyIndex(self.key_list, max_rows)
        self.model: dict[int, int] = {}
        self.next_slot = 0

    def add(self, keys: list[int]) -> None:
        keys = [key for key in dict.fromkeys(keys) if key not in self.model]
        slots = range(self.next_slot, self.next_slot + len(keys))
        self.next_slot += len(keys)
        self.key_list.apply(np.array(slots, np.uint32), np.array(keys, np.uint64), NO_SLOTS)
        self.index.insert(np.array(keys, np.uint64), np.array(slots, np.int64))
        self.model.update(zip(keys, slots, strict=True))

    def remove(self, keys: list[int]) -> None:
        there = len(set(keys) & set(self.model))
        assert self.index.remove(np.array(keys, np.uint64)) == there
        for key in keys:
            self.model.pop(key, None)

    def has_no_traces(self) -> bool:
        """True when every entry of the table is free again."""
        return not self.index._table[: self.index.memory() // 4].any()

    def check(self, keys: list[int]) -> None:
        assert len(self.index) == len(self.model)
        found = self.index.find(np.array(keys, np.uint64))
        assert found.tolist() == [self.model.get(key, -1) for key in keys]


def test_all_keys_are_valid_and_absent_ones_are_minus_one():
    checked = Checked(100)
    checked.check([0, 1, WORD])
    checked.add([0, WORD, 2**63])
    checked.check([0, 1, 2**63, WORD, WORD - 1])


@pytest.mark.parametrize("max_rows", [50_000, 2**32 - 2], ids=["with tags", "without tags"])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_equal_a_dict(seed, max_rows):
    """Grows through several splits, with removals in between, keys dense and sparse."""
    rng = random.Random(seed)
    pool = [rng.randrange(2**64) for _ in range(15_000)] + list(range(15_000))
    checked = Checked(max_rows)
    for _ in range(60):
        batch = rng.sample(pool, rng.choice([1, 10, 3000]))
        if rng.random() < 0.6:
            checked.add(batch)
        else:
            checked.remove(batch)
        checked.check(rng.sample(pool, 500))
    checked.check(pool)
    checked.remove(pool)
    checked.check(pool)
    assert checked.has_no_traces()


def test_growth_is_one_segment_at_a_time_and_loses_nothing():
    checked = Checked(40_000)
    keys = [key * 7919 for key in range(40_000)]
    before = checked.index.memory()
    for start in range(0, len(keys), 500):
        checked.add(keys[start : start + 500])
        after = checked.index.memory()
        assert after - before in (0, SEGMENT * 4)
        before = after
    checked.check(keys)
    assert before <= 10 * len(keys) + SEGMENT * 4


def test_memory_stays_below_ten_bytes_a_row_beyond_the_first_segment():
    checked = Checked(2_000_000)
    checked.add(list(range(300_000)))  # one call over many splits
    assert checked.index.memory() / 300_000 < 10.0
    checked.check(list(range(0, 300_100, 7)))


def crowded_keys(count: int, low_bits: int) -> list[int]:
    """Keys whose hashes end in `low_bits` zero bits: all go to segment 0 until 2**low_bits segments are
    there.
    """
    found: list[int] = []
    start = 0
    while len(found) < count:
        keys = np.arange(start, start + 2_000_000, dtype=np.uint64)
        start += 2_000_000
        mixed = keys + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        found += keys[mixed & np.uint64(2**low_bits - 1) == 0].tolist()
    return found[:count]


def test_a_segment_that_fills_before_its_turn_is_split_until_there_is_room():
    checked = Checked(100_000)
    keys = crowded_keys(SEGMENT + 500, 4)
    checked.add(keys)
    checked.check(keys)
    checked.remove(keys[::2])
    checked.check(keys)


def test_a_full_reserve_is_a_capacity_error_and_keeps_what_is_in():
    checked = Checked(5_000)  # address space for 10 segments
    keys = crowded_keys(SEGMENT + 10, 4)
    with pytest.raises(CapacityError):
        checked.add(keys)
    found = checked.index.find(np.array(keys[:SEGMENT], np.uint64))
    np.testing.assert_array_equal(found, np.arange(SEGMENT))


def test_removal_shifts_entries_back_across_the_end_of_a_segment():
    """All 300 keys have their home in the last entries of the one segment, so their run wraps round."""
    keys = np.arange(2_000_000, dtype=np.uint64)
    mixed = keys + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    chosen = keys[(mixed >> np.uint64(52)) >= np.uint64(SEGMENT - 3)][:300].tolist()
    assert len(chosen) == 300
    checked = Checked(1_000)
    rng = random.Random(3)
    checked.add(chosen)
    while checked.model:
        checked.remove(rng.sample(sorted(checked.model), min(7, len(checked.model))))
        checked.check(chosen)
    assert checked.has_no_traces()


def test_inserting_a_known_key_replaces_its_slot():
    checked = Checked(100)
    checked.add([5])
    checked.key_list.apply(u32(9), u64(5), u32(0))
    checked.index.insert(u64(5), np.array([9]))
    assert checked.index.find(u64(5)).tolist() == [9]
    assert len(checked.index) == 1


def test_key_list_follows_changes_and_comes_back_from_a_snapshot():
    keys = KeyList()
    keys.apply(u32(0, 1, 2), u64(0, WORD, 7), NO_SLOTS)
    keys.apply(NO_SLOTS, NO_KEYS, u32(1))
    assert (keys.used, keys.live) == (3, 2)
    keys.apply(u32(1, 5000), u64(8, 9), NO_SLOTS)  # grows
    assert (keys.used, keys.live) == (5001, 4)
    assert keys.keys[[0, 1, 2, 5000]].tolist() == [0, 8, 7, 9]
    assert np.flatnonzero(keys.allocated).tolist() == [0, 1, 2, 5000]
    assert keys.memory() == 9 * 5001
    other = KeyList()
    other.apply(u32(3), u64(1), NO_SLOTS)
    other.load(*keys.snapshot())
    keys.apply(NO_SLOTS, NO_KEYS, u32(0))
    assert (other.used, other.live) == (5001, 4)
    np.testing.assert_array_equal(other.keys, keys.keys)
    assert other.allocated[0] == 1


def test_key_list_refuses_what_cannot_be_right():
    keys = KeyList()
    keys.apply(u32(0), u64(1), NO_SLOTS)
    with pytest.raises(FrameError):
        keys.apply(u32(1, 2), u64(5), NO_SLOTS)
    with pytest.raises(FrameError):
        keys.apply(u32(1), u64(5), u32(1))
    with pytest.raises(FrameError):
        keys.load(u64(1, 2), np.ones(1, np.uint8))
    assert (keys.used, keys.live) == (1, 1)


def test_free_slots_give_the_lowest_first_whatever_their_history():
    rng = random.Random(1)
    keys, free = KeyList(), FreeSlots()
    model: set[int] = set()
    for _ in range(300):
        if model and rng.random() < 0.5:
            back = rng.sample(sorted(model), rng.randint(1, len(model)))
            model -= set(back)
            free.put(u32(*back))
            keys.apply(NO_SLOTS, NO_KEYS, u32(*back))
        else:
            count = rng.randint(1, 9)
            expected = [slot for slot in range(10_000) if slot not in model][:count]
            assert FreeSlots.of(keys).take(count).tolist() == expected, "rebuilt from the key list alone"
            taken = free.take(count)
            assert taken.tolist() == expected
            model |= set(expected)
            keys.apply(taken, np.zeros(count, np.uint64), NO_SLOTS)


def test_slab_is_zero_aligned_and_cheap_to_reserve():
    slab = Slab(256, 1 << 30)  # 256 GiB of address space
    assert slab.rows.shape == (1 << 30, 256)
    assert slab.rows.ctypes.data % 4096 == 0
    assert slab.rows.flags.c_contiguous
    assert slab.rows.flags.writeable
    slab.rows[(1 << 30) - 1] = 7
    assert not slab.rows[12345].any()
    view = slab.rows[(1 << 30) - 1]
    slab.close()
    assert view.tolist() == [7] * 256, "memory lives as long as a view of it"
    assert len(slab.rows) == 0
