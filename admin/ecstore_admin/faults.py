"""Faults over REST: delays, cuts, partitions and slow nodes, ordered from nodes that allow them; pause and resume."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, ConfigDict, Field

import ecstore.aio
from ecstore.cluster.map import ClusterMap
from ecstore.errors import CapacityError, ConfigError, EcstoreError
from ecstore_admin import models
from ecstore_admin.observer import Observer
from ecstore_admin.supervisor import NodeProcess, Supervisor

#: Wait for one node's answer; paused ones give none.
ASK_TIMEOUT_S = 1.0
#: Longest fault and pause.
MAX_DURATION_S = 3600.0

NodeId = Annotated[str, Path(description="id of a node", examples=["n1"])]


class Host(Protocol):
    """What this module needs of the service; `ecstore_admin.app.Service` has it."""

    observer: Observer
    supervisor: Supervisor

    def managed(self, node_id: str) -> NodeProcess: ...
    async def map(self) -> ClusterMap: ...
    def node_ids(self) -> list[str]: ...
    def known(self, node_id: str) -> None: ...


class FaultOrder(BaseModel):
    """A fault. Frames between `from` and `to` are delayed, cut off or lost; `nodes` are for `slow`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"kind": "partition", "from": ["n1"], "to": ["n2", "coordination"], "duration_s": 10.0}
        },
    )

    kind: Literal["delay", "drop", "partition", "slow"]
    from_: list[str] = Field(default_factory=list, alias="from", description="nodes, or `coordination`")
    to: list[str] = Field(
        default_factory=list,
        description="nodes, `coordination`, `clients`, or `*`: all other nodes and the coordination service",
    )
    nodes: list[str] = Field(default_factory=list, description="of `slow`")
    both: bool = Field(default=True, description="both ways; false: only what goes from `from` to `to`")
    duration_s: float = Field(gt=0, le=MAX_DURATION_S)
    delay_ms: float | None = Field(default=None, description="of `delay`")
    jitter_ms: float | None = Field(default=None, description="of `delay`: uniform, plus and minus")
    probability: float | None = Field(default=None, description="of `drop`: that a frame ends its connection")
    block_ms: float | None = Field(default=None, description="of `slow`: the node does nothing for so long ...")
    every_ms: float | None = Field(default=None, description="... once in this time")


class Fault(BaseModel):
    id: str
    kind: Literal["delay", "drop", "partition", "slow"]
    rules: dict[str, dict[str, Any]] = Field(description="what each node does, and how many seconds are left")


class Faults(BaseModel):
    faults: list[Fault]
    silent: list[str] = Field(description="nodes that did not answer: paused, down, or without --allow-faults")


class FaultSet(BaseModel):
    id: str
    nodes: list[str] = Field(description="that do it")
    until: float


class FaultCleared(BaseModel):
    id: str
    nodes: list[str] = Field(description="on which it was ended")
    silent: list[str] = Field(description="nodes that did not answer; there it ends by itself")


class PauseOrder(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"duration_s": 5.0}})

    duration_s: float | None = Field(default=None, gt=0, le=MAX_DURATION_S, description="none: until /resume")


def router(service: Host) -> APIRouter:
    """The routes of this module."""
    made = APIRouter()
    calls = _Calls(service)

    @made.post("/faults", status_code=201, summary="Order a fault from nodes started with --allow-faults")
    async def set_fault(order: FaultOrder) -> FaultSet:
        return await calls.set(order)

    @made.get("/faults", summary="The faults in force")
    async def faults() -> Faults:
        return await calls.list()

    @made.delete("/faults/{fault_id}", summary="End a fault before its time")
    async def clear(fault_id: str) -> FaultCleared:
        return await calls.clear(fault_id)

    @made.post("/nodes/{node_id}/pause", summary="SIGSTOP the node's process, for a while or until /resume")
    async def pause(node_id: NodeId, order: PauseOrder | None = None) -> models.NodeAction:
        at = time.time()
        node = service.managed(node_id).id
        outcome = await service.supervisor.pause(node, order.duration_s if order is not None else None)
        return _action(node_id, outcome, at)

    @made.post("/nodes/{node_id}/resume", summary="SIGCONT the node's process")
    async def resume(node_id: NodeId) -> models.NodeAction:
        at = time.time()
        return _action(node_id, await service.supervisor.resume(service.managed(node_id).id), at)

    return made


def _action(node_id: str, outcome: Any, at: float) -> models.NodeAction:
    words = {"paused": "was paused (SIGSTOP)", "resumed": "goes on (SIGCONT)", "already_down": "is down"}
    return models.NodeAction(id=node_id, outcome=outcome, message=f"node {node_id} {words[outcome]}", at=at)


