"""How the cluster map changes: `next_map(map, event)`, the one place where membership is decided.

Any peer may propose an event; whoever's map wins the compare-and-swap decides, the others apply the event
again to the newer map, where it usually changes nothing. That is why an event that is a duplicate or out of
date gives back the *same object*, and why nothing in here looks at a clock, a random number or the order of
a dict.

    event          effect
    NodeJoin       a new incarnation is up; a former one that was still up is lost first
    NodeDown       its shards get substitutes that recover them; groups below k active shards are lost
    CreateTable    a new table; a code new to the cluster gets its groups
    DropTable      the table is gone; its code keeps its groups
    ShardReady     a recovering shard is active, or a joining node becomes the owner
    Drain          nothing new goes to the node, its shards move away
    NodeRemove     a node without shards leaves

After each change the moves of `ecstore.cluster.moves.plan_moves` begin, in the same epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeAlias

from ecstore.cluster.draft import Draft
from ecstore.cluster.map import (
    MAX_GROUPS,
    MAX_NODES,
    MAX_TABLES,
    ClusterMap,
    DownReason,
    Group,
    Node,
    Shard,
    Table,
    parse_code,
)
from ecstore.cluster.moves import plan_moves
from ecstore.cluster.placement import group_count, place_groups, ring_of
from ecstore.codec.code import Code
from ecstore.errors import CapacityError, CodeError, ConfigError, TableExistsError, UnknownTableError
from ecstore.tables import TableSpec


@dataclass(frozen=True, slots=True)
class NodeJoin:
    """A node process has started, empty, and listens at `address` ("host:port")."""

    id: str
    address: str


@dataclass(frozen=True, slots=True)
class NodeDown:
    """This life of a node is over, or must be treated so: "refused", "silent" or "left".

    `by`: the life of the node that says so, ("", 0) for whoever is no node. It must be up itself: of two nodes that
    can't hear each other, only the first is heard. `sparing`: only if no group is lost by it.
    """

    id: str
    incarnation: int
    reason: DownReason
    by: tuple[str, int] = ("", 0)
    sparing: bool = False


@dataclass(frozen=True, slots=True)
class CreateTable:
    spec: TableSpec


@dataclass(frozen=True, slots=True)
class DropTable:
    name: str


@dataclass(frozen=True, slots=True)
class ShardReady:
    """The owner has recovered its shard, or the joining node has copied it. `group_epoch`: `Group.epoch` of
    the map under which the work was done; when the group has changed since, the event is out of date."""

    gid: int
    index: int
    node: str
    incarnation: int
    group_epoch: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Move everything away from a node, so that it can be removed."""

    id: str


@dataclass(frozen=True, slots=True)
class NodeRemove:
    """A node that owns nothing leaves the cluster."""

    id: str


Event: TypeAlias = NodeJoin | NodeDown | CreateTable | DropTable | ShardReady | Drain | NodeRemove


def next_map(current: ClusterMap, event: Event) -> ClusterMap:
    """The map after `event`, one epoch later; `current` itself (the same object) when the event changes
    nothing.

    Raises, with `current` untouched: `TableExistsError` (same name, other options), `UnknownTableError`
    (drop), `CodeError` (the code needs more nodes than are up), `ConfigError` (unknown node, or a drain or
    removal that cannot be), `CapacityError` (a bound of the map).
    """
    draft = Draft(current)
    if not _apply(event, draft):
        return current
    changed = draft.freeze()
    moves = plan_moves(changed)
    if not moves:
        return changed
    for move in moves:
        draft.join(move.gid, move.index, move.target)
    return draft.freeze()


@singledispatch
def _apply(event: object, draft: Draft) -> bool:
    """Change the draft by the event. False: nothing to change (and nothing was)."""
    raise TypeError(f"not an event of the cluster map: {event!r}")


# -- nodes ---------------------------------------------------------------------------------------------------


