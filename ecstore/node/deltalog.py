"""Deltas and the log that keeps them: what one data shard did, in order, by seq.

Rule 1: a log holds consecutive seqs. `first` is the lowest seq it holds, `last` the highest ever appended.
Rule 2: a log never drops a frame that somebody may still need; who needs what is told by `trim`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

#: Bytes that a frame costs beyond the contents of its arrays, for the byte bounds: five array objects and its own.
_FRAME_OVERHEAD_BYTES = 1024


@dataclass(slots=True, eq=False)
class DeltaFrame:
    """One delta of one data shard. Arrays are shared between logs and connections: nobody writes to them.

    slots: uint32 (n,); delta: uint8 (n, row_bytes), old XOR new; new_slots uint32 (a,) with new_keys uint64 (a,):
    slots that got a key; freed_slots uint32 (f,): slots that lost theirs. client/request_no: the push this delta
    answers (b"" and 0 for load and delete by the node itself).
    """

    seq: int
    table_id: int
    slots: U32
    delta: U8
    new_slots: U32
    new_keys: U64
    freed_slots: U32
    client: bytes
    request_no: int
    #: Memory the frame holds, for bounds.
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.delta.nbytes + self.slots.nbytes + self.new_slots.nbytes * 3 + _FRAME_OVERHEAD_BYTES


class FrameLog:
    """Consecutive frames of one data shard."""

    __slots__ = ("_frames", "_next", "_times", "nbytes")

    def __init__(self, next_seq: int = 1) -> None:
        self._frames: deque[DeltaFrame] = deque()
        self._times: deque[float] = deque()  # when each was appended
        self._next = next_seq  # seq that append() expects
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def first(self) -> int:
        """Lowest seq held; `last + 1` when the log is empty."""
        return self._frames[0].seq if self._frames else self._next

    @property
    def last(self) -> int:
        return self._next - 1

    def append(self, frame: DeltaFrame, now: float = 0.0) -> None:
        assert frame.seq == self._next, f"log expects seq {self._next}, got {frame.seq}"
        self._frames.append(frame)
        self._times.append(now)
        self._next += 1
        self.nbytes += frame.nbytes

    def reaches(self, after_seq: int) -> bool:
        """True when every frame with seq > after_seq that was ever appended is still here."""
        return self.first <= after_seq + 1

    def after(self, seq: int) -> list[DeltaFrame]:
        """Frames with a seq above `seq`, oldest first. The caller has checked `reaches`."""
        newer: list[DeltaFrame] = []
        for frame in reversed(self._frames):
            if frame.seq <= seq:
                break
            newer.append(frame)
        newer.reverse()
        return newer

    def trim(
        self, needed_after: int, *, keep_bytes: int = 0, keep_frames: int = 0, keep_since: float = -math.inf
    ) -> None:
        """Drop frames with seq <= needed_after, oldest first, while the log exceeds `keep_bytes` or `keep_frames`, or
        the oldest was appended before `keep_since`.
        """
        frames, times = self._frames, self._times
        while (
            frames
            and frames[0].seq <= needed_after
            and (self.nbytes > keep_bytes or len(frames) > keep_frames or times[0] < keep_since)
        ):
            self.nbytes -= frames.popleft().nbytes
            times.popleft()

    def reset(self, next_seq: int) -> None:
        self._frames.clear()
        self._times.clear()
        self._next = next_seq
        self.nbytes = 0
