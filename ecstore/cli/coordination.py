"""`ecstore coordination`: the coordination service in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default="127.0.0.1:7399", metavar="HOST:PORT", help="default %(default)s")
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep the cluster map here (default: nowhere)")
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (default: the file's, or random)")
    parser.add_argument("--seed", type=int, help="seed of a new cluster's placement (default: random)")
    parser.add_argument("--exit-with", type=int, metavar="PID", help="end when this process has ended")


def run(options: argparse.Namespace) -> int:
    from ecstore.coordination.__main__ import main
    from ecstore.errors import ConfigError
    from ecstore.launcher.ports import check_free
    from ecstore.transport import parse_address

    parse_address(options.listen)
    try:
        check_free([options.listen])
    except ConfigError as error:
        raise ConfigError(f"{str(error).partition(';')[0]}; choose another --listen") from None
    given = {"--listen": options.listen, "--state": options.state, "--cluster": options.cluster}
    given |= {"--seed": options.seed, "--exit-with": options.exit_with}
    return main([f"{name}={value}" for name, value in given.items() if value is not None])
