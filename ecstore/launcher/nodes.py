"""How a node process is started: its settings, as arguments of `ecstore node`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from ecstore.errors import ConfigError

MIB = 1 << 20

#: Nodes that are started together on one machine share it with whoever trains, whose computing is what everybody waits
#: for; their own work in the background can use what is left. It is a third of a full share: they are never starved.
NICE_BESIDE_OTHERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings that all nodes of a cluster share; None: the node's own default."""

    decode_mib_per_s: float | None = None  #: background decoding of one node; rows asked for have no limit
    decode_block_rows: int | None = None  #: rows that the background sweep decodes at a time
    decode_only: str | None = None  #: "sweep" or "on-demand": without the other one, for measurements
    heartbeat_s: float | None = None  #: between two heartbeats
    suspect_after_s: float | None = None  #: silence after which a peer is suspected; the lease is as long
    nice: int | None = None  #: how far a node gives way to other processes of its machine
    allow_faults: bool = False  #: nodes do to themselves what `fault.*` messages order; for tests

    def arguments(self) -> list[str]:
        """As arguments of `ecstore node` and `ecstore admin`."""
        given = {
            "--decode-rate": self.decode_mib_per_s,
            "--decode-block": self.decode_block_rows,
            "--heartbeat": self.heartbeat_s,
            "--suspect-after": self.suspect_after_s,
            "--nice": self.nice,
        }
        chosen = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        chosen += [] if self.decode_only is None else [f"--decode-only={self.decode_only}"]
        return [*chosen, "--allow-faults"] if self.allow_faults else chosen

    @classmethod
    def of(cls, options: argparse.Namespace) -> NodeSettings:
        """From what `add_arguments` has parsed. Raises ConfigError for what no node would take."""
        for option, value in (
            ("--decode-rate", options.decode_rate),
            ("--decode-block", options.decode_block),
            ("--heartbeat", options.heartbeat),
            ("--suspect-after", options.suspect_after),
        ):
            if value is not None and not value > 0:
                raise ConfigError(f"{option} must be positive, not {value:g}")
        if options.nice is not None and not 0 <= options.nice <= 19:
            raise ConfigError(f"--nice is 0 to 19, not {options.nice}")
        return cls(
            decode_mib_per_s=options.decode_rate,
            decode_block_rows=options.decode_block,
            decode_only=options.decode_only,
            heartbeat_s=options.heartbeat,
            suspect_after_s=options.suspect_after,
            nice=options.nice,
            allow_faults=options.allow_faults,
        )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("settings of every node")
        group.add_argument(
            "--decode-rate",
            type=float,
            metavar="MIB",
            help="MiB a second that one node decodes in the background (default 10); rows that are asked for are "
            "decoded at once, whatever the rate",
        )
        group.add_argument(
            "--decode-block",
            type=int,
            metavar="ROWS",
            help="rows that are decoded in the background at a time (default: as many as make 2 MiB)",
        )
        group.add_argument(
            "--decode-only",
            choices=("sweep", "on-demand"),
            help="without the other way of decoding; to measure what each is good for",
        )
        group.add_argument(
            "--heartbeat",
            type=float,
            metavar="S",
            help="seconds between heartbeats (default: a fifth of --suspect-after)",
        )
        group.add_argument(
            "--suspect-after", type=float, metavar="S", help="silence after which a peer is suspected (default 1.0)"
        )
        group.add_argument(
            "--nice",
            type=int,
            metavar="N",
            help="how far a node gives way to other processes of its machine, 0 to 19 as of nice(1) (default 0; "
            f"{NICE_BESIDE_OTHERS} for nodes that share a machine by `ecstore up` or `demo`)",
        )
        group.add_argument(
            "--allow-faults",
            action="store_true",
            help="do what POST /faults orders: delays, cuts, partitions; for tests",
        )


def node_command(
    name: str,
    address: str,
    coordination: str,
    settings: NodeSettings,
    *,
    cluster: str | None = None,
    exit_with: int | None = None,
) -> list[str]:
    """The command line of one node; `exit_with`: the process that it must not outlive."""
    command = [sys.executable, "-m", "ecstore", "node", f"--name={name}", f"--listen={address}"]
    command += [f"--coordination={coordination}", *settings.arguments()]
    command += [] if cluster is None else [f"--cluster={cluster}"]
    return command if exit_with is None else [*command, f"--exit-with={exit_with}"]


def node_addresses(count: int, host: str, ports: list[int]) -> dict[str, str]:
    """Names n1, n2, ... and their addresses."""
    if count < 1:
        raise ConfigError(f"a cluster has at least 1 node, not {count}")
    return {f"n{number + 1}": f"{host}:{ports[number]}" for number in range(count)}
