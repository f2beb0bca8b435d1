"""Runs a coroutine test on asyncio and on uvloop, and fails it for whatever it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ecstore.transport import Connection, Frame, Handler, Hello, PassiveHandler, Server, connect

FACTORIES = [pytest.param(asyncio.new_event_loop, id="asyncio")]
try:
    import uvloop
except ImportError:  # no uvloop for this platform
    pass
else:
    FACTORIES.append(pytest.param(uvloop.new_event_loop, id="uvloop"))

CLUSTER = "lab"
#: Long enough never to pass in a test that works.
LONG = 30.0


def on_both_loops(test: Callable[[], Awaitable[None]]) -> Callable[..., None]:
    """A test must leave no task and give the loop's exception handler nothing to do."""

    @pytest.mark.parametrize("loop_factory", FACTORIES)
    def run_test(loop_factory) -> None:
        complaints: list[dict] = []

        async def checked() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
            async with asyncio.timeout(LONG):
                await test()
            await settle()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(checked())
        assert complaints == []

    run_test.__name__ = run_test.__qualname__ = test.__name__
    run_test.__doc__ = test.__doc__
    run_test.__module__ = test.__module__
    return run_test


async def settle(turns: int = 5) -> None:
    """Let callbacks of the loop that are due run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come; the time-out of the test ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 - conditions on any object, not events made for tests
        await asyncio.sleep(0.002)


def hello(role: str = "client", cluster: str | None = CLUSTER, name: str = "c1", **more) -> Hello:
    return Hello(role, cluster, name, **more)


class Recorder(PassiveHandler):
    """A handler that remembers; "echo" answers, "silent" does not, other requests go to `answer`."""

    def __init__(self, answer: Callable[[Connection, Frame], None] | None = None) -> None:
        self.answer = answer
        self.frames: list[Frame] = []
        self.opened: list[Connection] = []
        self.ended: list[str] = []

    def on_open(self, conn: Connection) -> None:
        self.opened.append(conn)

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind == "echo":
            conn.reply(frame.rid, frame.meta, frame.bins)
        elif self.answer is not None:
            self.answer(conn, frame)

    def on_close(self, conn: Connection, reason: str) -> None:
        self.ended.append(reason)


async def silent_listener() -> tuple[asyncio.Server, str]:
    """Accepts connections and says nothing."""
    listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    return listener, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"


class Pair:
    """A server and helpers to connect to it; everything is closed at the end."""

    def __init__(self, handler: Handler | None = None, **server_options) -> None:
        self.handler = handler or Recorder()
        self.server = Server(**server_options)
        self.server_hello = hello("node", name="n1", incarnation=3)
        self.connections: list[Connection] = []

    async def __aenter__(self) -> Pair:
        await self.server.start("127.0.0.1", 0, lambda: self.server_hello, self.handler)
        return self

    async def __aexit__(self, *_: object) -> None:
        for conn in self.connections:
            conn.close("the test is over")
        await self.server.close()
        await settle()

    async def connect(self, handler: Handler | None = None, ours: Hello | None = None, **options) -> Connection:
        options.setdefault("expect_cluster", CLUSTER)
        options.setdefault("timeout", LONG)
        conn = await connect(self.server.address, ours or hello(), handler or PassiveHandler(), **options)
        self.connections.append(conn)
        return conn

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.server.address.split(":")
        return await asyncio.open_connection(host, int(port))
