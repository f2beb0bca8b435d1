"""`python -m ecstore.coordination`: run the coordination service until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ecstore.coordination.service import CoordinationService
from ecstore.errors import EcstoreError
from ecstore.transport import parse_address, run

#: Seconds between two looks whether the process of `--exit-with` is still there.
WATCH_PAUSE: Final = 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 after a clean stop, 1 when the service cannot start."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(_serve(options))
    except EcstoreError as error:
        sys.stderr.write(f"coordination: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ecstore.coordination", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0 takes a free one")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep the cluster map here (default: nowhere)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: the file's, or random)")
    parser.add_argument("--seed", type=int, help="seed of a new cluster's placement (default: random)")
    parser.add_argument("--exit-with", type=int, metavar="PID", help="end when this process has ended")
    return parser


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = parse_address(options.listen)
    service = CoordinationService(options.cluster, options.seed, options.state, host, port)
    await service.start()
    try:
        sys.stdout.write(json.dumps({"listening": service.address, "cluster": service.current.cluster}) + "\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as tasks:
            if options.exit_with is not None:
                tasks.create_task(_exit_with(options.exit_with, stop))
            await stop.wait()
    finally:
        await service.close()


async def _exit_with(pid: int, stop: asyncio.Event) -> None:
    """Set `stop` when the process has ended; return when it is set."""
    ended = _watch_process(pid)
    while not stop.is_set() and not ended():
        try:
            async with asyncio.timeout(WATCH_PAUSE):
                await stop.wait()
        except TimeoutError:
            continue
    stop.set()


def _watch_process(pid: int) -> Callable[[], bool]:
    """What tells whether a process has ended, one that nobody has waited for yet included."""

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        try:
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False  # no /proc here, or it has just ended: the next look tells
        return bool(state) and state[0] in (b"Z", b"X")

    return gone


if __name__ == "__main__":
    sys.exit(main())
