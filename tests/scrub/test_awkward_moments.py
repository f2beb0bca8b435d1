"""Scrubs among deletes, hot rows, moves, deaths and each other, and what must not be repaired."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import ecstore
import ecstore.aio
from ecstore.cluster.map import parse_code
from ecstore.errors import CapacityError, NotReadyError
from ecstore.verify import verify_async
from tests.in_process import InProcess, connect, in_process, until

pytestmark = [pytest.mark.cluster]

KEYS, DIM = 2_000, 8


async def filled(store: ecstore.aio.Store, code: str) -> ecstore.aio.Table:
    table = await store.create_table("t", dim=DIM, optimizer=ecstore.Adagrad(lr=0.1), code=code, seed=3)
    rng = np.random.default_rng(1)
    await table.push(np.arange(KEYS), rng.normal(size=(KEYS, DIM)).astype(np.float32))
    return table


def key_of(cluster: InProcess, store: ecstore.aio.Store, gid: int, shard: int, slot: int) -> int:
    owner = cluster.runtimes[store.cluster_map.groups[gid].shards[shard].owner]
    held = owner.data[gid, shard].shard
    assert held is not None
    return int(held.tables[store.cluster_map.tables["t"].id].keylist.keys[slot])


async def test_what_the_code_says_is_done_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one cluster with rs(4,2): two wrong shards of a stripe, a row that was deleted, one that is pushed to all the
    time, and a wrong key list.
    """
    async with in_process(6, monkeypatch) as cluster, await connect(cluster) as store:
        table, number = await filled(store, "rs(4,2)"), store.cluster_map.tables["t"].id
        gid = store.cluster_map.groups_of("rs(4,2)")[0].gid

        # Two shards of one stripe: nothing is written. Parity 0 and a data shard, at different bytes.
        cluster.memory(gid, 0, number)[3, 5] ^= 8
        cluster.memory(gid, 4, number)[3, 9] ^= 8
        before = [cluster.memory(gid, index, number)[3].copy() for index in range(6)]
        report = await store.scrub(groups=[gid])
        assert (report.corrupt, report.not_attributable, report.repaired) == (1, 1, 0)
        assert not report.ok
        for index in range(6):
            assert np.array_equal(cluster.memory(gid, index, number)[3], before[index])
        cluster.memory(gid, 0, number)[3, 5] ^= 8
        report = await store.scrub(groups=[gid])
        assert (report.corrupt, report.repaired) == (1, 1), "one of the two is gone: the other is told, and put right"

        # A row is deleted after the flip: its slot is zero, and what parity has kept of it goes.
        cluster.memory(gid, 1, number)[4, 2] ^= 32
        await table.delete([key_of(cluster, store, gid, 1, 4)])
        assert not (await verify_async(cluster.address)).ok
        report = await store.scrub(groups=[gid])
        assert (report.corrupt, report.repaired, report.not_attributable) == (1, 1, 0)
        assert not cluster.memory(gid, 1, number)[4].any()
        assert (await verify_async(cluster.address)).ok

        # A row is flipped and pushed to, before and during the scrub: the stripe agrees again.
        cluster.memory(gid, 2, number)[7, 1] ^= 1
        hot, stop = key_of(cluster, store, gid, 2, 7), asyncio.Event()

        async def push_on() -> None:
            while not stop.is_set():
                await table.push([hot], np.full((1, DIM), 0.01, np.float32))

        pushing = asyncio.create_task(push_on())
        await asyncio.sleep(0.05)
        report = await store.scrub(groups=[gid])
        stop.set()
        await pushing
        if not report.repaired:  # it changed between every look and its repair: given up, and said
            assert (report.corrupt, report.unrepaired, report.ok) == (1, 1, False)
            report = await store.scrub(groups=[gid])
        assert (report.corrupt, report.repaired) == (1, 1)
        assert report.findings[0]["shard"] == 2
        assert (await verify_async(cluster.address)).ok

        # A wrong key in the list of a parity shard, then in the owner's own.
        parity = cluster.runtimes[store.cluster_map.groups[gid].shards[5].owner].sinks[gid, 5].shard
        parity.sources[3].keys[number].keys[2] ^= np.uint64(1 << 40)
        report = await store.scrub(groups=[gid])
        assert (report.key_mismatches, report.ok) == (1, False)
        (finding,) = report.findings
        assert (finding["shard"], finding["outcome"], finding["slot"]) == (5, "keys_differ", 0)
        assert finding["node"] == store.cluster_map.groups[gid].shards[5].owner
        parity.sources[3].keys[number].keys[2] ^= np.uint64(1 << 40)
        assert (await store.scrub(groups=[gid])).ok


