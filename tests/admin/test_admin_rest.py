"""The REST interface over a real cluster: what it shows, and that kill and recover do what they say."""

from __future__ import annotations

import os
import signal

import httpx
import numpy as np
import pytest

import ecstore
from ecstore.launcher import LocalCluster
from ecstore.launcher.processes import identify
from tests.admin.conftest import until

pytestmark = pytest.mark.cluster


def node(admin: httpx.Client, name: str) -> dict:
    return admin.get(f"/nodes/{name}").raise_for_status().json()


def test_nodes_and_cluster(admin, cluster):
    nodes = [entry for entry in admin.get("/nodes").json()["nodes"] if entry["wanted"] == "up"]  # others came and went
    assert [entry["id"] for entry in nodes] == ["n1", "n2", "n3", "n4"]
    for entry in nodes:
        assert entry["address"] == cluster.addresses[entry["id"]]
        assert (entry["state"], entry["process"], entry["managed"]) == ("up", "running", True)
        assert identify(entry["pid"]) is not None
    shown = admin.get("/cluster").json()
    assert shown["codes"] == ["rs(2,1)"]
    assert shown["health"]["losses_tolerated"] == 1
    assert shown["lost_groups"] == []
    assert admin.get("/healthz").json() == {"status": "ok", "reachable": True, "problem": ""}


def test_ring_and_tables_agree_with_the_clients_map(admin, store):
    ring = admin.get("/ring").json()
    groups = store.cluster_map.groups
    assert [[s["owner"] for s in g["shards"]] for g in ring["groups"]] == [[s.owner for s in g.shards] for g in groups]
    assert {s["role"] for g in ring["groups"] for s in g["shards"]} == {"data", "parity"}
    assert sum(load["data"] + load["parity"] for load in ring["load"].values()) == 3 * len(groups)
    (table,) = [entry for entry in admin.get("/tables").json()["tables"] if entry["name"] == "t"]
    assert (table["dim"], table["code"], table["rows"]) == (8, "rs(2,1)", len(store.table("t")))


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/nodes/n9", 404, "there are n1, n2, n3, n4"),
        ("POST", "/nodes/n9/kill", 404, "n9"),
        ("POST", "/nodes/n9/recover", 404, "n9"),
        ("GET", "/nowhere", 404, "/docs"),
        ("GET", "/nodes/n1/kill", 405, "GET is not possible"),
        ("GET", "/events?limit=0", 422, "limit"),
    ],
)
def test_errors_are_problem_documents(admin, method, path, status, says):
    answer = admin.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert says in problem["detail"]
    assert problem["instance"] == path.partition("?")[0]


def test_web_pages_of_others_are_refused(admin):
    assert admin.post("/nodes/n1/kill", headers={"Origin": "http://evil.example"}).status_code == 403
    assert admin.get("/nodes", headers={"Host": "evil.example"}).status_code == 421
    assert node(admin, "n1")["process"] == "running"
    assert "access-control-allow-origin" not in admin.get("/nodes").headers


def test_openapi_has_examples(admin):
    schemas = admin.get("/openapi.json").json()["components"]["schemas"]
    for name in ("Node", "Recovery", "NodeAction", "Problem"):
        assert schemas[name]["example"]


def test_kill_is_a_real_sigkill_and_recover_brings_a_new_life(admin, store):
    before = node(admin, "n2")
    newest = admin.get("/events").json()["events"][-1]["id"]
    table = store.table("t")
    ids = np.arange(4_000, dtype=np.uint64)
    expected = table.pull(ids)

    first = admin.post("/nodes/n2/kill")
    assert (first.status_code, first.json()["outcome"]) == (200, "killed")
    assert identify(before["pid"]) is None
    assert node(admin, "n2")["process"] == "exited"
    assert node(admin, "n2")["exit_code"] == -signal.SIGKILL
    again = admin.post("/nodes/n2/kill")
    assert (again.status_code, again.json()["outcome"]) == (200, "already_down")
    assert np.array_equal(table.pull(ids), expected)
    until(lambda: node(admin, "n2")["state"] == "down", "the map to say that n2 is down")

    assert admin.post("/nodes/n2/recover").json()["outcome"] == "started"
    assert admin.post("/nodes/n2/recover").json()["outcome"] == "starting"
    until(lambda: node(admin, "n2")["state"] == "up", "n2 to be back")
    after = node(admin, "n2")
    assert after["address"] == before["address"]
    assert after["incarnation"] == before["incarnation"] + 1
    assert after["pid"] != before["pid"]
    events = admin.get("/events", params={"after": newest}).json()["events"]
    kinds = [event["kind"] for event in events if event["node"] == "n2"]
    assert kinds.index("killed") < kinds.index("node_down")


