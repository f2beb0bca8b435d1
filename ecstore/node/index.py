"""Key index: key -> slot, in about 9 bytes a row, growing in short steps. No per-key Python.

The table holds no keys. An entry is one u32: 0 = free, else slot + 1 in the lower bits and, in the bits that
the largest slot leaves over, a tag of the key's hash; the key itself is read from the key list to be sure.

Growth is linear hashing (Litwin 1980) over segments: the table is cut into segments of 4,096 entries, each a
small open-addressing table with linear probing. A hash's low bits choose the segment; when the load passes
the limit, the next segment in turn is split in two. So no growth step moves more than one segment's keys
(microseconds), the load is even over time, and nothing is copied: the address space is reserved at the start.
A removal shifts the entries behind it back (Knuth, volume 3, 6.4, algorithm R), so there are no tombstones
and removals leave no trace.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore.errors import CapacityError
from ecstore.jit import kernel
from ecstore.node.keylist import MAX_SLOTS, KeyList
from ecstore.node.slab import reserve
from ecstore.prefetch import prefetch_read

KeyArray: TypeAlias = npt.NDArray[np.uint64]
SlotArray: TypeAlias = npt.NDArray[np.int64]
Table: TypeAlias = npt.NDArray[np.uint32]
State: TypeAlias = npt.NDArray[np.int64]
Int: TypeAlias = int | np.int64

SEGMENT = 4096
_SEGMENT_BITS = 12
#: Mean entries of a segment. Segments still to be split hold twice the entries of split ones: 2 * 1,720 of
#: 4,096.
_MEAN_FILL = 1720
# Layout of the state array shared with the kernels.
_SEGMENTS, _COUNT, _SLOT_BITS, _MAX_SEGMENTS = 0, 1, 2, 3
_ONE = np.uint64(1)
#: How many keys ahead memory is asked for: enough look-ups in between to hide one access each.
_FAR, _NEAR = 16, 8


@kernel
def _hash(key: np.uint64) -> np.uint64:
    mixed = key + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def _power(segments: Int) -> Int:
    """The largest power of two that is not above `segments`."""
    power = 1
    while power * 2 <= segments:
        power *= 2
    return power


@kernel
def _segment_start(mixed: np.uint64, segments: Int, power: Int) -> Int:
    """First entry of the hash's segment: its low bits, one fewer where the segment is not there yet."""
    segment = np.int64(mixed & np.uint64(2 * power - 1))
    if segment >= segments:
        segment -= power
    return segment << _SEGMENT_BITS


@kernel
def _entry(mixed: np.uint64, slot: Int, slot_bits: Int) -> np.uint32:
    tag = (mixed >> np.uint64(32)) << np.uint64(slot_bits)
    return np.uint32((tag & np.uint64(0xFFFFFFFF)) | np.uint64(slot + 1))


@kernel
def _home(mixed: np.uint64) -> Int:
    return np.int64(mixed >> np.uint64(64 - _SEGMENT_BITS))


