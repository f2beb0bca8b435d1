"""`ecstore up`: a cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ecstore.cli.output import Output, add_json_argument
from ecstore.launcher.nodes import NodeSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=6, metavar="N", help="node processes (default %(default)s)")
    parser.add_argument("--port-base", type=int, default=7400, metavar="PORT",
                        help="of the first node; coordination takes the port below (default %(default)s)")  # fmt: skip
    parser.add_argument("--admin-port", type=int, default=7480, metavar="PORT", help="default %(default)s")
    parser.add_argument("--free-ports", action="store_true", help="choose free ports for everything instead")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="state and logs (default: a temporary folder)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: random)")
    parser.add_argument("--seed", type=int, help="seed of the placement (default: random)")
    parser.add_argument("--no-restart", action="store_true", help="leave nodes down that end by themselves")
    NodeSettings.add_arguments(parser)
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.launcher import ClusterOptions, local_cluster

    out = Output(options.json)
    chosen = ClusterOptions(
        nodes=options.nodes,
        port_base=None if options.free_ports else options.port_base,
        admin_port=None if options.free_ports else options.admin_port,
        run_dir=options.run_dir,
        cluster=options.cluster,
        seed=options.seed,
        settings=NodeSettings.of(options),
        restart_crashed=not options.no_restart,
    )
    with local_cluster(options=chosen, progress=out.line) as cluster:
        first = next(iter(cluster.addresses.values()))
        out.report({
            "nodes": cluster.addresses, "admin": cluster.admin_url, "coordination": cluster.coordination,
            "run_dir": str(cluster.run_dir),
        })  # fmt: skip
        out.line(f"{options.nodes} nodes are up: {', '.join(cluster.addresses.values())}")
        out.line(f"watch it live: {cluster.admin_url}/ or `ecstore status --watch`    REST: {cluster.admin_url}/docs")
        out.line(
            f"logs: {cluster.run_dir}" + ("" if options.run_dir else " (removed at the end; --run-dir keeps them)")
        )
        out.line("next: python -c \"import ecstore; print(ecstore.connect('%s').status()['health'])\"" % first)  # noqa: UP031
        out.line(f"      ecstore train --connect {first}")
        out.line(f"      curl -X POST {cluster.admin_url}/nodes/n2/kill    (and later /nodes/n2/recover)")
        out.line("Ctrl-C ends the cluster")
        _until_told()
        out.line("ending the cluster")
    return 0


def _until_told() -> None:
    """Return at Ctrl-C or SIGTERM: for this command a wish like any other, not a failure."""
    told = threading.Event()

    def tell(_number: int, _frame: Any) -> None:
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    while not told.wait(3600.0 if sys.platform != "win32" else 0.5):
        pass
