"""Which event loop runs: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: A node has up to 2048 connections, and some more sockets while it turns others away; the usual limit is 1024.
DESCRIPTORS: Final = 8192


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of the faster kind this machine has."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def install_uvloop() -> bool:
    """Make uvloop the loop that asyncio creates from now on; False where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # policies are deprecated from Python 3.14 on
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    return True


def allow_descriptors(wanted: int = DESCRIPTORS) -> None:
    """Raise this process's limit of open descriptors to `wanted`, or as far as the system lets it."""
    try:
        import resource
    except ImportError:  # no such limit on this platform
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):  # a container may forbid it: then the bounds are tighter
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on the faster loop, with room for the sockets of a full server."""
    allow_descriptors()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
