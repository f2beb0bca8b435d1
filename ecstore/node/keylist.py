"""Key list: which key each slot of a data shard holds. Replicated: the owner and every parity shard keep one.

Also the owner's list of free slots, which is a function of the key list alone.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore import limits
from ecstore.errors import FrameError
from ecstore.node.slab import reserve

KeyArray: TypeAlias = npt.NDArray[np.uint64]
FlagArray: TypeAlias = npt.NDArray[np.uint8]
SlotArray: TypeAlias = npt.NDArray[np.uint32]

_FIRST_SIZE = 1024
#: A list that has grown to this size moves, once, into address space for the largest shard, and is never copied again:
#: a copy of a long list would hold the node up. Below, many small tables don't take a mapping each.
_RESERVE_FROM = 1 << 16
#: Slots are u32 and the index stores slot + 1 in 32 bits.
MAX_SLOTS = 2**32 - 2


class KeyList:
    """slot -> key (u64) and slot -> allocated (u8, 0 or 1), 9 bytes a slot.

    Storage grows by an eighth (what is not used yet counts as memory, too) and is copied then; beyond 65,536 slots it
    is reserved address space, of which the system charges what was once written. Views from `keys` and `allocated` are
    right until the next change.
    """

    def __init__(self) -> None:
        self._keys: KeyArray = np.zeros(_FIRST_SIZE, np.uint64)
        self._allocated: FlagArray = np.zeros(_FIRST_SIZE, np.uint8)
        self.used = 0  #: high-water mark: slots [0, used) were allocated at some time
        self.live = 0  #: slots allocated now

    @property
    def keys(self) -> KeyArray:
        """u64[used] view; the key of a freed slot is the last it held."""
        return self._keys[: self.used]

    @property
    def allocated(self) -> FlagArray:
        """u8[used] view: 1 where the slot holds a key now."""
        return self._allocated[: self.used]

    @property
    def storage(self) -> KeyArray:
        """The whole key array, longer than `used`: for kernels that look keys up by slot."""
        return self._keys

    def apply(self, new_slots: SlotArray, new_keys: KeyArray, freed_slots: SlotArray) -> None:
        """Take over one delta's changes. A delta never has one slot both freed and new; frees are done first.

        Raises FrameError, with nothing changed, when the lengths differ or a freed slot was never allocated.
        """
        if len(new_slots) != len(new_keys):
            raise FrameError(f"{len(new_slots)} new slots came with {len(new_keys)} keys; resend the delta")
        if len(freed_slots):
            if int(freed_slots.max()) >= self.used:
                raise FrameError("a delta frees a slot that was never allocated; resend from the first gap")
            self.live -= int(np.count_nonzero(self._allocated[freed_slots]))
            self._allocated[freed_slots] = 0
        if len(new_slots):
            top = int(new_slots.max()) + 1
            self._grow(top)
            self.live += len(new_slots) - int(np.count_nonzero(self._allocated[new_slots]))
            self._keys[new_slots] = new_keys
            self._allocated[new_slots] = 1
            self.used = max(self.used, top)

    def snapshot(self) -> tuple[KeyArray, FlagArray]:
        """Copies of (keys u64[used], allocated u8[used]), to be sent or kept."""
        return self.keys.copy(), self.allocated.copy()

    def load(self, keys: KeyArray, allocated: FlagArray) -> None:
        """Replace the whole list by copies of these. FrameError, nothing changed, when lengths differ."""
        if len(keys) != len(allocated):
            raise FrameError(f"a key list came with {len(keys)} keys and {len(allocated)} flags; ask for it again")
        self.used = self.live = 0
        self._keys, self._allocated = np.zeros(_FIRST_SIZE, np.uint64), np.zeros(_FIRST_SIZE, np.uint8)
        self._grow(len(keys))
        self.extend(keys, allocated)

    def extend(self, keys: KeyArray, allocated: FlagArray) -> None:
        """Copies of these become the slots after the last one: a list is loaded in parts. Lengths are equal."""
        start, stop = self.used, self.used + len(keys)
        self._grow(stop)
        self._keys[start:stop] = keys
        self._allocated[start:stop] = allocated != 0
        self.used = stop
        self.live += int(np.count_nonzero(self._allocated[start:stop]))

    def block(self, start: int, count: int) -> tuple[KeyArray, FlagArray]:
        """Copies of keys u64[count] and flags u8[count] of slots from `start` on; zeros beyond `used`."""
        keys, allocated = np.zeros(count, np.uint64), np.zeros(count, np.uint8)
        held = self._keys[start : min(start + count, self.used)]
        keys[: held.size] = held
        allocated[: held.size] = self._allocated[start : start + held.size]
        return keys, allocated

    def memory(self) -> int:
        """Bytes in use: 9 for each slot ever allocated."""
        return 9 * self.used

    def _grow(self, slots: int) -> None:
        if slots <= len(self._keys):
            return
        size = max(slots, len(self._keys) + len(self._keys) // 8)
        keys: KeyArray
        allocated: FlagArray
        if size < _RESERVE_FROM:
            keys, allocated = np.zeros(size, np.uint64), np.zeros(size, np.uint8)
        else:
            size = max(size, limits.MAX_ROWS_PER_SHARD)
            keys, allocated = reserve(size, np.uint64), reserve(size, np.uint8)
        keys[: self.used] = self._keys[: self.used]
        allocated[: self.used] = self._allocated[: self.used]
        self._keys, self._allocated = keys, allocated


def digest(keys: KeyArray, allocated: FlagArray) -> bytes:
    """8 bytes that say which slots of a block hold which keys; what a freed slot held does not count."""
    plain = np.where(allocated != 0, keys, np.uint64(0))
    return hashlib.blake2b((allocated != 0).tobytes() + plain.tobytes(), digest_size=8).digest()


class FreeSlots:
    """The slots a shard may allocate: always the lowest free one first, then the next never used.

    The rule depends on nothing but the key list, so an owner after a takeover allocates as the lost one would
    have. Free slots are kept sorted, 4 bytes each: taking is a slice, giving back a merge (linear in their
    number, once for each delete call).
    """

    def __init__(self, used: int = 0, free: SlotArray | None = None) -> None:
        self.used = used  #: slots [used, ...) were never allocated
        self._free: SlotArray = np.empty(0, np.uint32) if free is None else free  # ascending

    @classmethod
    def of(cls, keys: KeyList) -> FreeSlots:
        """The free slots that belong to this key list."""
        return cls(keys.used, np.flatnonzero(keys.allocated == 0).astype(np.uint32))

    def __len__(self) -> int:
        """Free slots below `used`."""
        return len(self._free)

    def take(self, count: int) -> SlotArray:
        """The next `count` slots u32[count]; the caller has checked that the shard may hold them."""
        reused, self._free = self._free[:count], self._free[count:]
        fresh = np.arange(self.used, self.used + count - len(reused), dtype=np.uint32)
        self.used += len(fresh)
        return np.concatenate([reused, fresh])

    def put(self, slots: SlotArray) -> None:
        """Give slots back."""
        self._free = np.sort(np.concatenate([self._free, slots]), kind="stable")
