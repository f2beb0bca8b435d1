"""Which request of which client a data shard has applied: exactly-once across retries and failovers (G3).

A client numbers its pushes to one data shard 1, 2, 3, ... The table keeps the highest number applied. Every entry
travels with the delta it belongs to, so each parity shard holds the same table and a substitute inherits it.

Bound: at most `MAX_CLIENTS_PER_SHARD` clients; the one whose last push is oldest is forgotten first. The order
is that of the deltas, hence equal on the owner and on every parity shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ecstore import limits


class Verdict(Enum):
    NEW = "new"
    DUPLICATE = "duplicate"
    GAP = "gap"


class RequestTable:
    """client id (bytes) -> highest applied request number."""

    __slots__ = ("_last",)

    def __init__(self, entries: Iterable[tuple[bytes, int]] = ()) -> None:
        self._last: dict[bytes, int] = dict(entries)  # in order of the latest push, oldest first

    def __len__(self) -> int:
        return len(self._last)

    def last(self, client: bytes) -> int:
        return self._last.get(client, 0)

    def judge(self, client: bytes, request_no: int, previous: int) -> Verdict:
        """Is this push new? `previous` is the client's latest earlier request that it has not given up.

        A number at or below the last applied one is a duplicate. If `previous` itself has not been applied,
        it must come first: GAP, and the client sends both again in order.
        """
        last = self._last.get(client, 0)
        if request_no <= last:
            return Verdict.DUPLICATE
        return Verdict.NEW if previous <= last else Verdict.GAP

    def record(self, client: bytes, request_no: int) -> None:
        if not client:
            return
        self._last.pop(client, None)
        self._last[client] = request_no
        if len(self._last) > limits.MAX_CLIENTS_PER_SHARD:
            del self._last[next(iter(self._last))]

    def entries(self) -> list[tuple[bytes, int]]:
        return list(self._last.items())
