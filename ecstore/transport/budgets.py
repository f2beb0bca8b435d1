"""Memory of all accepted connections together: what is being received, and what waits to be read by its peer.

One connection has bounds of its own (`ConnectionLimits`), but a thousand of them would add up to more than a machine
has: each may announce a frame of the largest size, or leave one unread. So a server counts, and the greedy and the
slow make room for the others: whoever is cut off is told why with a `CapacityError`.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from ecstore.errors import CapacityError, EcstoreError

#: Between two looks at those who receive, while others wait for room.
LOOK_S: Final = 0.25

#: Who has not received this much between two looks makes room: 256 KiB a second.
PROGRESS_BYTES: Final = 64 << 10


class Receiving(Protocol):
    """A connection as `ReceptionBudget` knows it."""

    @property
    def body_received(self) -> int:
        """Bytes of the present frame that came."""

    def reception_granted(self) -> None:
        """There is room for the frame that was asked for."""

    def refuse(self, error: EcstoreError) -> None:
        """End, with a reason."""


class ReceptionBudget:
    """Bytes of the large frames that are being received; a frame counts with its whole announced size from its start.

    Who finds no room is not read from until there is some, small frames first: a batch must not queue behind frames
    that are a hundred times larger. While anybody waits, those who receive must keep receiving. One frame is always
    let in, whatever its size.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[Receiving, int] = {}
        self._waiters: dict[Receiving, int] = {}
        self._seen: dict[Receiving, int] = {}  # bytes received at the last look
        self._timer: asyncio.TimerHandle | None = None
        self.used = 0
        self.cut_off = 0  #: connections that were too slow while others waited

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def take(self, conn: Receiving, size: int) -> bool:
        """Room for a frame of `size` bytes. False: `conn.reception_granted` is called when there is some."""
        if self._fits(size) and all(size <= other for other in self._waiters.values()):
            self._hold(conn, size)
            return True
        self._waiters[conn] = size
        if self._timer is None:
            self._look_later()
        return False

    def give(self, conn: Receiving) -> None:
        """The frame has been received, or the connection has ended: it neither holds nor waits any more."""
        self._waiters.pop(conn, None)
        self._seen.pop(conn, None)
        self.used -= self._holders.pop(conn, 0)
        self._grant()

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit

    def _hold(self, conn: Receiving, size: int) -> None:
        self._holders[conn] = size
        self.used += size

    def _grant(self) -> None:
        for conn, size in sorted(self._waiters.items(), key=lambda item: item[1]):
            if not self._fits(size):
                return
            del self._waiters[conn]
            self._hold(conn, size)
            conn.reception_granted()

    def _look_later(self) -> None:
        self._seen = {conn: conn.body_received for conn in self._holders}
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Cut off who has not moved since the last look. A loop that was blocked in between has read meanwhile."""
        self._timer = None
        if not self._waiters:
            return
        slow = [conn for conn, before in self._seen.items() if conn.body_received < before + PROGRESS_BYTES]
        for conn in slow:
            self.cut_off += 1
            conn.refuse(CapacityError("a large frame came too slowly while others waited for room; send it again"))
            self.give(conn)
        if self._waiters:
            self._look_later()


class Writing(Protocol):
    """A connection as `UnsentBudget` knows it."""

    @property
    def bytes_out(self) -> int:
        """Bytes written since the start."""

    @property
    def write_buffered(self) -> int:
        """Bytes not yet handed to the kernel."""

    def refuse(self, error: EcstoreError, reason: str = "") -> None:
        """End, with a reason."""

    def abort(self) -> None:
        """End at once."""


class UnsentBudget:
    """Bytes written to connections and not yet read by their peers. Past the limit those lose that have stood still
    longest, among equals the largest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._connections: dict[Writing, tuple[int, float]] = {}  # bytes delivered when last seen, and since when
        self._measured = 0  # unsent at the last measurement
        self._written = 0  # since then
        self.cut_off = 0

    def add(self, conn: Writing) -> None:
        self._connections[conn] = (-1, 0.0)

    def discard(self, conn: Writing) -> None:
        self._connections.pop(conn, None)

    def wrote(self, size: int) -> None:
        """`size` bytes were written to one of the connections. Cheap: what is unsent is only measured when it may be
        beyond the limit."""
        self._written += size
        if self._measured + self._written > self._limit:
            self._measure()

    def _measure(self) -> None:
        now = asyncio.get_running_loop().time()
        unsent: list[tuple[float, int, Writing]] = []
        for conn, (delivered, since) in self._connections.items():
            buffered = conn.write_buffered
            if conn.bytes_out - buffered != delivered:
                delivered, since = conn.bytes_out - buffered, now
                self._connections[conn] = (delivered, since)
            if buffered:
                unsent.append((since - now, -buffered, conn))
        self._written = 0
        self._measured = -sum(size for _since, size, _conn in unsent)
        if self._measured <= self._limit:
            return
        for _since, size, conn in sorted(unsent, key=lambda entry: entry[:2]):
            if self._measured <= self._limit // 2:
                return
            if -size < self._limit >> 12:  # no gain
                continue
            self._measured += size
            self.cut_off += 1
            asyncio.get_running_loop().call_soon(_cut_off, conn)


def _cut_off(conn: Writing) -> None:
    conn.refuse(CapacityError("replies are not read while memory for them is scarce; read them, then ask again"))
    conn.abort()  # the memory is needed now, and who does not read will not read the reason