def test_decoding_tells_of_each_recovery_even_when_the_new_owner_has_died(admin, store):
    held = {(s["group"], s["shard"]) for s in node(admin, "n3")["shards"]}
    epoch = admin.get("/cluster").json()["epoch"]
    admin.post("/nodes/n3/kill").raise_for_status()

    def of_n3() -> list[dict]:
        found = admin.get("/decoding").json()["recoveries"]
        return [entry for entry in found if entry["lost_node"] == "n3" and entry["epoch"] > epoch]

    until(lambda: len(of_n3()) >= len(held) and all(e["state"] == "done" for e in of_n3()), "all of n3 to be decoded")
    done = of_n3()
    assert {(entry["group"], entry["shard"]) for entry in done} == held
    for entry in done:
        assert entry["kind"] in ("data", "parity")
        assert entry["rows_decoded"] == entry["rows_total"]
        assert entry["finished_at"] >= entry["started_at"]
        assert entry["new_owner"] != "n3"
    data = [entry for entry in done if entry["kind"] == "data"]
    assert data
    assert all(entry["first_row_at"] and entry["bytes_decoded"] > 0 for entry in data if entry["rows_total"])

    admin.post("/nodes/n3/recover").raise_for_status()
    until(lambda: admin.get("/cluster").json()["clean"] and node(admin, "n3")["state"] == "up", "n3 to be back")
    owner = data[0]["new_owner"]
    admin.post(f"/nodes/{owner}/kill").raise_for_status()
    until(lambda: node(admin, owner)["state"] == "down", f"{owner} to be down")
    remembered = [entry for entry in of_n3() if entry["new_owner"] == owner]
    assert remembered == [entry for entry in done if entry["new_owner"] == owner]


def test_a_node_that_ends_by_itself_is_started_again(admin):
    before = node(admin, "n4")
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: node(admin, "n4")["starts"] == before["starts"] + 1, "n4 to be started again")
    until(lambda: node(admin, "n4")["state"] == "up", "n4 to be back")
    assert node(admin, "n4")["incarnation"] > before["incarnation"]
    assert any(event["kind"] == "exited" and event["node"] == "n4" for event in admin.get("/events").json()["events"])


def test_the_service_survives_its_own_death(admin, cluster: LocalCluster, store: ecstore.Store):
    def running() -> list[dict]:
        return [entry for entry in admin.get("/nodes").json()["nodes"] if entry["wanted"] == "up"]

    before = {entry["id"]: entry["pid"] for entry in running()}
    newest = admin.get("/events").json()["next"]
    service = cluster._children["admin"]
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: cluster._children["admin"].pid != service.pid, "the launcher to start the service again")

    def shown() -> dict[str, int] | None:
        try:
            nodes = running()
        except httpx.TransportError:
            return None
        return {entry["id"]: entry["pid"] for entry in nodes} if all(n["state"] == "up" for n in nodes) else None

    assert until(shown, "the new service to know the nodes") == before
    events = admin.get("/events", params={"after": newest}).json()["events"]
    adopted = [event["node"] for event in events if event["kind"] == "adopted"]
    assert sorted(adopted) == sorted(before)
    assert admin.post("/nodes/n1/kill").json()["outcome"] == "killed"
    assert identify(before["n1"]) is None


def test_the_coordination_service_survives_its_own_death(admin, cluster: LocalCluster, store: ecstore.Store):
    service = cluster._children["coordination"]
    epoch = admin.get("/cluster").json()["epoch"]
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: cluster._children["coordination"].pid != service.pid, "the launcher to start it again")
    admin.post("/nodes/n1/kill").raise_for_status()
    until(lambda: node(admin, "n1")["state"] == "down", "the map to change again")
    assert admin.get("/cluster").json()["epoch"] > epoch
