"""Outgoing bytes of one connection: small frames of one turn of the loop share a system call, large ones go
out as views of the sender's arrays.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from ecstore.wire import COPY_BELOW_BYTES, Chunk

#: Queued bytes that are written at once instead of at the end of the turn.
FLUSH_ABOVE_BYTES: Final = 64 << 10


class FrameWriter:
    """Queue of encoded chunks in front of a transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._copies = _writelines_copies(loop)
        self._transport: asyncio.Transport | None = None
        self._queue: list[Chunk] = []
        self._queued_bytes = 0
        self._scheduled = False
        #: While True, the owner promises to call `flush` soon (it is handing out a batch of frames).
        self.batching = False
        self.bytes_out = 0

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def buffered(self) -> int:
        """Bytes not yet handed to the kernel."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return unsent + self._queued_bytes

    def write(self, chunks: list[Chunk], size: int) -> None:
        """Queue `chunks`, `size` bytes in all."""
        self._queue += chunks
        self._queued_bytes += size
        self.bytes_out += size
        if self._queued_bytes >= FLUSH_ABOVE_BYTES:
            self.flush()
        elif not self.batching and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def flush(self) -> None:
        """Hand everything queued to the transport."""
        if not self._queue:
            return
        queue, self._queue = self._queue, []
        self._queued_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(queue) == 1:
            transport.write(queue[0])
        elif not self._copies:
            transport.writelines(queue)
        else:
            _write_large_apart(transport, queue)

    def discard(self) -> None:
        """Forget everything queued."""
        self._queue = []
        self._queued_bytes = 0

    def _scheduled_flush(self) -> None:
        self._scheduled = False
        self.flush()


def _writelines_copies(loop: asyncio.AbstractEventLoop) -> bool:
    """asyncio joined everything in `writelines` before it learned `sendmsg` in Python 3.12; uvloop never
    did.
    """
    return sys.version_info < (3, 12) and not type(loop).__module__.startswith("uvloop")


def _write_large_apart(transport: asyncio.Transport, chunks: list[Chunk]) -> None:
    small: list[Chunk] = []
    for chunk in chunks:
        if len(chunk) < COPY_BELOW_BYTES:
            small.append(chunk)
            continue
        if small:
            transport.write(b"".join(small))
            small = []
        transport.write(chunk)
    if small:
        transport.write(b"".join(small))
