"""The clock of the demonstration: a thread looks at the client's cluster map every few milliseconds.

The client is told every change of the map, so this costs no request.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

import ecstore
from ecstore.cluster.map import ClusterMap

PAUSE_S: Final = 0.002


@dataclass(slots=True, eq=False)
class Kill:
    """One killed node. Times are unix seconds; None: not (yet)."""

    node: str
    round: int
    at_batch: int
    at: float
    incarnation: int
    shards: tuple[tuple[int, int], ...]  #: (group, shard) that it owned
    at_risk_before: bool
    others_decoding: bool = False  #: whether the loss of another node was still being decoded
    detected_at: float | None = None  #: the map says that it is down
    recovered_at: float | None = None  #: every shard it owned is whole, on living nodes
    recover_asked_at: float | None = None
    back_at: float | None = None  #: it was up again after `recover`
    at_risk_seen: bool = False  #: some group had two shards on one node after the kill
    at_risk_ended_at: float | None = None

    def settled(self, current: ClusterMap) -> bool:
        return all(
            not current.groups[gid].lost
            and current.groups[gid].shards[index].state == "active"
            and current.is_alive(current.groups[gid].shards[index].owner, current.groups[gid].shards[index].incarnation)
            for gid, index in self.shards
        )


@dataclass(slots=True)
class Watch:
    """Start with `start`, end with `stop`. `kills` is filled by the controller; a kill is complete before it is in."""

    store: ecstore.Store
    kills: list[Kill] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch the map", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._look(self.store.cluster_map, time.time())

    def _look(self, current: ClusterMap, now: float) -> None:
        at_risk = any(not group.lost and current.at_risk(group) for group in current.groups)
        for kill in tuple(self.kills):
            entry = current.nodes[kill.node]
            if kill.detected_at is None and not current.is_alive(kill.node, kill.incarnation):
                kill.detected_at = now
            if kill.detected_at is None:
                continue
            if kill.recovered_at is None and kill.settled(current):
                kill.recovered_at = now
            if kill.recover_asked_at is not None and kill.back_at is None and entry.alive:
                kill.back_at = now
            if at_risk:
                kill.at_risk_seen = True
            elif kill.at_risk_seen and kill.at_risk_ended_at is None:
                kill.at_risk_ended_at = now

    def lost_groups(self) -> list[int]:
        return [group.gid for group in self.store.cluster_map.groups if group.lost]

    def losses_tolerated(self) -> int:
        tolerated = self.store.cluster_map.health()["losses_tolerated"]
        return tolerated if tolerated is not None else 0

    def whole(self) -> bool:
        """Every kill has been noticed, and everything it took is back."""
        return all(kill.recovered_at is not None for kill in self.kills)

    def clean(self, nodes: int) -> bool:
        """All nodes are up, every group is whole on distinct nodes, and nothing moves."""
        current = self.store.cluster_map
        health = current.health()
        return len(current.up_nodes()) >= nodes and health["ok"] == health["groups"] and not health["moving"]
