"""The cluster map: who is alive, who owns which shard, which tables exist. One immutable value per epoch.

Nothing in here changes anything: `ecstore.cluster.transitions.next_map` makes the next map out of a map and an event.

Routing rule (clients and nodes must agree on it, bit for bit). Let C be the code of a table, `groups_of(C)`
its groups in order, G their number and k the data shards of C. A key belongs to data shard number `s =
shard_of(key, map.seed, G * k)`; that is shard `s % k` of group `groups_of(C)[s // k]`. G never changes
while the code has groups, so a key never changes its group; only owners change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, get_args

from ecstore.codec.code import Code
from ecstore.errors import EcstoreError, FrameError
from ecstore.tables import TableSpec

NodeState = Literal["up", "down", "draining"]
DownReason = Literal["", "refused", "silent", "left"]
ShardState = Literal["active", "recovering"]

#: Node ids that may ever join one cluster (a node that is gone keeps its entry: its incarnations must never
#: come again). Bounds the map to some hundred kilobytes.
MAX_NODES: Final = 4096
#: Groups of all codes together, and tables: bounds of the map's size, far above any sensible cluster.
MAX_GROUPS: Final = 1 << 16
MAX_TABLES: Final = 4096

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Node:
    """One node id and its newest life."""

    id: str
    address: str  #: "host:port" where the newest incarnation listens
    incarnation: int  #: from 1, one more at each join
    state: NodeState = "up"
    down_reason: DownReason = ""  #: "" unless down

    @property
    def alive(self) -> bool:
        """Up or draining: it may own shards and answers for them."""
        return self.state != "down"


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a group and who answers for it."""

    index: int  #: position in the group: 0..k-1 data, then parity
    owner: str
    incarnation: int  #: the owner's, when it became the owner
    state: ShardState = "active"  #: "recovering" until the owner has every row
    joining: str | None = None  #: node that is copying the shard and will own it; None = nobody
    joining_incarnation: int = 0  #: 0 when nobody is joining
    owner_epoch: int = 0  #: epoch in which the owner last changed


@dataclass(frozen=True, slots=True)
class Group:
    """k data shards and m parity shards that are decoded together."""

    gid: int  #: position in `ClusterMap.groups`
    code: str  #: canonical name of the code
    shards: tuple[Shard, ...]  #: index = position
    lost: bool = False  #: fewer than k active shards were left at some moment; stays so
    epoch: int = 0  #: last epoch in which an owner, a joining node or `lost` of this group changed


@dataclass(frozen=True, slots=True)
class Table:
    id: int  #: never used again after a drop
    spec: TableSpec


