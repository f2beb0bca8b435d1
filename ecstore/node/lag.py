"""How late the event loop of a node is: what one callback that works too long costs everybody else.

A timer asks to be called after `interval_s`. How much later the call comes is the *lag*: callbacks that ran too long,
but also the time in which other processes had the core. `own` is the part of it, at most, in which this very thread
was at work: the smaller of the lag and of the processor time that it used meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any, Final

#: Upper bounds of the histogram, milliseconds; what is above the last has a place of its own.
BOUNDS_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

#: The recent maximum is that of the last one to two windows.
WINDOW_S: Final = 60.0


class LoopLag:
    """Measures from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float,
                 work: Callable[[], float] = time.thread_time) -> None:  # fmt: skip
        """`work`: seconds of processor time that the loop's thread has used."""
        self._loop = loop
        self._interval = interval_s
        self._work = work
        self._due = self._worked = self._window_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.counts = [0] * (len(BOUNDS_MS) + 1)  #: of lags, by BOUNDS_MS
        self.sum_s = self.max_s = self.own_max_s = 0.0
        self._recent: deque[tuple[float, float]] = deque([(0.0, 0.0)], maxlen=2)  # (lag, own) of the last windows

    def start(self) -> None:
        self._window_ends = self._loop.time() + WINDOW_S
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._due, self._worked = self._loop.time() + self._interval, self._work()
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        lag = max(0.0, now - self._due)
        self._note(lag, min(lag, self._work() - self._worked), now)
        self._again()

    def _note(self, lag: float, own: float, now: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, 1e3 * lag)] += 1
        self.sum_s += lag
        self.max_s, self.own_max_s = max(self.max_s, lag), max(self.own_max_s, own)
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_S
            self._recent.append((0.0, 0.0))
        most, own_most = self._recent[-1]
        self._recent[-1] = (max(most, lag), max(own_most, own))

    def statistics(self) -> dict[str, Any]:
        """Milliseconds: histogram, and maxima since the start and of the last minute or two."""
        return {
            "bounds_ms": list(BOUNDS_MS), "counts": list(self.counts), "sum_ms": 1e3 * self.sum_s,
            "max_ms": 1e3 * self.max_s, "own_max_ms": 1e3 * self.own_max_s,
            "recent_max_ms": 1e3 * max(lag for lag, _own in self._recent),
            "recent_own_max_ms": 1e3 * max(own for _lag, own in self._recent),
        }  # fmt: skip
