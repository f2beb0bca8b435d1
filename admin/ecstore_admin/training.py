"""`/training`: how running trainers are doing, as they told the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

if TYPE_CHECKING:
    from ecstore_admin.app import Service


class Trainer(BaseModel):
    id: str
    at: float = Field(description="when it said so, by its own clock")
    state: Literal["running", "finished"] = Field(description="one that runs and is silent for a minute is forgotten")
    batch: int = Field(description="number of the last batch that was acknowledged")
    batches_total: int | None
    samples: int
    samples_per_s: float = Field(description="over the last seconds; of a finished run: over all of it")
    loss: float | None = Field(description="mean since the report before; of a finished run: over its last batches")
    auc: float | None = Field(
        description="of the latest samples, scored before they were learned from; of a finished run: of the "
        "held-out part"
    )


_EXAMPLE: JsonDict = {
    "trainers": [
        {
            "id": "host-4711",
            "at": 1767225600.5,
            "state": "running",
            "batch": 120,
            "batches_total": 470,
            "samples": 15360,
            "samples_per_s": 2950.1,
            "loss": 0.4812,
            "auc": 0.731,
        }
    ]
}  # fmt: skip


class Training(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    trainers: list[Trainer]


def merged(told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """From the statistics of nodes: the newest report of every trainer, by name."""
    newest: dict[str, dict[str, Any]] = {}
    for statistics in told:
        for report in statistics.get("trainers", ()):
            known = newest.get(report["id"])
            if known is None or known["at"] < report["at"]:
                newest[report["id"]] = dict(report)
    return [newest[name] for name in sorted(newest)]


def trainers(service: Service) -> list[dict[str, Any]]:
    """What the nodes that answered last say of trainers."""
    told = (service.observer.statistics(node) for node in sorted(service.observer.answered))
    return merged(statistics for statistics in told if statistics is not None)


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/training", summary="How running trainers are doing")
    async def training() -> Training:
        await service.map()
        return Training(trainers=[Trainer(**report) for report in trainers(service)])

    return routes
