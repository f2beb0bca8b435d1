"""Cuts the byte stream of a connection into frames (pure; the connection feeds it).

Two modes. Small frames: one read fills a 64 KiB scratch buffer, all complete frames in it are copied out (a
copy of a few KiB costs less than a system call). Large frames: the body gets a buffer of its own, allocated
only after its length is checked, and the kernel writes straight into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ecstore import buffers
from ecstore.wire import MAX_HEAD_BYTES, PREFIX_BYTES, Frame, decode, decode_prefix

SCRATCH_BYTES: Final = 64 << 10

#: Bodies above this are received into a buffer of their own. Half the scratch buffer: an incomplete smaller
#: one, moved to the front, always leaves room for the next read.
DIRECT_ABOVE_BYTES: Final = SCRATCH_BYTES // 2


class FrameReceiver:
    """`get_buffer` says where the next bytes go, `received` counts them, `next_frame` hands out frames.

    Owns its buffers; each frame owns the body its bins are views of. Not re-entrant.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        #: Changed by the connection once the peer has introduced itself.
        self.max_frame_bytes = max_frame_bytes
        #: Asked for room before a large body is allocated; False: `granted` is called when there is some, and no more
        #: bytes come before. None: there is always room.
        self.reserve: Callable[[int], bool] | None = None
        self._reserved = False
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = 0  # of the bytes in scratch not yet parsed
        self._end = 0
        self._body: npt.NDArray[np.uint8] | None = None
        self._body_view = self._view
        self._head_length = 0
        self._checksum = 0
        self._filled = 0

    def get_buffer(self) -> memoryview:
        """Never empty, provided that `next_frame` was called until it gave None."""
        if self._body is not None:
            return self._body_view[self._filled :]
        if self._start:
            self._to_front()
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were written to the start of the last buffer."""
        if self._body is not None:
            self._filled += count
        else:
            self._end += count

    def next_frame(self) -> Frame | None:
        """The next complete frame, None when more bytes are needed.

        Raises `FrameError`, `FrameTooLargeError` or `FrameDamagedError`; the stream cannot be read on after that.
        """
        if self._body is not None:
            return self._take_body() if self._filled == self._body.size else None
        available = self._end - self._start - PREFIX_BYTES
        if available < 0:
            return None
        length, head_length, body_checksum = decode_prefix(
            self._view,
            self._start,
            max_frame_bytes=self.max_frame_bytes,
            max_head_bytes=min(MAX_HEAD_BYTES, self.max_frame_bytes),
        )
        first = self._start + PREFIX_BYTES
        if length <= available:
            body = np.empty(length, np.uint8)
            body.data[:] = self._view[first : first + length]
            self._start = first + length
            return decode(body, head_length, body_checksum)
        if length > DIRECT_ABOVE_BYTES and (self._reserved or self.reserve is None or self.reserve(length)):
            self._begin_body(length, head_length, first)
            self._checksum = body_checksum
        return None

    def granted(self) -> None:
        """There is room for the body that `reserve` was asked for: call `next_frame` again."""
        self._reserved = True

    @property
    def receiving(self) -> bool:
        """Whether a large body has been begun and not handed out."""
        return self._body is not None

    @property
    def body_received(self) -> int:
        """Bytes that came of the large body being received; 0 when there is none."""
        return self._filled if self._body is not None else 0

    def forget(self) -> None:
        """Nothing more will be handed out: give the memory back."""
        self._body, self._body_view = None, memoryview(b"")
        self._scratch, self._view = bytearray(), memoryview(b"")
        self._start = self._end = 0

    def _begin_body(self, length: int, head_length: int, first: int) -> None:
        """Receive the rest of this frame into its own buffer; all of it that came is in scratch."""
        self._body = buffers.empty(length, np.uint8)
        self._body_view = self._body.data
        self._head_length = head_length
        self._filled = self._end - first
        self._body_view[: self._filled] = self._view[first : self._end]
        self._start = self._end = 0
        self._reserved = False

    def _take_body(self) -> Frame:
        body, self._body = self._body, None
        assert body is not None
        self._body_view = self._view
        return decode(body, self._head_length, self._checksum)

    def _to_front(self) -> None:
        rest = self._end - self._start
        if rest:
            self._scratch[:rest] = self._scratch[self._start : self._end]
        self._start, self._end = 0, rest