@_apply.register
def _node_join(event: NodeJoin, draft: Draft) -> bool:
    if not event.id or len(event.id) > 128 or not event.id.isprintable():
        raise ConfigError("a node id is 1 to 128 printable characters; choose another one")
    former = draft.nodes.get(event.id)
    if former is None and len(draft.nodes) >= MAX_NODES:
        raise CapacityError(f"{MAX_NODES} node ids have joined this cluster; start nodes under ids used before")
    incarnation = former.incarnation + 1 if former is not None else 1
    draft.nodes[event.id] = Node(event.id, event.address, incarnation)
    if former is not None and former.alive:
        # The node restarted before anybody noticed. Its former life is lost first, but the new one takes
        # over from it: anything else would move the shards away and back, or double them up where no other
        # node is free.
        _lose(draft, former.id, former.incarnation)
    return True


@_apply.register
def _node_down(event: NodeDown, draft: Draft) -> bool:
    node = draft.nodes.get(event.id)
    if node is None or not node.alive or node.incarnation != event.incarnation:
        return False
    accuser = draft.nodes.get(event.by[0])
    if event.by[0] and (accuser is None or not accuser.alive or accuser.incarnation != event.by[1]):
        return False
    if event.sparing and any(_is_lost_without(group, node.id, node.incarnation) for group in draft.groups):
        return False
    draft.nodes[node.id] = replace(node, state="down", down_reason=event.reason)
    _lose(draft, node.id, node.incarnation)
    return True


@_apply.register
def _drain(event: Drain, draft: Draft) -> bool:
    node = _known(draft, event.id)
    if node.state == "draining":
        return False
    if node.state == "down":
        raise ConfigError(f"node {node.id} is down and owns nothing; remove it, or start it again")
    rest = len(draft.up_nodes()) - 1
    needed = max((len(group.shards) for group in draft.groups if not group.lost), default=0)
    if needed > rest:
        widest = next(g.code for g in draft.groups if not g.lost and len(g.shards) == needed)
        raise ConfigError(f"draining {node.id} would leave {rest} nodes and {widest} needs {needed}; add a node first")
    draft.nodes[node.id] = replace(node, state="draining")
    _call_off_joins(draft, node.id, node.incarnation)
    return True


@_apply.register
def _node_remove(event: NodeRemove, draft: Draft) -> bool:
    node = _known(draft, event.id)
    if node.state == "down" and node.down_reason == "left":
        return False
    owned = sum(
        shard.owner == node.id and shard.incarnation == node.incarnation
        for group in draft.groups
        if not group.lost
        for shard in group.shards
    )
    if owned:
        raise ConfigError(f"node {node.id} still owns {owned} shards; drain it and remove it when it owns none")
    draft.nodes[node.id] = replace(node, state="down", down_reason="left")
    _call_off_joins(draft, node.id, node.incarnation)
    return True


def _known(draft: Draft, node_id: str) -> Node:
    node = draft.nodes.get(node_id)
    if node is None:
        raise ConfigError(f"no node {node_id!r} in this cluster; known: {', '.join(sorted(draft.nodes)) or 'none'}")
    return node


def _call_off_joins(draft: Draft, node: str, incarnation: int) -> None:
    for group in list(draft.groups):
        for shard in group.shards:
            if shard.joining == node and shard.joining_incarnation == incarnation:
                draft.join(group.gid, shard.index, None)


# -- losses --------------------------------------------------------------------------------------------------


def _is_lost_without(group: Group, node: str, incarnation: int) -> bool:
    """Whether a group that is not lost would be, without this life of a node."""
    dead = [s for s in group.shards if s.owner == node and s.incarnation == incarnation]
    active = sum(s.state == "active" for s in group.shards if s not in dead)
    return bool(dead) and not group.lost and active < parse_code(group.code).k


