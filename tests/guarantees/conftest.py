"""One cluster of six nodes for the tests that leave it as they found it; others start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from node_processes import NodeProcesses

import ecstore
from ecstore.launcher.nodes import NodeSettings

#: Background decoding of a node of the shared cluster: some seconds for what these tests lose, so that reads and
#: further losses fall into it.
SLOW_MIB_PER_S = 0.2

#: Silence after which a node counts as dead. A killed one refuses connections, which shows at once; with a second,
#: the default, a machine with more to do than it can do would add losses that the tests did not order.
PATIENT_S = 4.0


@pytest.fixture(scope="module")
def shared_six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = NodeSettings(decode_mib_per_s=SLOW_MIB_PER_S, suspect_after_s=PATIENT_S)
    with NodeProcesses(tmp_path_factory.mktemp("six"), 6, settings) as nodes:
        yield nodes


@pytest.fixture
def six(shared_six: NodeProcesses) -> Iterator[NodeProcesses]:
    """Six running nodes, whatever a former test has done to them."""
    yield shared_six
    missing = sorted(set(shared_six.addresses) - set(shared_six.running))
    if missing:
        shared_six.start(*missing)


@pytest.fixture
def store(six: NodeProcesses) -> Iterator[ecstore.Store]:
    with ecstore.connect(six.address, timeout=60.0) as opened:
        yield opened
        tell(opened)


def tell(store: ecstore.Store) -> None:
    """What the cluster looks like after a test: pytest shows it when the test has failed."""
    status = store.status()
    print(f"epoch {status['epoch']}: {status['health']}")
    for name, node in status["nodes"].items():
        statistics = node["statistics"] or {}
        print(name, node["state"], node["down_reason"], "incarnation", node["incarnation"], statistics.get("counters"))
        for event in statistics.get("events", []):
            print(f"    {event['at']:.3f} epoch {event['epoch']} {event['kind']}: {event['message']}")
