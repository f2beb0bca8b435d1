"""`ecstore node`: one node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ecstore.launcher.nodes import MIB, NodeSettings

if TYPE_CHECKING:
    from ecstore.coordination.base import Coordination
    from ecstore.node.config import NodeConfig
    from ecstore.transport import Hello


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", required=True, help="stable over restarts, and different from all other nodes'")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0 takes a free one")
    parser.add_argument(
        "--coordination",
        default="127.0.0.1:7399",
        metavar="HOST:PORT",
        help="coordination service (default %(default)s)",
    )
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="address that others use (default: as it listens; needed on 0.0.0.0)"
    )
    parser.add_argument("--cluster", metavar="NAME", help="refuse to join a cluster with another name")
    parser.add_argument("--exit-with", type=int, metavar="PID", help="end when this process has ended")
    NodeSettings.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.errors import ConfigError
    from ecstore.launcher.ports import check_free
    from ecstore.launcher.processes import give_way
    from ecstore.transport import parse_address
    from ecstore.transport import run as run_loop
    from ecstore.warmup import warm_up

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for address in (options.listen, options.coordination, options.advertise):
        if address is not None:
            parse_address(address)
    config = _config(options)
    try:
        check_free([config.listen])
    except ConfigError as error:
        raise ConfigError(f"node {config.name} {str(error).partition(';')[0]}; choose another --listen") from None
    warm_up()
    give_way(options.nice or 0)
    run_loop(_serve(config, options.exit_with))
    return 0


def _config(options: argparse.Namespace) -> NodeConfig:
    from ecstore.node.config import NodeConfig

    given = NodeSettings.of(options)
    chosen: dict[str, Any] = {}
    if given.decode_mib_per_s is not None:
        chosen["decode_bytes_per_s"] = given.decode_mib_per_s * MIB
    if given.decode_block_rows is not None:
        chosen["decode_block_rows"] = given.decode_block_rows
    if given.decode_only is not None:
        chosen["decode_only"] = given.decode_only
    if given.suspect_after_s is not None:
        chosen["suspect_after_s"] = chosen["lease_s"] = given.suspect_after_s
        chosen["heartbeat_s"] = given.suspect_after_s / 5
    if given.heartbeat_s is not None:
        chosen["heartbeat_s"] = given.heartbeat_s
    return NodeConfig(
        name=options.name,
        listen=options.listen,
        advertise=options.advertise,
        coordination=options.coordination,
        cluster=options.cluster,
        allow_faults=given.allow_faults,
        **chosen,
    )


async def _serve(config: NodeConfig, exit_with_pid: int | None) -> None:
    from ecstore import heap
    from ecstore.coordination import EmbeddedCoordination
    from ecstore.launcher.processes import exit_with
    from ecstore.node.service import Node

    async def coordination(hello: Callable[[], Hello]) -> Coordination:
        tap = node.faults.tap("coordination") if node.faults is not None else None
        return EmbeddedCoordination(config.coordination, hello, tap=tap)

    def ready(address: str) -> None:
        sys.stdout.write(json.dumps({"listening": address, "node": config.name}) + "\n")
        sys.stdout.flush()

    node = Node(config, coordination, on_idle=heap.give_back)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    if exit_with_pid is not None:
        exit_with(exit_with_pid, partial(loop.call_soon_threadsafe, node.stop))
    await node.run(ready)