def _lose(draft: Draft, node: str, incarnation: int) -> None:
    """Take every shard from a life that is over: to a joining node, a substitute, or the group is lost."""
    _call_off_joins(draft, node, incarnation)
    for group in list(draft.groups):
        dead = [s for s in group.shards if s.owner == node and s.incarnation == incarnation]
        if group.lost or not dead:
            continue
        active = sum(s.state == "active" for s in group.shards if s not in dead)
        k = parse_code(group.code).k
        if active < k:
            draft.lose_group(group.gid)
            continue
        for shard in dead:
            if shard.joining is not None and shard.index >= k:
                # The joining node has begun to build this parity shard and needs only the data shards for it.
                draft.give(group.gid, shard.index, shard.joining, active=False)
            else:
                _substitute(draft, group.gid, shard.index, {s.index for s in dead})


def _substitute(draft: Draft, gid: int, index: int, dead: set[int]) -> None:
    """Give shard `index` to the best node there is; shards in `dead` do not keep their owner out."""
    if draft.groups[gid].shards[index].joining is not None:
        draft.join(gid, index, None)
    group = draft.groups[gid]
    parity = index >= parse_code(group.code).k
    # A doubled node loses two shards at once: the first one's substitute is a member by now, so it counts.
    living = [s for s in group.shards if s.index not in dead or s.owner_epoch == draft.epoch]
    owners = {s.owner for s in living}
    joining = {s.joining: s.index for s in group.shards if s.joining is not None}
    up = draft.up_nodes()
    free = [node for node in up if node not in owners]
    former = group.shards[index].owner
    if former in free:
        substitute: str | None = former  # its next life: nothing has to move back later
    else:
        substitute = draft.least_busy(group, parity, [node for node in free if node not in joining])
    if substitute is None:
        # Only nodes that are about to own another shard are left: that move must wait.
        substitute = draft.least_loaded(group, parity, [node for node in free if node in joining])
        if substitute is not None:
            draft.join(gid, joining[substitute], None)
    if substitute is None:
        substitute = _double_up(draft, group, living, parity)
    draft.give(gid, index, substitute, active=False)


def _double_up(draft: Draft, group: Group, living: list[Shard], parity: bool) -> str:
    """The member of the group with the fewest shards of it; a draining one only where no other is left."""
    members = {s.owner for s in living}
    up = {node for node in members if draft.nodes[node].state == "up"}
    held = {node: sum(s.owner == node for s in living) for node in up or members}
    fewest = min(held.values())
    chosen = draft.least_loaded(group, parity, [node for node, count in held.items() if count == fewest])
    assert chosen is not None, "a group with k active shards has a living member"
    return chosen


# -- tables --------------------------------------------------------------------------------------------------


@_apply.register
def _create_table(event: CreateTable, draft: Draft) -> bool:
    code = parse_code(event.spec.code)
    spec = event.spec if event.spec.code == code.name else replace(event.spec, code=code.name)
    existing = draft.tables.get(spec.name)
    if existing is not None:
        if existing.spec == spec:
            return False
        raise TableExistsError(
            f"table {spec.name!r} exists with other options ({existing.spec}); open it with these, drop it "
            "first, or choose another name"
        )
    if len(draft.tables) >= MAX_TABLES:
        raise CapacityError(f"the cluster has {MAX_TABLES} tables, its bound; drop one, or use one table for more")
    if not draft.base.groups_of(code.name):
        _make_groups(draft, code)
    draft.tables[spec.name] = Table(draft.next_table_id, spec)
    draft.next_table_id += 1
    return True


def _make_groups(draft: Draft, code: Code) -> None:
    up = draft.up_nodes()
    if code.width > len(up):
        raise CodeError(
            f"{code.name} needs {code.width} nodes, {len(up)} are up; "
            f"start {code.width - len(up)} more or choose a narrower code"
        )
    count = group_count(len(up), code.k, code.m)
    if len(draft.groups) + count > MAX_GROUPS:
        raise CapacityError(f"{code.name} would make more than {MAX_GROUPS} groups; use a code the cluster has")
    gids = range(len(draft.groups), len(draft.groups) + count)
    ring = ring_of(draft.base.seed, tuple(up))
    for owners in place_groups(ring, code.name, gids, up, code.k, code.m, draft.loads.totals()):
        draft.add_group(code.name, owners)


