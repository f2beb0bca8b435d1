"""A well-behaved client beside the hostile ones: after every batch its rows are exactly right, and every process is
the one it was.
"""

from __future__ import annotations

import numpy as np
from node_processes import NodeProcesses, places, until_settled

import ecstore
from ecstore.verify import verify

CODE, DIM, KEYS = "rs(2,1)", 4, 600


class Witness:
    """Knows what every row must be: gradients are small integers, so float32 sums are exact."""

    def __init__(self, nodes: NodeProcesses, name: str = "witness") -> None:
        self._nodes = nodes
        self._rng = np.random.default_rng(5)
        self.store = ecstore.connect(nodes.address, timeout=15.0)
        for _ in range(9):  # low table ids are what a stranger tries first
            self.store.create_table("none", dim=1, optimizer=ecstore.SGD(lr=1.0), code=CODE)
            self.store.drop_table("none")
        self.table = self.store.create_table(
            name, dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros()
        )
        until_settled(self.store, CODE)
        self.keys = np.arange(KEYS, dtype=np.uint64)
        self.rows = np.zeros((KEYS, DIM), np.float32)
        self.push()
        self._lives = self.lives()

    def push(self) -> None:
        grads = self._rng.integers(-8, 8, self.rows.shape).astype(np.float32)
        self.table.push(self.keys, grads)
        self.rows -= grads

    def lives(self) -> dict[str, tuple[str, int, int | None]]:
        """State, incarnation and process of every node, and the coordination service's process."""
        nodes = self.store.status()["nodes"]
        told = {name: (node["state"], node["incarnation"], node["statistics"]["pid"]) for name, node in nodes.items()}
        return told | {"coordination": ("", 0, self._nodes.pid("coordination"))}

    def check(self) -> None:
        """Fails if anything has happened to a row or a process; pushes once more."""
        assert np.array_equal(self.table.pull(self.keys), self.rows)
        assert len(self.table) == KEYS
        self.push()
        assert np.array_equal(self.table.pull(self.keys), self.rows)
        assert self.lives() == self._lives

    def check_parity(self) -> None:
        """The parity equation of every group."""
        report = verify(self._nodes.address)
        assert report.ok, report.describe()

    def check_logs(self) -> None:
        """No node has met an error that nobody had thought of."""
        for log in self._nodes.folder.glob("*.log"):
            assert "Traceback" not in log.read_text(), f"see {log}"

    def keys_of(self, gid: int, index: int) -> np.ndarray:
        gids, indexes = places(self.store.cluster_map, CODE, self.keys)
        return self.keys[(gids == gid) & (indexes == index)]

    def close(self) -> None:
        self.store.close()
