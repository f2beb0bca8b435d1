"""GET and PUT /throttle over a real cluster: while a recovery runs, and for nodes that join later."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import ecstore
from ecstore.launcher import LocalCluster
from tests.admin.conftest import until

pytestmark = pytest.mark.cluster

MIB = 1 << 20


@pytest.fixture(autouse=True)
def as_it_was(admin: httpx.Client) -> Iterator[None]:
    yield
    admin.put("/throttle", json={"profile": "training_first"}).raise_for_status()


def in_force(admin: httpx.Client) -> dict[str, tuple[str, float]]:
    told = admin.get("/throttle").raise_for_status().json()
    return {node["id"]: (node["profile"], node["rate_bytes_per_s"]) for node in told["nodes"]}


def test_profiles_are_multiples_of_the_rate_the_nodes_were_started_with(admin: httpx.Client) -> None:
    told = admin.get("/throttle").raise_for_status().json()
    assert (told["profile"], told["rate_bytes_per_s"], told["settled"]) == ("training_first", 10.0 * MIB, True)
    assert set(in_force(admin)) == {"n1", "n2", "n3", "n4"}
    for profile, factor in (("balanced", 4), ("recovery_first", 16), ("training_first", 1)):
        told = admin.put("/throttle", json={"profile": profile}).raise_for_status().json()
        assert (told["profile"], told["rate_bytes_per_s"], told["settled"]) == (profile, factor * 10.0 * MIB, True)
        assert set(in_force(admin).values()) == {(profile, factor * 10.0 * MIB)}
    events = [event for event in admin.get("/events").json()["events"] if event["kind"] == "throttle"]
    assert {event["source"] for event in events} == {"admin", "node"}


def test_a_recovery_that_runs_goes_on_at_the_new_rate(admin: httpx.Client) -> None:
    """At a kilobyte a second the shards of n3 would take minutes; the profile is changed in the middle."""
    slow = admin.put("/throttle", json={"profile": "training_first", "rate_bytes_per_s": 1024}).raise_for_status()
    assert slow.json()["rate_bytes_per_s"] == 1024
    admin.post("/nodes/n3/kill").raise_for_status()

    def of_n3() -> list[dict]:
        return [
            e for e in admin.get("/decoding").json()["recoveries"] if e["lost_node"] == "n3" and not e["finished_at"]
        ]

    held = until(lambda: [e for e in of_n3() if e["serving_at"] and e["state"] == "waiting"], "a shard to be held")
    assert all(entry["rows_total"] > 0 for entry in held if entry["kind"] == "data")
    assert all(entry["bytes_total"] == 64 * entry["rows_total"] for entry in held if entry["kind"] == "data")
    admin.put("/throttle", json={"profile": "recovery_first"}).raise_for_status()
    until(lambda: not of_n3(), "all of n3 to be recovered")


def test_a_node_that_joins_later_gets_the_setting(admin: httpx.Client) -> None:
    admin.put("/throttle", json={"profile": "balanced", "rate_bytes_per_s": 5e6}).raise_for_status()
    admin.post("/nodes/n1/kill").raise_for_status()
    until(lambda: "n1" not in in_force(admin), "n1 to be gone")
    admin.post("/nodes/n1/recover").raise_for_status()
    until(lambda: in_force(admin).get("n1") == ("balanced", 5e6), "n1 to be told")
    until(lambda: admin.get("/throttle").json()["settled"], "all to agree")


def test_the_setting_is_the_nodes_whoever_made_it(
    admin: httpx.Client, store: ecstore.Store, cluster: LocalCluster
) -> None:
    """Another service, or the one before this one, told one node only: this one takes it to all others."""
    told = {node: s["statistics"]["throttle"] for node, s in store.status()["nodes"].items()}
    newer = {"profile": "recovery_first", "rate_bytes_per_s": None, "revision": told["n4"]["revision"] + 1}
    assert store.ask_node(cluster.addresses["n4"], "throttle.set", newer)["profile"] == "recovery_first"
    until(lambda: {p for p, _rate in in_force(admin).values()} == {"recovery_first"}, "all to follow")
    stale = {"profile": "balanced", "rate_bytes_per_s": None, "revision": 1}
    assert store.ask_node(cluster.addresses["n4"], "throttle.set", stale)["profile"] == "recovery_first"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"profile": "fast"}, "training_first"),
        ({}, "profile"),
        ({"profile": "balanced", "rate_bytes_per_s": 0}, "rate_bytes_per_s"),
        ({"profile": "balanced", "rate_bytes_per_s": 1e15}, "rate_bytes_per_s"),
        ({"profile": "balanced", "rate": 5}, "rate"),
    ],
)
def test_what_is_no_throttle_is_refused(admin: httpx.Client, body: dict, says: str) -> None:
    answer = admin.put("/throttle", json=body)
    assert answer.status_code == 422
    assert says in answer.json()["detail"]
    assert {profile for profile, _rate in in_force(admin).values()} == {"training_first"}
