"""Requests of one connection on their way: who waits for which reply, until when, and who may send next."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ecstore.errors import EcstoreError, TimeoutError
from ecstore.transport.errors import error_from_wire
from ecstore.wire import Frame

OnReply = Callable[[Frame | EcstoreError], None]

logger = logging.getLogger("ecstore.transport")


class _Pending(NamedTuple):
    kind: str
    on_reply: OnReply
    timeout: float


class RequestTable:
    """Requests that were sent and not yet answered. One timer serves them all (no task, no timer per
    request).

    Each `on_reply` is called exactly once: with the reply, the error the peer answered, `TimeoutError` at the
    deadline, or the error given to `fail_all`; unless the request is discarded first.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, peer_name: Callable[[], str], on_expired: Callable[[], None]
    ) -> None:
        """`on_expired` is called after requests have timed out: there is room for others."""
        self._loop = loop
        self._on_expired = on_expired
        self._peer_name = peer_name
        self._pending: dict[int, _Pending] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap; answered requests leave it lazily
        self._timer: asyncio.TimerHandle | None = None
        self._last_rid = 0
        self.late_replies = 0
        self.timeouts = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def next_rid(self) -> int:
        """The id the next `add` will use."""
        return self._last_rid + 1

    def add(self, kind: str, on_reply: OnReply, deadline: float, timeout: float) -> int:
        """Register a request that ends at loop time `deadline`; returns its id."""
        self._last_rid += 1
        rid = self._last_rid
        self._pending[rid] = _Pending(kind, on_reply, timeout)
        heapq.heappush(self._deadlines, (deadline, rid))
        if len(self._deadlines) > 2 * len(self._pending) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._pending]
            heapq.heapify(self._deadlines)
        if self._timer is None or self._deadlines[0][1] == rid:
            self._arm()
        return rid

    def discard(self, rid: int) -> None:
        """Forget a request whose caller has gone; its reply will be dropped as late."""
        self._pending.pop(rid, None)

    def settle(self, frame: Frame) -> None:
        """Hand a reply to whoever waits for it; a late one is dropped."""
        pending = self._pending.pop(frame.rid, None)
        if pending is None:
            self.late_replies += 1
            return
        self._call(pending, frame if frame.kind == "ok" else error_from_wire(frame.meta))

    def fail_all(self, make_error: Callable[[str], EcstoreError]) -> None:
        """End every request with `make_error(kind)`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadlines.clear()
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            self._call(entry, make_error(entry.kind))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadlines[0][0], self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines:
            deadline, rid = self._deadlines[0]
            if rid in self._pending and deadline > now:
                break
            heapq.heappop(self._deadlines)
            pending = self._pending.pop(rid, None)
            if pending is not None:
                self.timeouts += 1
                self._call(pending, timeout_error(pending.kind, self._peer_name(), pending.timeout))
        if self._deadlines:
            self._arm()
        self._on_expired()

    def _call(self, pending: _Pending, outcome: Frame | EcstoreError) -> None:
        """A fault in one caller's callback must not end the others' connection: it is reported, and only
        that.
        """
        try:
            pending.on_reply(outcome)
        except Exception:
            logger.exception("the on_reply callback of a %s request failed", pending.kind)


def timeout_error(kind: str, peer: str, timeout: float) -> TimeoutError:
    return TimeoutError(
        f"{kind} was not answered by {peer} within {timeout:g} s, the peer is slow or cut off; it may or may "
        "not have been applied. Retry, or raise the timeout",
        kind=kind,
    )


class Gate:
    """Lets callers through in the order they came, one after the other, as long as there is room.

    Each takes its room (by sending, without a wait in between) and calls `wake`; only then is the next let
    through, because how much room is left depends on what was sent.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, has_room: Callable[[], bool]) -> None:
        self._loop = loop
        self._has_room = has_room
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._passing = False  # someone was let through and has not begun yet

    async def enter(self, deadline: float, late: Callable[[], EcstoreError]) -> None:
        """Return when there is room. Raises `late()` at loop time `deadline`, or the error of `close`."""
        if not self._waiters and not self._passing and self._has_room():
            return
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        timer = self._loop.call_at(deadline, self._expire, waiter, late)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:  # let through and cancelled at once
                self._passing = False
                self.wake()
            raise
        finally:
            timer.cancel()
        self._passing = False

    def wake(self) -> None:
        """Let the next one through if there is room; called whenever room may have appeared."""
        while self._waiters and not self._passing:
            if not self._waiters[0].done():
                if not self._has_room():
                    return
                self._passing = True
                self._waiters[0].set_result(None)
            self._waiters.popleft()

    def close(self, make_error: Callable[[], EcstoreError]) -> None:
        """End every wait with an error."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(make_error())
        self._waiters.clear()

    @staticmethod
    def _expire(waiter: asyncio.Future[None], late: Callable[[], EcstoreError]) -> None:
        if not waiter.done():
            waiter.set_exception(late())
