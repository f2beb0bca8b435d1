"""`row.read`, `throttle.set` and `train.report` at a node: what they take and refuse, and that no row comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import ecstore
from ecstore import limits
from ecstore.errors import FrameError, InputError, KeyRangeError, UnknownTableError
from tests.in_process import InProcess, connect, in_process

KEYS = np.arange(200, dtype=np.uint64)


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[InProcess, ecstore.aio.Store]]:
    async with in_process(1, monkeypatch) as cluster, await connect(cluster) as store:
        table = await store.create_table("t", dim=4, optimizer=ecstore.Adagrad(lr=0.1), code="none", seed=1)
        await table.push(KEYS, np.ones((KEYS.size, 4), np.float32))
        yield cluster, store


async def ask(store: ecstore.aio.Store, kind: str, meta: dict[str, Any], bins: Any = ()) -> Any:
    return await store._session.ask("n1", kind, meta, bins, timeout=30.0)


def keys_of(store: ecstore.aio.Store, gid: int, wanted: np.ndarray = KEYS) -> np.ndarray:
    """Those of `wanted` that belong to a group (of code none: to its only shard)."""
    parts = store._parts(store._entry("t"), wanted, np.empty((wanted.size, 4), np.float32))
    return np.concatenate([part.keys for part in parts if part.gid == gid])


async def test_rows_of_several_keys_and_the_seq_of_that_instant(cluster: Any) -> None:
    nodes, store = cluster
    runtime = nodes.runtimes["n1"]
    mine = keys_of(store, 0)
    asked = np.concatenate([mine[:3], keys_of(store, 0, np.arange(10**6, 10**6 + 100, dtype=np.uint64))[:2], mine[:1]])
    answer = await ask(store, "row.read", {"group": 0, "shard": 0, "table": 1}, [asked])
    slots = answer.bin(0, np.int64)
    assert slots.tolist()[3:5] == [-1, -1]
    assert slots[5] == slots[0]
    rows = answer.bin(1, np.uint8, (4, 32))
    shard = runtime.data[0, 0].shard
    assert rows.tobytes() == shard.tables[1].read(slots[slots >= 0]).tobytes()
    assert (answer.meta["seq"], answer.meta["row_bytes"], answer.meta["decoded"]) == (shard.seq, 32, False)


async def test_looking_opens_no_table_and_makes_no_row(cluster: Any) -> None:
    nodes, store = cluster
    table = await store.create_table("empty", dim=2, optimizer=ecstore.SGD(lr=0.1), code="none")
    assert await table.look(7) is None
    assert all(2 not in owned.shard.tables for owned in nodes.runtimes["n1"].data.values())
    before = await (await store.table("t")).count()
    assert await (await store.table("t")).look(10**9) is None
    assert await (await store.table("t")).count() == before == KEYS.size


async def test_what_cannot_be_looked_at_is_refused(cluster: Any) -> None:
    _nodes, store = cluster
    where = {"group": 0, "shard": 0, "table": 1}
    mine, other = keys_of(store, 0), keys_of(store, 1)
    for count in (0, limits.MAX_KEYS_PER_LOOK + 1):
        with pytest.raises(FrameError, match="keys may be looked at"):
            await ask(store, "row.read", where, [np.zeros(count, np.uint64)])
    with pytest.raises(KeyRangeError, match="do not belong"):
        await ask(store, "row.read", where, [other[:1]])
    await store.drop_table("t")
    with pytest.raises(UnknownTableError):
        await ask(store, "row.read", where, [mine[:1]])


async def test_the_throttle_changes_the_pacer_of_the_node_and_tells_so(cluster: Any) -> None:
    nodes, store = cluster
    own = nodes.runtimes["n1"].config.decode_bytes_per_s
    told = await store.ask_node(nodes.address, "throttle.set", {"profile": "balanced", "revision": 3})
    assert told == {"profile": "balanced", "rate_bytes_per_s": None, "revision": 3, "in_force_bytes_per_s": 4 * own}
    assert (await store.status())["nodes"]["n1"]["statistics"]["throttle"] == told
    old = await store.ask_node(nodes.address, "throttle.set", {"profile": "recovery_first", "revision": 2})
    assert old == told
    assert [event["kind"] for event in nodes.events("throttle")] == ["throttle"]
    for wrong in ({"profile": "balanced"}, {"profile": "none", "revision": 9}, {}):
        with pytest.raises(InputError):
            await store.ask_node(nodes.address, "throttle.set", wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"name": "x", "figures": {}}, {"name": "x", "at": 1.0}, {"name": "x", "at": float("nan"), "figures": {}},
        {"name": "x", "at": 1e300, "figures": {}}, {"name": "", "at": 1.0, "figures": {}},
        {"name": "x", "at": 1.0, "figures": {"loss": "low"}}, {"name": "x", "at": 1.0, "figures": [1]},
    ],
)  # fmt: skip
async def test_a_wrong_report_is_refused_and_not_kept(cluster: Any, wrong: dict[str, Any]) -> None:
    nodes, store = cluster
    with pytest.raises(InputError):
        await store.ask_node(nodes.address, "train.report", wrong)
    assert (await store.status())["nodes"]["n1"]["statistics"]["trainers"] == []
