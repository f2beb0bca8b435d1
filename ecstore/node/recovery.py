"""What is known of each recovery: the counters behind `GET /decoding`. Pure; times are arguments (unix seconds)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["data", "parity", "move"]
State = Literal["waiting", "running", "done", "lost", "cancelled"]

#: Finished recoveries that a node remembers.
MAX_REMEMBERED = 512

#: Seconds over which the rate is measured.
RATE_WINDOW_S = 2.0


@dataclass(slots=True, eq=False)
class Recovery:
    """One shard being brought back, or moved, to `new_owner`.

    rows_total is known once the key list has arrived. Of rows_decoded, rows_on_demand were decoded because somebody
    asked for them before the background sweep reached them. A parity shard counts rows read from each data shard.
    """

    gid: int
    shard: int
    kind: Kind
    lost_node: str
    new_owner: str
    started_at: float
    epoch: int
    state: State = "waiting"
    rows_total: int = 0
    rows_decoded: int = 0
    rows_on_demand: int = 0
    bytes_decoded: int = 0
    serving_at: float | None = None
    first_row_at: float | None = None
    last_progress_at: float | None = None
    finished_at: float | None = None
    _marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))

    def progress(self, rows: int, size: int, now: float, *, on_demand: bool = False) -> None:
        """`rows` more rows of `size` bytes in all are back."""
        if rows <= 0:
            return
        self.state = "running"
        self.rows_decoded += rows
        self.bytes_decoded += size
        if on_demand:
            self.rows_on_demand += rows
        self.first_row_at = self.first_row_at or now
        self.last_progress_at = now
        self._marks.append((now, self.rows_decoded))

    def finish(self, state: State, now: float) -> None:
        if self.finished_at is None:
            self.state, self.finished_at = state, now
            self._marks.clear()  # a node remembers hundreds of finished recoveries

    def rate(self, now: float) -> float:
        """Rows a second over the last RATE_WINDOW_S; 0.0 when nothing moved."""
        recent = [mark for mark in self._marks if mark[0] >= now - RATE_WINDOW_S]
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    def to_wire(self, now: float) -> dict[str, Any]:
        rate = self.rate(now) if self.finished_at is None else 0.0
        left = max(0, self.rows_total - self.rows_decoded)
        return {
            "group": self.gid, "shard": self.shard, "kind": self.kind, "lost_node": self.lost_node,
            "new_owner": self.new_owner, "epoch": self.epoch, "state": self.state,
            "rows_total": self.rows_total, "rows_decoded": self.rows_decoded, "rows_on_demand": self.rows_on_demand,
            "bytes_decoded": self.bytes_decoded, "rate_rows_per_s": rate,
            "eta_s": left / rate if rate > 0 and self.finished_at is None else None,
            "started_at": self.started_at, "serving_at": self.serving_at, "first_row_at": self.first_row_at,
            "last_progress_at": self.last_progress_at, "finished_at": self.finished_at,
        }  # fmt: skip


class RecoveryBook:
    """All recoveries of one node: running ones and the last finished ones."""

    def __init__(self) -> None:
        self._all: deque[Recovery] = deque()

    def open(self, recovery: Recovery) -> Recovery:
        self._all.append(recovery)
        while len(self._all) > MAX_REMEMBERED and self._all[0].finished_at is not None:
            self._all.popleft()
        return recovery

    def to_wire(self, now: float) -> list[dict[str, Any]]:
        return [recovery.to_wire(now) for recovery in self._all]
