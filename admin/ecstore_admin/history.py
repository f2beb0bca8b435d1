"""What has happened, kept in a file of the run directory: events, and every recovery that was ever seen.

Nodes keep their own counters and events; what a dead node knew would be gone with the service that had read it. So the
service appends what it sees to one file, a JSON record a line. Rule 1: a record is appended, in one write, by whoever
holds the lock, and after he has read what others appended: so services that share the run directory share one order,
the ids of events, and nothing is in the file twice. Rule 2: whoever reads takes whole lines alone, and skips what does
not parse: a service may be killed at any moment. Rule 3: what is shown is what has been read back.

An id is a place in that order, not a time: a node that was cut off tells its events late, and a listener that asks for
what comes after the newest id it knows must get them. What is too much is dropped by writing the file anew beside
itself. Nothing is flushed to the disk: the file is to survive processes; with the machine the rows are gone as well.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ecstore.launcher.cluster import HISTORY_FILE
from ecstore_admin.locking import FileLock

logger = logging.getLogger(__name__)

LOCK_FILE: Final = "history.lock"

#: Bounds of what is remembered, in memory and in the file.
MAX_EVENTS: Final = 5_000
MAX_RECOVERIES: Final = 10_000
#: The file is written anew when it is larger than this and twice as large as it was after the last time.
COMPACT_BYTES: Final = 8 << 20
#: Progress of a running recovery is written so often; it is lost only if its node dies while no service looks.
PROGRESS_PAUSE_S: Final = 5.0
#: After this time without the lock events are shown although they are not in the file.
LOCK_PATIENCE_S: Final = 5.0


class RecoveryKey(NamedTuple):
    """What makes two reports the same recovery."""

    started_at: float
    group: int
    shard: int
    kind: str
    lost_node: str
    new_owner: str
    epoch: int


def key_of(recovery: dict[str, Any]) -> RecoveryKey:
    """Nobody owns a lost shard, and nobody says when that began: there every service sees the same, at its own time."""
    key = RecoveryKey(*(recovery[name] for name in RecoveryKey._fields))
    return key if key.new_owner else key._replace(started_at=0.0)


def order_of(recovery: dict[str, Any]) -> tuple[Any, ...]:
    """By beginning; a total order, the same for every service."""
    return (recovery["started_at"], *key_of(recovery)[1:])


@dataclass(slots=True)
class Known:
    """One recovery as reported last."""

    recovery: dict[str, Any]
    life: int  #: incarnation of the node that reported it
    written_at: float = 0.0  #: monotonic; 0.0: not in the file
    final: bool = False  #: its end is in the file, for all services the same

    @property
    def finished(self) -> bool:
        return self.recovery["finished_at"] is not None

    @property
    def progress(self) -> tuple[int, float]:
        return self.recovery["rows_decoded"], self.recovery["last_progress_at"] or 0.0


class Mark(NamedTuple):
    """What an event says about a thing that is told in order: only a higher rank than the last one is news."""

    scope: str
    rank: list[Any]


class History:
    def __init__(self, folder: Path) -> None:
        self._path = folder / HISTORY_FILE
        self._lock = FileLock(folder / LOCK_FILE)
        self._place = (0, 0)  # inode and offset up to which the file has been read
        self._compacted = 0  # size after the last time that it was written anew
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._pending: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._marks: dict[str, list[Any]] = {}
        self._dirty: dict[RecoveryKey, None] = {}
        self._refused_since: float | None = None
        self._next_id = 1
        self._forgotten = 0.0  # recoveries that began before are no longer remembered
        self._cluster: str | None = None
        self.known: dict[RecoveryKey, Known] = {}
        self.changed = asyncio.Event()  #: replaced by a new one whenever events were added
        self.problem = ""  #: why events are kept in memory alone; "" when all is well

    # -- what is asked ----------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """All that are kept, by id."""
        return list(self._events)

    def after(self, number: int, limit: int) -> list[dict[str, Any]]:
        """The first `limit` events with a higher id."""
        return [event for event in self._events if event["id"] > number][:limit]

    @property
    def newest_id(self) -> int:
        return self._next_id - 1

    @property
    def oldest_id(self) -> int:
        """Id of the oldest event that is kept; of the next one when there is none."""
        return int(self._events[0]["id"]) if self._events else self._next_id

    def last_rank(self, scope: str) -> list[Any] | None:
        """What is known of a thing that is told in order; None: nothing."""
        return self._marks.get(scope)

    # -- what is told -----------------------------------------------------------------------------------

    def belongs_to(self, cluster: str) -> None:
        """Name the cluster. What is known of another one's nodes and groups is dropped; its events stay."""
        if cluster != self._cluster:
            self._dirty.clear()
            self._pending.append({"type": "cluster", "cluster": cluster})
            self.sync()

    def note(self, event: dict[str, Any], mark: Mark | None = None) -> None:
        """Remember an event, unless its mark is old. `sync` gives it an id and writes it."""
        if mark is None or self._is_news(mark):
            self._pending.append({"type": "event", "event": event, "mark": mark})

    def report(self, recovery: dict[str, Any], life: int) -> None:
        """What a node says about one of its recoveries. An end that is known stays as it is."""
        key = key_of(recovery)
        known = self.known.get(key)
        if known is None and recovery["finished_at"] is not None and recovery["started_at"] <= self._forgotten:
            return
        if known is not None and known.finished:
            return
        if known is None:
            known = self.known[key] = Known(recovery, life)
        else:
            known.recovery, known.life = recovery, life
        if known.finished or not known.written_at or time.monotonic() - known.written_at > PROGRESS_PAUSE_S:
            self._dirty[key] = None

    def end(self, key: RecoveryKey, state: str, now: float) -> None:
        """Say what became of a recovery that nobody reports any more."""
        known = self.known[key]
        if known.finished:
            return
        told = known.recovery
        failed = max(0, told["rows_total"] - told["rows_decoded"]) if state == "lost" else told.get("rows_failed", 0)
        stopped = {"eta_s": None, "rate_rows_per_s": 0.0, "rate_bytes_per_s": 0.0}
        known.recovery = told | stopped | {"state": state, "finished_at": now, "rows_failed": failed}
        self._dirty[key] = None

    def sync(self) -> None:
        """Read what other services wrote, and write what is new; without the lock, the next call tries again."""
        try:
            self._read()
            if not self._pending and not self._dirty:
                return
            if not self._lock.try_acquire():
                self._without_file(f"another service holds {self._lock.path}")
                return
            try:
                self._read()
                self._append(self._drafts())
                self._pending.clear()
                self._dirty.clear()
                self._read()
                self._bound()
            finally:
                self._lock.release()
            self.problem, self._refused_since = "", None
        except OSError as error:
            self._without_file(f"{self._path}: {error.strerror}", at_once=True)

    # -- the file ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Apply what was appended since; everything, where the file is another one."""
        inode, offset = self._place
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != inode or status.st_size < offset:
                    offset = 0
                file.seek(offset)
                whole, newline, _rest = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._place = (status.st_ino, offset + len(whole) + len(newline))
        before = self._next_id
        for line in whole.split(b"\n") if newline else ():
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError):
                if line:
                    logger.warning("a line of %s does not parse and is skipped", self._path)
        if self._next_id > before:
            self._wake()

    def _apply(self, record: dict[str, Any]) -> None:
        match record["type"]:
            case "event":
                event, mark = record["event"], record["mark"]
                if not self._events or event["id"] > self._events[-1]["id"]:  # else the file was written anew
                    self._events.append(event)
                    self._next_id = max(self._next_id, event["id"] + 1)
                if mark is not None:
                    self._note_mark(Mark(*mark))
            case "recovery":
                self._apply_recovery(record["recovery"], record["life"])
            case "cluster":
                if self._cluster not in (None, record["cluster"]):
                    self._marks.clear()
                    self.known.clear()
                    self._dirty.clear()
                self._cluster = record["cluster"]
            case "forget":
                self._forgotten = max(self._forgotten, record["started_at"])
                for key, known in list(self.known.items()):
                    if known.finished and known.recovery["started_at"] <= self._forgotten:
                        del self.known[key]
                        self._dirty.pop(key, None)
            case "begin":
                self._next_id = max(self._next_id, record["next_id"])
                self._forgotten = max(self._forgotten, record["forgotten"])
                for mark in record["marks"]:
                    self._note_mark(Mark(*mark))

    def _apply_recovery(self, recovery: dict[str, Any], life: int) -> None:
        key = key_of(recovery)
        told = Known(recovery, life, written_at=time.monotonic(), final=recovery["finished_at"] is not None)
        known = self.known.get(key)
        if known is None:
            self.known[key] = told
        elif told.final and not known.final:  # the first end in the file is the end
            self.known[key] = told
            self._dirty.pop(key, None)
        else:
            known.written_at = told.written_at
            if not known.finished and told.progress > known.progress:
                known.recovery = recovery

    def _drafts(self) -> Iterable[dict[str, Any]]:
        """The records to append, now that the lock is held and the file was read to its end."""
        if self._place[1] == 0:
            yield self._head()
        yield from self._news()
        for key in self._dirty:
            yield {"type": "recovery", "recovery": self.known[key].recovery, "life": self.known[key].life}

    def _news(self) -> list[dict[str, Any]]:
        """What is pending and is news, with ids, and none of it twice."""
        found = []
        number, cluster, marks = self._next_id, self._cluster, dict(self._marks)
        for record in self._pending:
            if record["type"] == "cluster":
                if record["cluster"] == cluster:
                    continue
                if cluster is not None:
                    marks.clear()
                cluster = record["cluster"]
                found.append(record)
                continue
            mark = record["mark"]
            if mark is not None:
                if mark.scope in marks and not mark.rank > marks[mark.scope]:
                    continue
                marks[mark.scope] = mark.rank
            found.append(record | {"event": {"id": number} | record["event"]})
            number += 1
        return found

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        data = b"".join(_line(record).encode() + b"\n" for record in records)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data  # somebody was killed while he wrote
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)

    def _head(self) -> dict[str, Any]:
        return {"type": "begin", "next_id": self._next_id, "forgotten": self._forgotten,
                "marks": list(self._marks.items())}  # fmt: skip

    def _bound(self) -> None:
        """Forget the oldest finished recoveries that are too many; write the file anew when it has grown too large."""
        if len(self.known) > MAX_RECOVERIES:
            ended = sorted(known.recovery["started_at"] for known in self.known.values() if known.finished)
            if ended:
                until = ended[: len(self.known) - MAX_RECOVERIES * 3 // 4][-1]
                self._append([{"type": "forget", "started_at": until}])  # for all services the same
                self._read()
        if self._place[1] > max(COMPACT_BYTES, 2 * self._compacted):
            self._compact()

    def _compact(self) -> None:
        draft = self._path.with_suffix(".tmp")
        records = [self._head()]
        if self._cluster is not None:
            records.append({"type": "cluster", "cluster": self._cluster})
        records += [{"type": "event", "event": event, "mark": None} for event in self._events]
        records += [{"type": "recovery", "recovery": k.recovery, "life": k.life} for k in self.known.values()]
        draft.write_text("".join(_line(record) + "\n" for record in records))
        draft.replace(self._path)
        status = self._path.stat()
        self._place, self._compacted = (status.st_ino, status.st_size), status.st_size

    # -- inside -----------------------------------------------------------------------------------------

    def _is_news(self, mark: Mark) -> bool:
        last = self._marks.get(mark.scope)
        return last is None or mark.rank > last

    def _note_mark(self, mark: Mark) -> None:
        if self._is_news(mark):
            self._marks[mark.scope] = mark.rank

    def _without_file(self, reason: str, *, at_once: bool = False) -> None:
        """Go on in memory: events get ids here that no other service knows."""
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if not at_once and now - self._refused_since < LOCK_PATIENCE_S:
            return
        if not self.problem:
            logger.warning("what happens is kept in memory alone: %s", reason)
        self.problem = reason
        for record in self._news():
            self._apply(record)
        self._pending.clear()
        self._dirty.clear()
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _line(record: dict[str, Any]) -> str:
    """As JSON; what a node told and JSON has no words for is written as text, so that nothing else is held up."""
    return json.dumps(record, separators=(",", ":"), default=str)
