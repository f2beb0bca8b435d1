"""Who does not answer although the map calls him alive: what a map cannot tell. Pure; times are arguments.

A map says what the nodes agreed on last. When all of them have ended, or the coordination service has, nobody is left
to agree that a node is down, and the last map would go on saying that all is well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ecstore.cluster.map import ClusterMap

#: A node that is silent for so long should have been declared down: something keeps the others from it.
SILENT_AFTER_S: Final = 3.0


class Silence:
    """Give it the nodes' statistics of every look, as `store.status()` has them."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.answered: frozenset[str] = frozenset()  #: nodes that told their statistics at the last look
        self.problem = ""  #: why nothing is known of the present; "" when a node has answered
        self.frozen = False  #: all that answer have lost the coordination service: no failure can be agreed on

    def take(self, nodes: Mapping[str, Mapping[str, Any]], current: ClusterMap, now: float) -> None:
        told = {name: node["statistics"] for name, node in nodes.items() if node["statistics"]}
        heard = {name: said for name, said in told.items() if "error" not in said}
        self.answered = frozenset(heard)
        alive = [node.id for node in current.nodes.values() if node.alive]
        self._since = {name: self._since.get(name, now) for name in alive if name not in heard}
        self.frozen = bool(heard) and not any(said.get("coordination_available", True) for said in heard.values())
        self.problem = ""
        if alive and not heard:
            reason = next((str(said["error"]) for said in told.values()), "")
            self.problem = f"none of the {len(alive)} nodes that were up last answers" + (
                f" ({reason})" if reason else ""
            )

    def silent(self, now: float) -> tuple[str, ...]:
        """Nodes that the map calls alive and that have been silent for long."""
        return tuple(name for name, since in self._since.items() if now - since >= SILENT_AFTER_S)


def unserved(current: ClusterMap, silent: Collection[str]) -> list[int]:
    """Groups that are not lost, and too few of whose shards are on nodes that answer."""
    return [
        group.gid
        for group in current.groups
        if not group.lost
        and sum(shard.state == "active" and shard.owner not in silent for shard in group.shards) < current.code(group).k
    ]
