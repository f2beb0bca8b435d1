"""`ecstore admin`: the REST service, and the nodes that it runs on this machine."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from pathlib import Path

from ecstore.launcher.nodes import NodeSettings, node_addresses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Started by hand, the service ends alone on Ctrl-C or SIGTERM: its nodes go on, and the next one with the same "
        "--run-dir finds them again. `ecstore up` starts and ends everything together."
    )
    parser.add_argument("--listen", default="127.0.0.1:7480", metavar="HOST:PORT", help="default %(default)s")
    parser.add_argument("--run-dir", type=Path, default=Path("ecstore-run"), metavar="DIR", help="state and logs")
    parser.add_argument("--coordination", default="127.0.0.1:7399", metavar="HOST:PORT", help="default %(default)s")
    parser.add_argument("--cluster", metavar="NAME", help="refuse a cluster with another name")
    parser.add_argument("--nodes", type=int, default=6, metavar="N", help="nodes n1..nN (default %(default)s)")
    parser.add_argument("--port-base", type=int, default=7400, metavar="PORT", help="of n1; n2 has the next one, ...")
    parser.add_argument("--node", action="append", metavar="NAME=HOST:PORT", help="a node; instead of --nodes")
    parser.add_argument("--no-restart", action="store_true", help="leave nodes down that end by themselves")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help="bearer token of callers that may do everything; default: ECSTORE_ADMIN_TOKEN; needed unless on loopback",
    )  # fmt: skip
    parser.add_argument(
        "--view-token-file", type=Path, metavar="FILE",
        help="bearer token of callers that may only look; default: ECSTORE_ADMIN_VIEW_TOKEN",
    )  # fmt: skip
    parser.add_argument("--exit-with", type=int, metavar="PID", help="end, with all nodes, when this process has ended")
    parser.add_argument("--remove-run-dir", action="store_true", help=argparse.SUPPRESS)
    NodeSettings.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.errors import ConfigError
    from ecstore.launcher.nursery import Nursery
    from ecstore.transport import parse_address
    from ecstore.warmup import warm_up_machine

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    host, port = parse_address(options.listen)
    nodes = node_addresses(options.nodes, "127.0.0.1", [options.port_base + n for n in range(options.nodes)])
    if options.node:
        pairs = [given.partition("=") for given in options.node]
        nodes = {name: address for name, _, address in pairs}
    for name, address in nodes.items():
        if not name:
            raise ConfigError("write --node NAME=HOST:PORT")
        parse_address(address)
    try:
        options.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot use {options.run_dir} as run directory: {error.strerror}") from error
    from ecstore_admin.settings import AdminSettings

    settings = AdminSettings(
        host=host, port=port, run_dir=options.run_dir.resolve(), coordination=options.coordination, nodes=nodes,
        cluster=options.cluster, node_settings=NodeSettings.of(options),
        token=_token(options.token_file, "ECSTORE_ADMIN_TOKEN"),
        view_token=_token(options.view_token_file, "ECSTORE_ADMIN_VIEW_TOKEN"),
        exit_with=options.exit_with, restart_crashed=not options.no_restart, remove_run_dir=options.remove_run_dir,
    )  # fmt: skip
    if nodes:
        warm_up_machine()  # once for all nodes, who would compile the same otherwise
    with contextlib.ExitStack() as stack:
        nursery: Nursery | None = None
        if hasattr(os, "fork"):
            nursery = Nursery(settings.run_dir / "nursery.log")  # it loads what nodes need while we load what we need
            stack.callback(nursery.close)
        from ecstore_admin.server import serve

        serve(settings, nursery)
    return 0


def _token(file: Path | None, variable: str) -> str | None:
    """From the file, else from the environment, which loses it: nodes inherit what is left."""
    from ecstore.errors import ConfigError

    given = os.environ.pop(variable, None) or None
    if file is None:
        return given
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token from {file}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"{file} is empty; put a token into it")
    return token
