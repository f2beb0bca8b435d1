"""`/scrub`: order a scrub from the nodes, and see how far it is. One at a time; the nodes do the work."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from ecstore.client.scrub import ScrubReport
from ecstore.errors import EcstoreError, InputError, UnknownTableError
from ecstore_admin.models import ScrubTotals

if TYPE_CHECKING:
    from ecstore_admin.app import Service


_REQUEST_EXAMPLE: JsonDict = {"table": "user", "groups": [0, 3], "rate_mib_s": 16.0, "repair": True}

_SCRUB_EXAMPLE: JsonDict = {
    "state": "running", "ok": None, "problem": "", "started_at": 1767225600.0, "finished_at": None,
    "request": _REQUEST_EXAMPLE, "groups_total": 2, "groups_done": 1, "stripes_total": 2113, "stripes": 1200,
    "bytes_read": 768000, "corrupt": 1, "repaired": 1, "unrepaired": 0, "not_attributable": 0, "key_blocks": 3,
    "key_mismatches": 0,
    "findings": [
        {
            "group": 0, "table": "user", "slot": 17, "shard": 2, "node": "n3", "outcome": "repaired", "bits": 1,
            "at": 1767225601.0, "message": "one bit of slot 17 of shard 2 was wrong",
        }
    ],
    "findings_omitted": 0, "lost_groups": [], "without_parity": [], "unchecked": [], "waiting_for": [],
}  # fmt: skip


class ScrubRequest(BaseModel):
    """What to scrub, and how. Everything has a default."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": _REQUEST_EXAMPLE},
    )

    table: str | None = Field(default=None, description="only this table")
    groups: list[int] | None = Field(default=None, description="only these groups")
    rate_mib_s: float | None = Field(
        default=None,
        ge=1e-3,
        le=1e6,
        allow_inf_nan=False,
        description="MiB that each node reads a second at most; null: 32",
    )
    repair: bool = Field(default=True, description="false: only report")


class ScrubFinding(BaseModel):
    group: int
    table: str
    slot: int = Field(description="of the stripe; of a key list: first slot of the block")
    shard: int | None = Field(description="the wrong one; null: it can't be told")
    node: str
    outcome: Literal["repaired", "found", "unrepaired", "not_attributable", "keys_differ"]
    bits: int = Field(description="that were flipped in the row; 0 where no shard could be named")
    at: float
    message: str


class Scrub(BaseModel):
    """The scrub that runs, or the latest. Every corrupt stripe is one of repaired, unrepaired, not_attributable."""

    model_config = ConfigDict(json_schema_extra={"example": _SCRUB_EXAMPLE})

    state: Literal["idle", "running", "done", "failed", "stopped"] = Field(description="idle: none was ordered here")
    ok: bool | None = Field(description="null until it is done; false: something is wrong, or was not checked")
    problem: str = Field(description="why it failed")
    started_at: float | None
    finished_at: float | None
    request: ScrubRequest | None
    groups_total: int
    groups_done: int
    stripes_total: int
    stripes: int
    bytes_read: int
    corrupt: int
    repaired: int
    unrepaired: int
    not_attributable: int
    key_blocks: int
    key_mismatches: int
    findings: list[ScrubFinding] = Field(description="the first 2,000")
    findings_omitted: int
    lost_groups: list[int]
    without_parity: list[int]
    unchecked: list[str] = Field(description="groups that could not be scrubbed to the end, and why")
    waiting_for: list[str] = Field(description="what holds it up at the moment")


class ScrubOrder(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "started": True,
                "message": "the scrub has begun; GET /scrub shows it",
                "scrub": _SCRUB_EXAMPLE,
            }
        }
    )

    started: bool = Field(description="false: one was running already, and goes on as it was ordered")
    message: str
    scrub: Scrub


