"""One cluster of four real node processes for the commands and examples that use a running one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ecstore.launcher import LocalCluster, local_cluster


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[LocalCluster]:
    with local_cluster(nodes=4) as cluster:
        yield cluster
