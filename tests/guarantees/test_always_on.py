"""G5 always on: with m nodes lost and decoding slowed to a crawl, every key is pulled and pushed.

Fails when a request waits for the background sweep, when only whole shards are served, or when anything is paused
until a recovery ends. Also G1 and G4: what is served meanwhile is right.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from node_processes import NodeProcesses, newest_map, until_settled

import ecstore
from ecstore.launcher.nodes import NodeSettings

CODE = "rs(3,2)"
KEYS = 5000
#: A block would take minutes: nothing is decoded within this test but what is asked for.
CRAWL = NodeSettings(decode_mib_per_s=0.0001, suspect_after_s=4.0)


@pytest.mark.cluster
def test_every_key_is_served_while_nothing_is_swept(tmp_path: Path) -> None:
    keys = np.arange(KEYS)
    ones = np.ones((KEYS, 8), np.float32)
    with NodeProcesses(tmp_path, 6, CRAWL) as nodes, ecstore.connect(nodes.address, timeout=60.0) as store:
        tables = [
            store.create_table(f"t{seed}", dim=8, optimizer=ecstore.SGD(lr=1.0), code=CODE, seed=seed)
            for seed in (1, 2)
        ]
        until_settled(store, CODE)
        for table in tables:
            table.push(keys, ones)
        wanted = [table.pull(keys) for table in tables]
        nodes.kill("n2", "n6")

        order = np.random.default_rng(1).permutation(KEYS)
        for start in range(0, KEYS, 500):
            some = order[start : start + 500]
            tables[0].push(some, ones[some])  # decodes first, then applies
            assert np.array_equal(tables[0].pull(some), wanted[0][some] - ones[some])
            assert np.array_equal(tables[1].pull(some), wanted[1][some])
        new = np.arange(KEYS, KEYS + 1000)
        tables[1].push(new, np.ones((1000, 8), np.float32))
        tables[1].delete(keys[:100])
        found_keys, rows = tables[1].export()
        assert np.array_equal(found_keys, np.arange(100, KEYS + 1000))
        assert np.array_equal(rows[: KEYS - 100], wanted[1][100:])

        recoveries = [
            recovery
            for node in store.status()["nodes"].values()
            for recovery in (node["statistics"] or {}).get("recoveries", [])
        ]
        by_data = [recovery for recovery in recoveries if recovery["kind"] == "data"]
        assert sum(recovery["rows_on_demand"] for recovery in by_data) > 0
        assert sum(recovery["rows_decoded"] - recovery["rows_on_demand"] for recovery in by_data) == 0, "it was swept"
        assert any(s.state == "recovering" for g in newest_map(store).groups for s in g.shards)
