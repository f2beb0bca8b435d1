"""A simulated process: what runs in its context runs, waits or is lost with it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.loop import VirtualLoop


class Process:
    """One life of one process on a host. `state`: "running", "paused" or "dead"."""

    def __init__(self, loop: VirtualLoop, name: str, host: str) -> None:
        from tests.sim.loop import PROCESS

        self._loop = loop
        self.name = name
        self.host = host
        self.state = "running"
        #: Seconds that each callback takes, for a slow process.
        self.callback_s = 0.0
        self._busy_until = 0.0
        self._waiting: deque[asyncio.Handle] = deque()
        self._wake_at: float | None = None
        #: The node that runs here, once it does.
        self.runtime: Any = None
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name} {self.state}>"

    @property
    def running(self) -> bool:
        return self.state == "running"

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(work, name=name, context=self.context.copy())

    # -- what the loop asks

    def admits(self, handle: asyncio.Handle, now: float) -> bool:
        """Whether the callback runs now; otherwise it is kept for later, or lost."""
        if self.state == "dead":
            return False
        if self.state == "paused" or now < self._busy_until or (self._waiting and self._wake_at is not None):
            self._waiting.append(handle)
            if self.state == "running":
                self._wake()
            return False
        if self.callback_s:
            self._busy_until = now + self.callback_s
        return True

    def _wake(self) -> None:
        if self._wake_at is None:
            self._wake_at = self._busy_until
            self._loop.call_at(self._busy_until, self._awake, context=Context())

    def _awake(self) -> None:
        """Run what waited; a slow process one callback at a time."""
        self._wake_at = None
        if self.state != "running" or not self._waiting:
            return
        if self._loop.time() < self._busy_until:
            self._wake()
            return
        if not self.callback_s:
            waiting, self._waiting = list(self._waiting), deque()
            self._loop.requeue(waiting)
            return
        handle = self._waiting.popleft()
        if not handle._cancelled:
            self._busy_until = self._loop.time() + self.callback_s
            handle._run()
        if self._waiting:
            self._wake()

    # -- what the simulation does to it

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs; its timers and bytes wait."""
        if self.state == "running":
            self.state = "paused"

    def resume(self) -> None:
        """SIGCONT."""
        if self.state == "paused":
            self.state = "running"
            self._wake_at = None
            self._busy_until = max(self._busy_until, self._loop.time())
            self._wake()

    def block(self, seconds: float) -> None:
        """Its loop is busy with something else for so long."""
        self._busy_until = max(self._busy_until, self._loop.time() + seconds)

    def kill(self) -> None:
        """SIGKILL: nothing of it ever runs again, no clean-up either."""
        self.state = "dead"
        self._waiting.clear()
