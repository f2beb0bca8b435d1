"""Faults over REST: delays, cuts, partitions, slow nodes and flipped bits, ordered from nodes that allow them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

import ecstore.aio
from ecstore.errors import CapacityError, ConfigError, EcstoreError, KeyRangeError, UnknownTableError

if TYPE_CHECKING:
    from ecstore_admin.app import Service

#: Wait for one node's answer; paused ones give none.
ASK_TIMEOUT_S = 1.0
#: Longest fault.
MAX_DURATION_S = 3600.0
#: Of groups, shards, slots and bytes, as messages carry them.
MAX_NUMBER = 2**31 - 1

NOT_ALLOWED = (
    "faults are off: they are for experiments and tests. Start the cluster with `ecstore up --allow-faults` (of a "
    "cluster started by hand, the admin service and every node), never one that others need"
)

_FAULT_EXAMPLE: JsonDict = {
    "id": "f-1a2b3c4d", "kind": "partition",
    "rules": {"n1": {"peers": ["n2", "coordination"], "direction": "both", "left_s": 8.2}},
}  # fmt: skip


class FaultOrder(BaseModel):
    """A fault. Frames between `from` and `to` are delayed, cut off or lost; `nodes` are for `slow`.

    `flip` flips one bit of a row where a shard is kept. It has no duration and is not listed: it is done once, and
    POST /scrub finds it.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"kind": "partition", "from": ["n1"], "to": ["n2", "coordination"], "duration_s": 10.0}
        },
    )

    kind: Literal["delay", "drop", "partition", "slow", "flip"]
    from_: list[str] = Field(default_factory=list, alias="from", description="nodes, or `coordination`")
    to: list[str] = Field(
        default_factory=list,
        description="nodes, `coordination`, `clients`, or `*`: all other nodes and the coordination service",
    )
    nodes: list[str] = Field(default_factory=list, description="of `slow`")
    both: bool = Field(default=True, description="both ways; false: only what goes from `from` to `to`")
    duration_s: float | None = Field(default=None, gt=0, le=MAX_DURATION_S, description="needed, but for `flip`")
    delay_ms: float | None = Field(default=None, description="of `delay`")
    jitter_ms: float | None = Field(default=None, description="of `delay`: uniform, plus and minus")
    probability: float | None = Field(default=None, description="of `drop`: that a frame ends its connection")
    block_ms: float | None = Field(default=None, description="of `slow`: the node does nothing for so long ...")
    every_ms: float | None = Field(default=None, description="... once in this time")
    group: int | None = Field(default=None, ge=0, le=MAX_NUMBER, description="of `flip`: the group ...")
    shard: int | None = Field(default=None, ge=0, le=MAX_NUMBER, description="... and the shard whose row it is")
    table: str | None = Field(default=None, description="of `flip`: name of the table")
    slot: int | None = Field(default=None, ge=0, le=MAX_NUMBER, description="of `flip`: which row; null: the first")
    byte: int | None = Field(default=None, ge=0, le=MAX_NUMBER, description="of `flip`: in the row; null: the first")
    bit: int | None = Field(default=None, ge=0, le=7, description="of `flip`: in the byte; null: the lowest")


class Fault(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _FAULT_EXAMPLE})

    id: str
    kind: Literal["delay", "drop", "partition", "slow"]
    rules: dict[str, dict[str, Any]] = Field(description="what each node does, and how many seconds are left")


class Faults(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"example": {"allowed": True, "faults": [_FAULT_EXAMPLE], "silent": []}}
    )

    allowed: bool = Field(description="whether POST /faults is possible here")
    faults: list[Fault]
    silent: list[str] = Field(description="nodes that did not answer: paused, down, or without --allow-faults")


class FaultSet(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"example": {"id": "f-1a2b3c4d", "nodes": ["n1"], "until": 1767225610.0, "message": ""}}
    )

    id: str
    nodes: list[str] = Field(description="that do it")
    until: float | None = Field(description="when it ends by itself; null: a flip is done once")
    message: str = Field(default="", description="what it means, where that is not plain")


