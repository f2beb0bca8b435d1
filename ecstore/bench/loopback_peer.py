"""The machine's loopback copy rate: as many bytes through a TCP connection to another process, and nothing else.

`python -m ecstore.bench.loopback_peer` is the other process. It listens, prints its port and serves one connection:
each request is two u64, how many bytes follow and how many bytes to answer with.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_REQUEST: Final = struct.Struct("<QQ")


class Loopback:
    """Copies bytes to the other process and back. Buffers are made once: what is measured is the copy."""

    def __init__(self, connection: socket.socket, largest: int) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(largest))

    def exchange(self, send: int, receive: int) -> None:
        """Send `send` bytes, get `receive` bytes back; both at most `largest`."""
        self._connection.sendmsg([_REQUEST.pack(send, receive)])
        self._connection.sendall(self._buffer[:send])
        _receive(self._connection, self._buffer[:receive])


@contextmanager
def loopback(largest: int) -> Iterator[Loopback]:
    """A connection to a process of our own, which ends with the block."""
    command = [sys.executable, "-m", __name__, str(largest)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield Loopback(connection, largest)
        finally:
            process.kill()


def _receive(connection: socket.socket, into: memoryview) -> bool:
    """Fill `into`; False when the connection ended before."""
    while into:
        count = connection.recv_into(into)
        if not count:
            return False
        into = into[count:]
    return True


def _serve(largest: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        connection, _address = server.accept()
    head, buffer = bytearray(_REQUEST.size), memoryview(bytearray(largest))
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _receive(connection, memoryview(head)):
            send, receive = _REQUEST.unpack(head)
            if not _receive(connection, buffer[:send]):
                return
            connection.sendall(buffer[:receive] if receive else b"")


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
