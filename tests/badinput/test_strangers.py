"""Nodes of other clusters, and nodes that cannot be: told so, and nobody else is disturbed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from node_processes import NodeProcesses, until, until_settled

import ecstore
from ecstore.launcher.nodes import NodeSettings, node_command

pytestmark = pytest.mark.cluster


def run_node(name: str, address: str, coordination: str, cluster: str) -> tuple[int, str]:
    """Exit code and standard error of a node that cannot start."""
    command = node_command(name, address, coordination, NodeSettings(), cluster=cluster, exit_with=os.getpid())
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    return ended.returncode, ended.stderr.strip().splitlines()[-1]


def test_a_node_of_another_cluster_at_our_coordination_service(three: NodeProcesses) -> None:
    code, said = run_node("n9", "127.0.0.1:0", three.coordination, "another")
    assert code in (1, 2)
    assert "another" in said
    assert three.cluster in said


def test_a_node_at_an_address_in_use(three: NodeProcesses) -> None:
    code, said = run_node("n9", three.addresses["n2"], three.coordination, three.cluster)
    assert code == 2
    assert three.addresses["n2"] in said


def test_a_stranger_at_the_address_of_a_dead_node(tmp_path: Path) -> None:
    """A node of another cluster listens where one of ours was. Ours don't talk to it, and it loses nothing either."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    theirs = NodeProcesses(tmp_path / "theirs", 1)
    with NodeProcesses(tmp_path / "ours", 3) as ours, ecstore.connect(ours.address, timeout=60.0) as store:
        table = store.create_table("t", dim=2, optimizer=ecstore.SGD(lr=1.0), code="replicate(2)", init=ecstore.Zeros())
        until_settled(store, "replicate(2)")
        push(table, 1)
        ours.kill("n3")
        theirs.addresses["n1"] = ours.addresses["n3"]
        with theirs, ecstore.connect(theirs.address, timeout=60.0) as other:
            mine = other.create_table("t", dim=2, optimizer=ecstore.SGD(lr=1.0), code="none", init=ecstore.Zeros())
            push(mine, 5)
            until(lambda: (store.tables(), not store.cluster_map.nodes["n3"].alive)[1], "n3 to be declared down")
            until_settled(store, "replicate(2)")
            push(table, 1)
            assert (table.pull(range(100)) == -2).all()
            assert (mine.pull(range(100)) == -5).all()
            assert other.status()["epoch"] > 0
            assert list(other.status()["nodes"]) == ["n1"]
            assert sorted(store.status()["nodes"]) == ["n1", "n2", "n3"]


def push(table: ecstore.Table, value: float) -> None:

    table.push(np.arange(100), np.full((100, 2), value, np.float32))
