"""What a chaos run is to do, checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecstore.chaos.plan import PlanOptions
from ecstore.codec import Code
from ecstore.errors import ConfigError
from ecstore.launcher import NodeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """Raises ConfigError or CodeError for what cannot be."""

    minutes: float = 3.0
    seed: int = 1
    nodes: int = 6  #: of a cluster that the run starts itself
    code: str = "rs(3,2)"
    admin: str | None = None  #: URL of the admin service of a running cluster, started with --allow-faults
    counters: int = 2  #: processes that push
    rate: float = 30.0  #: pushes or pulls a second of each process, at most; 0: no limit
    #: Generous: on a machine with less to do, smaller limits do more in the same time.
    suspect_after_s: float = 3.0
    heartbeat_s: float = 0.25
    decode_mib_per_s: float = 0.5  #: slow enough that a second node can be hit meanwhile
    clean_within_s: float = 120.0  #: bound for the cluster to be whole again after a round
    run_dir: Path | None = None  #: logs; None: a temporary folder

    def __post_init__(self) -> None:
        if not 0 < self.minutes <= 24 * 60:
            raise ConfigError(f"--minutes is more than 0 and at most a day, not {self.minutes:g}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("--seed is 0 to 2**63 - 1")
        if not 1 <= self.counters <= 16:
            raise ConfigError(f"--counters is 1 to 16, not {self.counters}")
        if self.rate < 0 or self.clean_within_s <= 0:
            raise ConfigError("--rate must not be negative, and --clean-within must be positive")
        self.plan(tuple(f"n{number + 1}" for number in range(self.nodes)))

    def plan(self, nodes: tuple[str, ...], *, drain: bool = False) -> PlanOptions:
        """What the schedule depends on."""
        m = Code.parse(self.code).m
        if len(nodes) < Code.parse(self.code).width:
            raise ConfigError(f"{self.code} needs {Code.parse(self.code).width} nodes and there are {len(nodes)}")
        return PlanOptions(nodes=nodes, m=m, suspect_after_s=self.suspect_after_s, drain=drain)

    def settings(self) -> NodeSettings:
        """Of the nodes that the run starts."""
        return NodeSettings(
            decode_mib_per_s=self.decode_mib_per_s,
            heartbeat_s=min(self.heartbeat_s, self.suspect_after_s / 4),
            suspect_after_s=self.suspect_after_s,
            allow_faults=True,
        )
