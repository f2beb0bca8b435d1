"""Settings of one node, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ecstore import limits
from ecstore.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """name: stable over restarts. listen: host:port (port 0 = any). coordination: host:port of the service."""

    name: str
    listen: str
    coordination: str
    cluster: str | None = None
    #: host:port under which others reach this node; None: as it listens. Needed where it listens on all interfaces.
    advertise: str | None = None
    heartbeat_s: float = 0.2
    #: Silence after which a peer is suspected.
    suspect_after_s: float = 1.0
    #: How long an answered heartbeat lets this node serve. Not above `suspect_after_s`: nobody may declare a node
    #: down (and a successor serve) while its lease runs. The successor of a silent node waits this long, too.
    lease_s: float = 1.0
    #: Bytes of rows that come back a second in the background, data and parity together; rows asked for are decoded
    #: without a limit. All nodes recover at once, and each row costs k reads elsewhere: low enough for a trainer and
    #: all its nodes on two cores, as in a demonstration or a benchmark.
    decode_bytes_per_s: float = 10.0 * limits.MIB
    #: Rows that the sweep decodes at a time: larger blocks cost less in all, smaller ones hold other work up less.
    #: None: as many as make `limits.DECODE_BLOCK_BYTES`.
    decode_block_rows: int | None = None
    #: Do without the other way of decoding, to measure what it is good for: "sweep" lets requests wait until the sweep
    #: has come to their rows, "on-demand" never finishes a recovery by itself. None: both.
    decode_only: Literal["sweep", "on-demand"] | None = None
    #: Between two looks at how late the event loop is.
    lag_interval_s: float = 0.02
    #: Do what `fault.*` messages of clients order (docs/OPERATIONS.md, "Faults on order"). For tests.
    allow_faults: bool = False

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not self.name.isprintable():
            raise ConfigError(f"node name must be 1 to 64 printable characters, got {self.name!r}")
        if self.advertise is None and self.listen.rpartition(":")[0] in ("0.0.0.0", "[::]", "::", ""):
            raise ConfigError(
                f"listening on {self.listen} needs the address that others use: give --advertise HOST:PORT"
            )
        if not 0 < self.heartbeat_s <= self.suspect_after_s / 2:
            raise ConfigError("heartbeat_s must be positive and at most half of suspect_after_s")
        if not 0 < self.lease_s <= self.suspect_after_s:
            raise ConfigError("lease_s must be positive and not above suspect_after_s")
        if self.lag_interval_s <= 0:
            raise ConfigError("lag_interval_s must be positive")
        if self.decode_bytes_per_s <= 0:
            raise ConfigError("decode_bytes_per_s must be positive")
        if self.decode_block_rows is not None and not 1 <= self.decode_block_rows <= limits.MAX_DECODE_BLOCK:
            raise ConfigError(f"decode_block_rows is 1 to {limits.MAX_DECODE_BLOCK}, not {self.decode_block_rows}")
        if self.decode_only not in (None, "sweep", "on-demand"):
            raise ConfigError(f'decode_only is "sweep", "on-demand" or None, not {self.decode_only!r}')
