"""The choice of the event loop, and the socket options of what runs on it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from unittest.mock import patch

import pytest
from loops import Pair, Recorder, on_both_loops

from ecstore.transport import install_uvloop, local, new_event_loop, run


async def kind_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_run_takes_uvloop_where_it_is_installed():
    uvloop = pytest.importorskip("uvloop")
    assert run(kind_of_loop()).startswith("uvloop")
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_install_uvloop_makes_it_the_default():
    pytest.importorskip("uvloop")
    before = asyncio.get_event_loop_policy()
    try:
        assert install_uvloop()
        assert asyncio.run(kind_of_loop()).startswith("uvloop")
    finally:
        asyncio.set_event_loop_policy(before)


def test_without_uvloop_asyncio_is_used_quietly(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert not install_uvloop()
    assert run(kind_of_loop()).startswith("asyncio")


@on_both_loops
async def test_sockets_do_not_delay_and_are_kept_alive():
    with patch.object(local, "AVAILABLE", False):  # over TCP
        async with Pair(Recorder()) as pair:
            await the_sockets_are_tuned(pair)


async def the_sockets_are_tuned(pair: Pair) -> None:
    for conn in (await pair.connect(), pair.handler.opened[0]):
        sock = conn._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_limit_of_descriptors_is_raised():
    """A node has more connections than the usual soft limit of 1024."""
    program = (
        "import resource\n"
        "from ecstore.transport import run\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 3000))\n"
        "async def main(): return resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(run(main()))\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "(3000, 3000)"