@kernel
def _locate(table: Table, start: Int, mixed: np.uint64, key: np.uint64, keys: KeyArray, bits: Int) -> Int:
    """Position of the key's entry in its segment, or -1 - (the first free position), or -1 - SEGMENT when
    full.
    """
    slot_mask = np.uint32((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    tag = _entry(mixed, np.int64(-1), bits)
    place = _home(mixed)
    for _ in range(SEGMENT):
        entry = table[start + place]
        if entry == 0:
            return -1 - place
        if (entry & ~slot_mask) == tag and keys[np.int64(entry & slot_mask) - 1] == key:
            return place
        place = (place + 1) & (SEGMENT - 1)
    return -1 - SEGMENT


@kernel
def _find(table: Table, state: State, slot_keys: KeyArray, keys: KeyArray, out: SlotArray) -> int:
    """Slots of the keys, -1 where absent; the number of absent ones.

    A look-up reads two places of memory at random, the second one depending on the first. Both are asked for
    some keys ahead: entries _FAR keys, and the key list at the slots that these entries name _NEAR keys.
    Until its turn comes, out[i] holds the place of key i's first entry.
    """
    segments, bits = state[_SEGMENTS], state[_SLOT_BITS]
    slot_mask = np.uint32((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    power = _power(segments)
    absent = 0
    for i in range(-_FAR, len(keys)):
        if i + _FAR < len(keys):
            ahead = _hash(keys[i + _FAR])
            first = _segment_start(ahead, segments, power) + _home(ahead)
            out[i + _FAR] = first
            prefetch_read(table, first)
        if 0 <= i + _NEAR < len(keys):
            named = table[out[i + _NEAR]] & slot_mask
            if named != 0:
                prefetch_read(slot_keys, np.int64(named) - 1)
        if i < 0:
            continue
        mixed = _hash(keys[i])
        start = _segment_start(mixed, segments, power)
        place = _locate(table, start, mixed, keys[i], slot_keys, bits)
        if place < 0:
            out[i] = -1
            absent += 1
        else:
            out[i] = np.int64(table[start + place] & slot_mask) - 1
    return absent


@kernel
def _split(table: Table, state: State, slot_keys: KeyArray, spare: Table) -> bool:
    """Add one segment: the next in turn is emptied and its entries go back to it or to the new one."""
    segments, bits = state[_SEGMENTS], state[_SLOT_BITS]
    if segments >= state[_MAX_SEGMENTS]:
        return False
    old = (segments - _power(segments)) << _SEGMENT_BITS
    for i in range(SEGMENT):
        spare[i] = table[old + i]
        table[old + i] = 0
    state[_SEGMENTS] = segments + 1
    power = _power(segments + 1)
    slot_mask = np.uint32((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    for i in range(SEGMENT):
        if spare[i] != 0:
            mixed = _hash(slot_keys[np.int64(spare[i] & slot_mask) - 1])
            start = _segment_start(mixed, segments + 1, power)
            place = _home(mixed)
            while table[start + place] != 0:
                place = (place + 1) & (SEGMENT - 1)
            table[start + place] = spare[i]
    return True


@kernel
def _insert(table: Table, state: State, slot_keys: KeyArray, spare: Table, keys: KeyArray, slots: SlotArray) -> int:
    """Insert or replace; the number of keys done, which is less than all only when the reserve is used up."""
    power = _power(state[_SEGMENTS])
    for i in range(len(keys)):
        mixed = _hash(keys[i])
        if state[_COUNT] >= state[_SEGMENTS] * _MEAN_FILL:
            _split(table, state, slot_keys, spare)
            power = _power(state[_SEGMENTS])
        start = _segment_start(mixed, state[_SEGMENTS], power)
        place = _locate(table, start, mixed, keys[i], slot_keys, state[_SLOT_BITS])
        while place == -1 - SEGMENT:  # full before its turn: not seen with a mixed hash, but must not lose a key
            if not _split(table, state, slot_keys, spare):
                return i
            power = _power(state[_SEGMENTS])
            start = _segment_start(mixed, state[_SEGMENTS], power)
            place = _locate(table, start, mixed, keys[i], slot_keys, state[_SLOT_BITS])
        if place < 0:
            place = -1 - place
            state[_COUNT] += 1
        table[start + place] = _entry(mixed, slots[i], state[_SLOT_BITS])
    return len(keys)


@kernel
def _remove(table: Table, state: State, slot_keys: KeyArray, keys: KeyArray) -> int:
    """Remove the keys that are there; how many there were."""
    bits = state[_SLOT_BITS]
    slot_mask = np.uint32((np.uint64(1) << np.uint64(bits)) - np.uint64(1))
    power = _power(state[_SEGMENTS])
    removed = 0
    for i in range(len(keys)):
        mixed = _hash(keys[i])
        start = _segment_start(mixed, state[_SEGMENTS], power)
        hole = _locate(table, start, mixed, keys[i], slot_keys, bits)
        if hole < 0:
            continue
        removed += 1
        table[start + hole] = 0
        place = (hole + 1) & (SEGMENT - 1)
        while table[start + place] != 0:
            entry = table[start + place]
            home = _home(_hash(slot_keys[np.int64(entry & slot_mask) - 1]))
            # The entry may fill the hole unless its home lies cyclically behind the hole, at most at its
            # place.
            if ((place - home) & (SEGMENT - 1)) >= ((place - hole) & (SEGMENT - 1)):
                table[start + hole] = entry
                table[start + place] = 0
                hole = place
            place = (place + 1) & (SEGMENT - 1)
    state[_COUNT] -= removed
    return removed


class KeyIndex:
    """key (u64, every value valid) -> slot, over the keys of one key list.

    `key_list` must hold a key at its slot before `insert`, and still hold it during `remove`. At most
    `max_rows` keys with slots below `max_rows`.
    """

    def __init__(self, key_list: KeyList, max_rows: int) -> None:
        assert 0 < max_rows <= MAX_SLOTS
        self._key_list = key_list
        # A quarter more than the mean needs, for the keys that a hash spreads unevenly.
        segments = max_rows // _MEAN_FILL * 5 // 4 + 8
        self._table: Table = reserve(segments * SEGMENT, np.uint32)
        self._spare: Table = np.empty(SEGMENT, np.uint32)
        self._state: State = np.array([1, 0, max_rows.bit_length(), segments], np.int64)

    def __len__(self) -> int:
        """Keys in the index."""
        return int(self._state[_COUNT])

    def find(self, keys: KeyArray) -> SlotArray:
        """Slots i64[n] of keys u64[n]; -1 where a key is absent."""
        return self.find_counted(keys)[0]

    def find_counted(self, keys: KeyArray) -> tuple[SlotArray, int]:
        """(slots as `find` gives them, how many keys are absent)."""
        out = np.empty(len(keys), np.int64)
        return out, _find(self._table, self._state, self._key_list.storage, keys, out)

    def insert(self, keys: KeyArray, slots: SlotArray) -> None:
        """Add keys u64[n] at slots i64[n]; a key that is there gets the new slot.

        CapacityError when the reserved table is full (it holds `max_rows` keys under any fair hash).
        """
        done = _insert(self._table, self._state, self._key_list.storage, self._spare, keys, slots)
        if done < len(keys):
            raise CapacityError(f"the key index is full at {len(self)} keys; raise the table's row limit")

    def remove(self, keys: KeyArray) -> int:
        """Take keys out; absent ones are ignored. Returns how many there were."""
        return _remove(self._table, self._state, self._key_list.storage, keys)

    def memory(self) -> int:
        """Bytes in use."""
        return int(self._state[_SEGMENTS]) * SEGMENT * 4

    def close(self) -> None:
        """Give the memory up; the index is not usable afterwards."""
        self._table = np.empty(0, np.uint32)
