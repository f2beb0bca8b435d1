"""What the service knows of the cluster: the newest status of every node, all recoveries ever seen, and events.

Nodes count their own recoveries; the history keeps them when a node dies, so that none is forgotten, and here is said
what became of those whose owner is gone. Everything else is asked from the nodes whenever it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import ecstore.aio
from ecstore.cluster.map import ClusterMap
from ecstore.errors import EcstoreError, UnavailableError
from ecstore_admin.history import History, Mark, order_of
from ecstore_admin.silence import Silence

logger = logging.getLogger(__name__)

#: Between two looks at the cluster while it changes, and while nothing has for so long; each look costs every node a
#: little, and who asks for something is never told what is older than the last figure.
POLL_PAUSE_S: Final = 0.25
CALM_PAUSE_S: Final = 1.0
CALM_AFTER_S: Final = 5.0
FRESH_S: Final = 0.05

#: What a life of a node goes through.
_STAGES: Final = {"up": 0, "draining": 1, "down": 2}


class Observer:
    def __init__(self, addresses: Callable[[], Sequence[str]], cluster: str | None, history: History) -> None:
        """`addresses`: of nodes to begin with, when the cluster is looked for."""
        self._addresses = addresses
        self._cluster = cluster
        self.history = history
        self._store: ecstore.aio.Store | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._busy_at = float("-inf")  #: loop time at which something was last under way
        self._nodes: dict[str, dict[str, Any]] = {}
        self._map: ClusterMap | None = None
        self.on_look: list[Callable[[], None]] = []  #: called after every look; must not raise
        self._silence = Silence()
        self.problem = "no node has answered yet"  #: why nothing is known of the present; "" when a node has answered

    # -- looking ----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the cluster again and again. Runs until cancelled."""
        while True:
            try:
                await self.refresh()
            except Exception:  # such as a node of another release says what is not understood here
                logger.exception("a look at the cluster failed; the next one follows")
            await asyncio.sleep(CALM_PAUSE_S if self.calm else POLL_PAUSE_S)

    @property
    def calm(self) -> bool:
        """Whether nothing has changed and nothing has been under way lately."""
        return asyncio.get_running_loop().time() - self._busy_at > CALM_AFTER_S

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
            self._silence.take(status["nodes"], store.cluster_map, asyncio.get_running_loop().time())
            self._take_nodes(status["nodes"])
            self.problem = self._silence.problem
        except EcstoreError as error:
            self.problem = str(error)
            self._busy()
        finally:
            self._looked_at = asyncio.get_running_loop().time()
            self._looking = None  # whatever fails from here on: the next look begins anew
            self.history.sync()
            for tell in self.on_look:
                tell()

    def _busy(self) -> None:
        self._busy_at = asyncio.get_running_loop().time()

    async def _connected(self) -> ecstore.aio.Store:
        if self._store is None:
            self._store = await ecstore.aio.connect(",".join(self._addresses()), timeout=1.0, cluster=self._cluster)
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

    @property
    def answered(self) -> frozenset[str]:
        """Nodes that told their statistics at the last look."""
        return self._silence.answered

    @property
    def frozen(self) -> bool:
        """Whether all nodes that answer have lost the coordination service."""
        return self._silence.frozen

    def silent(self) -> tuple[str, ...]:
        """Nodes that the map calls alive and that have not answered for long."""
        return self._silence.silent(asyncio.get_running_loop().time())

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
        found = [known.recovery for known in self.history.known.values()]
        return sorted(found, key=order_of)

    def events(self) -> list[dict[str, Any]]:
        """Events of the services and of all nodes, in the order in which they became known."""
        return self.history.events()

    def event(self, kind: str, node: str, message: str, **details: Any) -> None:
        """Note something that this service did or saw."""
        self._note(kind, node, message, details, None)
        self.history.sync()

    def _note(self, kind: str, node: str, message: str, details: dict[str, Any], mark: Mark | None) -> None:
        epoch = None if self._map is None else self._map.epoch
        event = {"at": time.time(), "source": "admin", "node": node or None, "epoch": epoch, "kind": kind,
                 "message": message, "details": details}  # fmt: skip
        self.history.note(event, mark)

    def _take_nodes(self, nodes: dict[str, Any]) -> None:
        for name, node in nodes.items():
            statistics = node["statistics"]
            if not statistics or "error" in statistics:
                continue
            self._nodes[name] = statistics
            for recovery in statistics["recoveries"]:
                self.history.report(recovery, statistics["incarnation"])
            self._take_events(name, statistics["events"])
        self._settle()
        if any(not known.finished for known in self.history.known.values()):
            self._busy()

    def _take_events(self, name: str, events: list[dict[str, Any]]) -> None:
        """A node's list is in the order of its clock, so the newest time known of it says what is news."""
        scope = f"log:{name}"
        last = self.history.last_rank(scope)
        for event in events:
            if last is None or [event["at"]] > last:
                known = {"at", "node", "epoch", "kind", "message"}
                details = {key: value for key, value in event.items() if key not in known}
                plain = {key: value for key, value in event.items() if key in known}
                self.history.note({"source": "node", "details": details} | plain, Mark(scope, [event["at"]]))

    def _take_map(self, new: ClusterMap) -> None:
        old, self._map = self._map, new
        if old is not None and new.epoch <= old.epoch:
            return
        self._busy()
        self.history.belongs_to(f"{new.cluster}/{new.seed}")
        for node in new.nodes.values():
            mark = Mark(f"node:{node.id}", [node.incarnation, _STAGES[node.state]])
            why = f" ({node.down_reason})" if node.down_reason else ""
            text = f"node {node.id}, incarnation {node.incarnation}, is {node.state}{why} in epoch {new.epoch}"
            self._note(f"node_{node.state}", node.id, text, {}, mark)
        for group in new.groups:
            scope, state = f"group:{group.gid}", new.group_state(group)
            was = str((self.history.last_rank(scope) or [0, "ok"])[1])
            if state != was and {"at_risk", "lost"} & {state, was}:
                text = f"group {group.gid} ({group.code}) is {state}, was {was}"
                self._note(f"group_{state}", "", text, {"group": group.gid}, Mark(scope, [group.epoch, state]))
        self._settle()

    def _settle(self) -> None:
        """Say what became of recoveries whose owner is gone, and of the shards of lost groups."""
        current = self._map
        if current is None:
            return
        now = time.time()
        lost = {group.gid: group for group in current.groups if group.lost}
        for key, known in self.history.known.items():
            if known.finished:
                continue
            if key.group in lost:
                self.history.end(key, "lost", now)
            elif not current.is_alive(key.new_owner, known.life):
                self.history.end(key, "cancelled", now)
        told = {
            (key.group, key.shard) for key, known in self.history.known.items() if known.recovery["state"] == "lost"
        }
        for gid, group in lost.items():
            for shard in group.shards:
                gone = not current.is_alive(shard.owner, shard.incarnation) or shard.state == "recovering"
                if gone and (gid, shard.index) not in told:
                    self._add_lost(gid, shard.index, shard.owner, current, now)

    def _add_lost(self, gid: int, index: int, owner: str, current: ClusterMap, now: float) -> None:
        kind = "data" if index < current.code(current.groups[gid]).k else "parity"
        entry = {
            "group": gid, "shard": index, "kind": kind, "lost_node": owner, "new_owner": "",
            "epoch": current.groups[gid].epoch, "state": "lost", "rows_total": 0, "rows_decoded": 0,
            "rows_on_demand": 0, "bytes_decoded": 0, "rate_rows_per_s": 0.0, "eta_s": None, "started_at": now,
            "serving_at": None, "first_row_at": None, "last_progress_at": None, "finished_at": now,
        }  # fmt: skip
        self.history.report(entry, 0)
