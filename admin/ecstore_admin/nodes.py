"""What can be done to nodes: add, kill, start again, pause, resume, drain. Whatever is so already is said to be so."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, HTTPException, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from ecstore.cluster.map import MAX_NODES, ClusterMap
from ecstore.errors import CapacityError, ConfigError, EcstoreError, UnavailableError
from ecstore.launcher.ports import check_free, free_ports
from ecstore.transport import parse_address
from ecstore_admin.models import NodeAction, NodeDrain

if TYPE_CHECKING:
    from ecstore_admin.app import Service

#: Wait for a node to have a drain agreed on.
DRAIN_TIMEOUT_S: Final = 5.0
#: Longest pause.
MAX_PAUSE_S: Final = 3600.0

#: Names that mean something else in orders of faults, or are the names of other logs.
RESERVED: Final = frozenset({"coordination", "clients", "admin", "nursery"})

NodeId = Annotated[str, Path(description="id of a node", examples=["n1"])]


class NodeOrder(BaseModel):
    """A node to add on this machine. With an `id` the order can be repeated: there is one node of that name."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"id": "n7", "port": 7406}})

    id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="null: the next free one of n1, n2, ...",
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="null: a free one")


class PauseOrder(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"duration_s": 5.0}})

    duration_s: float | None = Field(default=None, gt=0, le=MAX_PAUSE_S, description="null: until /resume")


class Actions:
    """What the routes do, and the buttons of the page. Errors are HTTPExceptions with a sentence."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def add(self, order: NodeOrder) -> NodeAction:
        """Start one more node process. 409 for what cannot be, and says what can."""
        at = time.time()
        current = await self._service.map()
        supervisor = self._service.supervisor
        if order.id is not None and order.id in supervisor.nodes:
            return self._there_already(order.id, order.port, at)
        if order.id in RESERVED:
            raise HTTPException(422, f"{order.id!r} means something else; choose another id, such as n{_next(current)}")
        if order.id is not None and order.id in current.nodes and current.nodes[order.id].alive:
            raise HTTPException(409, f"node {order.id} runs already, started by somebody else; choose another id")
        if order.id not in current.nodes and len(current.nodes) >= MAX_NODES:
            raise HTTPException(409, f"{MAX_NODES} node ids have joined; start one of them again instead")
        name = order.id or _free_name({*supervisor.nodes, *current.nodes})
        host = self._host()
        try:
            address = f"{host}:{order.port or free_ports(1, host)[0]}"
            check_free([address])
            supervisor.add(name, address)
        except ConfigError as error:
            raise HTTPException(409, str(error).replace("--port-base and --admin-port", "`port`")) from error
        except CapacityError as error:
            raise HTTPException(409, str(error)) from error
        text = f"node {name} was started at {address} and is joining; shards move to it, GET /decoding shows them"
        return NodeAction(id=name, outcome="started", message=text, at=at)

    def _there_already(self, name: str, port: int | None, at: float) -> NodeAction:
        node = self._service.supervisor.nodes[name]
        if port not in (None, parse_address(node.address)[1]):
            raise HTTPException(409, f"node {name} is there already, at {node.address}; choose another id")
        situation = self.situation(name)
        if not node.running():
            text = f"node {name} is there and down; POST /nodes/{name}/recover starts it again"
            return NodeAction(id=name, outcome="already_down", message=text, at=at)
        return NodeAction(id=name, outcome=situation, message=f"node {name} is there: {_SAID[situation]}", at=at)

    def _host(self) -> str:
        """Where the nodes of this service listen."""
        known = [node.address for node in self._service.supervisor.nodes.values() if not node.added]
        return parse_address(known[0])[0] if known else "127.0.0.1"

    async def kill(self, node_id: str) -> NodeAction:
        """SIGKILL; the node stays down until `recover`."""
        at = time.time()
        outcome = await self._service.supervisor.kill(self._service.managed(node_id).id)
        text = "was killed (SIGKILL)" if outcome == "killed" else "was down already"
        return self._done(node_id, outcome, text + f"; POST /nodes/{node_id}/recover starts it again", at)

    async def recover(self, node_id: str) -> NodeAction:
        """Start the node again, empty, as a new incarnation."""
        at = time.time()
        process = self._service.managed(node_id)
        outcome = await self._service.supervisor.recover(process.id)
        if outcome == "started":
            return self._done(node_id, outcome, f"was started at {process.address} and is joining", at)
        await self._service.observer.refresh()
        situation = self.situation(node_id)
        return self._done(node_id, situation, _SAID[situation], at)

    def situation(self, node_id: str) -> Literal["already_up", "starting", "draining", "paused"]:
        """Of a node whose process runs: what it is at."""
        process, current = self._service.supervisor.nodes[node_id], self._service.observer.map
        entry = current.nodes.get(node_id) if current is not None else None
        told = self._service.observer.statistics(node_id) or {}
        if process.paused():
            return "paused"
        if entry is None or not entry.alive or (told.get("pid"), told.get("incarnation")) != (
            process.pid, entry.incarnation,
        ):  # fmt: skip
            return "starting"  # the map may still show the life before
        return "draining" if entry.state == "draining" else "already_up"

    async def pause(self, node_id: str, duration_s: float | None) -> NodeAction:
        """SIGSTOP, for a while or until `resume`."""
        at = time.time()
        outcome = await self._service.supervisor.pause(self._service.managed(node_id).id, duration_s)
        return self._done(node_id, outcome, "was paused (SIGSTOP)" if outcome == "paused" else "is down", at)

    async def resume(self, node_id: str) -> NodeAction:
        """SIGCONT."""
        at = time.time()
        outcome = await self._service.supervisor.resume(self._service.managed(node_id).id)
        return self._done(node_id, outcome, "goes on (SIGCONT)" if outcome == "resumed" else "is down", at)

    async def drain(self, node_id: str) -> NodeDrain:
        """Let the node's shards move to others. It goes on running, gets nothing new, and is not restarted."""
        at = time.time()
        current = await self._service.map()
        self._service.known(node_id)
        entry = current.nodes.get(node_id)
        if entry is None:
            raise HTTPException(409, f"node {node_id} has not joined yet; drain it when GET /nodes says that it is up")
        if not entry.alive:
            text = f"node {node_id} is down and owns nothing: there is nothing to drain"
            return NodeDrain(id=node_id, outcome="already_down", shards_left=0, message=text, at=at)
        was = entry.state
        if was != "draining":
            current = await self._propose_drain(current, node_id)
            self._service.observer.event("drain", node_id, f"node {node_id} is drained on request")
        if node_id in self._service.supervisor.nodes:
            await self._service.supervisor.retire(node_id)
        left = len(current.shards_on(node_id, entry.incarnation))
        after = (
            f"POST /nodes/{node_id}/kill ends it and nothing has to be recovered; after that /recover takes it back"
            if node_id in self._service.supervisor.nodes
            else "end it where it was started"
        )
        if not left:
            return NodeDrain(
                id=node_id, outcome="drained", shards_left=0, message=f"node {node_id} is empty: {after}", at=at
            )
        text = f"node {node_id} is being emptied, {left} shards are left; ask again, and when none is left, {after}"
        outcome: Literal["draining", "already_draining"] = "already_draining" if was == "draining" else "draining"
        return NodeDrain(id=node_id, outcome=outcome, shards_left=left, message=text, at=at)

    async def _propose_drain(self, current: ClusterMap, node_id: str) -> ClusterMap:
        """Any node that is up can propose it; the map after that."""
        store, problem = self._service.observer.store(), "no node is up"
        for node in [node for node in current.nodes.values() if node.alive]:
            try:
                answer = await store.ask_node(
                    node.address, "node.drain", {"node": node_id}, timeout=DRAIN_TIMEOUT_S
                )  # fmt: skip
                return ClusterMap.from_wire(answer["map"])
            except ConfigError as error:
                text = str(error).replace("add a node first", "add one with POST /nodes, or start one again, first")
                raise HTTPException(409, text) from error
            except EcstoreError as error:
                problem = str(error)
        raise UnavailableError(f"no node could have the drain of {node_id} agreed on: {problem}; ask again")

    @staticmethod
    def _done(node_id: str, outcome: Any, text: str, at: float) -> NodeAction:
        return NodeAction(id=node_id, outcome=outcome, message=f"node {node_id} {text}", at=at)


