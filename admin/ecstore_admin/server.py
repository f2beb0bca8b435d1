"""The admin process: the application behind uvicorn, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn

from ecstore.errors import ConfigError
from ecstore.launcher.cluster import STOPPING_FILE
from ecstore.launcher.nursery import Nursery
from ecstore.launcher.processes import exit_with
from ecstore.transport import run as run_loop
from ecstore_admin.app import Service, create_app
from ecstore_admin.settings import AdminSettings


class _Server(uvicorn.Server):
    """Signals are this module's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: AdminSettings, nursery: Nursery | None = None) -> None:
    """Run the service until SIGTERM, SIGINT, or the end of the process it must not outlive.

    The nodes are ended, too, when the launcher says so or is gone; otherwise they go on, and the next admin service
    with this run directory finds them again. Raises ConfigError when the address is taken.
    """
    listening = _listen(settings.host, settings.port)
    app = create_app(settings, nursery)
    service: Service = app.state.service
    orphaned = run_loop(_serve(settings, app, service, listening))
    if orphaned or (settings.run_dir / STOPPING_FILE).exists():
        service.supervisor.end_all()
        if settings.remove_run_dir:
            shutil.rmtree(settings.run_dir, ignore_errors=True)


async def _serve(settings: AdminSettings, app: object, service: Service, listening: socket.socket) -> bool:
    """True when it ended because the process of `exit_with` is gone."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)  # type: ignore[arg-type]
    server = _Server(config)
    loop = asyncio.get_running_loop()
    orphaned = False

    def stop() -> None:
        service.stream.end()  # else the server would wait for listeners to go away
        server.should_exit = True

    def parent_gone() -> None:
        nonlocal orphaned
        orphaned = True
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if settings.exit_with is not None:
        exit_with(settings.exit_with, partial(loop.call_soon_threadsafe, parent_gone), grace_s=4.0)
    await server.serve(sockets=[listening])
    return orphaned


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"the admin service cannot listen on {host}:{port}: {error.strerror}; choose another port"
        ) from error
    return listening
