"""Which event loop runs: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on the faster loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
