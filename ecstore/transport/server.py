"""The listening end: bounded, and unharmed by whatever connects to it.

Sockets are of three kinds, each with a bound: *newcomers*, which have not said hello; open connections; and those that
are told why they are turned away. Where a newcomer finds no room, one that has shown less use of its own goes: of the
newcomers the oldest (an honest one says hello at once), of the open connections one that has long been silent (an
honest one comes back when it has something to say).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ecstore.errors import CapacityError, ConfigError, EcstoreError, UnavailableError
from ecstore.transport import local
from ecstore.transport.budgets import ReceptionBudget, UnsentBudget
from ecstore.transport.connection import Connection, Endpoint, Handler
from ecstore.transport.hello import Hello, check_cluster, check_token
from ecstore.transport.limits import DEFAULT_LIMITS, ConnectionLimits
from ecstore.transport.sockets import format_address
from ecstore.transport.tap import Tap, protocol_of

#: Sockets of one process: some hundred nodes and clients; each may cost a 64 KiB buffer and what its frames
#: hold.
MAX_CONNECTIONS = 1024

#: Connections that the system has accepted and we have not, of each listening socket.
BACKLOG: Final = 512

#: Of so many newcomers the oldest is turned away: a share of all connections, but room for those of one moment.
NEWCOMERS_SHARE: Final = 4
MIN_NEWCOMERS: Final = 16

#: Seconds without a whole frame after which an open connection may be closed to make room for another: of one that
#: has said nothing but hello, and of any. Honest ones are closed, too, and connect again when they need to.
SILENT_NEWCOMER_S: Final = 5.0
SILENT_S: Final = 60.0


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
        trusts: Callable[[Hello], bool] = lambda hello: False,
        tap: Tap | None = None,
    ) -> None:
        """With `token` set, peers must present the same; `admit` may raise an `EcstoreError` to refuse a
        hello. Peers whose hello is one that the server `trusts` are not closed to make room for others, and their
        frames do not compete with those of others for memory. `tap`: faults, for tests.
        """
        if max_connections < 1:
            raise ConfigError("max_connections must be at least 1")
        self._max_connections = max_connections
        self._max_newcomers = max(MIN_NEWCOMERS, max_connections // NEWCOMERS_SHARE)
        self._limits = limits
        self._token = token
        self._admit_hello = admit
        self._trusts = trusts
        self._tap = tap
        self._server: asyncio.Server | None = None
        self._local: asyncio.AbstractServer | None = None  #: for processes of this machine
        # As keys, in order of arrival: a set of objects has another order in every run.
        self._sockets: dict[Connection, None] = {}  # accepted and not yet lost
        self._newcomers: dict[Connection, None] = {}  # no hello yet; oldest first
        self._open: dict[Connection, None] = {}
        self._leaving: dict[Connection, None] = {}  # ended, the socket is not yet gone; oldest first
        self._receptions = {trusted: ReceptionBudget(limits.max_receiving_bytes) for trusted in (False, True)}
        self._unsent = UnsentBudget(limits.max_unsent_bytes)
        self._no_room_before = -math.inf
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
            on_opened=self._on_opened,
            on_ended=self._on_ended,
            on_lost=self._on_lost,
            admit=self._admit,
            on_write=self._on_write,
        )
        try:
            self._server = await loop.create_server(
                lambda: protocol_of(Connection(loop, endpoint), self._tap), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {host}:{port}: {error}. Choose a free port and an address of this machine"
            ) from error
        name = self._server.sockets[0].getsockname()
        self.address = format_address(name)
        sock = local.listen(name[0], name[1])
        if sock is not None:
            self._local = await loop.create_unix_server(
                lambda: protocol_of(Connection(loop, endpoint), self._tap), sock=sock, backlog=BACKLOG
            )

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
        if self._local is not None:
            self._local.close()
        for conn in tuple(self._sockets):
            conn.close("the server is closing")
        await self._empty.wait()
        await server.wait_closed()
        if self._local is not None:
            await self._local.wait_closed()

    def make_room(self) -> bool:
        """Close the open connection that has been silent longest, if that is long enough. False: there is none."""
        now = asyncio.get_running_loop().time()
        if now < self._no_room_before:
            return False
        oldest, oldest_due = None, math.inf
        for conn in self._open:
            if not conn.closed and not self._trusts(conn.peer):
                due = conn.last_frame_at + (SILENT_NEWCOMER_S if conn.frames_in <= 1 else SILENT_S)
                if due < oldest_due:
                    oldest, oldest_due = conn, due
        if oldest is None or now < oldest_due:
            self._no_room_before = min(oldest_due, now + 1.0)  # others may end, or be trusted no more
            return False
        oldest.refuse(CapacityError("closed after a long silence, to make room for others; connect again"))
        return True

    # -- hooks of connections ---------------------------------------------------------------------------

    def _admit(self, conn: Connection) -> EcstoreError | None:
        self._accepted += 1
        self._sockets[conn] = None
        self._newcomers[conn] = None
        self._empty.clear()
        if self._closing:
            return UnavailableError("the server is closing; connect to another node")
        if len(self._newcomers) > self._max_newcomers:
            oldest = next(iter(self._newcomers))
            oldest.refuse(CapacityError("too many connect at once, and you have not said hello; connect again"))
        if len(self._sockets) > 2 * self._max_connections + self._max_newcomers:
            next(iter(self._leaving), conn).abort()  # even those being told no are bounded
        return None

    def _check(self, peer: Hello) -> None:
        assert self._hello is not None
        if peer.cluster is not None:
            check_cluster(self._hello().cluster, peer.cluster)
        check_token(self._token, peer.token)
        if self._admit_hello is not None:
            self._admit_hello(peer)
        if len(self._open) >= self._max_connections and not self.make_room():
            raise CapacityError(
                f"this server serves at most {self._max_connections} connections; close some, or raise the limit"
            )

    def _on_opened(self, conn: Connection) -> None:
        self._newcomers.pop(conn, None)
        self._open[conn] = None
        trusted = self._trusts(conn.peer)
        conn.limit_reception(self._receptions[trusted])
        if not trusted:
            self._unsent.add(conn)

    def _on_write(self, conn: Connection, size: int) -> None:
        self._unsent.wrote(size)

    def _on_ended(self, conn: Connection, error: EcstoreError) -> None:
        (self._ended if conn.opened else self._refused)[conn.end_reason] += 1
        self._newcomers.pop(conn, None)
        self._open.pop(conn, None)
        self._unsent.discard(conn)
        if conn in self._sockets:
            self._leaving[conn] = None

    def _on_lost(self, conn: Connection) -> None:
        self._sockets.pop(conn, None)
        self._leaving.pop(conn, None)
        if not self._sockets:
            self._empty.set()
