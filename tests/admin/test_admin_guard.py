"""Who may ask, and what: tokens, roles, ids, headers, sizes. No node is started; the application answers in memory."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ecstore_admin.app import create_app
from ecstore_admin.settings import AdminSettings
from fastapi import FastAPI

from ecstore.errors import ConfigError


def settings(folder: Path, host: str, token: str | None) -> AdminSettings:
    return AdminSettings(
        host=host, run_dir=folder, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"}, token=token
    )


async def ask(folder: Path, host: str, token: str | None, headers: dict[str, str]) -> httpx.Response:
    app = create_app(settings(folder, host, token))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{host}") as client:
        return await client.get("/healthz", headers=headers)


def test_beyond_loopback_a_token_is_needed_to_start(tmp_path):
    with pytest.raises(ConfigError, match="ECSTORE_ADMIN_TOKEN"):
        settings(tmp_path, "0.0.0.0", None)
    assert settings(tmp_path, "127.0.0.1", None).loopback
    assert not settings(tmp_path, "0.0.0.0", "secret").loopback


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), ("Basic secret", 401), ("Bearer ", 401), ("Bearer sécret", 401),
     ("Bearer secret", 200), ("bearer secret", 200)],
)  # fmt: skip
async def test_the_token_is_asked_for(tmp_path, header, status):
    headers = {} if header is None else {"Authorization": header.encode()}
    answer = await ask(tmp_path, "192.0.2.1", "secret", headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in answer.json()["detail"]


async def test_on_loopback_no_token_is_asked_for_unless_one_is_set(tmp_path):
    assert (await ask(tmp_path, "127.0.0.1", None, {})).status_code == 200
    assert (await ask(tmp_path, "127.0.0.1", "secret", {})).status_code == 401


async def test_before_any_node_answers_the_cluster_is_a_503(tmp_path):
    app = create_app(settings(tmp_path, "127.0.0.1", None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        answer = await client.get("/cluster")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"


# -- two roles ----------------------------------------------------------------------------------------------

OPERATE, VIEW = "operate-4f6c2b9e", "view-91d7a3c0"


@pytest.fixture
def guarded(tmp_path: Path) -> FastAPI:
    """A service that other machines reach, with both tokens."""
    return create_app(
        AdminSettings(
            host="192.0.2.1", run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"},
            token=OPERATE, view_token=VIEW,
        )
    )  # fmt: skip


async def send(app: FastAPI, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {}) | ({} if token is None else {"Authorization": f"Bearer {token}"})
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.1") as client:
        return await client.request(method, path, headers=headers, **more)


async def test_who_may_view_may_not_operate_on_any_route(guarded):
    checked = 0
    for path, item in guarded.openapi()["paths"].items():
        for method in item:
            where = path.replace("{node_id}", "n1").replace("{fault_id}", "f-1")
            answer = await send(guarded, method, where, None)
            assert answer.status_code == 401, (method, path)
            assert (await send(guarded, method, where, "wrong")).status_code == 401, (method, path)
            if method != "get":
                answer = await send(guarded, method, where, VIEW)
                assert answer.status_code == 403, (method, path)
                assert answer.headers["content-type"] == "application/problem+json"
                assert "may view, not operate" in answer.json()["detail"]
            checked += 1
    assert checked > 15


async def test_what_each_token_may(guarded):
    assert (await send(guarded, "GET", "/healthz", VIEW)).status_code == 200
    assert (await send(guarded, "GET", "/healthz", OPERATE)).status_code == 200
    assert (await send(guarded, "POST", "/nodes/n1/kill", OPERATE)).status_code == 404  # it got as far as the node
    assert (await send(guarded, "GET", "/docs")).status_code == 401
    assert (await send(guarded, "GET", "/docs/assets/swagger-ui.css")).status_code == 401
    assert (await send(guarded, "GET", "/docs/assets/swagger-ui.css", VIEW)).status_code == 200


async def test_a_browser_logs_in_with_a_form(guarded):
    first = await send(guarded, "GET", "/docs", headers={"Accept": "text/html"})
    assert (first.status_code, first.headers["refresh"]) == (401, "0; url=/login")
    assert "password" in (await send(guarded, "GET", "/login")).text
    wrong = await send(guarded, "POST", "/login", data={"token": "wrong"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    right = await send(guarded, "POST", "/login", data={"token": VIEW})
    assert right.status_code == 303
    cookie = right.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    headers = {"Cookie": cookie.partition(";")[0]}
    assert (await send(guarded, "GET", "/docs", headers=headers)).status_code == 200
    assert (await send(guarded, "POST", "/nodes/n1/kill", headers=headers)).status_code == 403
    beside_others = {"Cookie": f'other={{"a": [1, "b c"]}}; {headers["Cookie"]}'}  # of another service of this host
    assert (await send(guarded, "GET", "/docs", headers=beside_others)).status_code == 200
    stolen = headers | {"Origin": "http://evil.example"}
    assert (await send(guarded, "GET", "/docs", headers=stolen)).status_code == 403


async def test_what_is_no_address_is_refused_like_a_wrong_one(guarded):
    assert (await send(guarded, "GET", "/healthz", VIEW, headers={"Origin": "http://[x"})).status_code == 403


async def test_a_websocket_needs_a_token_too(guarded):
    said: list[dict] = []

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    async def take(message: dict) -> None:
        said.append(message)

    scope = {"type": "websocket", "path": "/any", "headers": [(b"host", b"192.0.2.1")], "query_string": b""}
    await guarded(scope, receive, take)
    assert said == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("operate", "view", "says"),
    [(None, "v1", "operating as well"), ("t-1", "t-1", "make two"), ("two words", None, "blanks"), ("ü", None, "ASC")],
)  # fmt: skip
def test_tokens_that_cannot_be(tmp_path, operate, view, says):
    with pytest.raises(ConfigError, match=says) as error:
        AdminSettings(
            run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"}, token=operate, view_token=view
        )
    assert all(token is None or token not in str(error.value) for token in (operate, view))


async def test_no_token_in_logs_texts_and_errors(guarded, tmp_path, caplog):
    @guarded.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    caplog.set_level(logging.DEBUG)
    texts = [repr(guarded.state.service.settings)]
    for token in (OPERATE, VIEW, OPERATE + "x", None):
        for method, path in (("GET", "/nowhere"), ("GET", "/broken"), ("POST", "/faults"), ("GET", "/openapi.json")):
            answer = await send(guarded, method, path, token)
            texts += [answer.text, str(answer.headers)]
    texts += [(await send(guarded, "POST", "/login", data={"token": OPERATE + "x"})).text, caplog.text]
    texts += [file.read_text() for file in tmp_path.iterdir()]
    assert "a bug" in caplog.text
    for text in texts:
        assert OPERATE not in text
        assert VIEW not in text


# -- ids, headers, sizes ------------------------------------------------------------------------------------


async def test_every_answer_has_an_id_and_sane_headers(guarded):
    for path, token in (("/healthz", VIEW), ("/nowhere", VIEW), ("/healthz", None), ("/docs", VIEW), ("/login", None)):
        answer = await send(guarded, "GET", path, token)
        assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"]), path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        if answer.headers["content-type"] == "application/problem+json":
            assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(("given", "taken"), [("build-17.3", True), ("a b", False), ("x" * 65, False), ("<b>", False)])
async def test_an_id_is_taken_if_it_is_sane(guarded, given, taken):
    answer = await send(guarded, "GET", "/nowhere", VIEW, headers={"X-Request-ID": given})
    assert (answer.headers["x-request-id"] == given) is taken
    assert (answer.json()["request_id"] == given) is taken


async def test_an_error_nobody_expected_is_a_problem_document_with_the_id_of_the_log(guarded, caplog):
    @guarded.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    answer = await send(guarded, "GET", "/broken", VIEW)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "a bug" not in answer.text
    assert answer.json()["request_id"] in caplog.text


@pytest.mark.parametrize("announced", [True, False])
async def test_a_large_body_is_refused_whether_it_says_so_or_not(guarded, announced):
    body = b'{"kind": "' + b"x" * 300_000 + b'"}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    headers = {"Content-Type": "application/json"}
    answer = await send(guarded, "POST", "/faults", OPERATE, content=body if announced else parts(), headers=headers)
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "bytes" in answer.json()["detail"]


async def test_docs_need_no_internet(guarded):
    page = (await send(guarded, "GET", "/docs", VIEW)).text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) >= 3
    for source in sources:
        assert source.startswith("/docs/assets/")
        assert (await send(guarded, "GET", source, VIEW)).status_code == 200
    assert "http://" not in page
    assert "https://" not in page


async def test_every_route_and_body_has_an_example(guarded):
    document = guarded.openapi()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            bodies = [answer for status, answer in operation["responses"].items() if status[0] == "2"]
            for body in [*bodies, operation.get("requestBody", {})]:
                for kind, content in body.get("content", {}).items():
                    assert "example" in content or has_example(document, content["schema"]), (method, path, kind)


def has_example(document: dict, schema: dict) -> bool:
    if "anyOf" in schema:
        return any(has_example(document, part) for part in schema["anyOf"])
    name = schema.get("$ref", "").rpartition("/")[2]
    return bool(name) and "example" in document["components"]["schemas"][name]


async def test_faults_are_refused_unless_allowed(guarded):
    answer = await send(guarded, "POST", "/faults", OPERATE, json={"kind": "slow", "nodes": ["n1"], "duration_s": 1})
    assert answer.status_code == 403
    assert "--allow-faults" in answer.json()["detail"]
