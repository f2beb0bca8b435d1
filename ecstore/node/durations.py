"""How long a node takes for what it is asked: histograms with fixed buckets. Pure; times are arguments.

One bisection and two additions for each request, whatever its size: nothing here is done per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Any, Final

#: Upper bounds, seconds: from what a message on loopback takes to the deadline of a request that waits. What is above
#: the last has a place of its own.
BOUNDS_S: Final = (
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

#: Delta messages to one peer whose acknowledgement is awaited and timed; of more, the further ones are not timed.
MAX_TIMED_MESSAGES: Final = 8192


class Histogram:
    """`counts[i]`: of durations up to `BOUNDS_S[i]` and above the bound before; one more for what is above all."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def to_wire(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum_s": self.sum_s}


class Durations:
    """The histograms of one life of a node."""

    def __init__(self) -> None:
        self.pull = Histogram()  #: from the request to its reply
        self.push = Histogram()  #: from the request to its acknowledgement; load and delete, too
        self.delta_ack = Histogram()  #: from a message of deltas to the sink's acknowledgement of it
        self.decode_on_demand = Histogram()  #: one block that somebody waits for, from the first question to the rows
        self.decode_sweep = Histogram()  #: one block of the background sweep

    def to_wire(self) -> dict[str, Any]:
        return {
            "bounds_s": list(BOUNDS_S), "pull": self.pull.to_wire(), "push": self.push.to_wire(),
            "delta_ack": self.delta_ack.to_wire(), "decode_on_demand": self.decode_on_demand.to_wire(),
            "decode_sweep": self.decode_sweep.to_wire(),
        }  # fmt: skip


class Unacknowledged:
    """When the messages of deltas on one connection were sent. The peer answers them in their order, each once."""

    __slots__ = ("_sent", "_untimed")

    def __init__(self) -> None:
        self._sent: deque[float] = deque()
        self._untimed = 0  # sent after those in `_sent`

    def sent(self, now: float) -> None:
        if self._untimed or len(self._sent) >= MAX_TIMED_MESSAGES:
            self._untimed += 1
        else:
            self._sent.append(now)

    def answered(self, now: float) -> float | None:
        """The oldest message was answered: how long that took; None for one that was not timed."""
        if self._sent:
            return now - self._sent.popleft()
        self._untimed = max(0, self._untimed - 1)
        return None
