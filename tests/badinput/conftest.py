"""Three nodes, and after every test the proof that nothing has happened to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from node_processes import NodeProcesses

import ecstore
from ecstore.launcher.nodes import NodeSettings

CODE = "rs(2,1)"
DIM = 4


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    """Patient with one another: a busy machine is no reason to declare a node down here."""
    with NodeProcesses(tmp_path_factory.mktemp("badinput"), 3, NodeSettings(suspect_after_s=10.0)) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def bystander(three: NodeProcesses) -> Iterator[ecstore.Store]:
    """A client that was there before, with one connection to every node."""
    with ecstore.connect(three.address, timeout=60.0) as store:
        table = store.create_table("bystander", dim=2, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
        table.push(np.arange(500), np.zeros((500, 2), np.float32))
        yield store


def lives(store: ecstore.Store) -> dict[str, tuple[str, int, int]]:
    """What would change if a node had ended, or been declared down, even for a moment."""
    nodes = store.status()["nodes"]
    return {name: (node["state"], node["incarnation"], node["statistics"]["pid"]) for name, node in nodes.items()}


@pytest.fixture(autouse=True)
def nodes_stay_unharmed(three: NodeProcesses, bystander: ecstore.Store) -> Iterator[None]:
    table, keys = bystander.table("bystander"), np.arange(500)
    before, rows = lives(bystander), table.pull(keys)
    yield
    assert lives(bystander) == before
    assert {name: three.pid(name) for name in three.addresses} == {name: life[2] for name, life in before.items()}
    assert np.array_equal(table.pull(keys), rows)
    table.push(keys, np.ones((500, 2), np.float32))
    assert np.array_equal(table.pull(keys), rows - 1)
    with ecstore.connect(three.address, timeout=60.0) as newcomer:
        assert np.array_equal(newcomer.table("bystander").pull(keys), rows - 1)


@pytest.fixture
def store(three: NodeProcesses) -> Iterator[ecstore.Store]:
    with ecstore.connect(three.address, timeout=60.0) as opened:
        yield opened


@pytest.fixture
def table(store: ecstore.Store) -> Iterator[ecstore.Table]:
    """An empty table, initial values 0."""
    yield store.create_table("t", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    store.drop_table("t")
