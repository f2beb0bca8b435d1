"""Connections between peers: frames over TCP or a Unix socket, requests and replies, deadlines, bounds.

The parts: `transport.hello` (who is at the other end), `transport.connection` (one connection),
`transport.server` (accepts them), `transport.dial` (opens them), `transport.local` (the short way on one machine),
`transport.limits` (settings), `transport.loop` (uvloop or asyncio). Import from here.
"""

from __future__ import annotations

from ecstore.errors import EcstoreError, ProtocolError
from ecstore.transport.connection import Connection, Handler
from ecstore.transport.dial import connect
from ecstore.transport.hello import Hello, Role
from ecstore.transport.limits import DEFAULT_LIMITS, ConnectionLimits
from ecstore.transport.loop import install_uvloop, new_event_loop, run
from ecstore.transport.requests import OnReply
from ecstore.transport.server import MAX_CONNECTIONS, Server, ServerStatistics
from ecstore.transport.sockets import parse_address
from ecstore.transport.tap import Tap
from ecstore.wire import Frame

__all__ = [
    "DEFAULT_LIMITS",
    "MAX_CONNECTIONS",
    "Connection",
    "ConnectionLimits",
    "EcstoreError",
    "Frame",
    "Handler",
    "Hello",
    "OnReply",
    "PassiveHandler",
    "Role",
    "Server",
    "ServerStatistics",
    "Tap",
    "connect",
    "install_uvloop",
    "new_event_loop",
    "parse_address",
    "run",
]


class PassiveHandler:
    """For ends that only ask: refuses requests, ignores one-way messages. A base to override, too."""

    def on_open(self, conn: Connection) -> None:
        """Nothing to do."""

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        if frame.rid:
            raise ProtocolError(f"this end answers no requests, {frame.kind!r} was sent to it; ask a node")

    def on_close(self, conn: Connection, reason: str) -> None:
        """Nothing to do."""
