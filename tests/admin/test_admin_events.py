"""Pages of events and recoveries, and the stream: nothing twice, nothing left out, across interruptions."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ecstore_admin import events as module
from ecstore_admin.app import create_app
from ecstore_admin.history import Mark
from ecstore_admin.settings import AdminSettings

from tests.admin.conftest import until

pytestmark = pytest.mark.cluster


def messages(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """The messages of a stream, as a browser parses them; heartbeats have no fields."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


def stream(admin: httpx.Client, **more: Any):
    return admin.stream("GET", "/events/stream", timeout=60.0, **more)


def take(admin: httpx.Client, count: int, **more: Any) -> list[dict[str, Any]]:
    """The first `count` events of a stream that is then interrupted."""
    found: list[dict[str, Any]] = []
    with stream(admin, **more) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for message in messages(answer.iter_lines()):
            if "data" in message:
                found.append(json.loads(message["data"]))
                assert message["id"] == str(found[-1]["id"])
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} of {count} events")


def test_the_stream_goes_on_where_it_was_interrupted(admin):
    begin = admin.get("/events").json()["next"]
    former = admin.get("/nodes/n3").json()["incarnation"]
    admin.post("/nodes/n3/kill").raise_for_status()
    admin.post("/nodes/n3/recover").raise_for_status()

    def back() -> bool:
        node = admin.get("/nodes/n3").json()
        return node["state"] == "up" and node["incarnation"] > former

    until(back, "n3 to be back in a new life")
    wanted = admin.get("/events", params={"after": begin}).json()["events"]
    assert len(wanted) > 4
    first = take(admin, 3, headers={"Last-Event-ID": str(begin)})
    rest = take(admin, len(wanted) - 3, headers={"Last-Event-ID": str(first[-1]["id"])})
    assert first + rest == wanted
    assert take(admin, len(wanted), params={"after": begin}) == wanted
    assert admin.get("/events/stream", headers={"Last-Event-ID": "x"}).status_code == 422
    assert admin.get("/events/stream", headers={"Last-Event-ID": "9" * 40}).status_code == 422
    assert admin.get("/events/stream", params={"after": -1}).status_code == 422


def test_events_come_as_they_happen_and_the_stream_ends_with_the_service(admin, cluster):
    kinds: list[str] = []
    opened, ended = threading.Event(), threading.Event()

    def listen() -> None:
        with httpx.Client(base_url=cluster.admin_url) as client, stream(client) as answer:
            for message in messages(answer.iter_lines()):
                opened.set()
                if "data" in message:
                    kinds.append(json.loads(message["data"])["kind"])
        ended.set()  # in order: an interruption would have raised an error

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert opened.wait(60.0)
    admin.post("/nodes/n1/kill").raise_for_status()
    until(lambda: {"killed", "node_down"} <= set(kinds), "the listener to hear of it")
    service = cluster._children["admin"]
    os.kill(service.pid, signal.SIGTERM)
    assert ended.wait(60.0)
    listener.join(60.0)
    until(lambda: cluster._children["admin"].pid != service.pid, "the launcher to start the service again")
    until(lambda: answers(admin), "the new service to answer")


def answers(admin: httpx.Client) -> bool:
    try:
        return admin.get("/healthz").json()["reachable"]
    except httpx.TransportError:
        return False


def test_pages_of_events(admin):
    everything = admin.get("/events", params={"limit": 5000}).json()
    assert everything["more"] is False
    paged: list[dict] = []
    place = 0
    while True:
        page = admin.get("/events", params={"after": place, "limit": 7}).json()
        assert len(page["events"]) <= 7
        paged += page["events"]
        place = page["next"]
        if not page["more"]:
            break
    assert paged[: len(everything["events"])] == everything["events"]
    assert [event["id"] for event in paged] == sorted({event["id"] for event in paged})
    newest = admin.get("/events", params={"limit": 3}).json()["events"]
    assert newest == paged[-3:]


def test_pages_of_recoveries(admin):
    admin.post("/nodes/n2/kill").raise_for_status()
    until(lambda: admin.get("/nodes/n2").json()["state"] == "down", "n2 to be missed")
    until(lambda: admin.get("/decoding", params={"state": "done"}).json()["recoveries"], "something to be decoded")
    admin.post("/nodes/n2/recover").raise_for_status()

    def settled() -> bool:  # shards have moved back: from now on the list stays as it is
        return bool(admin.get("/nodes/n2").json()["data_shards"]) and admin.get("/cluster").json()["clean"]

    until(settled, "a clean cluster with n2")
    everything = admin.get("/decoding").json()
    assert everything["next"] is None
    paged: list[dict] = []
    params: dict[str, Any] = {"limit": 5}
    while True:
        page = admin.get("/decoding", params=params).json()
        assert 0 < len(page["recoveries"]) <= 5
        paged = page["recoveries"] + paged
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert paged == everything["recoveries"]
    states = {entry["state"] for entry in paged}
    for state in ("done", "cancelled", "running"):
        shown = admin.get("/decoding", params={"state": state}).json()["recoveries"]
        assert shown == [entry for entry in paged if entry["state"] == state]
        assert everything["totals"][state] == len(shown)
    assert "done" in states
    assert admin.get("/decoding", params={"state": "finished"}).status_code == 422
    for cursor in ("x", "1-2-3", "1.5-2-3", "1.500000000-2-ü"):
        answer = admin.get("/decoding", params={"cursor": cursor})
        assert answer.status_code == 422, cursor
        assert "cursor" in answer.json()["detail"]


# -- without a cluster --------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path):
    app = create_app(AdminSettings(run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"}))
    return app.state.service


async def test_a_listener_that_was_away_too_long_is_told(service, monkeypatch):
    history = service.observer.history
    history._events = type(history._events)(maxlen=3)
    for number in range(9):
        service.observer.event("test", "", f"event {number}")
    parts = service.stream.listen(2)
    assert await anext(parts) == b"retry: 1000\n\n"
    assert await anext(parts) == b'event: gap\ndata: {"oldest": 7}\n\n'
    assert [line for line in (await anext(parts)).decode().splitlines() if line.startswith("id")] == [
        "id: 7", "id: 8", "id: 9",
    ]  # fmt: skip
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    assert await anext(parts) == b": alive\n\n"
    service.stream.end()
    assert [part async for part in parts] == []
    assert service.stream._listeners == 0


async def test_a_slow_listener_costs_one_batch(service):
    for number in range(1000):
        service.observer.history.note({"message": f"event {number}"}, Mark("log:x", [number]))
    service.observer.history.sync()
    parts = service.stream.listen(0)
    await anext(parts)
    assert (await anext(parts)).count(b"\nid: ") + 1 == module.BATCH
    await parts.aclose()


async def test_listeners_are_bounded(service, monkeypatch):
    monkeypatch.setattr(module, "MAX_LISTENERS", 1)
    parts = service.stream.listen(None)
    await anext(parts)
    with pytest.raises(module.HTTPException) as refused:
        service.stream.enter()
    assert refused.value.status_code == 503
    await parts.aclose()
    service.stream.enter()
