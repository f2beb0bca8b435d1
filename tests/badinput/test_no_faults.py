"""A node that was not started for faults does none, whoever asks."""

from __future__ import annotations

import pytest
from node_processes import NodeProcesses

import ecstore


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["fault.set", "fault.list", "fault.clear", "fault.flip", "fault.anything"])
def test_faults_are_refused(three: NodeProcesses, store: ecstore.Store, kind: str) -> None:
    partition = {"id": "f", "kind": "partition", "peers": ["*"], "duration_s": 5.0}
    for address in three.addresses.values():
        with pytest.raises(ecstore.ConfigError, match="--allow-faults"):
            store.ask_node(address, kind, partition)
