"""Where the page is mounted: what it may not disturb, and when it is loaded. No browser, no node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from ecstore_admin import problems
from ecstore_admin.app import create_app
from ecstore_admin.dashboard import front
from ecstore_admin.dashboard.hub import Hub
from ecstore_admin.dashboard.rest import Refused, Rest
from ecstore_admin.settings import AdminSettings
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse

from tests.dashboard.maps import trainer


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(AdminSettings(run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"}))


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)


class Library:
    """Instead of the real one: an application that answers with a word."""

    @staticmethod
    def create(hub: Hub, rest: Rest) -> FastAPI:
        page = FastAPI()
        page.add_api_route("/", lambda: PlainTextResponse("the page"))
        return page


def test_importing_the_service_does_not_import_the_library():
    """A cluster starts within seconds, and most of its services are never looked at."""
    code = (
        "import sys, ecstore_admin.server; assert not {'nicegui', 'socketio', 'aiohttp', 'httpx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_the_first_visit_loads_it(app, monkeypatch):
    monkeypatch.setattr(front, "_import_page", lambda: Library)
    async with client_of(app) as client:
        first = await client.get("/")
        assert "is starting" in first.text
        assert first.headers["refresh"] == "1"

        async def loaded() -> bool:
            return (await client.get("/")).text == "the page"

        await until(loaded)
        answer = await client.get("/")
        assert "default-src 'self'" in answer.headers["content-security-policy"]


async def test_a_library_that_does_not_load_leaves_rest_alone(app, monkeypatch, caplog):
    def broken() -> None:
        raise ImportError("no such thing")

    monkeypatch.setattr(front, "_import_page", broken)
    async with client_of(app) as client:

        async def failed() -> bool:
            return (await client.get("/")).status_code == 503

        await until(failed)
        answer = await client.get("/")
        assert "no such thing" in answer.text
        assert (await client.get("/healthz")).status_code == 200
    assert "cannot be shown" in caplog.text


async def test_rest_does_not_know_of_the_page(app):
    async with client_of(app) as client:
        missing = await client.get("/nowhere")
        assert missing.status_code == 404
        assert missing.headers["content-type"] == "application/problem+json"
        wrong = await client.get("/nodes/n1/kill")
        assert wrong.status_code == 405
        assert "/" not in (await client.get("/openapi.json")).json()["paths"]


@pytest.mark.parametrize(
    ("headers", "status"), [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)]
)
@pytest.mark.parametrize("path", ["/", "/_nicegui/x.js", "/_nicegui_ws/socket.io/"])
async def test_the_guard_is_around_it(app, headers, status, path):
    async with client_of(app) as client:
        assert (await client.get(path, headers=headers)).status_code == status


async def test_without_an_open_page_nothing_runs(app):
    hub = Hub(app.state.service)
    views: list[object] = []
    page = object()
    hub.open(page, views.append)
    assert hub.busy
    hub.open("second", views.append)

    async def shown() -> bool:
        return len(views) >= 2

    await until(shown)
    assert views[0] is views[1], "computed once for all pages"
    hub.close(page)
    hub.close("second")

    async def idle() -> bool:
        return not hub.busy

    await until(idle)
    await hub.stop()


async def test_a_page_that_fails_does_not_hold_up_the_others(app, caplog):
    hub = Hub(app.state.service)
    views: list[object] = []

    def broken(_view: object) -> None:
        raise ValueError("no such widget")

    async def shown() -> bool:
        return len(views) >= 2

    hub.open("first", broken)
    hub.open("second", views.append)
    await until(shown)
    await hub.stop()
    assert caplog.text.count("is given up") == 1


async def test_charts_begin_before_a_page_is_opened(app):
    observer = app.state.service.observer
    hub = Hub(app.state.service)
    observer._silence.answered = frozenset({"n1"})
    for at in (10.0, 11.0, 11.0):
        observer._nodes["n1"] = {"trainers": [trainer(id="t", at=at)]}
        for tell in observer.on_look:
            tell()
    assert [point[0] for point in hub._figures.points()["t"]] == [10.0, 11.0]


async def test_what_rest_refuses_is_told_in_its_words():
    app = FastAPI()
    problems.install(app)

    @app.post("/nodes/n9/kill")
    async def kill() -> None:
        raise HTTPException(404, "there is no node 'n9'")

    rest = Rest(app)
    with pytest.raises(Refused, match="there is no node 'n9'"):
        await rest.change("POST", "/nodes/n9/kill")
    await rest.close()
