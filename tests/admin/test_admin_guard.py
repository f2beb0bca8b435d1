"""Who may ask: the token. No node is started; the application answers in memory."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from ecstore_admin.app import create_app
from ecstore_admin.settings import AdminSettings

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
