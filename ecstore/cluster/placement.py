"""Which nodes hold a new group: a seeded hash ring walked under exact quotas.

The ring says *where a group would like to be*: every node has `VIRTUAL_NODES` points on it, a group has
one, and the group's preference list is the distinct nodes met when walking up from its point (Karger et al.
1997, "Consistent hashing and random trees"). A plain walk loads some nodes twice as much as others, so the
walk is bounded by quotas (as in Mirrokni, Thorup, Zadimoghaddam 2018, "Consistent hashing with bounded
loads"), separate ones for data and for parity shards. Quotas of any two nodes differ by at most one, so a
fresh placement is as even as whole numbers allow.

Pure: the same arguments give the same placement on every machine and in every process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

#: Points of a node on the ring. 64 keep the spread of preferences within some 15 %; quotas do the rest.
VIRTUAL_NODES: Final = 64
#: Shards of one code a node should hold: enough to share one node's loss among many, few enough for a batch.
SHARDS_PER_NODE: Final = 10
#: Most loaded node over the mean that a number of groups should allow, in each role.
MAX_OVER_MEAN: Final = 1.25

_DATA: Final = 0
_PARITY: Final = 1
_IDLE: Final = 2


def ring_hash(seed: int, *parts: str | int) -> int:
    """A point on the ring, 0..2**64-1: a keyed hash of `parts`, independent of Python's own string
    hashing."""
    text = "\x1f".join(str(part) for part in parts).encode()
    key = (seed & (2**64 - 1)).to_bytes(8, "little")
    return int.from_bytes(blake2b(text, digest_size=8, key=key).digest(), "little")


class Ring:
    """Immutable hash ring of node ids."""

    __slots__ = ("_nodes", "_owners", "_points", "_seed")

    def __init__(self, seed: int, nodes: Sequence[str]) -> None:
        """`nodes`: distinct ids, in any order; the order does not matter."""
        self._seed = seed
        self._nodes = tuple(sorted(set(nodes)))
        points = sorted(
            (ring_hash(seed, "node", node, replica), node) for node in self._nodes for replica in range(VIRTUAL_NODES)
        )
        self._points = [point for point, _ in points]
        self._owners = [node for _, node in points]

    def preference(self, code: str, gid: int) -> tuple[str, ...]:
        """All nodes, each once, in the order met when walking up from the point of group `gid`."""
        start = bisect_left(self._points, ring_hash(self._seed, "group", code, gid))
        met: dict[str, None] = {}
        for step in range(len(self._owners)):
            met.setdefault(self._owners[(start + step) % len(self._owners)])
            if len(met) == len(self._nodes):
                break
        return tuple(met)


@lru_cache(maxsize=8)
def ring_of(seed: int, nodes: tuple[str, ...]) -> Ring:
    """The ring of a sorted tuple of node ids, cached: next_map asks for the same one again and again."""
    return Ring(seed, nodes)


def group_count(nodes: int, k: int, m: int) -> int:
    """How many groups a code gets on `nodes` nodes: about `SHARDS_PER_NODE` shards a node, at least one
    group.

    Among the counts within some 40 % of that, the nearest one whose data and parity shards can be spread
    within `MAX_OVER_MEAN`; where none can, the one that comes nearest to it.
    """
    target = max(1, round(SHARDS_PER_NODE * nodes / (k + m)))

    def excess(groups: int, shards: int) -> float:
        if shards == 0:
            return 0.0
        total = groups * shards
        return max(0.0, -(-total // nodes) / (total / nodes) - MAX_OVER_MEAN)

    def cost(groups: int) -> tuple[float, int, int]:
        uneven = excess(groups, k) + excess(groups, m)
        return round(uneven, 9), abs(groups - target), groups

    spread = max(1, (target * 2) // 5)
    return min(range(max(1, target - spread), target + spread + 1), key=cost)


def place_groups(
    ring: Ring, code: str, gids: Sequence[int], nodes: Sequence[str], k: int, m: int, load: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """Owners of new groups: for each gid its k data nodes, then its m parity nodes, k + m distinct nodes.

    `load`: shards a node holds already; the less loaded get the shards that do not divide evenly. Needs
    len(nodes) >= k + m (an assertion: the caller has refused the code already). Over all `gids`, the data
    counts of two nodes differ by at most one, and so do the parity counts.

    Why it always works out: a node still to be idle, data or parity (i, d, p) times in the groups to come,
    with i + d + p = groups to come for each node, is a regular bipartite multigraph of nodes and roles, and
    those split into perfect matchings (König 1916). So any matching of this group leaves a solvable rest.
    """
    assert len(nodes) >= k + m, "next_map refuses a code wider than the cluster"
    by_load = sorted(nodes, key=lambda node: (load.get(node, 0), ring_hash(0, code, node)))
    data, extra = _quotas(by_load, len(gids) * k, 0)
    parity, _ = _quotas(by_load, len(gids) * m, extra)
    left = {node: [data[node], parity[node], len(gids) - data[node] - parity[node]] for node in nodes}
    placed = []
    for gid in gids:
        roles = _match(ring.preference(code, gid), left, k, m)
        placed.append((*roles[_DATA], *roles[_PARITY]))
        for role, members in enumerate(roles):
            for node in members:
                left[node][role] -= 1
    return placed


def _quotas(nodes: Sequence[str], total: int, first: int) -> tuple[dict[str, int], int]:
    """Share `total` among `nodes`; those that get one more start at position `first`. Also where they end."""
    each, more = divmod(total, len(nodes))
    count = len(nodes)
    quotas = {node: each + (1 if (i - first) % count < more else 0) for i, node in enumerate(nodes)}
    return quotas, (first + more) % count


def _match(order: Sequence[str], left: Mapping[str, Sequence[int]], k: int, m: int) -> list[list[str]]:
    """Give each node of `order` one role it has left, with exactly k data, m parity and the others idle.

    Earlier nodes get a shard rather than idleness where both are possible. Bipartite matching by augmenting
    paths (Kuhn 1955) with roles as bins, so a path has at most three steps.
    """
    room = [k, m, len(order) - k - m]
    bins: list[list[str]] = [[], [], []]

    def wishes(node: str) -> list[int]:
        data_first = left[node][_DATA] * m >= left[node][_PARITY] * k
        ranked = (_DATA, _PARITY, _IDLE) if data_first else (_PARITY, _DATA, _IDLE)
        return [role for role in ranked if left[node][role] > 0]

    def settle(node: str, tried: set[int]) -> bool:
        choices = [role for role in wishes(node) if role not in tried]
        for role in choices:
            if len(bins[role]) < room[role]:
                bins[role].append(node)
                return True
        for role in choices:
            tried.add(role)
            for other in reversed(bins[role]):
                if settle(other, tried):
                    bins[role][bins[role].index(other)] = node
                    return True
        return False

    for node in order:
        matched = settle(node, set())
        assert matched, "quotas are always matchable, see place_groups"
    return bins
