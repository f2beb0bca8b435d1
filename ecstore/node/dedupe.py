"""Which request of which client a data shard has applied: exactly-once across retries and failovers (G3).

A client numbers its pushes to one data shard 1, 2, 3, ... The table keeps the highest number applied. Every entry
travels with the delta it belongs to, so each parity shard holds the same table and a substitute inherits it.

Bound: at most `MAX_CLIENTS_PER_SHARD` clients. The one whose last push is oldest is forgotten, but only once
`FORGET_AFTER_SEQS` deltas have followed it: a first push that is sent again must still be known. Until then new
clients are refused. Order and age are those of the deltas, hence equal on the owner and on every parity shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ecstore import limits


class Verdict(Enum):
    NEW = "new"
    DUPLICATE = "duplicate"
    GAP = "gap"
    FULL = "full"


class RequestTable:
    """client id (bytes) -> highest applied request number, and the seq of the delta it came with."""

    __slots__ = ("_last",)

    def __init__(self, entries: Iterable[tuple[bytes, int, int]] = ()) -> None:
        # in order of the latest push, oldest first
        self._last: dict[bytes, tuple[int, int]] = {client: (number, seq) for client, number, seq in entries}

    def __len__(self) -> int:
        return len(self._last)

    def last(self, client: bytes) -> int:
        return self._last.get(client, (0, 0))[0]

    def judge(self, client: bytes, request_no: int, previous: int, seq: int) -> Verdict:
        """Is this push new? `previous` is the client's latest earlier request that it has not given up; `seq` the
        shard's present one.

        A number at or below the last applied one is a duplicate. If `previous` itself has not been applied,
        it must come first: GAP, and the client sends both again in order. FULL: no room for a new client.
        """
        known = self._last.get(client)
        if known is None:
            if previous > 0:
                return Verdict.GAP
            return Verdict.FULL if self._full_of_young(seq) else Verdict.NEW
        if request_no <= known[0]:
            return Verdict.DUPLICATE
        return Verdict.NEW if previous <= known[0] else Verdict.GAP

    def _full_of_young(self, seq: int) -> bool:
        if len(self._last) < limits.MAX_CLIENTS_PER_SHARD:
            return False
        oldest = next(iter(self._last.values()))[1]
        return seq - oldest < limits.FORGET_AFTER_SEQS

    def record(self, client: bytes, request_no: int, seq: int) -> None:
        if not client:
            return
        self._last.pop(client, None)
        self._last[client] = (request_no, seq)
        if len(self._last) > limits.MAX_CLIENTS_PER_SHARD:
            del self._last[next(iter(self._last))]

    def entries(self) -> list[tuple[bytes, int, int]]:
        return [(client, number, seq) for client, (number, seq) in self._last.items()]
