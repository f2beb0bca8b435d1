"""Opening a connection: one attempt. Who keeps it, and tries again, is the caller's affair."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable

from ecstore.errors import EcstoreError, TimeoutError, UnavailableError
from ecstore.transport import local
from ecstore.transport.connection import Connection, Endpoint, Handler
from ecstore.transport.hello import Hello, check_cluster
from ecstore.transport.limits import DEFAULT_LIMITS, ConnectionLimits
from ecstore.transport.sockets import parse_address
from ecstore.transport.tap import Tap, protocol_of


async def connect(
    address: str,
    hello: Hello,
    handler: Handler,
    *,
    expect_cluster: str | None,
    timeout: float,
    limits: ConnectionLimits = DEFAULT_LIMITS,
    tap: Tap | None = None,
) -> Connection:
    """Open a connection to "host:port" and exchange hellos within `timeout` seconds. `tap`: faults, for tests.

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
            if tap is not None:
                await tap.passable()
            await _open(loop, lambda: protocol_of(conn, tap), host, port)
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


async def _open(
    loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> None:
    sock = local.dial(host, port)
    if sock is None:
        await loop.create_connection(protocol, host, port)
        return
    try:
        await loop.create_unix_connection(protocol, sock=sock)
    except BaseException:
        if isinstance(loop, asyncio.BaseEventLoop):
            sock.close()
        else:  # uvloop has closed the descriptor: its number may be another file's by now
            sock.detach()
        raise


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
