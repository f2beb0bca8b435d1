"""The REST interface: it shows what the observer knows, and passes wishes on to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException

import ecstore
from ecstore.cluster.map import ClusterMap
from ecstore.errors import EcstoreError
from ecstore.launcher.nursery import Nursery
from ecstore_admin import (
    decoding,
    docs,
    events,
    faults,
    metrics,
    models,
    openapi,
    problems,
    rows,
    scrub,
    throttle,
    training,
)
from ecstore_admin import nodes as node_routes
from ecstore_admin.dashboard.front import Front
from ecstore_admin.guard import Guard
from ecstore_admin.history import History
from ecstore_admin.nodes import NodeId
from ecstore_admin.observer import Observer
from ecstore_admin.settings import AdminSettings
from ecstore_admin.supervisor import NodeProcess, Supervisor

#: Counting the rows of a table gives up after this time.
COUNT_TIMEOUT_S = 2.0


class Service:
    """One admin service: observer, supervisor, and the answers made of what they know."""

    def __init__(self, settings: AdminSettings, nursery: Nursery | None = None) -> None:
        self.settings = settings
        self.observer = Observer(self._addresses, settings.cluster, History(settings.run_dir))
        self.supervisor = Supervisor(settings, self.observer.event, nursery)
        self.actions = node_routes.Actions(self)
        self.stream = events.EventStream(self)
        self.scrubbing = scrub.Scrubbing(self)
        self.throttling = throttle.Throttling(self)

    def _addresses(self) -> list[str]:
        return [node.address for node in self.supervisor.nodes.values()] or list(self.settings.nodes.values())

    @asynccontextmanager
    async def running(self, _app: FastAPI) -> AsyncIterator[None]:
        """Start the nodes, then watch them and the cluster until the service ends."""
        self.supervisor.load()
        self.supervisor.start_wanted()
        watching = [
            asyncio.create_task(self.supervisor.watch(), name="watch processes"),
            asyncio.create_task(self.observer.watch(), name="watch cluster"),
            asyncio.create_task(self.throttling.watch(), name="watch throttle"),
        ]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self.scrubbing.stop()
            await self.observer.close()

    async def map(self) -> ClusterMap:
        """The map as of now; 503 while no node has ever answered."""
        await self.observer.refresh()
        found = self.observer.map
        if found is None:
            raise HTTPException(503, f"the cluster cannot be reached yet: {self.observer.problem}; ask again")
        return found

    def known(self, node_id: str) -> None:
        """404 for a node that neither this service nor the map knows."""
        there = sorted({*self.supervisor.nodes, *(self.observer.map.nodes if self.observer.map else ())})
        if node_id not in there:
            raise HTTPException(404, f"there is no node {node_id!r}; there are {', '.join(there)}")

    def managed(self, node_id: str) -> NodeProcess:
        """The process of a node; 404 or 409 when there is none here."""
        self.known(node_id)
        if node_id not in self.supervisor.nodes:
            raise HTTPException(409, f"node {node_id} was not started by this service; act where it was started")
        return self.supervisor.nodes[node_id]

    # -- answers ----------------------------------------------------------------------------------------

    def node(self, node_id: str) -> dict[str, Any]:
        process = self.supervisor.nodes.get(node_id)
        current = self.observer.map
        entry = current.nodes.get(node_id) if current is not None else None
        statistics = self.observer.statistics(node_id) or {}
        alive = entry is not None and entry.alive
        running = process is not None and process.running()
        state: str = entry.state if entry is not None else "down"
        if not alive and running:
            state = "starting"
        load = current.load().get(node_id) if current is not None and alive else None
        fresh = entry is not None and alive and statistics.get("incarnation") == entry.incarnation
        return {
            "id": node_id, "address": entry.address if entry is not None else process.address if process else "",
            "state": state, "down_reason": entry.down_reason if entry is not None else "",
            "incarnation": entry.incarnation if entry is not None else 0,
            "managed": process is not None, "wanted": process.wanted if process else None,
            "process": _process_state(process, running),
            "pid": process.pid if process and running else None, "starts": process.starts if process else 0,
            "started_at": process.started_at if process else None, "exit_code": process.exit_code if process else None,
            "data_shards": load.data if load else 0, "parity_shards": load.parity if load else 0,
            "rows": statistics.get("rows") if fresh else None,
            "rss_bytes": statistics.get("rss_bytes") if fresh else None,
            "loop_lag_ms": statistics.get("loop_lag", {}).get("recent_own_max_ms") if fresh else None,
        }  # fmt: skip

    def node_ids(self) -> list[str]:
        in_map = self.observer.map.nodes if self.observer.map is not None else {}
        return list(dict.fromkeys([*self.supervisor.nodes, *in_map]))

    def loop_lag_ms(self) -> float | None:
        known = [self.node(node_id)["loop_lag_ms"] for node_id in self.node_ids()]
        return max((lag for lag in known if lag is not None), default=None)

    def detail(self, node_id: str) -> dict[str, Any]:
        current = self.observer.map
        entry = current.nodes.get(node_id) if current is not None else None
        shards = []
        if current is not None and entry is not None and entry.alive:
            shards = [
                {"group": group.gid, "shard": shard.index, "role": _role(current, group.gid, shard.index),
                 "state": shard.state}
                for group, shard in current.shards_on(entry.id, entry.incarnation)
            ]  # fmt: skip
        return self.node(node_id) | {"shards": shards, "statistics": self.observer.statistics(node_id) or {}}


def _process_state(process: NodeProcess | None, running: bool) -> Literal["running", "paused", "exited", "unknown"]:
    if process is None:
        return "unknown"
    return "exited" if not running else "paused" if process.paused() else "running"


def _role(current: ClusterMap, gid: int, index: int) -> Literal["data", "parity"]:
    return "data" if index < current.code(current.groups[gid]).k else "parity"


def cluster_of(
    current: ClusterMap, coordination: str, *, problem: str, silent: Sequence[str], frozen: bool
) -> dict[str, Any]:
    """The answer of GET /cluster. `problem`, `silent`, `frozen`: what the map cannot know, see `silence`."""
    health = current.health()
    states = [node.alive for node in current.nodes.values()]
    whole = (health["ok"] or 0) == health["groups"] and not health["moving"]
    whole = whole and not problem and not silent and not frozen
    return {
        "cluster": current.cluster, "epoch": current.epoch, "codes": list(current.codes()), "health": health,
        "nodes_up": sum(states), "nodes_down": len(states) - sum(states), "at_risk": bool(health["at_risk"]),
        "lost_groups": [group.gid for group in current.groups if group.lost], "clean": whole,
        "coordination": coordination, "problem": problem, "silent_nodes": list(silent), "membership_frozen": frozen,
    }  # fmt: skip


def ring_of(current: ClusterMap) -> dict[str, Any]:
    """The answer of GET /ring."""
    from ecstore.cluster.placement import VIRTUAL_NODES

    groups = [
        {
            "group": group.gid, "code": group.code, "state": current.group_state(group),
            "losses_tolerated": current.losses_tolerated(group),
            "shards": [
                {"shard": s.index, "role": _role(current, group.gid, s.index), "owner": s.owner,
                 "incarnation": s.incarnation, "state": s.state, "joining": s.joining}
                for s in group.shards
            ],
        }
        for group in current.groups
    ]  # fmt: skip
    load = {node: {"data": counts.data, "parity": counts.parity} for node, counts in current.load().items()}
    return {
        "epoch": current.epoch, "seed": current.seed, "virtual_nodes": VIRTUAL_NODES, "load": load, "groups": groups,
    }  # fmt: skip


async def tables_of(service: Service, current: ClusterMap) -> list[dict[str, Any]]:
    """The answer of GET /tables."""
    answers = []
    for name, entry in sorted(current.tables.items()):
        spec = entry.spec
        wire = spec.to_wire()
        rows: int | None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                rows = await (await service.observer.store().table(name)).count()
        except (EcstoreError, TimeoutError):
            rows = None
        answers.append({
            "name": name, "dim": spec.dim, "dtype": spec.dtype, "code": spec.code, "optimizer": wire["optimizer"],
            "initializer": wire["init"], "seed": spec.seed, "row_bytes": spec.row_bytes, "rows": rows,
        })  # fmt: skip
    return answers


def create_app(settings: AdminSettings, nursery: Nursery | None = None) -> FastAPI:
    """The application. Its lifespan starts and watches the nodes, in the nursery if there is one."""
    service = Service(settings, nursery)
    app = FastAPI(
        title="ecstore admin",
        version=ecstore.__version__,
        description="How the cluster is doing, and its node processes: kill one, start it again, watch it decode.",
        lifespan=service.running,
        responses=openapi.ERRORS,
        docs_url=None,  # see docs.py
        redoc_url=None,
    )
    app.state.service = service
    tokens = settings.tokens()
    app.add_middleware(Front, service=service)
    app.add_middleware(Guard, tokens=tokens, loopback=settings.loopback)
    problems.install(app)
    docs.install(app, tokens)
    _add_reads(app, service)
    app.include_router(node_routes.router(service))
    app.include_router(decoding.router(service))
    app.include_router(events.router(service))
    app.include_router(scrub.router(service.scrubbing))
    app.include_router(faults.router(service))
    app.include_router(metrics.router(service))
    app.include_router(throttle.router(service))
    app.include_router(rows.router(service))
    app.include_router(training.router(service))
    openapi.describe(app, secured=tokens.required)
    return app


def _add_reads(app: FastAPI, service: Service) -> None:
    observer = service.observer

    @app.get("/healthz", summary="Is this service alive?")
    async def healthz() -> models.Health:
        return models.Health(reachable=not observer.problem, problem=observer.problem)

    @app.get("/cluster", summary="Is my data safe right now?")
    async def cluster() -> models.Cluster:
        current = await service.map()
        answer = cluster_of(
            current, service.settings.coordination,
            problem=observer.problem, silent=observer.silent(), frozen=observer.frozen,
        )  # fmt: skip
        return models.Cluster(**answer, scrub=scrub.totals(service), loop_lag_ms=service.loop_lag_ms())

    @app.get("/nodes", summary="All nodes")
    async def nodes() -> models.Nodes:
        await observer.refresh()
        return models.Nodes(nodes=[models.Node(**service.node(node_id)) for node_id in service.node_ids()])

    @app.get("/nodes/{node_id}", summary="One node, its shards and its own statistics")
    async def node(node_id: NodeId) -> models.NodeDetail:
        await observer.refresh()
        service.known(node_id)
        return models.NodeDetail(**service.detail(node_id))

    @app.get("/ring", summary="Who holds which shard")
    async def ring() -> models.Ring:
        return models.Ring(**ring_of(await service.map()))

    @app.get("/tables", summary="All tables")
    async def tables() -> models.Tables:
        found = await tables_of(service, await service.map())
        return models.Tables(tables=[models.Table(**table) for table in found])
