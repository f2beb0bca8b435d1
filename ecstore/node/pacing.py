"""A token bucket for background work: at most so many bytes a second, shared by all recoveries of a node."""

from __future__ import annotations

import asyncio

#: Seconds of unused rate that may be spent at once.
BURST_S = 0.05


class Pacer:
    """`take(n)` returns when n more bytes may be worked on. First come, first served."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0  # loop time up to which the rate is spent
        self._loop = asyncio.get_running_loop()

    async def take(self, size: int) -> None:
        now = self._loop.time()
        self._free_at = max(self._free_at, now - BURST_S) + size / self.bytes_per_s
        await asyncio.sleep(max(0.0, self._free_at - now))
