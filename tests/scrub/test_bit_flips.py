"""Flipped bits in the memory of running nodes: found, attributed, repaired, or reported and left alone.

Fails when a shard is named wrongly, a repair is counted that did not happen, a delta and a repair undo each other, or a
row is overwritten although nobody can say what is right.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest

import ecstore
import ecstore.aio
from ecstore.cluster.map import parse_code
from ecstore.verify import verify_async
from tests.in_process import InProcess, connect, in_process

pytestmark = [pytest.mark.cluster]

KEYS, DIM = 5_000, 12


@dataclass(frozen=True)
class Flip:
    gid: int
    shard: int
    slot: int
    byte: int
    bit: int


async def filled(store: ecstore.aio.Store, code: str, optimizer: ecstore.Optimizer) -> ecstore.aio.Table:
    table = await store.create_table("t", dim=DIM, optimizer=optimizer, code=code, seed=3)
    rng = np.random.default_rng(1)
    await table.push(np.arange(KEYS), rng.normal(size=(KEYS, DIM)).astype(np.float32))
    return table


def random_flips(cluster: InProcess, store: ecstore.aio.Store, code: str, count: int, seed: int) -> list[Flip]:
    """In distinct stripes, in every shard index, on every node."""
    rng, groups = np.random.default_rng(seed), store.cluster_map.groups_of(code)
    k, width, table = parse_code(code).k, parse_code(code).width, store.cluster_map.tables["t"]
    places: set[tuple[int, int]] = set()
    flips = []
    while len(flips) < count:
        gid, shard = groups[len(flips) % len(groups)].gid, int(rng.integers(width))
        used = [cluster.used(gid, index, table.id) for index in range(k)]
        slot = int(rng.integers(used[shard] if shard < k else max(used)))
        if (gid, slot) not in places:
            places.add((gid, slot))
            flips.append(Flip(gid, shard, slot, int(rng.integers(table.spec.row_bytes)), int(rng.integers(8))))
    return flips


def flip_all(cluster: InProcess, table_id: int, flips: list[Flip]) -> None:
    for flip in flips:
        cluster.memory(flip.gid, flip.shard, table_id)[flip.slot, flip.byte] ^= 1 << flip.bit


def keys_at(cluster: InProcess, store: ecstore.aio.Store, flips: list[Flip], code: str) -> np.ndarray:
    """Keys whose own rows were hit (a flip of a parity row hits no key)."""
    k, table = parse_code(code).k, store.cluster_map.tables["t"].id
    hit = []
    for flip in flips:
        if flip.shard < k:
            owner = cluster.runtimes[store.cluster_map.groups[flip.gid].shards[flip.shard].owner]
            shard = owner.data[flip.gid, flip.shard].shard
            assert shard is not None
            hit.append(shard.tables[table].keylist.keys[flip.slot])
    return np.array(hit, np.uint64)


async def push_on(table: ecstore.aio.Table, model: ecstore.aio.Table, keys: np.ndarray, stop: asyncio.Event) -> int:
    """Push the same batches to a table and to its model until told to stop; how many."""
    rng, batches = np.random.default_rng(7), 0
    while not stop.is_set() or batches < 5:
        some = rng.choice(keys, 300, replace=False)
        grads = rng.normal(size=(some.size, DIM)).astype(np.float32)
        await table.push(some, grads)
        await model.push(some, grads)
        batches += 1
        await asyncio.sleep(0)
    return batches


async def same_rows(table: ecstore.aio.Table, model: ecstore.aio.Table) -> bool:
    (keys, rows), (others, wanted) = await table.export(state=True), await model.export(state=True)
    return np.array_equal(keys, others) and np.array_equal(rows, wanted)


async def test_a_hundred_flips_are_found_attributed_and_repaired_while_pushes_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that were hit are not pushed to before they are repaired; every other row of their stripes is. The model
    is a second table without parity, which gets the same pushes and no flips.
    """
    code = "rs(4,2)"
    async with in_process(7, monkeypatch) as cluster, await connect(cluster) as store:
        table = await filled(store, code, ecstore.Adagrad(lr=0.1))
        model = await store.create_table("model", dim=DIM, optimizer=ecstore.Adagrad(lr=0.1), code="none", seed=3)
        rng = np.random.default_rng(1)
        await model.push(np.arange(KEYS), rng.normal(size=(KEYS, DIM)).astype(np.float32))
        flips = random_flips(cluster, store, code, 100, seed=11)
        groups = store.cluster_map.groups
        assert len({groups[flip.gid].shards[flip.shard].owner for flip in flips}) == 7
        assert {flip.shard for flip in flips} == set(range(6))

        stop, untouched = asyncio.Event(), np.setdiff1d(np.arange(KEYS), keys_at(cluster, store, flips, code))
        pushing = asyncio.create_task(push_on(table, model, untouched, stop))
        await asyncio.sleep(0.05)
        flip_all(cluster, store.cluster_map.tables["t"].id, flips)
        report = await store.scrub(rate_mib_s=8.0)
        stop.set()
        assert await pushing >= 5

        assert report.ok
        assert (report.corrupt, report.repaired, report.not_attributable, report.unrepaired) == (100, 100, 0, 0)
        named = {(entry["group"], entry["slot"]): entry for entry in report.findings}
        assert len(named) == 100
        for flip in flips:
            entry = named[flip.gid, flip.slot]
            assert (entry["shard"], entry["table"], entry["outcome"]) == (flip.shard, "t", "repaired")
            assert entry["node"] == groups[flip.gid].shards[flip.shard].owner
            assert entry["bits"] == 1
        assert report.without_parity == [group.gid for group in store.cluster_map.groups_of("none")]
        assert report.key_mismatches == 0
        assert report.key_blocks > 0
        assert sum(runtime.counters.get("rows_repaired", 0) for runtime in cluster.runtimes.values()) == 100
        assert len(cluster.events("scrub_repaired")) == 100

        assert (await verify_async(cluster.address)).ok
        assert await same_rows(table, model)
        again = await store.scrub()
        assert again.ok
        assert again.corrupt == 0


async def test_one_parity_shard_finds_all_flips_and_overwrites_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "rs(4,1)"
    async with in_process(5, monkeypatch) as cluster, await connect(cluster) as store:
        table = await filled(store, code, ecstore.Adam(lr=0.01))
        number = store.cluster_map.tables["t"].id
        flips = random_flips(cluster, store, code, 100, seed=5)
        flip_all(cluster, number, flips)
        places = [(group.gid, index) for group in store.cluster_map.groups_of(code) for index in range(5)]
        rows = KEYS  # more than any shard uses
        before = {place: cluster.memory(*place, number)[:rows].copy() for place in places}
        pulled = await table.pull(np.arange(KEYS))

        report = await store.scrub(rate_mib_s=1000.0)
        assert not report.ok
        assert (report.corrupt, report.not_attributable, report.repaired, report.unrepaired) == (100, 100, 0, 0)
        assert {(e["group"], e["slot"]) for e in report.findings} == {(flip.gid, flip.slot) for flip in flips}
        assert all(entry["shard"] is None and entry["outcome"] == "not_attributable" for entry in report.findings)
        for place in places:
            assert np.array_equal(cluster.memory(*place, number)[:rows], before[place])
        assert np.array_equal(await table.pull(np.arange(KEYS)), pulled)
        assert not any(runtime.counters.get("rows_repaired") for runtime in cluster.runtimes.values())
