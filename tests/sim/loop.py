"""A virtual-time event loop: asyncio's own, with time that jumps to the next timer and callbacks that belong to a
simulated process.

Time passes only when nothing is ready to run. Each callback runs in a context, and the context names the process it
belongs to: a paused process keeps its callbacks for later, a killed one loses them, a slow one takes its time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

from tests.sim.process import Process

#: The process that the running callback belongs to; None: the simulation itself.
PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class StandStill(Exception):
    """Nothing is ready and no timer is set: the simulation would wait for ever."""


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks (in `TaskGroup`) have the same order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **more: Any) -> None:
        self._number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self._number


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is its number."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _NoSelector:
    """There are no file descriptors; `_run_once` below never selects."""

    def get_map(self) -> dict[int, Any]:
        return {}

    def close(self) -> None:
        return


class VirtualLoop(asyncio.BaseEventLoop):
    """`network` answers `create_server` and `create_connection`."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._now = 0.0
        self._clock_resolution = 0.0
        self._numbers = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # heap; the number keeps the order of calls
        self.tasks: dict[int, SimTask] = {}  # unfinished ones, and some that have just finished
        self.network: Any = None
        self.callbacks = 0

    # -- time

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(timers)
            if not timers:
                raise StandStill("nothing is ready and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is None or process.admits(handle, self._now):
                self.callbacks += 1
                handle._run()

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the heap until its time has come."""

    def forget_all(self) -> None:
        """Drop all callbacks and timers: the run is over."""
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()
        self.tasks.clear()

    def requeue(self, handles: list[asyncio.Handle]) -> None:
        """Callbacks that a process could not run until now, in order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    # -- objects with the same hash in every run

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> SimTask:
        self._numbers += 1
        task = SimTask(self._numbers, coro, loop=self, name=name or "task", context=context)
        self.tasks[self._numbers] = task
        if len(self.tasks) > 4096 and self._numbers % 1024 == 0:
            self.tasks = {number: kept for number, kept in self.tasks.items() if not kept.done()}
        return task

    def create_future(self) -> SimFuture:
        self._numbers += 1
        return SimFuture(self._numbers, self)

    # -- what asyncio wants of a loop

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The function runs here, a moment later: there are no threads."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(0.002, work)
        return future

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_more: Any) -> Any:  # type: ignore[override]
        return self.network.listen(PROCESS.get(), factory, host, port)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_more: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(PROCESS.get(), factory, host, port)

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""
