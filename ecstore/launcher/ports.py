"""Ports for the processes of a one-machine cluster."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence
from typing import Final

from ecstore.errors import ConfigError
from ecstore.transport import parse_address

#: Ports to choose from lie below the ranges that Linux and macOS give to outgoing connections: a node's port must
#: still be free when the node is started again.
LOWEST: Final = 15_000
HIGHEST: Final = 30_000


def check_free(addresses: Sequence[str]) -> None:
    """ConfigError that names every address of "host:port" which is taken or not of this machine."""
    taken = []
    for address in addresses:
        host, port = parse_address(address)
        reason = _why_not(host, port) if port else ""
        if reason:
            taken.append(f"{address} ({reason})")
    if taken:
        raise ConfigError(f"cannot listen on {', '.join(taken)}; choose other ports with --port-base and --admin-port")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` distinct ports that nobody listens on now. Start at random, so that parallel runs seldom meet."""
    start = random.randrange(LOWEST, HIGHEST)
    found: list[int] = []
    for step in range(HIGHEST - LOWEST):
        port = LOWEST + (start - LOWEST + step) % (HIGHEST - LOWEST)
        if not _why_not(host, port):
            found.append(port)
            if len(found) == count:
                return found
    raise ConfigError(f"no {count} free ports between {LOWEST} and {HIGHEST} on {host}; name some with --port-base")


def _why_not(host: str, port: int) -> str:
    """ "" when the port can be bound, otherwise the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return ""
