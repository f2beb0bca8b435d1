"""Which shards should move to another node now: a pure plan, made anew after every change of the map.

Reasons, in this order: a node owns two shards of a group (its loss would be two losses); a node is
draining; the load is uneven. A shard is moved by a *join*: the target copies it beside the owner, reports
ready, and becomes the owner. Only a healthy group moves (not lost, every shard active), one shard at a
time.

Why it comes to rest: loads count a running join as done. A balance move goes from a node with at least two
more shards of that code and role to another, so it lowers the sum of squared loads; separating and draining
moves lower the number of doubled or draining shards, which balance moves never raise. Neither can go on for
ever, and no move undoes another. Where the load is even within one shard, there are no moves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from ecstore.cluster.draft import Draft
from ecstore.cluster.map import ClusterMap, Group, Shard, parse_code

#: Joins that one node takes part in at once as the target, and as many as the source. Two keep both ends busy
#: (one shard's bookkeeping overlaps another's copying); more would only slow each other and the pushes.
MAX_JOINS_PER_NODE: Final = 2


@dataclass(frozen=True, slots=True)
class Move:
    """Shard `index` of group `gid` should be copied to `target`."""

    gid: int
    index: int
    target: str


def plan_moves(base: ClusterMap) -> tuple[Move, ...]:
    """The joins that should start now, in order of importance; () when nothing should, or nothing may yet."""
    planner = _Planner(base)
    planner.separate_doubled()
    planner.empty_draining()
    planner.even_out()
    return tuple(planner.moves)


class _Planner:
    def __init__(self, base: ClusterMap) -> None:
        self.draft = Draft(base)
        self.moves: list[Move] = []
        self.up = self.draft.up_nodes()
        self.draining = {node.id for node in base.nodes.values() if node.state == "draining"}
        self.joins_in: Counter[str] = Counter()
        self.joins_out: Counter[str] = Counter()
        for group in base.groups:
            for shard in group.shards:
                if shard.joining is not None:
                    self.joins_in[shard.joining] += 1
                    self.joins_out[shard.owner] += 1

    # -- the three reasons -----------------------------------------------------------------------------------

    def separate_doubled(self) -> None:
        for group in self._healthy():
            seen = Counter(shard.owner for shard in group.shards)
            self._move_one(group, [shard for shard in group.shards if seen[shard.owner] > 1])

    def empty_draining(self) -> None:
        if self.draining:
            for group in self._healthy():
                self._move_one(group, [shard for shard in group.shards if shard.owner in self.draining])

    def even_out(self) -> None:
        """Repeat the most useful move from a crowded to a roomy node until the difference is below two."""
        for code in dict.fromkeys(group.code for group in self.draft.groups):
            for parity in (False, True):
                while self._even_step(code, parity):
                    pass

    # -- steps -----------------------------------------------------------------------------------------------

    def _healthy(self) -> list[Group]:
        """Groups that may start a move, as the draft stands now."""
        return [
            group
            for group in self.draft.groups
            if not group.lost and all(shard.state == "active" and shard.joining is None for shard in group.shards)
        ]

    def _move_one(self, group: Group, shards: list[Shard]) -> None:
        """Start a move of one of `shards` to an up node outside the group: the one that evens out its role most."""
        k = parse_code(group.code).k
        loads = self.draft.loads
        owners = {shard.owner for shard in group.shards}
        outside = [node for node in self.up if node not in owners and self._may_receive(node)]
        best: tuple[int, Shard, str] | None = None
        for shard in shards:
            parity = shard.index >= k
            target = self.draft.least_loaded(group, parity, outside)
            if target is None or not self._may_give(shard.owner):
                continue
            gain = loads.role(group.code, parity, shard.owner) - loads.role(group.code, parity, target)
            if best is None or gain > best[0]:
                best = gain, shard, target
        if best is not None:
            self._start(group, best[1], best[2])

    def _even_step(self, code: str, parity: bool) -> bool:
        """One balance move of this code and role; False when none is useful and possible."""
        loads = self.draft.loads

        def load(node: str) -> tuple[int, int]:
            return loads.role(code, parity, node), loads.total(node)

        by_load = sorted(self.up, key=lambda node: (*load(node), node))
        targets = [node for node in by_load if self._may_receive(node)]
        if not targets or load(by_load[-1])[0] - load(targets[0])[0] < 2:
            return False
        held = self._held(code, parity)
        for source in reversed(by_load):
            for target in targets:
                if load(source)[0] - load(target)[0] < 2:
                    break
                for group, shard in held.get(source, ()):
                    if target not in {other.owner for other in group.shards}:
                        self._start(group, shard, target)
                        return True
        return False

    def _held(self, code: str, parity: bool) -> dict[str, list[tuple[Group, Shard]]]:
        """Movable shards of a code and role by owner. Doubled and draining ones have their own reason to
        move."""
        k = parse_code(code).k
        held: dict[str, list[tuple[Group, Shard]]] = {}
        for group in self._healthy():
            owners = {shard.owner for shard in group.shards}
            if group.code != code or len(owners) < len(group.shards) or owners & self.draining:
                continue
            for shard in group.shards:
                if (shard.index >= k) == parity and self._may_give(shard.owner):
                    held.setdefault(shard.owner, []).append((group, shard))
        return held

    def _may_receive(self, node: str) -> bool:
        return self.joins_in[node] < MAX_JOINS_PER_NODE

    def _may_give(self, node: str) -> bool:
        return self.joins_out[node] < MAX_JOINS_PER_NODE

    def _start(self, group: Group, shard: Shard, target: str) -> None:
        self.moves.append(Move(group.gid, shard.index, target))
        self.joins_in[target] += 1
        self.joins_out[shard.owner] += 1
        self.draft.join(group.gid, shard.index, target)