class FaultCleared(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": {"id": "f-1a2b3c4d", "nodes": ["n1"], "silent": []}})

    id: str
    nodes: list[str] = Field(description="on which it was ended")
    silent: list[str] = Field(description="nodes that did not answer; there it ends by itself")


def router(service: Service) -> APIRouter:
    """The routes of this module."""
    made = APIRouter(tags=["faults"])
    calls = _Calls(service)

    @made.post("/faults", status_code=201, summary="Order a fault from nodes started with --allow-faults")
    async def set_fault(order: FaultOrder) -> FaultSet:
        return await calls.set(order)

    @made.get("/faults", summary="The faults in force")
    async def faults() -> Faults:
        return await calls.list()

    @made.delete("/faults/{fault_id}", summary="End a fault before its time")
    async def clear(
        fault_id: Annotated[str, Path(description="id of a fault", examples=["f-1a2b3c4d"])],
    ) -> FaultCleared:
        return await calls.clear(fault_id)

    return made


class _Calls:
    """Every node keeps its own faults; nothing is remembered here, so a new admin service knows them, too."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def set(self, order: FaultOrder) -> FaultSet:
        if not self._service.settings.node_settings.allow_faults:
            raise HTTPException(403, NOT_ALLOWED)
        await self._service.map()
        if order.kind == "flip":
            return await self._flip(order)
        if order.duration_s is None:
            raise HTTPException(422, f"{order.kind} needs `duration_s`, at most {MAX_DURATION_S:g}")
        number, at = f"f-{secrets.token_hex(4)}", time.time()
        _take_only(order, _FIELDS[order.kind])
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
            raise _refused(node, error)
        return FaultSet(id=number, nodes=sorted(rules), until=at + order.duration_s)

    async def _flip(self, order: FaultOrder) -> FaultSet:
        """Flip a bit where a shard is kept; neither its owner nor anybody else is told."""
        _take_only(order, _FIELDS["flip"])
        current = await self._service.map()
        if order.group is None or order.shard is None or order.table is None:
            raise HTTPException(422, "flip needs `group`, `shard` and `table`; GET /ring and GET /tables show them")
        if order.table not in current.tables:
            raise HTTPException(
                404, f"there is no table {order.table!r}; there are {', '.join(sorted(current.tables))}"
            )
        if order.group >= len(current.groups) or order.shard >= len(current.groups[order.group].shards):
            raise HTTPException(404, f"there is no shard {order.shard} of group {order.group}; GET /ring shows them")
        owner = current.groups[order.group].shards[order.shard].owner
        spot = {"group": order.group, "shard": order.shard, "slot": order.slot or 0, "byte": order.byte or 0}
        spot |= {"bit": order.bit or 0, "table": current.tables[order.table].id}
        answer = await self._ask(self._service.observer.store(), owner, "fault.flip", spot)
        if isinstance(answer, EcstoreError):
            raise _refused(owner, answer)
        number = f"f-{secrets.token_hex(4)}"
        text = (
            f"bit {spot['bit']} of byte {spot['byte']} of slot {spot['slot']} was flipped on {owner}, which does not "
            "know; POST /scrub finds it, and repairs it where the code can tell"
        )
        return FaultSet(id=number, nodes=[owner], until=None, message=text)

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
        allowed = self._service.settings.node_settings.allow_faults
        return Faults(allowed=allowed, faults=list(found.values()), silent=silent)

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


_LINE = frozenset({"kind", "duration_s", "from_", "to", "both"})
#: What an order of each kind may say.
_FIELDS = {
    "partition": _LINE, "delay": _LINE | {"delay_ms", "jitter_ms"}, "drop": _LINE | {"probability"},
    "slow": frozenset({"kind", "duration_s", "nodes", "both", "block_ms", "every_ms"}),
    "flip": frozenset({"kind", "group", "shard", "table", "slot", "byte", "bit"}),
}  # fmt: skip


def _take_only(order: FaultOrder, fields: frozenset[str]) -> None:
    """422 for what an order of this kind cannot mean: it would be ignored, and the experiment would be another one."""
    meant = {name for name in order.model_fields_set if getattr(order, name) not in (None, [])}
    if order.kind in ("partition", "delay", "drop", "slow"):
        meant -= {"nodes", "from_", "to"}  # `_rules_of` has better words
    if unknown := sorted(meant - fields):
        raise HTTPException(422, f"{order.kind} takes no {', '.join(unknown)}; /docs shows what each kind takes")


def _refused(node: str, error: EcstoreError) -> HTTPException:
    """What a node's refusal is over HTTP."""
    if "--allow-faults" in str(error):
        return HTTPException(403, f"node {node}: {error}")
    status = (
        422 if isinstance(error, ConfigError | KeyRangeError) else 404 if isinstance(error, UnknownTableError) else 503
    )
    return HTTPException(429 if isinstance(error, CapacityError) else status, f"node {node}: {error}")


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
