"""What is known of each recovery: the counters behind `GET /decoding`. Pure; times are arguments (unix seconds).

Rule 1: a recovery is in one of three basic states (waiting, running, ended) that change as the work goes on. What it is
called is worked out from its counters and the time, in `Recovery.state` alone.
Rule 2: totals of the node only rise. Recoveries are forgotten when there are too many, what they did is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["data", "parity", "move"]
Ending = Literal["done", "lost", "cancelled"]
State = Literal["waiting", "running", "throttled", "stuck", "done", "lost", "cancelled"]

KINDS: tuple[Kind, ...] = ("data", "parity", "move")

#: Finished recoveries that a node remembers.
MAX_REMEMBERED = 512

#: Seconds over which the rate is measured. Where rows come less often, since the last time that any came.
RATE_WINDOW_S = 5.0

#: Between two remembered points of the progress, which a window of the rate begins with.
MARK_EVERY_S = 0.05

#: Without progress for so long, although nothing but the work itself could hold it up, a recovery is stuck. Longer than
#: a detector and a lease take to find out that one more node is gone, and than the attempts of a decode.
STUCK_AFTER_S = 10.0


@dataclass(slots=True)
class Totals:
    """Of all recoveries of one kind in one life of a node."""

    started: int = 0
    done: int = 0
    lost: int = 0
    cancelled: int = 0
    rows_on_demand: int = 0
    rows_swept: int = 0
    rows_failed: int = 0
    bytes: int = 0
    retries: int = 0


@dataclass(slots=True, eq=False)
class Recovery:
    """One shard being brought back, or moved, to `new_owner`.

    rows_total is known once the key list has arrived. Of rows_decoded, rows_on_demand were decoded because somebody
    asked for them before the background sweep reached them. rows_failed were not back when the group was lost. A parity
    shard counts rows read from each data shard.
    """

    gid: int
    shard: int
    kind: Kind
    lost_node: str
    new_owner: str
    started_at: float
    epoch: int
    serving: bool = False  #: nothing but the work itself is in the way
    ending: Ending | None = None
    rows_total: int = 0
    rows_decoded: int = 0
    rows_on_demand: int = 0
    rows_failed: int = 0
    bytes_total: int = 0
    bytes_decoded: int = 0
    retries: int = 0  #: attempts that failed and were made again
    serving_at: float | None = None
    first_row_at: float | None = None
    last_progress_at: float | None = None
    finished_at: float | None = None
    totals: Totals = field(default_factory=Totals)  #: of the node; set by the book
    _marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))
    _holds: int = 0  # pieces of the work that wait for their turn
    _held_since: float = 0.0
    _held_s: float = 0.0  # since the last progress, before `_held_since`

    # -- what happens -----------------------------------------------------------------------------------

    def begun(self, now: float) -> None:
        """The shard serves; its rows come back from now on."""
        self.serving = True
        self.serving_at = now
        self._moved(now)

    def progress(self, rows: int, size: int, now: float, *, on_demand: bool = False) -> None:
        """`rows` more rows of `size` bytes in all are back."""
        if rows <= 0:
            return
        if not self._marks or now - self._marks[-1][0] >= MARK_EVERY_S:  # where things stood before these rows
            self._marks.append((self.last_progress_at or self.serving_at or self.started_at, self.rows_decoded))
        self.serving = True
        self.rows_decoded += rows
        self.bytes_decoded += size
        self.totals.bytes += size
        if on_demand:
            self.rows_on_demand += rows
            self.totals.rows_on_demand += rows
        else:
            self.totals.rows_swept += rows
        self.first_row_at = self.first_row_at or now
        self.last_progress_at = now
        self._moved(now)

    def failed(self) -> None:
        """An attempt failed, and will be made again."""
        self.retries += 1
        self.totals.retries += 1

    def restart(self) -> None:
        """What is back so far can't be used: everything is fetched again."""
        self.rows_total = self.rows_decoded = self.rows_on_demand = self.bytes_total = self.bytes_decoded = 0
        self._marks.clear()

    def finish(self, ending: Ending, now: float) -> None:
        if self.finished_at is not None:
            return
        self.ending, self.finished_at = ending, now
        self._marks.clear()  # a node remembers hundreds of finished recoveries
        setattr(self.totals, ending, getattr(self.totals, ending) + 1)
        if ending == "lost":
            self.rows_failed = max(0, self.rows_total - self.rows_decoded)
            self.totals.rows_failed += self.rows_failed

    @contextmanager
    def held(self, clock: Callable[[], float]) -> Iterator[None]:
        """In this block the work waits for its turn: for the rate limit, or for requests to go first."""
        if not self._holds:
            self._held_since = clock()
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._held_s += max(0.0, clock() - self._held_since)

    def _moved(self, now: float) -> None:
        self._held_s = 0.0
        self._held_since = max(self._held_since, now)

    # -- what it is called ------------------------------------------------------------------------------

    def idle_s(self, now: float) -> float:
        """Seconds without progress in which it was not held up on purpose."""
        since = max(self.started_at, self.serving_at or 0.0, self.last_progress_at or 0.0)
        held = self._held_s + (max(0.0, now - self._held_since) if self._holds else 0.0)
        return max(0.0, now - since - held)

    def state(self, now: float) -> State:
        """waiting: for the shard, or for its first turn; throttled: has begun, and is held by the rate limit at this
        moment, or lets requests go first; stuck: nothing holds it, and yet nothing comes of it.
        """
        if self.ending is not None:
            return self.ending
        if self.idle_s(now) >= STUCK_AFTER_S:
            return "stuck"
        if self._holds:
            return "throttled" if self.rows_decoded else "waiting"
        return "running" if self.serving else "waiting"

    def rate(self, now: float) -> float:
        """Rows a second over the last RATE_WINDOW_S up to now; 0.0 when none came for long."""
        if self.finished_at is not None or now <= self.started_at:
            return 0.0
        began: tuple[float, int] | None = None
        for mark in self._marks:  # the latest before the window, but always one with rows after it
            if began is None or mark[0] <= now - RATE_WINDOW_S:
                began = mark
        if began is None or now <= began[0]:
            return 0.0
        return (self.rows_decoded - began[1]) / (now - began[0])

    def to_wire(self, now: float) -> dict[str, Any]:
        state = self.state(now)
        rate = 0.0 if state == "stuck" else self.rate(now)
        left = max(0, self.rows_total - self.rows_decoded)
        width = self.bytes_decoded / self.rows_decoded if self.rows_decoded else 0.0
        return {
            "group": self.gid, "shard": self.shard, "kind": self.kind, "lost_node": self.lost_node,
            "new_owner": self.new_owner, "epoch": self.epoch, "state": state,
            "rows_total": self.rows_total, "rows_decoded": self.rows_decoded, "rows_on_demand": self.rows_on_demand,
            "rows_failed": self.rows_failed, "bytes_total": self.bytes_total, "bytes_decoded": self.bytes_decoded,
            "retries": self.retries, "rate_rows_per_s": rate, "rate_bytes_per_s": rate * width,
            "eta_s": left / rate if rate > 0 else None,
            "started_at": self.started_at, "serving_at": self.serving_at, "first_row_at": self.first_row_at,
            "last_progress_at": self.last_progress_at, "finished_at": self.finished_at,
        }  # fmt: skip


class RecoveryBook:
    """All recoveries of one life of a node: running ones and the last finished ones, and the totals of all."""

    def __init__(self) -> None:
        self._all: deque[Recovery] = deque()
        self._totals: dict[Kind, Totals] = {kind: Totals() for kind in KINDS}

    def open(self, recovery: Recovery) -> Recovery:
        recovery.totals = self._totals[recovery.kind]
        recovery.totals.started += 1
        self._all.append(recovery)
        while len(self._all) > MAX_REMEMBERED and self._all[0].finished_at is not None:
            self._all.popleft()
        return recovery

    def to_wire(self, now: float) -> list[dict[str, Any]]:
        return [recovery.to_wire(now) for recovery in self._all]

    def totals(self) -> dict[str, dict[str, int]]:
        """By kind, since the node began this life."""
        return {kind: asdict(totals) for kind, totals in self._totals.items()}
