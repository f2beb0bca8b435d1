"""`/decoding`: every recovery, running and finished, in pages that go back in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query

from ecstore_admin import models

if TYPE_CHECKING:
    from ecstore_admin.app import Service

#: Of a cursor: when the recovery began, its group and shard.
CURSOR: Final = r"^[0-9]{1,12}\.[0-9]{9}-[0-9]{1,9}-[0-9]{1,9}$"

_UNFINISHED: Final = ("waiting", "running", "throttled", "stuck")


def decoding_of(
    service: Service, states: Sequence[str] = (), limit: int | None = None, cursor: str | None = None
) -> models.Decoding:
    """The answer of GET /decoding. `cursor` matches CURSOR."""
    everything = service.observer.recoveries()
    found = [entry for entry in everything if not states or entry["state"] in states]
    if cursor is not None:
        started_at, group, shard = cursor.split("-")
        before = (float(started_at), int(group), int(shard))
        found = [entry for entry in found if _place(entry) < before]
    page = found if limit is None else found[-limit:]
    return models.Decoding(
        recoveries=[models.Recovery(**entry) for entry in page],
        next=_cursor(page[0]) if len(page) < len(found) else None,
        totals=totals_of(everything),
        profile=service.throttling.newest().profile,
    )


def totals_of(recoveries: Sequence[dict[str, Any]]) -> models.DecodingTotals:
    """Sums over all recoveries; rows, bytes and the rate over those that go on."""
    counts = Counter(entry["state"] for entry in recoveries)
    going = [entry for entry in recoveries if entry["state"] in _UNFINISHED]
    etas = [entry["eta_s"] for entry in going]
    return models.DecodingTotals(
        **{state: counts[state] for state in (*_UNFINISHED, "done", "cancelled", "lost")},
        rows_total=sum(entry["rows_total"] for entry in going),
        rows_decoded=sum(entry["rows_decoded"] for entry in going),
        bytes_total=sum(entry.get("bytes_total", 0) for entry in going),
        bytes_decoded=sum(entry["bytes_decoded"] for entry in going),
        rows_failed=sum(entry.get("rows_failed", 0) for entry in recoveries),
        rate_rows_per_s=sum(entry["rate_rows_per_s"] for entry in going),
        rate_bytes_per_s=sum(entry.get("rate_bytes_per_s", 0.0) for entry in going),
        eta_s=max(etas) if etas and None not in etas else None,
    )


def _place(entry: dict[str, Any]) -> tuple[float, int, int]:
    return entry["started_at"], entry["group"], entry["shard"]


def _cursor(entry: dict[str, Any]) -> str:
    """A place between two recoveries: it stays where it is when others come and go."""
    started_at, group, shard = _place(entry)
    return f"{started_at:.9f}-{group}-{shard}"  # nine digits give the same float back


def router(service: Service) -> APIRouter:
    """The route of this module."""
    routes = APIRouter(tags=["decoding"])

    @routes.get("/decoding", summary="Every recovery, running and finished")
    async def decoding(
        state: Annotated[
            list[models.RecoveryState] | None, Query(description="only these; may be given more than once")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=5000, description="the newest so many", examples=[100])] = 1000,
        cursor: Annotated[
            str | None, Query(pattern=CURSOR, description="`next` of the answer before: what began before that")
        ] = None,
    ) -> models.Decoding:
        await service.observer.refresh()
        return decoding_of(service, state or (), limit, cursor)

    return routes
