"""Faults, pause and resume over REST: they reach the nodes, end as ordered, and errors say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.admin.conftest import until

pytestmark = pytest.mark.cluster


def state_of(admin, name: str) -> str:
    return admin.get(f"/nodes/{name}").raise_for_status().json()["state"]


def order(admin, **body):
    return admin.post("/faults", json={"duration_s": 60.0} | body)


def test_a_partition_from_everybody_and_its_end(admin, store):
    table, ids = store.table("t"), np.arange(4_000, dtype=np.uint64)
    wanted = table.pull(ids)
    answer = order(admin, kind="partition", **{"from": ["n2"], "to": ["*"]})
    assert answer.status_code == 201
    fault = answer.json()
    assert fault["nodes"] == ["n2"]
    until(lambda: state_of(admin, "n2") in ("down", "starting"), "n2 to be declared down")
    assert np.array_equal(table.pull(ids), wanted)
    (shown,) = admin.get("/faults").json()["faults"]
    assert (shown["id"], shown["kind"], list(shown["rules"])) == (fault["id"], "partition", ["n2"])
    assert shown["rules"]["n2"]["direction"] == "both"
    assert 0 < shown["rules"]["n2"]["left_s"] <= 60.0
    assert admin.delete(f"/faults/{fault['id']}").json()["nodes"] == ["n2"]
    until(lambda: state_of(admin, "n2") == "up", "n2 to join again")
    assert admin.delete(f"/faults/{fault['id']}").status_code == 404
    assert admin.get("/faults").json()["faults"] == []


def test_faults_of_every_kind_end_by_themselves(admin):
    bodies = [
        {"kind": "slow", "nodes": ["n1", "n3"], "block_ms": 5},
        {"kind": "delay", "from": ["n1"], "to": ["n2", "clients"], "delay_ms": 5, "jitter_ms": 5},
        {"kind": "drop", "from": ["n1"], "to": ["n4"], "probability": 0.01, "both": False},
        {"kind": "partition", "from": ["coordination"], "to": ["n4"], "both": False},
    ]
    for body in bodies:
        assert order(admin, **body | {"duration_s": 4.0}).status_code == 201, body
    shown = {fault["kind"]: fault for fault in admin.get("/faults").json()["faults"]}
    assert set(shown) == {"slow", "delay", "drop", "partition"}
    assert sorted(shown["slow"]["rules"]) == ["n1", "n3"]
    assert shown["drop"]["rules"]["n1"]["direction"] == "out"
    assert shown["partition"]["rules"]["n4"]["peers"] == ["coordination"]
    assert shown["partition"]["rules"]["n4"]["direction"] == "in"
    until(lambda: not admin.get("/faults").json()["faults"], "all faults to end")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"kind": "flood"}, 422, "kind"),
        ({"kind": "partition", "from": ["n1"]}, 422, "takes `from` and `to`"),
        ({"kind": "slow", "from": ["n1"], "to": ["n2"]}, 422, "takes `nodes`"),
        ({"kind": "partition", "from": ["n9"], "to": ["n1"]}, 404, "n9"),
        ({"kind": "delay", "from": ["n1"], "to": ["n2"]}, 422, "delay_ms"),
        ({"kind": "partition", "from": ["n1"], "to": ["n2"], "duration_s": -1}, 422, "duration_s"),
        ({"kind": "partition", "from": ["coordination"], "to": ["*"]}, 422, "names of nodes"),
        ({"kind": "slow", "nodes": ["n1"], "block_ms": 5, "speed": 3}, 422, "speed"),
        ({"kind": "slow", "nodes": ["n1"], "block_ms": 5, "duration_s": None}, 422, "needs `duration_s`"),
        ({"kind": "slow", "nodes": ["n1"], "block_ms": 5, "delay_ms": 5}, 422, "takes no delay_ms"),
        ({"kind": "flip", "duration_s": 5}, 422, "takes no duration_s"),
        ({"kind": "flip", "duration_s": None, "group": 0, "shard": 0}, 422, "GET /ring"),
        ({"kind": "flip", "duration_s": None, "group": 0, "shard": 0, "table": "x"}, 404, "there are t"),
        ({"kind": "flip", "duration_s": None, "group": 0, "shard": 3, "table": "t"}, 404, "no shard 3 of group 0"),
        ({"kind": "flip", "duration_s": None, "group": 0, "shard": 0, "table": "t", "slot": 10**6}, 422, "not within"),
    ],
)  # fmt: skip
def test_orders_that_make_no_sense(admin, body, status, says):
    answer = order(admin, **body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]
    assert admin.get("/faults").json()["faults"] == []


def test_a_flipped_bit_is_found_by_a_scrub_and_flipped_back(admin):
    body = {"kind": "flip", "group": 0, "shard": 1, "table": "t", "slot": 2, "byte": 5, "bit": 6}
    answer = admin.post("/faults", json=body)
    assert (answer.status_code, answer.json()["until"]) == (201, None)
    assert answer.json()["nodes"] == [admin.get("/ring").json()["groups"][0]["shards"][1]["owner"]]
    assert admin.get("/faults").json()["faults"] == []
    assert found_by_scrub(admin) == [(0, 2)]
    admin.post("/faults", json=body).raise_for_status()  # m = 1 names no shard: it is flipped back by hand
    assert found_by_scrub(admin) == []


def found_by_scrub(admin) -> list[tuple[int, int]]:
    admin.post("/scrub", json={"groups": [0], "rate_mib_s": 64.0}).raise_for_status()
    done = until(lambda: (told := admin.get("/scrub").json())["state"] != "running" and told, "the scrub to end")
    assert done["state"] == "done"
    return [(finding["group"], finding["slot"]) for finding in done["findings"]]


def test_pause_and_resume(admin):
    pid = admin.get("/nodes/n3").json()["pid"]
    life = admin.get("/nodes/n3").json()["incarnation"]

    def stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    assert admin.post("/nodes/n3/pause").json()["outcome"] == "paused"
    until(stopped, "the process to be stopped")
    assert admin.get("/nodes/n3").json()["process"] == "paused"
    assert admin.post("/nodes/n3/recover").json()["outcome"] == "paused"
    until(lambda: state_of(admin, "n3") != "up", "n3 to be declared down")
    assert admin.post("/nodes/n3/resume").json()["outcome"] == "resumed"
    until(lambda: state_of(admin, "n3") == "up", "n3 to join again")
    after = admin.get("/nodes/n3").json()
    assert (after["pid"], after["incarnation"]) == (pid, life + 1)

    assert admin.post("/nodes/n3/pause", json={"duration_s": 0.3}).json()["outcome"] == "paused"
    until(lambda: not stopped(), "the pause to end by itself")
    assert admin.post("/nodes/n9/pause").status_code == 404
    admin.post("/nodes/n3/kill").raise_for_status()
    assert admin.post("/nodes/n3/pause").json()["outcome"] == "already_down"
