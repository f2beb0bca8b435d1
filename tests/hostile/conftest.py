"""Three nodes and their coordination service, a witness, and tables to be attacked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_processes import NodeProcesses

from ecstore.launcher.nodes import NodeSettings

sys.path.insert(0, str(Path(__file__).parent))  # helpers of these tests stand beside them

from witness import Witness

#: A busy machine is no reason to declare a node down here.
PATIENT = NodeSettings(suspect_after_s=20.0)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("hostile"), 3, PATIENT) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def witness(attacked: NodeProcesses) -> Iterator[Witness]:
    found = Witness(attacked)
    yield found
    found.check()
    found.check_parity()
    found.check_logs()
    found.close()
