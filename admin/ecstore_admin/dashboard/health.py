"""Is my data safe right now? The first line of the page: what holds, why, and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ecstore.cluster.map import ClusterMap, Group
from ecstore_admin.dashboard.words import count, duration, listed
from ecstore_admin.silence import unserved

Level = Literal["unknown", "empty", "safe", "repairing", "at_risk", "lost"]

#: Icon and word of each level: colour is never the only sign.
SIGNS: Final[Mapping[Level, tuple[str, str]]] = {
    "unknown": ("?", "Not reachable"), "empty": ("○", "Empty"), "safe": ("✓", "Safe"),
    "repairing": ("↻", "Repairing"), "at_risk": ("⚠", "At risk"), "lost": ("✕", "Lost"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Health:
    level: Level
    title: str
    reason: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Consequence:
    """What the loss of one node would mean now."""

    shards: int
    lost_groups: tuple[int, ...]
    tolerated: int | None  #: losses that every group that is left would then still survive; None: no group


def health_of(
    current: ClusterMap | None,
    problem: str,
    recoveries: Sequence[Mapping[str, Any]],
    *,
    silent: Sequence[str] = (),
    frozen: bool = False,
) -> Health:
    """`problem`, `silent`, `frozen`: what the map cannot know (`ecstore_admin.silence`). No map is believed beside
    them: the last one goes on saying that all is well when nobody is left to agree on another.
    """
    if current is None:
        return Health(
            "unknown", "The cluster cannot be reached", problem or "no node has answered yet",
            "Nodes may still be starting; this goes on trying. On this machine `ecstore up` starts a cluster.",
        )  # fmt: skip
    if problem:
        return Health(
            "unknown", "The cluster cannot be reached", f"{_sentence(problem)} What is shown below was true last.",
            "Look whether the nodes run, and whether this machine reaches them; this goes on trying.",
        )  # fmt: skip
    up = [node.id for node in current.nodes.values() if node.alive]
    if not current.groups:
        return Health(
            "empty", "No rows yet: nothing is stored, so nothing can be lost",
            f"{count(len(up), 'node')} up, no table.", f"Next: ecstore train --connect {_an_address(current)}",
        )  # fmt: skip
    lost = [group for group in current.groups if group.lost]
    alive = [group for group in current.groups if not group.lost]
    if lost:
        return _lost(current, lost, alive)
    if silent or frozen:
        return _out_of_touch(current, silent, frozen)
    tolerated = min(current.losses_tolerated(group) for group in alive)
    endangered = [group for group in alive if current.at_risk(group) or not current.losses_tolerated(group)]
    if endangered:
        return _at_risk(current, endangered, tolerated, recoveries)
    return _survives(current, alive, tolerated, recoveries)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _out_of_touch(current: ClusterMap, silent: Sequence[str], frozen: bool) -> Health:
    title = "At risk: failures are not repaired" if not silent else (
        f"At risk: {listed(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    )  # fmt: skip
    gone = unserved(current, silent)
    rows = "" if not gone else f" Rows of {'group' if len(gone) == 1 else 'groups'} {listed(gone)} cannot be served."
    why = "The nodes have lost the coordination service, so nobody can be declared down." if frozen else (
        "The map still calls what is silent up."
    )  # fmt: skip
    step = "Start the coordination service again, with the same --state." if frozen else (
        "Look whether they run, and whether this machine reaches them."
    )  # fmt: skip
    return Health("at_risk", title, why + rows, step)


def consequence_of_losing(current: ClusterMap, node: str) -> Consequence:
    shards, gone, left = 0, [], []
    for group in current.groups:
        if group.lost:
            continue
        k = current.code(group).k
        holders = [shard.owner for shard in group.shards if shard.state == "active" and shard.owner != node]
        shards += sum(shard.owner == node for shard in group.shards)
        if len(holders) < k:
            gone.append(group.gid)
        else:
            left.append(_tolerated(holders, k))
    return Consequence(shards, tuple(gone), min(left, default=None))


def survives(tolerated: int) -> str:
    if not tolerated:
        return "survives no further loss yet"
    return f"survives {tolerated} more {'loss' if tolerated == 1 else 'losses'}"


def _tolerated(holders: Iterable[str], k: int) -> int:
    per_node: dict[str, int] = {}
    for holder in holders:
        per_node[holder] = per_node.get(holder, 0) + 1
    spare, tolerated = sum(per_node.values()) - k, 0
    for held in sorted(per_node.values(), reverse=True):
        spare -= held
        if spare < 0:
            break
        tolerated += 1
    return tolerated


def _an_address(current: ClusterMap) -> str:
    return next((node.address for node in current.nodes.values() if node.alive), "HOST:PORT")


def _down(current: ClusterMap) -> list[str]:
    return [node.id for node in current.nodes.values() if not node.alive and node.down_reason != "left"]


def _eta(recoveries: Iterable[Mapping[str, Any]]) -> str:
    known = [r["eta_s"] for r in recoveries if r["finished_at"] is None and r.get("eta_s") is not None]
    if not known:
        return ""
    return ", in a moment" if max(known) < 1 else f", in about {duration(max(known))}"


def _lost(current: ClusterMap, lost: list[Group], alive: list[Group]) -> Health:
    codes = listed(sorted({group.code for group in lost}))
    others = ""
    if alive:
        tolerated = min(current.losses_tolerated(group) for group in alive)
        others = f" The other {count(len(alive), 'group')} go on; every row of them {survives(tolerated)}."
    name = "group" if len(lost) == 1 else "groups"
    return Health(
        "lost", f"Lost: {name} {listed([group.gid for group in lost])}",
        f"More nodes were lost at once than {codes} tolerates. Keys of {'it' if len(lost) == 1 else 'them'} raise "
        f"DataLossError.{others}",
        "Start a new cluster, create the tables, and load your last export. A code with a larger m survives more.",
    )  # fmt: skip


def _at_risk(
    current: ClusterMap, endangered: list[Group], tolerated: int, recoveries: Sequence[Mapping[str, Any]]
) -> Health:
    title = f"{count(len(endangered), 'group')} at risk: "
    title += "the loss of one more node may lose rows" if not tolerated else f"every row {survives(tolerated)} for now"
    unprotected = [group for group in endangered if current.code(group).m == 0]
    doubled = [group for group in endangered if current.at_risk(group)]
    down = _down(current)
    again = f"Start {listed(down)} again (Recover)" if down else "Add a node"
    if len(unprotected) == len(endangered):
        return Health("at_risk", title, "Their code keeps no parity.", "Create tables with a code such as rs(3,2).")
    if doubled:
        holders = sorted({node for group in doubled for node in _doubled_on(group)})
        reason = (
            f"Too few nodes are up: {listed(holders)} {'holds' if len(holders) == 1 else 'hold'} two shards of one "
            "group, and the loss of such a node counts twice."
        )
        return Health("at_risk", title, reason, f"{again}: shards move there by themselves.")
    busy = [r for r in recoveries if r["finished_at"] is None]
    reason = f"Shards of {listed(sorted({r['lost_node'] for r in busy}))} are still being decoded." if busy else (
        "As many nodes are lost as their code tolerates."
    )  # fmt: skip
    wait = f"Wait: decoding makes it whole again{_eta(recoveries)}." if busy else f"{again}."
    return Health("at_risk", title, reason, wait)


def _doubled_on(group: Group) -> list[str]:
    owners = [shard.owner for shard in group.shards]
    return [owner for owner in set(owners) if owners.count(owner) > 1]


def _survives(
    current: ClusterMap, alive: list[Group], tolerated: int, recoveries: Sequence[Mapping[str, Any]]
) -> Health:
    title = f"Every row {survives(tolerated)}"
    degraded = [group for group in alive if current.group_state(group) == "degraded"]
    moving = sum(any(shard.joining is not None for shard in group.shards) for group in alive)
    down = _down(current)
    if degraded:
        whole = min(current.code(group).m for group in alive)
        return Health(
            "repairing", title,
            f"{len(degraded)} of {count(len(alive), 'group')} {'is' if len(degraded) == 1 else 'are'} being repaired"
            + (f" after the loss of {listed(down)}." if down else "."),
            f"Nothing to do: it survives {whole} again when done{_eta(recoveries)}.",
        )  # fmt: skip
    if moving:
        reason = (
            f"{count(moving, 'group')} {'moves' if moving == 1 else 'move'} a shard to another node; they stay whole."
        )
        return Health("safe", title, reason, "Nothing to do.")
    up = len(current.nodes) - len([node for node in current.nodes.values() if not node.alive])
    reason = f"All {count(len(alive), 'group')} are whole, on {count(up, 'node')}."
    if down:
        gone = (
            f"{listed(down)} {'is' if len(down) == 1 else 'are'} down; what {'it' if len(down) == 1 else 'they'} held"
        )
        return Health("safe", title, f"{gone} is whole on the others.", f"Start {listed(down)} again (Recover).")
    return Health("safe", title, reason, "Nothing to do.")
