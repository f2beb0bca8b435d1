"""Background work of a node: at most so many bytes a second, shared by all its recoveries, and after requests.

A training step is a burst of requests to every node, and then a pause in which the trainer computes. Work that waits
for the pause costs the training little; in the burst every millisecond of it is one more that the trainer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds of unused rate that may be spent at once.
BURST_S = 0.05

#: After the latest request of a client for so long more of them are to be expected.
QUIET_S = 0.004

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
