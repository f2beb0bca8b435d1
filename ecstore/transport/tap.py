"""What may stand between a connection and its socket: nothing, or a tap that a test asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ecstore.transport.connection import Connection


class Tap(Protocol):
    """Given to `connect` and `Server`. Without one nothing stands in between, and nothing is paid for it."""

    def protocol(self, conn: Connection) -> asyncio.BaseProtocol:
        """What the socket talks to instead of `conn`; it passes on what should come through."""

    async def passable(self) -> None:
        """Return when a new connection would get through; an attempt waits for it until its time-out."""


def protocol_of(conn: Connection, tap: Tap | None) -> asyncio.BaseProtocol:
    """The protocol that the loop is to drive for `conn`."""
    return conn if tap is None else tap.protocol(conn)
