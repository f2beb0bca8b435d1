"""The scratch pad of `next_map` and `plan_moves`: a map being changed, and who carries how much.

Private to `transitions` and `moves`. A `Draft` is the only place where a shard of a map changes, so that
the two rules about epochs hold everywhere: whatever changes an owner, a joining node or `lost` stamps its
group with the new epoch, and a new owner stamps its shard too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ecstore.cluster.map import ClusterMap, Group, Node, Shard, Table, parse_code
from ecstore.cluster.placement import ring_of


class Loads:
    """Shards per node as they will be when every running move is complete; lost groups do not count."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._role: Counter[tuple[str, bool, str]] = Counter()
        self._total: Counter[str] = Counter()
        for group in groups:
            self.count(group, 1)

    def count(self, group: Group, sign: int) -> None:
        """Add (sign 1) or take away (sign -1) all shards of a group."""
        if group.lost:
            return
        k = parse_code(group.code).k
        for shard in group.shards:
            holder = shard.joining or shard.owner
            self._role[group.code, shard.index >= k, holder] += sign
            self._total[holder] += sign

    def role(self, code: str, parity: bool, node: str) -> int:
        """Shards of one code in one role."""
        return self._role[code, parity, node]

    def total(self, node: str) -> int:
        return self._total[node]

    def totals(self) -> dict[str, int]:
        return dict(self._total)


class Draft:
    """A cluster map while `next_map` works on it. `freeze` gives the next map."""

    def __init__(self, base: ClusterMap) -> None:
        self.base = base
        self.epoch = base.epoch + 1
        self.nodes: dict[str, Node] = dict(base.nodes)
        self.groups: list[Group] = list(base.groups)
        self.tables: dict[str, Table] = dict(base.tables)
        self.next_table_id = base.next_table_id
        self.loads = Loads(base.groups)

    def up_nodes(self) -> list[str]:
        return sorted(node.id for node in self.nodes.values() if node.state == "up")

    def preference(self, group: Group) -> dict[str, int]:
        """Rank of every up node on the ring, seen from the group's point; 0 comes first."""
        ring = ring_of(self.base.seed, tuple(self.up_nodes()))
        return {node: rank for rank, node in enumerate(ring.preference(group.code, group.gid))}

    def least_loaded(self, group: Group, parity: bool, candidates: Iterable[str]) -> str | None:
        """The candidate with the fewest shards in this role, then in all, then the nearest on the ring."""
        return min(candidates, key=self._load_key(group, parity), default=None)

    def least_busy(self, group: Group, parity: bool, candidates: Iterable[str]) -> str | None:
        """The candidate with the fewest shards of the group's code to recover, then the least loaded one: a loss is
        made good when the last node is done with its part of it. Moves even out the roles afterwards.
        """
        busy = Counter(
            shard.owner
            for other in self.groups
            if other.code == group.code and not other.lost
            for shard in other.shards
            if shard.state == "recovering"
        )
        by_load = self._load_key(group, parity)
        return min(candidates, key=lambda node: (busy[node], by_load(node)), default=None)

    def _load_key(self, group: Group, parity: bool) -> Callable[[str], tuple[int, int, int, str]]:
        rank = self.preference(group)
        return lambda node: (
            self.loads.role(group.code, parity, node), self.loads.total(node), rank.get(node, len(rank)), node,
        )  # fmt: skip

    # -- changes ---------------------------------------------------------------------------------------------

    def add_group(self, code: str, owners: Iterable[str]) -> None:
        """Append a new, empty group; its shards are active at once, as there is nothing to copy."""
        shards = tuple(
            Shard(index, owner, self.nodes[owner].incarnation, owner_epoch=self.epoch)
            for index, owner in enumerate(owners)
        )
        self._put(Group(len(self.groups), code, shards, epoch=self.epoch))

    def lose_group(self, gid: int) -> None:
        """Mark a group as lost for good: its owners stay written down, its running moves are over."""
        group = self.groups[gid]
        shards = tuple(replace(shard, joining=None, joining_incarnation=0) for shard in group.shards)
        self._put(replace(group, shards=shards, lost=True, epoch=self.epoch))

    def give(self, gid: int, index: int, node: str, *, active: bool) -> None:
        """Make `node` the owner of a shard: `active` with all rows there, else recovering. Ends a running
        move."""
        self._change(
            gid,
            index,
            owner=node,
            incarnation=self.nodes[node].incarnation,
            state="active" if active else "recovering",
            joining=None,
            joining_incarnation=0,
            owner_epoch=self.epoch,
        )

    def join(self, gid: int, index: int, node: str | None) -> None:
        """Let `node` begin to copy a shard; None calls a running move off."""
        incarnation = 0 if node is None else self.nodes[node].incarnation
        self._change(gid, index, joining=node, joining_incarnation=incarnation)

    def activate(self, gid: int, index: int) -> None:
        """The owner has every row. The one change of a shard that leaves the group's epoch alone, so that
        work on the group's other shards is not disturbed."""
        group = self.groups[gid]
        shards = list(group.shards)
        shards[index] = replace(shards[index], state="active")
        self._put(replace(group, shards=tuple(shards)))

    def freeze(self) -> ClusterMap:
        return replace(
            self.base,
            epoch=self.epoch,
            nodes=self.nodes,
            groups=tuple(self.groups),
            tables=self.tables,
            next_table_id=self.next_table_id,
        )

    def _change(self, gid: int, index: int, **changes: Any) -> None:
        group = self.groups[gid]
        shards = list(group.shards)
        shards[index] = replace(shards[index], **changes)
        self._put(replace(group, shards=tuple(shards), epoch=self.epoch))

    def _put(self, group: Group) -> None:
        if group.gid < len(self.groups):
            self.loads.count(self.groups[group.gid], -1)
            self.groups[group.gid] = group
        else:
            self.groups.append(group)
        self.loads.count(group, 1)
