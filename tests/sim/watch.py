"""What a run has seen: its story, its failures, the rare paths it took; and the hooks by which it sees them.

Hooks wrap methods of the real classes for the time of a run. They look and count; they change nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from ecstore.node import sink_shard
from ecstore.node.client_api import ClientApi
from ecstore.node.decoder import Decoder
from ecstore.node.dedupe import RequestTable, Verdict
from ecstore.node.ownership import Ownership
from ecstore.node.runtime import Runtime
from ecstore.node.sink_shard import Applied, SinkShard
from tests.sim.loop import PROCESS, VirtualLoop


@dataclass(frozen=True, slots=True)
class Failure:
    """A promise that was broken, and when (virtual seconds)."""

    checker: str
    at: float
    message: str

    def __str__(self) -> str:
        return f"[{self.checker}] at {self.at:.3f} s: {self.message}"


@dataclass(slots=True)
class Watch:
    loop: VirtualLoop
    failures: list[Failure] = field(default_factory=list)
    #: Times that a rare path was taken, by name.
    markers: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    #: (group, shard) -> owner epoch of the newest owner that has served it.
    serving: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    quiet: bool = False  #: the run is over: what is said while it is taken apart doesn't count

    def say(self, text: str) -> None:
        if not self.quiet:
            self.story.append(f"{self.loop.time():9.3f}  {text}")

    def fail(self, checker: str, message: str) -> None:
        if self.quiet or len(self.failures) >= 20:
            return
        self.failures.append(Failure(checker, self.loop.time(), message))
        self.say(f"FAILED {checker}: {message}")

    def mark(self, name: str) -> None:
        if not self.quiet:
            self.markers[name] += 1

    def served(self, runtime: Runtime, gid: int, index: int, what: str) -> None:
        """A node answers as the owner of a shard: nobody newer may have done so before."""
        owned = runtime.data.get((gid, index))
        if owned is None or owned.shard is None:
            return
        newest, name = self.serving.get((gid, index), (0, ""))
        if owned.owner_epoch < newest:
            self.fail(
                "owner",
                f"{runtime.name} {what} group {gid} shard {index} as owner of epoch {owned.owner_epoch}, after {name} "
                f"of epoch {newest} had begun to",
            )
        self.serving[gid, index] = (max(newest, owned.owner_epoch), runtime.name)

    def exception(self, _loop: Any, context: dict[str, Any]) -> None:
        """Handler of the loop: an exception that nobody took, or of a callback."""
        process = PROCESS.get()
        if process is not None and process.state == "dead":
            return
        error = context.get("exception")
        self.fail("exception", f"{process}: {context.get('message')}: {error!r}")


class _Log(logging.Handler):
    """Errors that the code logs count as failures; what it warns of is part of the story."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.WARNING)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{PROCESS.get()} {record.name}: {record.getMessage()}"
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self._watch.fail("exception", f"{text} {error!r}" if error else text)
        else:
            self._watch.say(text)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """All hooks, until the end of the block."""
    logger = logging.getLogger("ecstore")
    handler = _Log(watch)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    with contextlib.ExitStack() as stack:
        for owner, name, hook in _hooks(watch):
            stack.enter_context(patch.object(owner, name, hook))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.level, logger.propagate = before


def _hooks(watch: Watch) -> list[tuple[Any, str, Any]]:
    return [
        (Runtime, "__init__", _runtime_init(Runtime.__init__)),
        (Runtime, "count", _runtime_count(watch, Runtime.count)),
        (Runtime, "event", _runtime_event(watch, Runtime.event)),
        (ClientApi, "_answer_pull", _answer_pull(watch, ClientApi._answer_pull)),
        (ClientApi, "_apply", _apply(watch, ClientApi._apply)),
        (Decoder, "_run", _decoder_run(watch, Decoder._run)),
        (ClientApi, "_room", _room(watch, ClientApi._room)),
        (sink_shard, "_take_out", _take_out(watch, sink_shard._take_out)),
        (SinkShard, "apply", _sink_apply(watch, SinkShard.apply)),
        (RequestTable, "judge", _judge(watch, RequestTable.judge)),
        (Ownership, "_begin_data", _begin_data(watch, Ownership._begin_data)),
    ]


def _runtime_init(original: Any) -> Any:
    @wraps(original)
    def init(self: Runtime, *args: Any, **more: Any) -> None:
        original(self, *args, **more)
        process = PROCESS.get()
        assert process is not None
        process.runtime = self

    return init


def _runtime_count(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def count(self: Runtime, name: str, by: int = 1) -> None:
        original(self, name, by)
        watch.mark(name)

    return count


def _runtime_event(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def event(self: Runtime, kind: str, message: str, **details: Any) -> None:
        original(self, kind, message, **details)
        watch.say(f"{self.name}: {kind}: {message}")

    return event


def _answer_pull(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def answer(self: ClientApi, connection: Any, frame: Any, sections: Any, errors: Any) -> None:
        for number, section in enumerate(sections):
            if number not in errors:
                watch.served(self._runtime, section.gid, section.index, "answers a pull of")
        original(self, connection, frame, sections, errors)

    return answer


def _apply(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def apply(self: ClientApi, answer: Any, number: int, section: Any, *more: Any) -> None:
        watch.served(self._runtime, section.gid, section.index, "applies a push to")
        original(self, answer, number, section, *more)

    return apply


def _decoder_run(watch: Watch, original: Any) -> Any:
    @wraps(original)
    async def run(self: Decoder, table_id: int, slots: Any, on_demand: bool) -> None:
        if self._jobs and on_demand:
            watch.mark("on-demand decode beside the sweep")
        if on_demand:
            watch.mark("on-demand decode")
        await original(self, table_id, slots, on_demand)

    return run


def _take_out(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def take_out(rows: Any, slots: Any, frame: Any, coefficient: int) -> None:
        if np.isin(frame.slots, slots).any():
            watch.mark("logged delta taken out of a read")
        original(rows, slots, frame, coefficient)

    return take_out


def _sink_apply(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def apply(self: SinkShard, *args: Any, **more: Any) -> Applied:
        verdict: Applied = original(self, *args, **more)
        if verdict is Applied.GAP:
            watch.mark("a gap in a stream")
        elif verdict is Applied.DUPLICATE:
            watch.mark("a frame sent twice")
        return verdict

    return apply


def _judge(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def judge(self: RequestTable, *args: Any) -> Verdict:
        verdict: Verdict = original(self, *args)
        if verdict is Verdict.GAP:
            watch.mark("a request gap")
        return verdict

    return judge


def _room(watch: Watch, original: Any) -> Any:
    @wraps(original)
    async def room(self: ClientApi, owned: Any) -> None:
        watch.mark("a push waited for room")
        await original(self, owned)

    return room


def _begin_data(watch: Watch, original: Any) -> Any:
    @wraps(original)
    def begin(self: Ownership, group: Any, shard: Any, former: Any, old: Any) -> None:
        original(self, group, shard, former, old)
        if former is not None and former.owner_epoch != shard.owner_epoch and former.state == "recovering":
            watch.mark("a takeover of a takeover")
        owned = self._runtime.data.get((group.gid, shard.index))
        if owned is not None and owned.mirror is not None:
            watch.mark("a move was finished")

    return begin
