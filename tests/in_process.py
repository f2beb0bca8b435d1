"""Whole nodes in the event loop of a test, on real sockets, so that a test can reach into the memory of each.

Everything a node does it does as in its own process; only its memory is at hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import ecstore.aio
from ecstore.coordination import EmbeddedCoordination
from ecstore.coordination.base import Coordination
from ecstore.coordination.service import CoordinationService
from ecstore.node import scrub_api, service
from ecstore.node.config import NodeConfig
from ecstore.node.runtime import Runtime
from ecstore.node.scrubber import Scrubber
from ecstore.node.service import Node
from ecstore.transport import Hello

#: Hang guard of every wait.
PATIENCE_S = 60.0


class InProcess:
    """A running cluster. `runtimes`: node -> shared state of its present life."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = {"heartbeat_s": 1.0, "suspect_after_s": 10.0, "lease_s": 10.0} | settings
        self.runtimes: dict[str, Runtime] = {}
        self.addresses: dict[str, str] = {}
        self.coordination = ""
        self._scrubbers: dict[str, Scrubber] = {}
        self._nodes: dict[str, tuple[Node, asyncio.Task[None]]] = {}

    async def start(self, name: str) -> None:
        config = NodeConfig(name=name, listen="127.0.0.1:0", coordination=self.coordination, **self._settings)

        async def reach(hello: Callable[[], Hello]) -> Coordination:
            return EmbeddedCoordination(self.coordination, hello)

        node, ready = Node(config, reach), asyncio.Event()
        self._nodes[name] = (node, asyncio.create_task(node.run(lambda _address: ready.set()), name=f"node {name}"))
        async with asyncio.timeout(PATIENCE_S):
            await ready.wait()
        self.addresses[name] = node.address

    async def stop(self, name: str) -> None:
        """The node ends as by SIGTERM: its sockets close, its memory is gone."""
        node, task = self._nodes.pop(name)
        node.stop()
        await task
        del self.runtimes[name], self._scrubbers[name]

    async def close(self) -> None:
        for name in list(self._nodes):
            await self.stop(name)

    @property
    def address(self) -> str:
        return ",".join(self.addresses[name] for name in self._nodes)

    # -- memory ---------------------------------------------------------------------------------------

    def memory(self, gid: int, index: int, table_id: int) -> np.ndarray:
        """The rows of a shard where they lie, at its owner: uint8 (slots, row_bytes), writable."""
        runtime = next(iter(self.runtimes.values()))
        group = runtime.map.groups[gid]
        owner = self.runtimes[group.shards[index].owner]
        if index < runtime.map.code(group).k:
            shard = owner.data[gid, index].shard
            assert shard is not None
            return shard.tables[table_id].raw_rows
        return owner.sinks[gid, index].shard.slabs[table_id].rows

    def used(self, gid: int, index: int, table_id: int) -> int:
        """Slots in use of a data shard."""
        group = next(iter(self.runtimes.values())).map.groups[gid]
        shard = self.runtimes[group.shards[index].owner].data[gid, index].shard
        return shard.tables[table_id].used if shard is not None and table_id in shard.tables else 0

    def scrubber(self, name: str) -> Scrubber:
        return self._scrubbers[name]

    def scrubbers(self) -> list[Scrubber]:
        return list(self._scrubbers.values())

    def events(self, prefix: str) -> list[dict]:
        """Events of all nodes whose kind begins with `prefix`."""
        found = [event for runtime in self.runtimes.values() for event in runtime.events]
        return [event for event in found if event["kind"].startswith(prefix)]


@asynccontextmanager
async def in_process(count: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[InProcess]:
    """`count` nodes n1, n2, ... and a coordination service. `settings`: of `NodeConfig`."""
    cluster = InProcess(settings)

    class Seen(Runtime):
        def __init__(self, config: NodeConfig, *rest: object) -> None:
            super().__init__(config, *rest)  # type: ignore[arg-type]
            cluster.runtimes[config.name] = self

    class SeenScrubber(Scrubber):
        def __init__(self, runtime: Runtime) -> None:
            super().__init__(runtime)
            cluster._scrubbers[runtime.name] = self

    monkeypatch.setattr(service, "Runtime", Seen)
    monkeypatch.setattr(scrub_api, "Scrubber", SeenScrubber)
    coordination = CoordinationService("in-process", seed=7)
    await coordination.start()
    cluster.coordination = coordination.address
    try:
        for number in range(count):
            await cluster.start(f"n{number + 1}")
        yield cluster
    finally:
        await cluster.close()
        await coordination.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Return once `condition()` is true; AssertionError when it does not become so."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")


async def connect(cluster: InProcess) -> ecstore.aio.Store:
    return await ecstore.aio.connect(cluster.address, timeout=PATIENCE_S)