_SAID: Final = {
    "already_up": "is up already",
    "starting": "is starting already and has not joined yet; GET /nodes tells when it is up",
    "draining": "runs and is being emptied; kill it first to take it back as a new life",
    "paused": "runs and is paused; /resume lets it go on",
}


def _next(current: ClusterMap) -> int:
    return int(_free_name(set(current.nodes))[1:])


def _free_name(taken: set[str]) -> str:
    """n and the number after the highest in use."""
    numbers = [int(name[1:]) for name in taken if re.fullmatch(r"n[0-9]{1,9}", name)]
    return f"n{max(numbers, default=0) + 1}"


def router(service: Service) -> APIRouter:
    """The routes of this module."""
    routes, actions = APIRouter(tags=["nodes"]), service.actions

    @routes.post(
        "/nodes", status_code=201, summary="Start one more node process on this machine",
        responses={200: {"model": NodeAction, "description": "there was a node of that id already"}},
    )  # fmt: skip
    async def add(response: Response, order: NodeOrder | None = None) -> NodeAction:
        done = await actions.add(order if order is not None else NodeOrder())
        response.status_code = 201 if done.outcome == "started" else 200
        return done

    @routes.post("/nodes/{node_id}/kill", summary="SIGKILL the node's process; it stays down until /recover")
    async def kill(node_id: NodeId) -> NodeAction:
        return await actions.kill(node_id)

    @routes.post("/nodes/{node_id}/recover", summary="Start the node again, empty, as a new incarnation")
    async def recover(node_id: NodeId) -> NodeAction:
        return await actions.recover(node_id)

    @routes.post("/nodes/{node_id}/drain", summary="Move the node's shards away; it is not started again by itself")
    async def drain(node_id: NodeId) -> NodeDrain:
        return await actions.drain(node_id)

    @routes.post("/nodes/{node_id}/pause", summary="SIGSTOP the node's process, for a while or until /resume")
    async def pause(node_id: NodeId, order: PauseOrder | None = None) -> NodeAction:
        return await actions.pause(node_id, order.duration_s if order is not None else None)

    @routes.post("/nodes/{node_id}/resume", summary="SIGCONT the node's process")
    async def resume(node_id: NodeId) -> NodeAction:
        return await actions.resume(node_id)

    return routes
