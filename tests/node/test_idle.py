"""A node whose traffic has ended gives back what it kept for it: old deltas, buffers, free pages."""

from __future__ import annotations

import asyncio

import numpy as np

from ecstore import buffers, heap, limits
from ecstore.node import service
from ecstore.optim import SGD
from tests.in_process import connect, in_process, until


async def test_logs_and_buffers_are_given_back(monkeypatch):
    idle: list[str] = []

    class Seen(service._Life):
        def __init__(self, config, listen, faults, _on_idle) -> None:
            super().__init__(config, listen, faults, lambda: idle.append(config.name))

    monkeypatch.setattr(service, "_Life", Seen)
    monkeypatch.setattr(limits, "MAX_RECENT_S", 0.3)
    async with in_process(3, monkeypatch) as cluster, await connect(cluster) as store:
        table = await store.create_table("t", dim=64, optimizer=SGD(0.1), code="rs(2,1)")
        keys = np.arange(6_000, dtype=np.uint64)
        await table.push(keys, np.ones((keys.size, 64), np.float32))

        def log() -> int:
            return sum(
                len(source.log)
                for runtime in cluster.runtimes.values()
                for sink in runtime.sinks.values()
                for source in sink.shard.sources.values()
            )

        assert log() > 0
        for _ in range(2):  # it says that all have what came before
            await table.push(keys, np.ones((keys.size, 64), np.float32))
        sources = sum(
            len(sink.shard.sources) for runtime in cluster.runtimes.values() for sink in runtime.sinks.values()
        )
        await until(lambda: log() <= sources, "logs without what nobody needs")
        await until(lambda: sorted(idle) == ["n1", "n2", "n3"], "idle nodes")
        await asyncio.sleep(0.6)
        assert len(idle) == 3  # once
        assert buffers._own_pool().count <= sources  # in the last deltas
        np.testing.assert_allclose(await table.pull(keys[:3]), (await table.pull(keys))[:3])


def test_the_heap_can_be_told_anywhere():
    heap.give_back()