class NodeLoad(NamedTuple):
    """Shards a node owns in groups that are not lost."""

    data: int
    parity: int


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """One epoch of the cluster. Immutable: treat the dicts as read-only."""

    cluster: str  #: name of the cluster; peers of another cluster are refused
    epoch: int  #: version, +1 at each change
    seed: int  #: of the hash ring and of the routing rule
    nodes: dict[str, Node] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()  #: position = gid
    tables: dict[str, Table] = field(default_factory=dict)  #: by name
    next_table_id: int = 1
    _by_code: dict[str, tuple[Group, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_code: dict[str, list[Group]] = {}
        for group in self.groups:
            by_code.setdefault(group.code, []).append(group)
        object.__setattr__(self, "_by_code", {code: tuple(groups) for code, groups in by_code.items()})

    # -- looking things up -----------------------------------------------------------------------------------

    def code(self, group: Group) -> Code:
        """The code of a group."""
        return parse_code(group.code)

    def groups_of(self, code_name: str) -> tuple[Group, ...]:
        """The groups of a code (canonical name), in the order of the routing rule; () when it has none."""
        return self._by_code.get(code_name, ())

    def codes(self) -> tuple[str, ...]:
        """Canonical names of the codes that have groups, in order of creation."""
        return tuple(self._by_code)

    def shards_on(self, node: str, incarnation: int) -> list[tuple[Group, Shard]]:
        """Shards this life of a node owns, lost groups included, in order of gid and index."""
        return [
            (group, shard)
            for group in self.groups
            for shard in group.shards
            if shard.owner == node and shard.incarnation == incarnation
        ]

    def joins_of(self, node: str, incarnation: int) -> list[tuple[Group, Shard]]:
        """Shards this life of a node is copying in order to own them."""
        return [
            (group, shard)
            for group in self.groups
            for shard in group.shards
            if shard.joining == node and shard.joining_incarnation == incarnation
        ]

    def up_nodes(self) -> tuple[str, ...]:
        """Ids of the nodes that may be given shards (up, not draining), sorted."""
        return tuple(sorted(node.id for node in self.nodes.values() if node.state == "up"))

    def is_alive(self, node: str, incarnation: int) -> bool:
        """Whether exactly this life of the node is up or draining in this epoch."""
        found = self.nodes.get(node)
        return found is not None and found.alive and found.incarnation == incarnation

    def table_by_id(self, table_id: int) -> Table | None:
        """The table with this id; None when there is none (dropped, or newer than this map)."""
        return next((table for table in self.tables.values() if table.id == table_id), None)

    # -- how is it going -------------------------------------------------------------------------------------

    def at_risk(self, group: Group) -> bool:
        """Whether one node owns two shards of the group, so that its loss would be two losses."""
        return len({shard.owner for shard in group.shards}) < len(group.shards)

    def load(self) -> dict[str, NodeLoad]:
        """Data and parity shards owned by every node that is up or draining; lost groups do not count."""
        counts = {node.id: [0, 0] for node in self.nodes.values() if node.alive}
        for group in self.groups:
            if group.lost:
                continue
            k = self.code(group).k
            for shard in group.shards:
                counts[shard.owner][shard.index >= k] += 1
        return {node: NodeLoad(data, parity) for node, (data, parity) in counts.items()}

    def losses_tolerated(self, group: Group) -> int:
        """How many nodes may be lost at once, whichever they are, before fewer than k active shards are left.

        Zero for a lost group.
        """
        if group.lost:
            return 0
        per_node: dict[str, int] = {}
        for shard in group.shards:
            if shard.state == "active":
                per_node[shard.owner] = per_node.get(shard.owner, 0) + 1
        spare = sum(per_node.values()) - self.code(group).k
        tolerated = 0
        for count in sorted(per_node.values(), reverse=True):
            spare -= count
            if spare < 0:
                break
            tolerated += 1
        return tolerated

    def health(self) -> dict[str, int | None]:
        """Groups by state, each in one of: ok, degraded (a shard is recovering), at_risk, lost.

        `moving`: groups with a joining shard (counted besides). `losses_tolerated`: the least over the
        groups that are not lost, in nodes; None when there is no such group.
        """
        result: dict[str, int | None] = dict.fromkeys(("ok", "degraded", "at_risk", "lost"), 0)
        moving = 0
        for group in self.groups:
            state = self.group_state(group)
            result[state] = (result[state] or 0) + 1
            moving += any(shard.joining is not None for shard in group.shards)
        tolerated = [self.losses_tolerated(group) for group in self.groups if not group.lost]
        return {
            "groups": len(self.groups),
            **result,
            "moving": moving,
            "losses_tolerated": min(tolerated, default=None),
        }

    def group_state(self, group: Group) -> Literal["ok", "degraded", "at_risk", "lost"]:
        """The worst that is true of the group."""
        if group.lost:
            return "lost"
        if self.at_risk(group):
            return "at_risk"
        return "degraded" if any(shard.state == "recovering" for shard in group.shards) else "ok"

    # -- wire form -------------------------------------------------------------------------------------------

    def to_wire(self) -> dict[str, Any]:
        """Plain data for msgpack; `from_wire` gives an equal map back."""
        return {
            "cluster": self.cluster,
            "epoch": self.epoch,
            "seed": self.seed,
            "nodes": [
                [node.id, node.address, node.incarnation, node.state, node.down_reason]
                for node in self.nodes.values()
            ],
            "groups": [
                [
                    group.code,
                    group.lost,
                    group.epoch,
                    [[s.owner, s.incarnation, s.state, s.joining, s.joining_incarnation, s.owner_epoch]
                     for s in group.shards],
                ]
                for group in self.groups
            ],
            "tables": [[table.id, table.spec.to_wire()] for table in self.tables.values()],
            "next_table_id": self.next_table_id,
        }  # fmt: skip

    @classmethod
    def from_wire(cls, data: object) -> ClusterMap:
        """Rebuild a map a peer or a file gave. `FrameError` for anything that is not one."""
        try:
            return _read_map(data)
        except FrameError:
            raise
        except (EcstoreError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise FrameError(f"the cluster map does not parse: {error}; {_ADVICE}") from error


@lru_cache(maxsize=256)
def parse_code(name: str) -> Code:
    """`Code.parse`, remembered: maps ask for the same few codes over and over."""
    return Code.parse(name)


def empty_map(cluster: str, seed: int) -> ClusterMap:
    """The map of a cluster that nobody has joined yet: epoch 0."""
    return ClusterMap(cluster=cluster, epoch=0, seed=seed)


def check_successor(old: ClusterMap, new: ClusterMap) -> None:
    """`FrameError` unless `new` keeps what no event ever takes away: a map without it would bring down or mislead every
    node that follows it. That it is the *right* successor is not checked: its proposer computed it.
    """
    kept = all(
        node.id in new.nodes and new.nodes[node.id].incarnation >= node.incarnation for node in old.nodes.values()
    )
    _need(kept, "it forgets a node, or goes back to a former life of one")
    _need(
        [group.code for group in new.groups[: len(old.groups)]] == [group.code for group in old.groups],
        "it forgets a group, or gives it another code",
    )
    found_again = any(group.lost and not new.groups[group.gid].lost for group in old.groups)
    _need(not found_again, "a group that was lost is lost for ever")
    _need(
        old.next_table_id <= new.next_table_id and all(t.id < new.next_table_id for t in new.tables.values()),
        "a table id would come again",
    )


# -- reading the wire form, strictly -------------------------------------------------------------------------

_NODE_STATES: Final = frozenset(get_args(NodeState))
_DOWN_REASONS: Final = frozenset(get_args(DownReason))
_SHARD_STATES: Final = frozenset(get_args(ShardState))
_ADVICE: Final = "check that all processes of the cluster run the same version"


def _need(good: bool, what: str) -> None:
    if not good:
        raise FrameError(f"the cluster map does not parse: {what}; {_ADVICE}")


def _typed(value: object, kind: type[_T], what: str) -> _T:
    if type(value) is not kind:  # a map is read in every process for every epoch: text is made for faults only
        _need(False, f"{what} is {type(value).__name__}, not {kind.__name__}")
    return cast("_T", value)


def _number(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        _need(False, f"{what} is {_typed(value, int, what)}")
    return cast("int", value)


def _fields(value: object, count: int, what: str) -> list[Any]:
    items = _typed(value, list, what)
    if len(items) != count:
        _need(False, f"{what} has {len(items)} fields, not {count}")
    return items


def _one_of(value: object, choices: frozenset[str], what: str) -> Any:
    if type(value) is not str or value not in choices:
        _need(False, f"{what} is {value!r}")
    return value


def _read_map(data: object) -> ClusterMap:
    _need(isinstance(data, Mapping), f"it is {type(data).__name__}, not a map")
    wire = cast("Mapping[str, Any]", data)
    nodes = [_read_node(item) for item in _typed(wire["nodes"], list, "nodes")]
    groups = [_read_group(gid, item) for gid, item in enumerate(_typed(wire["groups"], list, "groups"))]
    tables = [_read_table(item) for item in _typed(wire["tables"], list, "tables")]
    _need(len(nodes) <= MAX_NODES, f"{len(nodes)} nodes")
    _need(len(groups) <= MAX_GROUPS, f"{len(groups)} groups")
    _need(len(tables) <= MAX_TABLES, f"{len(tables)} tables")
    built = ClusterMap(
        cluster=_typed(wire["cluster"], str, "cluster"),
        epoch=_number(wire["epoch"], "epoch"),
        seed=_number(wire["seed"], "seed"),
        nodes={node.id: node for node in nodes},
        groups=tuple(groups),
        tables={table.spec.name: table for table in tables},
        next_table_id=_number(wire["next_table_id"], "next_table_id"),
    )
    _need(len(built.nodes) == len(nodes) and len(built.tables) == len(tables), "a node or table appears twice")
    named = {s.owner for g in groups for s in g.shards} | {s.joining for g in groups for s in g.shards} - {None}
    _need(named <= built.nodes.keys(), "a shard names an unknown node")
    return built


def _read_node(item: object) -> Node:
    node, address, incarnation, state, reason = _fields(item, 5, "node")
    return Node(
        _typed(node, str, "node id"),
        _typed(address, str, "node address"),
        _number(incarnation, "incarnation"),
        _one_of(state, _NODE_STATES, "node state"),
        _one_of(reason, _DOWN_REASONS, "down reason"),
    )


def _read_group(gid: int, item: object) -> Group:
    code, lost, epoch, shards = _fields(item, 4, "group")
    name = _typed(code, str, "code")
    read = tuple(_read_shard(i, shard) for i, shard in enumerate(_typed(shards, list, "shards")))
    _need(parse_code(name).width == len(read), f"a group of {name} has {len(read)} shards")
    return Group(gid, name, read, _typed(lost, bool, "lost"), _number(epoch, "group epoch"))


def _read_shard(index: int, item: object) -> Shard:
    owner, incarnation, state, joining, joining_incarnation, owner_epoch = _fields(item, 6, "shard")
    return Shard(
        index,
        _typed(owner, str, "owner"),
        _number(incarnation, "incarnation"),
        _one_of(state, _SHARD_STATES, "shard state"),
        None if joining is None else _typed(joining, str, "joining node"),
        _number(joining_incarnation, "incarnation"),
        _number(owner_epoch, "owner epoch"),
    )


def _read_table(item: object) -> Table:
    table_id, spec = _fields(item, 2, "table")
    return Table(_number(table_id, "table id"), TableSpec.from_wire(_typed(spec, dict, "table spec")))
