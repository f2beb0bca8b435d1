"""The listening end: bounded, and unharmed by whatever connects to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ecstore.errors import CapacityError, ConfigError, EcstoreError, UnavailableError
from ecstore.transport.connection import Connection, Endpoint, Handler
from ecstore.transport.hello import Hello, check_cluster, check_token
from ecstore.transport.limits import DEFAULT_LIMITS, ConnectionLimits
from ecstore.transport.sockets import format_address
from ecstore.transport.tap import Tap, protocol_of

#: Sockets of one process: some hundred nodes and clients; each may cost a 64 KiB buffer and what its frames
#: hold.
MAX_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Counts since the start; `refused` and `ended` by the connection's `end_reason`, such as "frame",
    "frame_too_large", "version_mismatch", "wrong_cluster", "auth", "capacity", "hello_late", "lost".
    """

    accepted: int
    open: int
    #: Ended before both hellos were checked.
    refused: dict[str, int]
    #: Ended after that.
    ended: dict[str, int]


class Server:
    """Accepts connections and gives their frames to one handler."""

    def __init__(
        self,
        *,
        max_connections: int = MAX_CONNECTIONS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        token: str | None = None,
        admit: Callable[[Hello], None] | None = None,
        tap: Tap | None = None,
    ) -> None:
        """With `token` set, peers must present the same; `admit` may raise an `EcstoreError` to refuse a
        hello. `tap`: faults, for tests.
        """
        if max_connections < 1:
            raise ConfigError("max_connections must be at least 1")
        self._max_connections = max_connections
        self._limits = limits
        self._token = token
        self._admit_hello = admit
        self._tap = tap
        self._server: asyncio.Server | None = None
        self._sockets: set[Connection] = set()  # accepted and not yet lost
        self._open: set[Connection] = set()
        self._empty: asyncio.Event = asyncio.Event()
        self._closing = False
        self._accepted = 0
        self._refused: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._hello: Callable[[], Hello] | None = None
        self.address = ""

    async def start(self, host: str, port: int, hello_of_server: Callable[[], Hello], handler: Handler) -> None:
        """Listen; `address` is then the bound "host:port" (port 0 takes a free one).

        Raises `UnavailableError` when the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._hello = hello_of_server
        self._empty.set()
        endpoint = Endpoint(
            accepted=True,
            hello=hello_of_server,
            handler=handler,
            limits=self._limits,
            check=self._check,
            on_opened=self._open.add,
            on_ended=self._on_ended,
            on_lost=self._on_lost,
            admit=self._admit,
        )
        try:
            self._server = await loop.create_server(
                lambda: protocol_of(Connection(loop, endpoint), self._tap), host, port, backlog=512
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host}:{port}: {error}. Choose a free port and an address of this machine"
            ) from error
        self.address = format_address(self._server.sockets[0].getsockname())

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The open ones, both hellos checked."""
        return tuple(conn for conn in self._open if not conn.closed)

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(self._accepted, len(self.connections), dict(self._refused), dict(self._ended))

    async def close(self) -> None:
        """Stop listening, close every connection with a reason and wait until they are gone (at most
        `linger`).
        """
        if self._server is None:
            return
        self._closing = True
        server, self._server = self._server, None
        server.close()
        for conn in tuple(self._sockets):
            conn.close("the server is closing")
        await self._empty.wait()
        await server.wait_closed()

    def _admit(self, conn: Connection) -> EcstoreError | None:
        self._accepted += 1
        self._sockets.add(conn)
        self._empty.clear()
        if self._closing:
            return UnavailableError("the server is closing; connect to another node")
        if len(self._sockets) <= self._max_connections:
            return None
        if len(self._sockets) > 2 * self._max_connections:
            conn.abort()  # even those being told no are bounded
        return CapacityError(
            f"this server serves at most {self._max_connections} connections; close some, or raise the limit"
        )

    def _check(self, peer: Hello) -> None:
        assert self._hello is not None
        if peer.cluster is not None:
            check_cluster(self._hello().cluster, peer.cluster)
        check_token(self._token, peer.token)
        if self._admit_hello is not None:
            self._admit_hello(peer)

    def _on_ended(self, conn: Connection, error: EcstoreError) -> None:
        (self._ended if conn.opened else self._refused)[conn.end_reason] += 1
        self._open.discard(conn)

    def _on_lost(self, conn: Connection) -> None:
        self._sockets.discard(conn)
        if not self._sockets:
            self._empty.set()