@_apply.register
def _drop_table(event: DropTable, draft: Draft) -> bool:
    if event.name not in draft.tables:
        raise UnknownTableError(f"no table {event.name!r}; tables: {', '.join(sorted(draft.tables)) or 'none'}")
    del draft.tables[event.name]
    return True


# -- shards --------------------------------------------------------------------------------------------------


@_apply.register
def _shard_ready(event: ShardReady, draft: Draft) -> bool:
    if not 0 <= event.gid < len(draft.groups):
        return False
    group = draft.groups[event.gid]
    if group.lost or group.epoch != event.group_epoch or not 0 <= event.index < len(group.shards):
        return False
    shard = group.shards[event.index]
    life = (event.node, event.incarnation)
    if (shard.owner, shard.incarnation) == life and shard.state == "recovering":
        draft.activate(event.gid, event.index)
        return True
    if (shard.joining, shard.joining_incarnation) == life:
        draft.give(event.gid, event.index, event.node, active=True)
        return True
    return False


# -- what always holds ---------------------------------------------------------------------------------------


def check_invariants(current: ClusterMap) -> None:
    """Raise `AssertionError` naming every rule that a map breaks. For tests and simulations."""
    problems: list[str] = []
    for gid, group in enumerate(current.groups):
        where = f"group {gid} of {group.code}"
        if group.gid != gid or [s.index for s in group.shards] != list(range(parse_code(group.code).width)):
            problems.append(f"{where}: positions do not match")
        if group.epoch > current.epoch or any(s.owner_epoch > group.epoch for s in group.shards):
            problems.append(f"{where}: an epoch is ahead")
        problems += [f"{where}: {problem}" for problem in _group_problems(current, group)]
    ids = [table.id for table in current.tables.values()]
    if len(set(ids)) != len(ids) or any(table_id >= current.next_table_id for table_id in ids):
        problems.append(f"table ids {ids} and the next one, {current.next_table_id}")
    for name, table in current.tables.items():
        if table.spec.name != name or not current.groups_of(table.spec.code):
            problems.append(f"table {name}: its name or code {table.spec.code} does not fit the map")
    for node in current.nodes.values():
        if node.incarnation < 1 or (node.state == "down") != (node.down_reason != ""):
            problems.append(f"node {node}: incarnation or reason")
    if problems:
        raise AssertionError(f"epoch {current.epoch}: " + "; ".join(problems))


def _group_problems(current: ClusterMap, group: Group) -> list[str]:
    problems = []
    owners = {shard.owner for shard in group.shards}
    joins = [shard for shard in group.shards if shard.joining is not None]
    for shard in group.shards:
        if shard.owner not in current.nodes:
            problems.append(f"owner {shard.owner} is unknown")
        elif not group.lost and not current.is_alive(shard.owner, shard.incarnation):
            problems.append(f"owner {shard.owner}/{shard.incarnation} of shard {shard.index} is not alive")
    for shard in joins:
        node = current.nodes.get(str(shard.joining))
        if group.lost or shard.joining in owners:
            problems.append(f"{shard.joining} may not join")
        if node is None or node.state != "up" or node.incarnation != shard.joining_incarnation:
            problems.append(f"joining node {shard.joining}/{shard.joining_incarnation} is not up")
        if shard.state != "active":
            problems.append(f"shard {shard.index} moves while it recovers")
    if len(joins) > 1:
        problems.append("two shards move at once")
    if not group.lost and sum(s.state == "active" for s in group.shards) < parse_code(group.code).k:
        problems.append("fewer than k active shards and not lost")
    if any(s.joining is None and s.joining_incarnation for s in group.shards):
        problems.append("an incarnation without a joining node")
    return problems
