"""The rule table of faults: what happens now to bytes between this node and a peer. Pure; times are arguments.

A rule names peers: node names, `COORDINATION`, `CLIENTS` (everybody who is neither), or `EVERYBODY` (all other nodes
and the coordination service, not clients). It ends by itself. Several rules may touch one peer: a partition wins,
delays add up, and a connection survives a frame only if it survives every rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from ecstore.errors import CapacityError, ConfigError

Kind = Literal["delay", "drop", "partition", "slow"]
Direction = Literal["out", "in", "both"]

KINDS: Final[tuple[Kind, ...]] = ("delay", "drop", "partition", "slow")
DIRECTIONS: Final[tuple[Direction, ...]] = ("out", "in", "both")

#: Names of peers that are no nodes.
COORDINATION: Final = "coordination"
CLIENTS: Final = "clients"
EVERYBODY: Final = "*"

#: Bounds: of rules at a time, peers in a rule, and seconds.
MAX_RULES: Final = 64
MAX_PEERS: Final = 256
MAX_DURATION_S: Final = 3600.0
MAX_DELAY_S: Final = 60.0


class Verdict(NamedTuple):
    """What happens to bytes in one direction. `cut`: probability that the connection ends at a frame."""

    blocked: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0  #: the delay is uniform in delay_s +- jitter_s
    cut: float = 0.0

    def hold_s(self, chance: float) -> float:
        """How long a piece is held, given a `chance` in [0, 1)."""
        return max(0.0, self.delay_s + (2.0 * chance - 1.0) * self.jitter_s)

    def cuts(self, frames: int, chance: float) -> bool:
        """Whether one of `frames` frames ends the connection."""
        return self.cut > 0.0 and chance < 1.0 - (1.0 - self.cut) ** max(1, frames)


FINE: Final = Verdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One fault. Times in seconds; `until` is loop time. Fields of other kinds are 0."""

    id: str
    kind: Kind
    peers: tuple[str, ...]  #: () for `slow`
    direction: Direction
    until: float
    delay_s: float = 0.0
    jitter_s: float = 0.0
    probability: float = 0.0
    block_s: float = 0.0  #: `slow`: the loop does nothing for so long ...
    every_s: float = 0.0  #: ... once in this time

    def concerns(self, peer: str, direction: Direction) -> bool:
        """`peer`: as `RuleTable.verdict` takes it; `direction`: "out" or "in"."""
        if self.direction not in (direction, "both"):
            return False
        return peer in self.peers or (EVERYBODY in self.peers and peer != CLIENTS)

    def to_wire(self, now: float) -> dict[str, Any]:
        """For people: as it was set, with the seconds that are left."""
        wire: dict[str, Any] = {"id": self.id, "kind": self.kind, "left_s": max(0.0, self.until - now)}
        if self.kind == "slow":
            return wire | {"block_ms": 1000 * self.block_s, "every_ms": 1000 * self.every_s}
        wire |= {"peers": list(self.peers), "direction": self.direction}
        if self.kind == "delay":
            wire |= {"delay_ms": 1000 * self.delay_s, "jitter_ms": 1000 * self.jitter_s}
        elif self.kind == "drop":
            wire |= {"probability": self.probability}
        return wire


def rule_from_wire(meta: Mapping[str, Any], now: float) -> Rule:
    """The rule of a `fault.set` message, checked. Raises ConfigError for what makes no sense."""
    kind, direction = meta.get("kind"), meta.get("direction", "both")
    if kind not in KINDS:
        raise ConfigError(f"a fault is one of {', '.join(KINDS)}, not {kind!r}")
    if direction not in DIRECTIONS:
        raise ConfigError(f"the direction of a fault is one of {', '.join(DIRECTIONS)}, not {direction!r}")
    number, peers = meta.get("id"), meta.get("peers", [])
    if not isinstance(number, str) or not 1 <= len(number) <= 64:
        raise ConfigError("a fault needs an id of 1 to 64 characters")
    if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers) or len(peers) > MAX_PEERS:
        raise ConfigError(f"peers of a fault are a list of at most {MAX_PEERS} names")
    if bool(peers) is (kind == "slow"):
        raise ConfigError("slow concerns a whole node and takes no peers" if peers else f"{kind} needs peers")
    until = now + _number(meta, "duration_s", MAX_DURATION_S)
    more: dict[str, float] = {}
    if kind == "delay":
        more["delay_s"] = _number(meta, "delay_ms", 1000 * MAX_DELAY_S) / 1000
        more["jitter_s"] = _number(meta, "jitter_ms", 1000 * more["delay_s"], least=0.0, default=0.0) / 1000
    elif kind == "drop":
        more["probability"] = _number(meta, "probability", 1.0)
    elif kind == "slow":
        more["every_s"] = _number(meta, "every_ms", 1000 * MAX_DELAY_S, default=200.0) / 1000
        more["block_s"] = _number(meta, "block_ms", 1000 * more["every_s"]) / 1000
    return Rule(
        id=number,
        kind=cast("Kind", kind),
        peers=tuple(peers),
        direction=cast("Direction", direction),
        until=until,
        **more,
    )


def _number(
    meta: Mapping[str, Any], name: str, most: float, *, least: float = 1e-6, default: float = math.nan
) -> float:
    value = meta.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} of a fault must be a number from {least:g} to {most:g}, not {value!r}")
    return float(value)


class RuleTable:
    """The rules in force on one node. `own`: its name; what a node tells itself never fails."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._rules: dict[str, Rule] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def add(self, rule: Rule) -> None:
        """A rule with the id of another takes its place. Raises CapacityError at the bound."""
        if rule.id not in self._rules and len(self._rules) >= MAX_RULES:
            raise CapacityError(f"node {self._own} has {MAX_RULES} faults, its bound; clear some")
        self._rules[rule.id] = rule

    def remove(self, rule_id: str | None) -> list[Rule]:
        """Remove a rule, or all with None; those that were there."""
        gone = [rule for rule in self._rules.values() if rule_id in (None, rule.id)]
        for rule in gone:
            del self._rules[rule.id]
        return gone

    def expire(self, now: float) -> list[Rule]:
        """Remove the rules whose time has passed; those."""
        gone = [rule for rule in self._rules.values() if rule.until <= now]
        for rule in gone:
            del self._rules[rule.id]
        return gone

    def next_end(self) -> float | None:
        """When the next rule ends; None without rules."""
        return min((rule.until for rule in self._rules.values()), default=None)

    def rules(self) -> list[Rule]:
        """In the order in which they were set."""
        return list(self._rules.values())

    def verdict(self, peer: str | None, direction: Literal["out", "in"]) -> Verdict:
        """What happens to bytes to (`out`) or from (`in`) a peer. None: nobody knows yet who it is."""
        if peer is None or peer == self._own or not self._rules:
            return FINE
        rules = [rule for rule in self._rules.values() if rule.concerns(peer, direction)]
        return Verdict(
            blocked=any(rule.kind == "partition" for rule in rules),
            delay_s=sum(rule.delay_s for rule in rules),
            jitter_s=sum(rule.jitter_s for rule in rules),
            cut=1.0 - math.prod(1.0 - rule.probability for rule in rules),
        )
