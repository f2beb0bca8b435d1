"""What the service knows of the cluster: the newest status of every node, all recoveries ever seen, and events.

Nodes count their own recoveries; this keeps them when a node dies, so that none is forgotten, and says what became
of those whose owner is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import ecstore.aio
from ecstore.cluster.map import ClusterMap
from ecstore.errors import EcstoreError, UnavailableError

#: Between two looks at the cluster, and the age up to which an answer is given without a new look.
POLL_PAUSE_S: Final = 0.25
FRESH_S: Final = 0.05
#: Bounds of what is remembered.
MAX_RECOVERIES: Final = 20_000
MAX_EVENTS: Final = 5_000

_RecoveryKey = tuple[int, int, str, str, str, int, float]


class Observer:
    def __init__(self, addresses: Sequence[str], cluster: str | None) -> None:
        self._addresses = list(addresses)
        self._cluster = cluster
        self._store: ecstore.aio.Store | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._nodes: dict[str, dict[str, Any]] = {}
        self._recoveries: dict[_RecoveryKey, dict[str, Any]] = {}
        self._lives: dict[_RecoveryKey, int] = {}  # incarnation of the node that reported it
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._seen: dict[str, float] = {}  # node -> time of its newest event here
        self._next_event = 1
        self._map: ClusterMap | None = None
        self.problem = "no node has answered yet"  #: why there is no map; "" when there is one
        self.answered: frozenset[str] = frozenset()  #: nodes that told their statistics at the last look

    # -- looking ----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the cluster again and again. Runs until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_PAUSE_S)

    async def refresh(self) -> None:
        """Make what is known newer than `FRESH_S`; callers at the same time share one look."""
        loop = asyncio.get_running_loop()
        if self._looking is None and loop.time() - self._looked_at <= FRESH_S:
            return
        if self._looking is None:
            self._looking = loop.create_task(self._look(), name="look at the cluster")
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            store = await self._connected()
            status = await store.status(timeout=2.0)
            self._take_map(store.cluster_map)
            self._take_nodes(status["nodes"])
            self.problem = ""
        except EcstoreError as error:
            self.problem = str(error)
        finally:
            self._looked_at = asyncio.get_running_loop().time()
            self._looking = None

    async def _connected(self) -> ecstore.aio.Store:
        if self._store is None:
            self._store = await ecstore.aio.connect(",".join(self._addresses), timeout=1.0, cluster=self._cluster)
        return self._store

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._store is not None:
            await self._store.close()

    def store(self) -> ecstore.aio.Store:
        """The client; UnavailableError while no node has been reached."""
        if self._store is None:
            raise UnavailableError(f"no node of the cluster can be reached: {self.problem}")
        return self._store

    # -- what was seen ----------------------------------------------------------------------------------

    @property
    def map(self) -> ClusterMap | None:
        """The newest map; None until a node has answered."""
        if self._store is not None and self._map is not None and self._store.cluster_map.epoch > self._map.epoch:
            self._take_map(self._store.cluster_map)
        return self._map

    def statistics(self, node_id: str) -> dict[str, Any] | None:
        """What the node said last about itself; None when it never did."""
        return self._nodes.get(node_id)

    def recoveries(self) -> list[dict[str, Any]]:
        """Every recovery seen, oldest first; lost groups have one entry for each shard that is gone."""
        _ = self.map
        return sorted(
            self._recoveries.values(), key=lambda entry: (entry["started_at"], entry["group"], entry["shard"])
        )

    def events(self) -> list[dict[str, Any]]:
        """Events of the service and of all nodes, oldest first."""
        return sorted(self._events, key=lambda event: (event["at"], event["id"]))

    def event(self, kind: str, node: str, message: str, **details: Any) -> None:
        """Note something that this service did or saw."""
        epoch = None if self._map is None else self._map.epoch
        self._note({"at": time.time(), "source": "admin", "node": node or None, "epoch": epoch, "kind": kind,
                    "message": message, "details": details})  # fmt: skip

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append({"id": self._next_event} | event)
        self._next_event += 1

    def _take_nodes(self, nodes: dict[str, Any]) -> None:
        self.answered = frozenset(name for name, node in nodes.items() if "recoveries" in (node["statistics"] or {}))
        for name, node in nodes.items():
            statistics = node["statistics"]
            if not statistics or "error" in statistics:
                continue
            self._nodes[name] = statistics
            for recovery in statistics["recoveries"]:
                self._recoveries[_key(recovery)] = recovery
                self._lives[_key(recovery)] = statistics["incarnation"]
            self._take_events(name, statistics["events"])
        self._settle()
        while len(self._recoveries) > MAX_RECOVERIES:
            oldest = next(iter(self._recoveries))
            del self._recoveries[oldest]
            self._lives.pop(oldest, None)

    def _take_events(self, name: str, events: list[dict[str, Any]]) -> None:
        newest = self._seen.get(name, 0.0)
        for event in events:
            if event["at"] > newest:
                known = {"at", "node", "epoch", "kind", "message"}
                details = {key: value for key, value in event.items() if key not in known}
                plain = {key: value for key, value in event.items() if key in known}
                self._note({"source": "node", "details": details} | plain)
        self._seen[name] = max((event["at"] for event in events), default=newest)

    def _take_map(self, new: ClusterMap) -> None:
        old, self._map = self._map, new
        if old is None or new.epoch <= old.epoch:
            return
        for node in new.nodes.values():
            before = old.nodes.get(node.id)
            if before is None or (before.incarnation, before.state) != (node.incarnation, node.state):
                why = f" ({node.down_reason})" if node.down_reason else ""
                text = f"node {node.id}, incarnation {node.incarnation}, is {node.state}{why} in epoch {new.epoch}"
                self.event(f"node_{node.state}", node.id, text)
        for group in new.groups:
            was = old.group_state(old.groups[group.gid]) if group.gid < len(old.groups) else "ok"
            state = new.group_state(group)
            if state != was and {"at_risk", "lost"} & {state, was}:
                self.event(
                    f"group_{state}", "", f"group {group.gid} ({group.code}) is {state}, was {was}", group=group.gid
                )
        self._settle()

    def _settle(self) -> None:
        """Say what became of recoveries whose owner is gone, and of the shards of lost groups."""
        current = self._map
        if current is None:
            return
        now = time.time()
        lost = {group.gid: group for group in current.groups if group.lost}
        for key, recovery in self._recoveries.items():
            if recovery["finished_at"] is not None:
                continue
            gone = not current.is_alive(recovery["new_owner"], self._lives.get(key, 0))
            if recovery["group"] in lost:
                recovery.update(state="lost", finished_at=now, eta_s=None)
            elif gone:
                recovery.update(state="cancelled", finished_at=now, eta_s=None)
        for gid, group in lost.items():
            for shard in group.shards:
                if not current.is_alive(shard.owner, shard.incarnation) or shard.state == "recovering":
                    self._add_lost(gid, shard.index, shard.owner, current, now)

    def _add_lost(self, gid: int, index: int, owner: str, current: ClusterMap, now: float) -> None:
        kind = "data" if index < current.code(current.groups[gid]).k else "parity"
        if any(e["group"] == gid and e["shard"] == index and e["state"] == "lost" for e in self._recoveries.values()):
            return
        entry = {
            "group": gid, "shard": index, "kind": kind, "lost_node": owner, "new_owner": "",
            "epoch": current.groups[gid].epoch, "state": "lost", "rows_total": 0, "rows_decoded": 0,
            "rows_on_demand": 0, "bytes_decoded": 0, "rate_rows_per_s": 0.0, "eta_s": None, "started_at": now,
            "serving_at": None, "first_row_at": None, "last_progress_at": None, "finished_at": now,
        }  # fmt: skip
        self._recoveries[_key(entry)] = entry


def _key(recovery: dict[str, Any]) -> _RecoveryKey:
    return (
        recovery["group"], recovery["shard"], recovery["kind"], recovery["lost_node"], recovery["new_owner"],
        recovery["epoch"], recovery["started_at"],
    )  # fmt: skip
