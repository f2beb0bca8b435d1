"""Background work of a node: at most so many bytes a second, shared by all its recoveries, and after requests.

Both can be changed while work waits: see `ecstore.throttle` for what is chosen from.

A training step is a burst of requests to every node, and then a pause in which the trainer computes. Work that waits
for the pause costs the training little; in the burst every millisecond of it is one more that the trainer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

#: After a node was lost its data shards are taken over first, and rows that are asked for are decoded: requests wait
#: for that. All other work of the recovery, on every node, begins so much later ...
GRACE_S = 0.4

#: ... if any client has asked for something in so long a time: those that wait for the lost node ask nobody meanwhile.
IN_USE_S = 1.0

#: Seconds of unused rate that may be spent at once.
BURST_S = 0.05

#: After the latest request of a client for so long more of them are to be expected: a push travels in several messages,
#: and soon after it the next pull begins.
QUIET_S = 0.02

#: Longest wait of a piece of background work for requests to pause: under steady load it goes on in these steps, so
#: that a recovery always ends.
LONGEST_YIELD_S = 0.1


class _Turn:
    """One piece of work that waits for the rate."""

    __slots__ = ("changed", "free_at")

    def __init__(self, free_at: float) -> None:
        self.free_at = free_at  # loop time
        self.changed: asyncio.Future[None] | None = None  # done when `free_at` is another


class Pacer:
    """`take(n)` returns when n more bytes may be worked on. First come, first served."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.lets_requests_go_first = True
        self._turns: dict[_Turn, None] = {}  # that wait for the rate, in their order
        self._free_at = 0.0  # loop time up to which the rate is spent
        self._asked_at = float("-inf")  # loop time of the latest request of a client
        self._waiting = 0  # requests that wait for rows to be decoded
        self._loop = asyncio.get_running_loop()

    def asked(self) -> None:
        """A client has asked for something."""
        self._asked_at = self._loop.time()

    def set_rate(self, bytes_per_s: float, *, lets_requests_go_first: bool) -> None:
        """Go on at another rate; what waits already, waits for as many bytes as before."""
        now, factor = self._loop.time(), self.bytes_per_s / bytes_per_s
        self.bytes_per_s, self.lets_requests_go_first = bytes_per_s, lets_requests_go_first
        self._free_at = now + (self._free_at - now) * factor if self._free_at > now else self._free_at
        for turn in self._turns:
            turn.free_at = now + max(0.0, turn.free_at - now) * factor
            if turn.changed is not None and not turn.changed.done():
                turn.changed.set_result(None)

    def lost(self) -> None:
        """A node was lost, and this one has shards of it to recover."""
        now = self._loop.time()
        if self.lets_requests_go_first and now - self._asked_at < IN_USE_S:
            self._free_at = max(self._free_at, now + GRACE_S)

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """In this block something is being done that a request waits for."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def take(self, size: int) -> None:
        now = self._loop.time()
        self._free_at = max(self._free_at, now - BURST_S) + size / self.bytes_per_s
        await self._until(_Turn(self._free_at))
        limit = self._loop.time() + LONGEST_YIELD_S
        while self.lets_requests_go_first and (now := self._loop.time()) < limit:
            quiet_at = (now if self._waiting else self._asked_at) + QUIET_S
            if quiet_at <= now:
                return
            await asyncio.sleep(min(quiet_at, limit) - now)

    async def _until(self, turn: _Turn) -> None:
        if turn.free_at <= self._loop.time():
            await asyncio.sleep(0)
            return
        self._turns[turn] = None
        try:
            while (left := turn.free_at - self._loop.time()) > 0:
                turn.changed = self._loop.create_future()
                timer = self._loop.call_later(left, _set, turn.changed)
                try:
                    await turn.changed
                finally:
                    timer.cancel()
        finally:
            del self._turns[turn]


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
