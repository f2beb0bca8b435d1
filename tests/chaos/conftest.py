"""One cluster of six nodes that allow faults, for the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from node_processes import NodeProcesses, until_settled

import ecstore
from ecstore.launcher.nodes import NodeSettings

CODE = "rs(3,2)"
KEYS = 2000


@pytest.fixture(scope="module")
def faulty_six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = NodeSettings(suspect_after_s=1.5, allow_faults=True)
    with NodeProcesses(tmp_path_factory.mktemp("faulty"), 6, settings) as nodes:
        yield nodes


@pytest.fixture
def store(faulty_six: NodeProcesses) -> Iterator[ecstore.Store]:
    with ecstore.connect(faulty_six.address, timeout=60.0) as opened:
        yield opened
        for address in faulty_six.addresses.values():
            opened.ask_node(address, "fault.clear", {})


@pytest.fixture
def counters(store: ecstore.Store) -> Iterator[ecstore.Table]:
    """A table of `KEYS` rows that hold minus the sum of what is pushed; settled."""
    table = store.create_table("t", dim=4, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    until_settled(store, CODE)
    yield table
    store.drop_table("t")
