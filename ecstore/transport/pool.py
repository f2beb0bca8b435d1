"""Opening connections: one attempt, and a pool that keeps one connection per address."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Callable
from dataclasses import dataclass

from ecstore.errors import EcstoreError, TimeoutError, UnavailableError
from ecstore.transport.connection import Connection, Endpoint, Handler
from ecstore.transport.hello import Hello, check_cluster
from ecstore.transport.limits import DEFAULT_LIMITS, ConnectionLimits
from ecstore.transport.sockets import parse_address

#: Pause after a first failed attempt and the longest one, in seconds; doubled from one failure to the next.
BACKOFF_FIRST = 0.05
BACKOFF_LONGEST = 2.0

#: A connection that ends sooner than this (seconds) counts as a failed attempt.
STABLE_AFTER = 1.0


async def connect(
    address: str,
    hello: Hello,
    handler: Handler,
    *,
    expect_cluster: str | None,
    timeout: float,
    limits: ConnectionLimits = DEFAULT_LIMITS,
) -> Connection:
    """Open a connection to "host:port" and exchange hellos within `timeout` seconds.

    Raises `UnavailableError` (details: `reason` "refused" or "failed"), `TimeoutError`,
    `VersionMismatchError`, `WrongClusterError` (also when the peer's cluster is not `expect_cluster`),
    `AuthError`, or the error with which the peer refused.
    """
    host, port = parse_address(address)
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Connection] = loop.create_future()

    def on_opened(conn: Connection) -> None:
        if not opened.done():
            opened.set_result(conn)

    def on_ended(conn: Connection, error: EcstoreError) -> None:
        if not opened.done():
            opened.set_exception(error)

    endpoint = Endpoint(
        accepted=False,
        hello=lambda: hello,
        handler=handler,
        limits=limits,
        check=lambda peer: check_cluster(expect_cluster, peer.cluster),
        on_opened=on_opened,
        on_ended=on_ended,
        on_lost=lambda conn: None,
        admit=lambda conn: None,
    )
    conn = Connection(loop, endpoint, address)
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: conn, host, port)
            await opened
        if conn.end is not None:  # the handler or the peer ended it at once
            raise conn.end
        return conn
    except BaseException as error:
        opened.cancel()
        conn.abort()
        if isinstance(error, EcstoreError) or not isinstance(error, OSError):
            raise
        raise _connect_error(address, error, timeout) from error


def _connect_error(address: str, error: OSError, timeout: float) -> EcstoreError:
    """Our error for one of the system's or of `asyncio.timeout` (whose `TimeoutError` is an `OSError`)."""
    if isinstance(error, builtins.TimeoutError):
        return TimeoutError(
            f"{address} did not answer within {timeout:g} s; check that it runs and that nothing is between",
            address=address,
        )
    reason = "refused" if isinstance(error, ConnectionRefusedError) else "failed"
    return UnavailableError(
        f"cannot connect to {address}: {error}. Check the address and that the peer runs",
        address=address,
        reason=reason,
    )


@dataclass(slots=True)
class _Peer:
    connection: Connection | None = None
    attempt: asyncio.Task[Connection] | None = None
    failures: int = 0
    not_before: float = 0.0  # loop time of the next attempt
    opened_at: float = 0.0
    last_error: EcstoreError | None = None


class PeerPool:
    """One connection to each address, opened when asked for.

    Nothing runs in the background: an attempt is made when someone asks, shared by all who ask meanwhile, and
    belongs to the pool, which ends it in `close`. After a failure the next attempt waits (capped exponential
    backoff with jitter), so a caller that retries in a loop is paced by the pool.
    """

    def __init__(
        self,
        hello: Callable[[], Hello],
        handler: Handler,
        rng: random.Random,
        *,
        expect_cluster: Callable[[], str | None] = lambda: None,
        connect_timeout: float = 5.0,
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        """`rng` is the source of the jitter; `connect_timeout` (seconds) bounds one attempt."""
        self._hello = hello
        self._handler = handler
        self._rng = rng
        self._expect_cluster = expect_cluster
        self._connect_timeout = connect_timeout
        self._limits = limits
        self._peers: dict[str, _Peer] = {}
        self._closed = False

    def get(self, address: str) -> Connection | None:
        """The open connection to `address`, if there is one now."""
        peer = self._peers.get(address)
        if peer is None or peer.connection is None or peer.connection.closed:
            return None
        return peer.connection

    @property
    def connections(self) -> tuple[Connection, ...]:
        return tuple(
            peer.connection
            for peer in self._peers.values()
            if peer.connection is not None and not peer.connection.closed
        )

    async def connection(self, address: str, timeout: float) -> Connection:
        """The connection to `address`, opened if needed, within `timeout` seconds.

        Makes (or joins) at most one attempt and raises its error: see `connect`. While the pause after a
        failure lasts longer than `timeout`, the last error is raised at once.
        """
        conn = self.get(address)
        if conn is not None:
            return conn
        loop = asyncio.get_running_loop()
        if self._closed:
            raise UnavailableError("this pool is closed; connect again")
        peer = self._peers.setdefault(address, _Peer())
        if peer.attempt is None:
            pause = peer.not_before - loop.time()
            if pause > timeout and peer.last_error is not None:
                raise UnavailableError(
                    f"{address} could not be reached {peer.failures} times, the next attempt is made in "
                    f"{pause:.1f} s: {peer.last_error}",
                    address=address,
                )
            peer.attempt = loop.create_task(self._attempt(address, peer, max(pause, 0.0)))
            peer.attempt.add_done_callback(_retrieve)
        attempt = peer.attempt
        done, _ = await asyncio.wait((attempt,), timeout=timeout)
        if not done:
            raise TimeoutError(f"no connection to {address} within {timeout:g} s; retry", address=address)
        if attempt.cancelled():
            raise UnavailableError(f"the pool gave up the connection to {address}; connect again")
        return attempt.result()

    def forget(self, address: str, reason: str = "no longer needed") -> None:
        """Close the connection to `address` and end an attempt; the backoff is forgotten too."""
        peer = self._peers.pop(address, None)
        if peer is None:
            return
        if peer.attempt is not None:
            peer.attempt.cancel()
        if peer.connection is not None:
            peer.connection.close(reason)

    async def close(self, reason: str = "the peer is closing") -> None:
        """Close every connection, end every attempt and wait for the attempts."""
        self._closed = True
        attempts = [peer.attempt for peer in self._peers.values() if peer.attempt is not None]
        for address in tuple(self._peers):
            self.forget(address, reason)
        if attempts:
            await asyncio.wait(attempts)

    async def _attempt(self, address: str, peer: _Peer, pause: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(pause)
            conn = await connect(
                address,
                self._hello(),
                self._handler,
                expect_cluster=self._expect_cluster(),
                timeout=self._connect_timeout,
                limits=self._limits,
            )
        except EcstoreError as error:
            self._failed(peer, error, loop.time())
            raise
        finally:
            peer.attempt = None
        peer.connection = conn
        peer.opened_at = loop.time()
        conn.on_close.append(lambda closed: self._ended(peer, closed))
        return conn

    def _failed(self, peer: _Peer, error: EcstoreError, now: float) -> None:
        pause = min(BACKOFF_FIRST * 2.0 ** min(peer.failures, 16), BACKOFF_LONGEST)
        peer.failures += 1
        peer.last_error = error
        peer.not_before = now + pause * self._rng.uniform(0.5, 1.0)

    def _ended(self, peer: _Peer, conn: Connection) -> None:
        if peer.connection is not conn:
            return
        peer.connection = None
        now = asyncio.get_running_loop().time()
        if now - peer.opened_at >= STABLE_AFTER:
            peer.failures = 0
            peer.not_before = 0.0
        elif conn.end is not None:
            self._failed(peer, conn.end, now)


def _retrieve(attempt: asyncio.Task[Connection]) -> None:
    """Mark a failure as seen: everyone who asked may have given up before."""
    if not attempt.cancelled():
        attempt.exception()
