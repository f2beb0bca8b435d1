"""Background work of a node: at most so many bytes a second, shared by all its recoveries, and after requests.

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


class Pacer:
    """`take(n)` returns when n more bytes may be worked on. First come, first served."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0  # loop time up to which the rate is spent
        self._asked_at = float("-inf")  # loop time of the latest request of a client
        self._waiting = 0  # requests that wait for rows to be decoded
        self._loop = asyncio.get_running_loop()

    def asked(self) -> None:
        """A client has asked for something."""
        self._asked_at = self._loop.time()

    def lost(self) -> None:
        """A node was lost, and this one has shards of it to recover."""
        now = self._loop.time()
        if now - self._asked_at < IN_USE_S:
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
        await asyncio.sleep(max(0.0, self._free_at - now))
        limit = self._loop.time() + LONGEST_YIELD_S
        while (now := self._loop.time()) < limit:
            quiet_at = (now if self._waiting else self._asked_at) + QUIET_S
            if quiet_at <= now:
                return
            await asyncio.sleep(min(quiet_at, limit) - now)
