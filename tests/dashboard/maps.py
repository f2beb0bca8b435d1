"""Cluster maps and records made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ecstore_admin.dashboard.snapshot import Snapshot

from ecstore.cluster.map import ClusterMap, Group, Node, Shard

OWNERS = ("n1", "n2", "n3", "n4", "n5")


def cluster(*groups: Group, nodes: int = 6, down: tuple[str, ...] = ()) -> ClusterMap:
    entries = {f"n{n}": Node(f"n{n}", f"127.0.0.1:{7399 + n}", 1) for n in range(1, nodes + 1)}
    for name in down:
        entries[name] = replace(entries[name], state="down", down_reason="refused")
    return ClusterMap("test", 7, 1, entries, groups)


def group(
    gid: int = 0, owners: tuple[str, ...] = OWNERS, *, recovering: tuple[int, ...] = (), lost: bool = False,
    joining: str | None = None, code: str = "rs(3,2)",
) -> Group:  # fmt: skip
    shards = tuple(
        Shard(index, owner, 1, "recovering" if index in recovering else "active", joining if index == 0 else None)
        for index, owner in enumerate(owners)
    )
    return Group(gid, code, shards, lost=lost)


def recovery(**changes: Any) -> dict[str, Any]:
    return {
        "group": 0, "shard": 0, "kind": "data", "lost_node": "n2", "new_owner": "n6", "epoch": 3, "state": "running",
        "rows_total": 1000, "rows_decoded": 400, "rows_on_demand": 50, "bytes_decoded": 51_200,
        "rate_rows_per_s": 200.0, "eta_s": 3.0, "started_at": 100.0, "serving_at": 100.1, "first_row_at": 100.2,
        "last_progress_at": 101.0, "finished_at": None,
    } | changes  # fmt: skip


def node_record(name: str = "n1", **changes: Any) -> dict[str, Any]:
    return {
        "id": name, "address": "127.0.0.1:7400", "state": "up", "down_reason": "", "incarnation": 1, "managed": True,
        "process": "running", "data_shards": 6, "parity_shards": 4, "rows": 1234, "rss_bytes": 80 << 20,
        "loop_lag_ms": 3.4,
    } | changes  # fmt: skip


def event(
    number: int, kind: str, node: str | None = None, at: float = 100.0, message: str = "something"
) -> dict[str, Any]:
    return {"id": number, "at": at, "source": "admin", "node": node, "epoch": 1, "kind": kind, "message": message,
            "details": {}}  # fmt: skip


def trainer(**changes: Any) -> dict[str, Any]:
    return {
        "id": "host-1", "at": 200.0, "state": "running", "batch": 30, "batches_total": 120, "samples": 3840,
        "samples_per_s": 6000.0, "loss": 0.5, "auc": None,
    } | changes  # fmt: skip


def snapshot(**changes: Any) -> Snapshot:
    return Snapshot(**({"at": 200.0, "map": cluster(group()), "nodes": [node_record()]} | changes))
