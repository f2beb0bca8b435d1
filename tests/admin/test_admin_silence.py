"""What the service says when the map can no longer be true: nobody is left who could agree on another."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import numpy as np
import pytest
from ecstore_admin.silence import SILENT_AFTER_S, Silence

import ecstore
from ecstore.launcher import local_cluster
from tests.dashboard.maps import cluster as made
from tests.dashboard.maps import group
from tests.node_processes import until


def told(**statistics: Any) -> dict[str, dict[str, Any]]:
    return {name: {"statistics": said} for name, said in statistics.items()}


def test_silence_is_counted_from_the_first_look_without_an_answer():
    current, silence = made(group(), nodes=3), Silence()
    well = {"coordination_available": True}
    silence.take(told(n1=well, n2=well, n3=well), current, 10.0)
    assert (silence.silent(99.0), silence.problem, silence.frozen) == ((), "", False)
    silence.take(told(n1=well, n2={"error": "no route"}, n3=well), current, 11.0)
    silence.take(told(n1=well, n2={"error": "no route"}, n3=well), current, 13.0)
    assert silence.answered == {"n1", "n3"}
    assert silence.silent(11.0 + SILENT_AFTER_S - 0.1) == ()
    assert silence.silent(11.0 + SILENT_AFTER_S) == ("n2",)
    silence.take(told(n1=well, n2=well, n3=well), current, 14.0)
    assert silence.silent(99.0) == ()


def test_membership_is_frozen_when_all_who_answer_have_lost_the_coordination_service():
    current, silence = made(group(), nodes=3), Silence()
    lost, well = {"coordination_available": False}, {"coordination_available": True}
    silence.take(told(n1=lost, n2=well, n3=lost), current, 1.0)
    assert not silence.frozen
    silence.take(told(n1=lost, n2={"error": "refused"}, n3=lost), current, 2.0)
    assert silence.frozen


def test_that_nobody_answers_is_a_problem():
    current, silence = made(group(), nodes=2), Silence()
    silence.take(told(n1={"error": "refused"}, n2={"error": "refused"}), current, 1.0)
    assert "none of the 2 nodes" in silence.problem
    assert "refused" in silence.problem
    assert not silence.frozen


@pytest.mark.cluster
def test_a_dead_cluster_is_not_called_whole():
    """The coordination service stops, then one node after the other: the map says to the end that all are up."""
    with local_cluster(nodes=3) as cluster, httpx.Client(base_url=cluster.admin_url, timeout=20.0) as admin:

        def said() -> dict[str, Any]:
            return admin.get("/cluster").raise_for_status().json()

        with ecstore.connect(cluster.address) as store:
            table = store.create_table("t", dim=2, optimizer=ecstore.SGD(lr=1.0), code="rs(2,1)")
            table.push(np.arange(100), np.ones((100, 2), np.float32))
        until(lambda: said()["clean"], "a clean cluster")
        assert said()["silent_nodes"] == []
        assert not said()["membership_frozen"]
        os.kill(cluster.pids["coordination"], signal.SIGSTOP)
        try:
            until(lambda: said()["membership_frozen"], "the nodes to miss the coordination service")
            assert not said()["clean"]
            admin.post("/nodes/n2/kill").raise_for_status()
            until(lambda: said()["silent_nodes"] == ["n2"], "n2 to be missed")
            assert said()["health"]["ok"] == said()["health"]["groups"], "by the map all is well"
            for node in ("n1", "n3"):
                admin.post(f"/nodes/{node}/kill").raise_for_status()
            until(lambda: not admin.get("/healthz").json()["reachable"], "nobody to answer")
            assert "none of the 3 nodes" in said()["problem"]
            assert not said()["clean"]
            assert "ecstore_up 0.0" in admin.get("/metrics").text
        finally:
            os.kill(cluster.pids["coordination"], signal.SIGCONT)
