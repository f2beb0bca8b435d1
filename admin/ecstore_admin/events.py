"""`/events`: what happened, in pages, and as a stream that goes on where it was interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import StreamingResponse

from ecstore_admin import models

if TYPE_CHECKING:
    from ecstore_admin.app import Service

#: A stream says that it lives after so long without an event; proxies give up on silence after a minute.
HEARTBEAT_S: Final = 10.0
#: What a browser waits before it connects again.
RETRY_MS: Final = 1000
#: Most listeners at a time, and most events that are made into bytes for one of them before it has read them.
MAX_LISTENERS: Final = 64
BATCH: Final = 100

#: Largest id; JSON numbers are exact up to here everywhere.
MAX_ID: Final = 2**53 - 1

_STREAM: Final = (
    "Server-sent events: `id` is the id of the event, `data` the event as GET /events shows it. Begins with what "
    "happens from now on; after `Last-Event-ID`, which browsers send by themselves when they connect again, or "
    "`after`, with what came after that. A message of type `gap` says that older events than it names are gone."
)
_EXAMPLE: Final = 'retry: 1000\n\nid: 812\ndata: {"id": 812, "kind": "node_down", "node": "n2", ...}\n\n: alive\n\n'


class EventStream:
    """All listeners. Each has a place in the history and no buffer of its own: who reads slowly only lags."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._listeners = 0
        self._ending = False

    def end(self) -> None:
        """Let every stream end, now and from now on."""
        self._ending = True
        self._service.observer.history.changed.set()

    def enter(self) -> None:
        """503 when there are too many listeners already."""
        if self._ending or self._listeners >= MAX_LISTENERS:
            why = "the service is ending" if self._ending else f"there are {MAX_LISTENERS} listeners, the bound"
            raise HTTPException(503, f"{why}; use GET /events?after=... or come again", {"Retry-After": "5"})

    async def listen(self, after: int | None) -> AsyncIterator[bytes]:
        history = self._service.observer.history
        place = history.newest_id if after is None else min(after, history.newest_id)
        self._listeners += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._ending:
                changed = history.changed
                if place + 1 < history.oldest_id:
                    place = history.oldest_id - 1
                    yield _message("gap", None, {"oldest": history.oldest_id})
                batch = history.after(place, BATCH)
                if batch:
                    place = batch[-1]["id"]
                    yield b"".join(_message(None, event["id"], event) for event in batch)
                    continue
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": alive\n\n"
        finally:
            self._listeners -= 1


def _message(kind: str | None, number: int | None, data: dict[str, Any]) -> bytes:
    head = "" if kind is None else f"event: {kind}\n"
    head += "" if number is None else f"id: {number}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def router(service: Service) -> APIRouter:
    """The routes of this module."""
    routes, observer = APIRouter(tags=["events"]), service.observer

    @routes.get("/events", summary="What happened, in the order in which it became known")
    async def events(
        after: Annotated[
            int | None,
            Query(ge=0, le=MAX_ID, description="the first so many with a higher id; without: the newest", examples=[0]),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=5000, description="at most so many", examples=[100])] = 500,
    ) -> models.Events:
        await observer.refresh()
        history = observer.history
        found = history.events()[-limit:] if after is None else history.after(after, limit)
        last = found[-1]["id"] if found else (history.newest_id if after is None else after)
        return models.Events(
            events=[models.Event(**event) for event in found],
            next=last, more=last < history.newest_id, oldest=history.oldest_id,
        )  # fmt: skip

    @routes.get(
        "/events/stream", summary="Events as they happen (server-sent events)", description=_STREAM,
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}}}},
    )  # fmt: skip
    async def stream(
        last_event_id: Annotated[str | None, Header(description="id of the last event that was seen")] = None,
        after: Annotated[int | None, Query(ge=0, le=MAX_ID, description="the same, for who sends no headers")] = None,
    ) -> StreamingResponse:
        place = after
        if last_event_id:
            if not last_event_id.isascii() or not last_event_id.isdecimal() or int(last_event_id[:17]) > MAX_ID:
                raise HTTPException(422, "Last-Event-ID is the id of an event, a number; GET /events shows them")
            place = int(last_event_id)
        service.stream.enter()
        return StreamingResponse(
            _closing(service.stream.listen(place)), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    return routes


async def _closing(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same; ends what makes them when the listener goes away."""
    async with contextlib.aclosing(parts) as open_parts:  # type: ignore[type-var]
        async for part in open_parts:
            yield part
