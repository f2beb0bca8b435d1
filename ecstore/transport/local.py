"""The short way between processes of one machine: a Unix socket beside the TCP one (Linux).

Over the loopback interface every byte goes through all of TCP, which costs twice the processor time of a Unix socket.
So a server that listens on a loopback address listens on a Unix socket, too, named after that address in the abstract
namespace: the name is gone with the process, and no file is left. Who connects to such an address tries it first; where
there is none, or it is another user's, TCP it is.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from typing import Final

AVAILABLE: Final = sys.platform == "linux"

#: What may wait in a socket for its reader: some messages, so that writer and reader work side by side. The system
#: grants less where its own limit is lower.
SEND_BUFFER_BYTES: Final = 1 << 20

_CREDENTIALS: Final = struct.Struct("iII")  # process, user, group


def name_of(host: str, port: int) -> str | None:
    """Of the Unix socket beside this TCP address; None: there is none beside such an address."""
    if not AVAILABLE or not port:
        return None
    try:
        address = ipaddress.ip_address("127.0.0.1" if host in ("localhost", "0.0.0.0") else host)
    except ValueError:
        return None
    return f"\0ecstore {address}:{port}" if address.is_loopback else None


def listen(host: str, port: int) -> socket.socket | None:
    """A socket for a server to listen on, beside the TCP one; None where there can't be any."""
    name = name_of(host, port)
    if name is None:
        return None
    try:
        sock = _new()
    except OSError:  # no more descriptors
        return None
    try:
        sock.bind(name)
    except OSError:  # the name is taken, or forbidden here
        sock.close()
        return None
    return sock


def dial(host: str, port: int) -> socket.socket | None:
    """A connected socket to the server of this TCP address; None: go there by TCP. Never waits."""
    name = name_of(host, port)
    if name is None:
        return None
    try:
        sock = _new()
    except OSError:
        return None  # the attempt by TCP says why
    try:
        sock.connect(name)
        if _user_of(sock) in (os.geteuid(), 0):
            return sock
    except OSError:  # nobody there, or no room for one more
        pass
    sock.close()
    return None


def _new() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


def tune(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def _user_of(sock: socket.socket) -> int:
    """Who listens at the other end: a name may be taken by anybody, a port that is in use not."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _process, user, _group = _CREDENTIALS.unpack(credentials)
    return int(user)