class Scrubbing:
    """The one scrub that this service has ordered last."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None
        self._request: ScrubRequest | None = None
        self._report = ScrubReport(run="")
        self._state: Literal["idle", "running", "done", "failed", "stopped"] = "idle"
        self._problem = ""
        self._started_at: float | None = None
        self._finished_at: float | None = None

    async def order(self, request: ScrubRequest) -> ScrubOrder:
        """Begin, unless one is running. Raises what is wrong with the request before anything begins."""
        if self._task is not None and not self._task.done():
            message = f"a scrub is running, {self._report.groups_done} of {self._report.groups_total} groups done"
            return ScrubOrder(started=False, message=f"{message}; ask again after its end", scrub=self.answer())
        store = self._service.observer.store()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def progress(report: ScrubReport) -> None:
            self._report = report
            if not begun.done():
                begun.set_result(None)

        async def work() -> None:
            try:
                self._report = await store.scrub(
                    table=request.table, groups=request.groups, rate_mib_s=request.rate_mib_s, repair=request.repair,
                    progress=progress,
                )  # fmt: skip
                self._state = "done"
            except EcstoreError as error:
                self._state, self._problem = "failed", str(error)
                if not begun.done():
                    begun.set_exception(error)
                    return
            except asyncio.CancelledError:
                self._state = "stopped"
                raise
            finally:
                if self._state == "running":
                    self._state, self._problem = "failed", "the service met an error it did not expect; see its log"
                self._finished_at = time.time()
                if not begun.done():
                    begun.set_result(None)
            self._tell()

        self._request, self._report, self._problem = request, ScrubReport(run=""), ""
        self._state, self._started_at, self._finished_at = "running", time.time(), None
        self._task = asyncio.create_task(work(), name="scrub")
        await begun
        return ScrubOrder(started=True, message="the scrub has begun; GET /scrub shows it", scrub=self.answer())

    def _tell(self) -> None:
        report = self._report
        text = report.describe() if self._state == "done" else self._problem
        self._service.observer.event(
            "scrub_done" if self._state == "done" else "scrub_failed", "", text, ok=report.ok, corrupt=report.corrupt,
            repaired=report.repaired,
        )  # fmt: skip

    async def stop(self) -> None:
        """End the running one; returns when it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def answer(self) -> Scrub:
        told = self._report.to_json()
        for name in ("run", "seconds"):
            del told[name]
        ok = self._report.ok if self._state == "done" else None
        return Scrub(**told | {
            "ok": ok, "state": self._state, "problem": self._problem, "request": self._request,
            "started_at": self._started_at, "finished_at": self._finished_at,
        })  # fmt: skip


def totals(service: Service) -> ScrubTotals:
    """What the nodes that are up have scrubbed in their present lives."""
    current = service.observer.map
    alive = [node.id for node in current.nodes.values() if node.alive] if current is not None else []
    told: list[dict[str, Any]] = []
    for node_id in alive:
        part = (service.observer.statistics(node_id) or {}).get("scrub")
        if isinstance(part, dict):
            told.append(part)
    names = ("stripes", "bytes_read", "corrupt", "repaired", "unrepaired", "not_attributable", "key_mismatches")
    ended = [part["finished_at"] for part in told if part["finished_at"] is not None]
    return ScrubTotals(
        **{name: sum(int(part[name]) for part in told) for name in names},
        running=any(part["running"] for part in told), finished_at=max(ended, default=None),
    )  # fmt: skip


def router(scrubbing: Scrubbing) -> APIRouter:
    routes = APIRouter(tags=["scrub"])

    @routes.post("/scrub", summary="Compare parity with data in the background, and repair what can be told")
    async def order(request: ScrubRequest | None = None) -> ScrubOrder:
        try:
            return await scrubbing.order(request if request is not None else ScrubRequest())
        except (InputError, UnknownTableError) as error:
            raise HTTPException(404 if isinstance(error, UnknownTableError) else 422, str(error)) from error

    @routes.get("/scrub", summary="The scrub that runs, or the latest: progress and findings")
    async def show() -> Scrub:
        return scrubbing.answer()

    @routes.delete("/scrub", summary="Stop the scrub that runs; what it has repaired stays repaired")
    async def stop() -> Scrub:
        await scrubbing.stop()
        return scrubbing.answer()

    return routes