async def test_copies_are_repaired_by_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """replicate(3): any one wrong copy. replicate(2): nobody can say which of the two is right."""
    async with in_process(3, monkeypatch) as cluster, await connect(cluster) as store:
        for code, outcome in (("replicate(3)", "repaired"), ("replicate(2)", "not_attributable")):
            await filled(store, code)
            number, group = store.cluster_map.tables["t"].id, store.cluster_map.groups_of(code)[0]
            right = []
            for index in range(parse_code(code).width):
                rows = cluster.memory(group.gid, index, number)
                right.append(rows[index].copy())
                rows[index, 1] ^= 64
            report = await store.scrub(table="t")
            assert report.corrupt == len(right)
            assert [(e["slot"], e["outcome"]) for e in report.findings] == [(i, outcome) for i in range(len(right))]
            for index, row in enumerate(right):
                same = np.array_equal(cluster.memory(group.gid, index, number)[index], row)
                assert same == (outcome == "repaired")
            await store.drop_table("t")


async def test_nothing_is_repaired_while_a_shard_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is being made would take the wrong row along: first the move, then the scrub."""
    async with in_process(6, monkeypatch, decode_bytes_per_s=60_000.0) as cluster, await connect(cluster) as store:
        await filled(store, "rs(3,2)")
        number = store.cluster_map.tables["t"].id
        await cluster.start("n7")
        some = cluster.runtimes["n1"]
        moving = next(g for g in some.map.groups if any(s.joining is not None for s in g.shards))
        still = next(s.index for s in moving.shards[:3] if s.joining is None)
        rows = cluster.memory(moving.gid, still, number)
        right = rows[0].copy()
        rows[0, 0] ^= 1
        owner = cluster.runtimes[moving.shards[still].owner]
        meta = {"group": moving.gid, "shard": still, "table": number, "group_epoch": moving.epoch, "row_bytes": 64}
        error = np.zeros((1, 64), np.uint8)
        error[0, 0] = 1
        bins = [np.zeros(1, np.uint32), rows[:1].copy(), error]
        with pytest.raises(NotReadyError, match="moves"):
            await owner.peers.get(owner.name).request("shard.repair", meta, bins)
        assert rows[0, 0] == right[0] ^ 1
        rows[0, 0] ^= 1
        report = await store.scrub(patience_s=60.0)
        assert report.ok, report.describe()


async def test_a_node_takes_one_scrub_at_a_time_and_stops_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(4, monkeypatch) as cluster, await connect(cluster) as store:
        await filled(store, "rs(2,2)")
        slow = asyncio.create_task(store.scrub(rate_mib_s=0.001))
        await until(lambda: any(s.statistics()["running"] for s in cluster.scrubbers()), "a node to scrub")
        busy = next(name for name in cluster.runtimes if cluster.scrubber(name).statistics()["running"])
        order = {"run": "another", "groups": [], "table": None, "rate_mib_s": 1.0, "repair": True, "epoch": 0}
        with pytest.raises(CapacityError, match="busy with scrub"):
            await store._session.ask(busy, "scrub.start", order, timeout=5.0)
        waiting = asyncio.create_task(store.scrub(rate_mib_s=100.0))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        report = await waiting
        assert report.ok
        assert report.groups_done == report.groups_total > 0
        assert not any(scrubber.statistics()["running"] for scrubber in cluster.scrubbers())


async def test_groups_of_a_node_that_goes_are_scrubbed_by_its_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(6, monkeypatch) as cluster, await connect(cluster) as store:
        await filled(store, "rs(3,2)")
        scrubbing = asyncio.create_task(store.scrub(rate_mib_s=0.1))
        await until(lambda: cluster.scrubber("n2").statistics()["stripes"], "n2 to have scrubbed a block")
        await cluster.stop("n2")
        report = await scrubbing
        assert report.ok, report.describe()
        assert report.groups_done == report.groups_total
        assert (await verify_async(cluster.address)).ok
