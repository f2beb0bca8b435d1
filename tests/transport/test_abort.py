"""Giving up a connection whose opening was cancelled: nothing is written to a socket that is closed already."""

from __future__ import annotations

import asyncio
from typing import Any

from loops import hello, on_both_loops

from ecstore.errors import UnavailableError
from ecstore.transport import PassiveHandler
from ecstore.transport.connection import Connection, Endpoint
from ecstore.transport.limits import DEFAULT_LIMITS


class ClosedUnderneath(asyncio.Transport):
    """As uvloop leaves a transport when `create_connection` is cancelled: closed, but `is_closing` does not say so."""

    aborted = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        raise RuntimeError("the handler is closed")

    writelines = write

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def close(self) -> None:
        return

    def abort(self) -> None:
        self.aborted = True


@on_both_loops
async def test_abort_writes_nothing():
    loop = asyncio.get_running_loop()
    ended: list[UnavailableError] = []
    endpoint = Endpoint(
        accepted=False, hello=hello, handler=PassiveHandler(), limits=DEFAULT_LIMITS, admit=lambda _conn: None,
        check=lambda _hello: None, on_opened=lambda _conn: None, on_ended=lambda _conn, error: ended.append(error),
        on_lost=lambda _conn: None,
    )  # fmt: skip
    conn = Connection(loop, endpoint, "127.0.0.1:1")
    transport = ClosedUnderneath()
    conn.connection_made(transport)  # queues the hello
    conn.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.aborted
    assert len(ended) == 1
    conn.connection_lost(None)
