"""Addresses and socket options."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

from ecstore.errors import ConfigError
from ecstore.transport import local

#: A half-open peer is found after 10 + 3 * 5 seconds without traffic. Heartbeats of the membership are
#: faster; this is for connections without any, such as those of clients.
KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


def parse_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port". Raises `ConfigError`."""
    host, separator, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{address!r} is no address; write host:port, such as 127.0.0.1:7400")
    return host, int(port)


def format_address(name: object) -> str:
    """ "host:port" of a socket name as the kernel gives it; "" when there is none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune_socket(transport: asyncio.BaseTransport) -> None:
    """No delay for small frames; keep-alive against half-open peers. Transports without a socket are left
    alone.

    Buffer sizes of TCP stay with the kernel: it adapts them to the connection, up to several MiB, while setting
    them by hand turns that off and is capped at a few hundred KiB by default.
    """
    sock: Any = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        local.tune(sock)
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # some systems refuse when the peer is gone already; that is noticed soon
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
