"""One cluster of four real node processes for all tests of the admin service. Each test leaves it clean."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import ecstore
from ecstore.launcher import ClusterOptions, LocalCluster, NodeSettings, local_cluster
from tests.node_processes import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(options=ClusterOptions(nodes=4, settings=NodeSettings(allow_faults=True))) as running:
        yield running


@pytest.fixture(scope="module")
def store(cluster: LocalCluster) -> Iterator[ecstore.Store]:
    with ecstore.connect(cluster.address) as connected:
        table = connected.create_table("t", dim=8, optimizer=ecstore.Adagrad(lr=0.1), code="rs(2,1)", seed=1)
        ids = np.arange(4_000, dtype=np.uint64)
        table.push(ids, np.ones((len(ids), 8), np.float32))
        yield connected


@pytest.fixture
def admin(cluster: LocalCluster, store: ecstore.Store) -> Iterator[httpx.Client]:
    """A client of the service, at a moment when all nodes are up and nothing moves; so it is left, too."""
    with httpx.Client(base_url=cluster.admin_url, timeout=10.0) as client:
        until(lambda: is_clean(client), "a clean cluster")
        yield client
        for node in cluster.addresses:
            client.post(f"/nodes/{node}/recover").raise_for_status()
        until(lambda: is_clean(client), "a clean cluster after the test")


def is_clean(client: httpx.Client) -> bool:
    """All four nodes up, every group whole, nothing on its way; False while the service restarts."""
    try:
        answer = client.get("/cluster")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["clean"] and answer.json()["nodes_up"] == 4
