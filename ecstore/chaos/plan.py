"""The schedule of a chaos run: a function of a seed. Pure; chance comes in as an argument.

A run is a row of rounds. A round begins when the cluster is whole and all nodes are up, does its actions one after the
other, ends them, and waits until all is whole again. So the nodes that may be lost at the same time are those of one
round, and a round hits at most m: the code's bound. What exactly happens within a round depends on timing; what is
done, to whom, in which order and for how long does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

from ecstore.errors import ConfigError

Kind = Literal["kill", "pause", "isolate", "partition", "unplug", "drain", "delay", "cut", "slow"]

#: A node hit by one of these may be declared down; the others are within what the detector forgives.
HARD: Final[tuple[Kind, ...]] = ("kill", "pause", "isolate", "partition", "unplug", "drain")
SOFT: Final[tuple[Kind, ...]] = ("delay", "cut", "slow")
#: What may hit a second node in a round.
SECOND: Final[tuple[Kind, ...]] = ("kill", "pause", "isolate")
#: A pair that does not hear each other for less than three times the detector's limit blames nobody.
BRIEF_LIMITS: Final = 1.5
LONG_LIMITS: Final = 4.5


class Chance(Protocol):
    """The part of `random.Random` that is used."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float, /) -> float: ...
    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a schedule depends on besides the seed. `suspect_after_s`: the limit of the nodes' detector."""

    nodes: tuple[str, ...]
    m: int  #: losses that the code tolerates
    suspect_after_s: float
    drain: bool = False  #: whether nodes can be drained

    def __post_init__(self) -> None:
        if self.m < 1 or len(self.nodes) <= self.m + 1:
            raise ConfigError(
                f"chaos needs a code that tolerates a loss and more than m + 1 nodes, not m = {self.m} and "
                f"{len(self.nodes)} nodes"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that is done. Times in seconds.

    It comes `after_s` after the action before it (after the round's begin), or, with `in_recovery`, once something
    that the actions before it took is being decoded. Of a kill, `duration_s` is the time until the node is started
    again; every other action ends by itself after it.
    """

    kind: Kind
    node: str
    peers: tuple[str, ...] = ()  #: of faults between nodes, as `POST /faults` takes them
    both: bool = True  #: faults between nodes: both ways
    after_s: float = 0.0
    in_recovery: bool = False
    duration_s: float
    strength: float = 0.0  #: delay: ms; cut: probability for each frame; slow: ms of every 200
    faulty: tuple[str, ...] = ()  #: nodes that it may cost

    def describe(self) -> str:
        """One line for people."""
        seconds = f"for {self.duration_s:.1f} s"
        between = (
            f"{'between' if self.both else 'from'} {self.node} {'and' if self.both else 'to'} {' '.join(self.peers)}"
        )
        text = {
            "kill": f"SIGKILL {self.node}, started again {self.duration_s:.1f} s later",
            "pause": f"SIGSTOP {self.node} {seconds}",
            "isolate": f"partition {between} {seconds}",
            "partition": f"partition {between} {seconds}",
            "unplug": f"partition {between} {seconds}",
            "drain": f"drain {self.node}, then take it back",
            "delay": f"delay {between} by {self.strength:.0f} ms +- half {seconds}",
            "cut": f"cut connections {between}, each frame with probability {self.strength:.3f}, {seconds}",
            "slow": f"slow {self.node}: blocked {self.strength:.0f} ms of every 200 {seconds}",
        }[self.kind]
        return f"{text}{', while what was lost is being decoded' if self.in_recovery else ''}"


@dataclass(frozen=True, slots=True)
class Round:
    """Actions in order."""

    number: int
    actions: tuple[Action, ...]

    @property
    def faulty(self) -> frozenset[str]:
        """Nodes that may be lost at the same time."""
        return frozenset(node for action in self.actions for node in action.faulty)

    def to_json(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "actions": [asdict(action) | {"text": action.describe()} for action in self.actions],
        }


def rounds(options: PlanOptions, chance: Chance) -> Iterator[Round]:
    """The rounds of a schedule, for ever, in bags: every hard kind once (kills twice), one round of all soft ones, in
    an order by chance.
    """
    kinds: list[Kind] = ["kill", *(kind for kind in HARD if kind != "drain" or options.drain), "delay"]
    number = 0
    while True:
        bag = _shuffled(kinds, chance)
        for kind in bag:
            number += 1
            yield Round(number, _actions(kind, options, chance))


def _shuffled(items: Sequence[Kind], chance: Chance) -> list[Kind]:
    left, mixed = list(items), []
    while left:
        mixed.append(left.pop(chance.randrange(len(left))))
    return mixed


def _actions(kind: Kind, options: PlanOptions, chance: Chance) -> tuple[Action, ...]:
    victims = list(options.nodes)
    first = _action(kind, _take(victims, chance), options, chance)
    made = [first]
    if kind in SOFT:
        made += [_action(other, _take(victims, chance), options, chance) for other in SOFT if other != kind]
    faulty = set(first.faulty)
    victims = [node for node in victims if node not in faulty]
    if kind not in SOFT and chance.random() < 0.5:
        soft = SOFT[chance.randrange(len(SOFT))]
        made.insert(0, _action(soft, victims[chance.randrange(len(victims))], options, chance))
    while len(faulty) < options.m and kind in SECOND and chance.random() < 0.65:
        second = SECOND[chance.randrange(len(SECOND))]
        made.append(_action(second, _take(victims, chance), options, chance, second=True))
        faulty |= set(made[-1].faulty)
    return tuple(made)


def _take(nodes: list[str], chance: Chance) -> str:
    return nodes.pop(chance.randrange(len(nodes)))


def _action(kind: Kind, node: str, options: PlanOptions, chance: Chance, *, second: bool = False) -> Action:
    limit = options.suspect_after_s
    in_recovery = second and chance.random() < 0.7
    when: dict[str, Any] = {
        "in_recovery": in_recovery,
        "after_s": chance.uniform(0.0, 0.3)
        if in_recovery or (second and chance.random() < 0.5)
        else chance.uniform(0.3, 2.0),
    }
    others = [other for other in options.nodes if other != node]
    peer = others[chance.randrange(len(others))]
    both = chance.random() < 0.5
    match kind:
        case "kill":
            # Sometimes back before anybody has noticed, sometimes long after all is decoded.
            down_s = chance.uniform(0.0, 0.3) if chance.random() < 0.3 else chance.uniform(0.5, 3.0) * limit
            return Action(kind=kind, node=node, faulty=(node,), duration_s=down_s, **when)
        case "pause":
            return Action(kind=kind, node=node, faulty=(node,), duration_s=chance.uniform(1.3, 3.0) * limit, **when)
        case "isolate":
            peers = ("*", "clients") if chance.random() < 0.3 else ("*",)
            duration_s = chance.uniform(1.5, 3.5) * limit
            return Action(kind=kind, node=node, peers=peers, both=both, faulty=(node,), duration_s=duration_s, **when)
        case "unplug":
            duration_s = chance.uniform(0.5, 3.0) * limit
            return Action(
                kind=kind, node=node, peers=("coordination",), both=both, faulty=(node,), duration_s=duration_s, **when
            )
        case "partition":
            long = options.m >= 2 and chance.random() < 0.6
            faulty = (node, peer) if long else ()
            duration_s = (
                chance.uniform(LONG_LIMITS, LONG_LIMITS + 1.0) * limit
                if long
                else chance.uniform(0.2, BRIEF_LIMITS) * limit
            )
            return Action(kind=kind, node=node, peers=(peer,), both=both, faulty=faulty, duration_s=duration_s, **when)
        case "drain":
            return Action(kind=kind, node=node, faulty=(node,), duration_s=1.0, **when)
        case "delay":
            strength = 1000 * limit * chance.uniform(0.01, 0.1)
            return Action(
                kind=kind, node=node, peers=("*",), duration_s=chance.uniform(2.0, 6.0), strength=strength, **when
            )
        case "cut":
            strength = chance.uniform(0.002, 0.02)
            return Action(
                kind=kind,
                node=node,
                peers=("*", "clients"),
                duration_s=chance.uniform(2.0, 6.0),
                strength=strength,
                **when,
            )
        case "slow":
            return Action(
                kind=kind, node=node, duration_s=chance.uniform(2.0, 6.0), strength=chance.uniform(20.0, 120.0), **when
            )
