"""POST /nodes and /nodes/{id}/drain: a node is added, used, emptied and ended, and nothing has to be decoded."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from ecstore_admin import supervisor as supervisor_module
from ecstore_admin.settings import AdminSettings
from ecstore_admin.supervisor import Supervisor

from ecstore.launcher.ports import free_ports
from tests.admin.conftest import is_clean, until

pytestmark = pytest.mark.cluster


def node(admin: httpx.Client, name: str) -> dict:
    return admin.get(f"/nodes/{name}").raise_for_status().json()


def kinds(admin: httpx.Client, name: str) -> list[str]:
    return [event["kind"] for event in admin.get("/events").json()["events"] if event["node"] == name]


def test_a_node_is_added_drained_and_ended(admin, cluster, store):
    table, ids = store.table("t"), np.arange(4_000, dtype=np.uint64)
    wanted = table.pull(ids)
    (port,) = free_ports(1)
    order = {"id": "extra", "port": port}
    answer = admin.post("/nodes", json=order)
    assert (answer.status_code, answer.json()["outcome"]) == (201, "started")
    again = admin.post("/nodes", json=order)
    assert again.status_code == 200
    assert again.json()["outcome"] in ("starting", "already_up")
    until(lambda: (n := node(admin, "extra"))["state"] == "up" and n["data_shards"], "it to join and get shards")
    assert admin.post("/nodes", json=order).json()["outcome"] == "already_up"
    until(lambda: admin.get("/cluster").json()["clean"], "its shards to have moved")
    began = admin.get("/cluster").json()["epoch"]

    first = admin.post("/nodes/extra/drain")
    assert (first.status_code, first.json()["outcome"]) == (200, "draining")
    assert first.json()["shards_left"] > 0
    until(lambda: admin.post("/nodes/extra/drain").json()["outcome"] == "drained", "it to be empty")
    done = admin.post("/nodes/extra/drain").json()
    assert done["shards_left"] == 0
    assert "/nodes/extra/kill" in done["message"]
    shown = node(admin, "extra")
    assert (shown["state"], shown["wanted"], shown["process"]) == ("draining", "drained", "running")
    assert admin.post("/nodes/extra/recover").json()["outcome"] == "draining"
    os.kill(shown["pid"], signal.SIGKILL)  # it ends by itself, as if it had crashed
    until(lambda: node(admin, "extra")["state"] == "down", "it to be down")
    until(lambda: "exited" in kinds(admin, "extra"), "the service to notice")
    assert node(admin, "extra")["starts"] == 1
    assert admin.post("/nodes/extra/drain").json()["outcome"] == "already_down"
    assert admin.post("/nodes/extra/kill").json()["outcome"] == "already_down"
    told = admin.get("/decoding", params={"limit": 5000}).json()["recoveries"]
    assert {entry["kind"] for entry in told if entry["epoch"] > began} == {"move"}
    assert np.array_equal(table.pull(ids), wanted)
    until(lambda: is_clean(admin), "four nodes with everything")

    assert admin.post("/nodes", json=order).json()["outcome"] == "already_down"
    events = kinds(admin, "extra")
    assert events.index("started") < events.index("node_up") < events.index("drain") < events.index("exited")


def test_what_cannot_be_added_or_drained(admin, cluster):
    taken = int(cluster.addresses["n2"].rpartition(":")[2])
    for body, status, says in (
        ({"id": "n2", "port": 9}, 409, "there already"),
        ({"port": taken}, 409, "in use"),
        ({"id": "../n2"}, 422, "id"),
        ({"id": "coordination"}, 422, "means something else"),
        ({"port": 0}, 422, "port"),
        ({"name": "n9"}, 422, "name"),
    ):
        answer = admin.post("/nodes", json=body)
        assert answer.status_code == status, body
        assert answer.headers["content-type"] == "application/problem+json"
        assert says in answer.json()["detail"]
    assert admin.post("/nodes/n9/drain").status_code == 404
    assert all(entry["wanted"] != "drained" for entry in admin.get("/nodes").json()["nodes"] if entry["id"] != "extra")


def test_a_drain_that_would_leave_too_few_nodes(admin, cluster):
    admin.post("/nodes/n4/kill").raise_for_status()
    until(lambda: node(admin, "n4")["state"] == "down", "n4 to be down")
    answer = admin.post("/nodes/n1/drain")
    assert answer.status_code == 409
    assert "would leave 2 nodes and rs(2,1) needs 3; add one with POST /nodes" in answer.json()["detail"]
    assert node(admin, "n1")["wanted"] == "up"


def test_without_a_name_the_next_one_is_taken(admin):
    answer = admin.post("/nodes")
    assert answer.status_code == 201
    name = answer.json()["id"]
    assert name == "n5"
    until(lambda: node(admin, name)["state"] == "up", "it to join")
    admin.post(f"/nodes/{name}/kill").raise_for_status()
    until(lambda: is_clean(admin), "the others to have everything")


def test_a_node_that_could_not_be_started_once_is_started_later(tmp_path, monkeypatch):
    """No process can be made for a moment: that is no reason to leave the node down for good."""
    settings = AdminSettings(run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:2"})
    supervisor = Supervisor(settings, lambda *_told, **_details: None)
    supervisor.load()
    started: list[str] = []

    def spawn(command: list[str], _log: Path) -> subprocess.Popen[bytes]:
        started.append("tried")
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    monkeypatch.setattr(supervisor, "_spawn", spawn)
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_S", 0.0)
    supervisor.start_wanted()
    node = supervisor.nodes["n1"]
    try:
        node.child.kill()
        node.child.wait()
        for _look in range(4):
            with contextlib.suppress(BlockingIOError):
                supervisor._look()
        assert started == ["tried"] * 3
        assert node.running()
    finally:
        supervisor.end_all()
