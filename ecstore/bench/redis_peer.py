"""A Redis server of our own for the time of a benchmark: a free port of the loopback interface, nothing on disk."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ecstore.errors import ConfigError, UnavailableError
from ecstore.launcher.ports import free_ports
from ecstore.launcher.processes import last_line

START_TIMEOUT_S: Final = 10.0


def why_not() -> str | None:
    """Why there can be no Redis here; None when all parts are installed."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed"
    try:
        import hiredis  # noqa: F401 - without it redis-py parses replies in Python, which is no fair peer
        import redis  # noqa: F401
    except ImportError:
        return "redis-py with hiredis is not installed"
    return None


@contextmanager
def redis_server(databases: int = 1) -> Iterator[list[Any]]:
    """A connected `redis.Redis` (replies as bytes, parsed by hiredis) for each database; the server ends with the
    block.

    Raises ConfigError when Redis is not installed, UnavailableError when the server does not start.
    """
    reason = why_not()
    if reason is not None:
        raise ConfigError(
            f"{reason}; install redis-server and `pip install 'ecstore[bench]'`, or measure without it (--no-redis)"
        )
    import redis

    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="ecstore-redis-") as folder:
        log = Path(folder) / "redis.log"
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with log.open("wb") as out:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        clients = [redis.Redis(host="127.0.0.1", port=port, db=number) for number in range(databases)]
        try:
            _wait_until_up(clients[0], server, log)
            yield clients
        finally:
            for client in clients:
                client.close()
            server.terminate()
            try:
                server.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait_until_up(client: Any, server: subprocess.Popen[bytes], log: Path) -> None:
    import redis

    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.ping()
            return
        except redis.exceptions.ConnectionError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"redis-server did not start: {last_line(log)}") from None
            time.sleep(0.02)
