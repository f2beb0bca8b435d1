"""The last look: every row that was ever written, through a new client and in the memory of its owner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ecstore import aio
from tests.sim.cluster import SimCluster
from tests.sim.model import OwnedRows, SharedSums
from tests.sim.watch import Watch
from tests.sim.workload import OWNED, SUMS, Client


async def read_back(cluster: SimCluster, clients: Sequence[Client], sums: SharedSums, watch: Watch) -> None:
    addresses = ",".join(f"{host.name}:{host.port}" for host in cluster.hosts.values())
    async with await aio.connect(addresses, timeout=60.0) as store:
        owned, shared = await store.table(OWNED), await store.table(SUMS)
        memory = _whole_rows(cluster, OWNED)
        for client in clients:
            if not hasattr(client, "model"):
                continue
            keys = _reachable(store, owned, client.model.keys())
            client.check_owned(keys, await owned.pull(keys))
            _check_states(client.model, keys, memory, watch)
        keys = _reachable(store, shared, range(sums.keys))
        found = (-await shared.pull(keys)).astype(np.int64)
        for key, row in zip(keys, -found, strict=True):
            problem = sums.wrong(int(key), row)
            if problem:
                watch.fail("lost" if "(lost)" in problem else "doubled", problem)


def _reachable(store: aio.Store, table: aio.Table, keys: Sequence[int] | range) -> np.ndarray:  # type: ignore[type-arg]
    """Those keys whose group is not lost, ascending."""
    wanted = np.array(list(keys), np.uint64)
    entry = store.cluster_map.tables[table.name]
    parts = store._parts(entry, wanted, np.empty((wanted.size, entry.spec.dim), np.float32))
    groups = store.cluster_map.groups
    kept = [part.keys for part in parts if not groups[part.gid].lost]
    return np.sort(np.concatenate(kept)) if kept else np.empty(0, np.uint64)


def _whole_rows(cluster: SimCluster, table: str) -> dict[int, bytes]:
    """key -> whole row in the memory of its owner."""
    rows: dict[int, bytes] = {}
    for runtime in cluster.runtimes().values():
        table_id = runtime.map.tables[table].id
        for owned in runtime.data.values():
            store = owned.shard.tables.get(table_id) if owned.shard is not None else None
            if store is None:
                continue
            slots = np.flatnonzero(store.keylist.allocated[: store.used]).astype(np.int64)
            for key, row in zip(store.keylist.keys[slots], store.read(slots), strict=True):
                rows[int(key)] = row.tobytes()
    return rows


def _check_states(model: OwnedRows, keys: np.ndarray, memory: dict[int, bytes], watch: Watch) -> None:  # type: ignore[type-arg]
    for key in keys:
        if memory.get(int(key)) not in model.states(int(key)):
            watch.fail("model", f"the row of key {key}, weights and state, is not what was pushed")
            return