class _Calls:
    """Every node keeps its own faults; nothing is remembered here, so a new admin service knows them, too."""

    def __init__(self, service: Host) -> None:
        self._service = service

    async def set(self, order: FaultOrder) -> FaultSet:
        await self._service.map()
        number, at = f"f-{secrets.token_hex(4)}", time.time()
        rules = _rules_of(order)
        for node in rules:
            self._service.known(node)
        settings = {
            name: value
            for name in ("delay_ms", "jitter_ms", "probability", "block_ms", "every_ms")
            if (value := getattr(order, name)) is not None
        }
        common = {"id": number, "kind": order.kind, "duration_s": order.duration_s} | settings
        answers = await self._ask_each({node: common | rule for node, rule in rules.items()}, "fault.set")
        failed = {node: answer for node, answer in answers.items() if isinstance(answer, EcstoreError)}
        if failed:
            await self._ask_all("fault.clear", {"id": number}, rules)  # all of it, or nothing
            node, error = next(iter(failed.items()))
            status = 409 if "--allow-faults" in str(error) else 422 if isinstance(error, ConfigError) else 503
            if isinstance(error, CapacityError):
                status = 429
            raise HTTPException(status, f"node {node}: {error}")
        return FaultSet(id=number, nodes=sorted(rules), until=at + order.duration_s)

    async def list(self) -> Faults:
        await self._service.map()
        answers = await self._ask_all("fault.list", {})
        found: dict[str, Fault] = {}
        silent = []
        for node, answer in answers.items():
            if isinstance(answer, EcstoreError):
                silent.append(node)
                continue
            for rule in answer["faults"]:
                fault = found.setdefault(rule["id"], Fault(id=rule["id"], kind=rule["kind"], rules={}))
                fault.rules[node] = {key: value for key, value in rule.items() if key not in ("id", "kind")}
        return Faults(faults=list(found.values()), silent=silent)

    async def clear(self, number: str) -> FaultCleared:
        await self._service.map()
        answers = await self._ask_all("fault.clear", {"id": number})
        cleared = [node for node, answer in answers.items() if isinstance(answer, dict) and answer["cleared"]]
        silent = [node for node, answer in answers.items() if isinstance(answer, EcstoreError)]
        if not cleared:
            told = f"; {', '.join(silent)} did not answer" if silent else ""
            raise HTTPException(404, f"there is no fault {number!r}, it may have ended{told}; see GET /faults")
        return FaultCleared(id=number, nodes=cleared, silent=silent)

    async def _ask_all(
        self, kind: str, meta: dict[str, Any], nodes: Iterable[str] | None = None
    ) -> dict[str, dict[str, Any] | EcstoreError]:
        chosen = self._service.node_ids() if nodes is None else nodes
        return await self._ask_each(dict.fromkeys(chosen, meta), kind)

    async def _ask_each(self, metas: dict[str, dict[str, Any]], kind: str) -> dict[str, dict[str, Any] | EcstoreError]:
        store = self._service.observer.store()
        answers = await asyncio.gather(*(self._ask(store, node, kind, meta) for node, meta in metas.items()))
        return dict(zip(metas, answers, strict=True))

    async def _ask(
        self, store: ecstore.aio.Store, node: str, kind: str, meta: dict[str, Any]
    ) -> dict[str, Any] | EcstoreError:
        """Also a node that is declared down is asked: it may be the fault that keeps it from joining."""
        current, process = self._service.observer.map, self._service.supervisor.nodes.get(node)
        entry = current.nodes.get(node) if current is not None else None
        address = process.address if process is not None else entry.address if entry is not None else ""
        try:
            return await store.ask_node(address, kind, meta, timeout=ASK_TIMEOUT_S)
        except EcstoreError as error:
            return error


def _rules_of(order: FaultOrder) -> dict[str, dict[str, Any]]:
    """What each node is told: node -> peers and direction. The coordination service is told nothing."""
    if order.kind == "slow":
        if not order.nodes or order.from_ or order.to:
            raise HTTPException(422, "slow takes `nodes`, and no `from` and `to`; /docs shows an example")
        return {node: {} for node in order.nodes}
    if not order.from_ or not order.to or order.nodes:
        raise HTTPException(422, f"{order.kind} takes `from` and `to`, and no `nodes`; /docs shows an example")
    senders = [node for node in order.from_ if node != "coordination"]
    rules: dict[str, dict[str, Any]] = {
        node: {"peers": order.to, "direction": "both" if order.both else "out"} for node in senders
    }
    if len(senders) < len(order.from_):
        for node in order.to:
            if node in rules or node in ("*", "clients", "coordination"):
                raise HTTPException(422, f"`from` coordination needs the names of nodes as `to`, not {node!r}")
            rules[node] = {"peers": ["coordination"], "direction": "both" if order.both else "in"}
    return rules
