"""A pull that comes while its shard is being taken over waits for it: the client need not ask again and again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ecstore.errors import DataLossError
from ecstore.node.client_api import ClientApi, _Section
from ecstore.node.data_shard import DataShard
from ecstore.node.runtime import OwnedData

KEY = (3, 1)


class Runtime(SimpleNamespace):
    """Group 3, shard 1 is being taken over here."""

    def __init__(self) -> None:
        super().__init__(data={KEY: OwnedData(KEY, 1)}, lost=False, changed=asyncio.Event())

    def group(self, gid: int) -> None:
        if self.lost:
            raise DataLossError(groups=[gid])

    async def map_change(self, timeout: float) -> None:
        await self.changed.wait()
        self.changed.clear()

    async def change(self) -> None:
        self.changed.set()
        for _ in range(3):
            await asyncio.sleep(0)


async def waiting_pull() -> tuple[Runtime, ClientApi, asyncio.Task[None]]:
    runtime = Runtime()
    api = ClientApi(runtime)  # type: ignore[arg-type]
    section = _Section(*KEY, 1, None)  # type: ignore[arg-type]
    assert api._must_wait(section)
    pull = asyncio.create_task(api._taken_over(section))
    await runtime.change()
    assert not pull.done()
    return runtime, api, pull


async def test_until_the_shard_serves() -> None:
    runtime, api, pull = await waiting_pull()
    runtime.data[KEY].shard = DataShard(*KEY)
    await runtime.change()
    await pull
    assert not api._must_wait(_Section(*KEY, 1, None))  # type: ignore[arg-type]


async def test_until_the_shard_is_another_nodes() -> None:
    runtime, api, pull = await waiting_pull()
    del runtime.data[KEY]
    await runtime.change()
    await pull
    assert not api._must_wait(_Section(*KEY, 1, None))  # type: ignore[arg-type]


async def test_until_the_group_is_lost() -> None:
    runtime, _api, pull = await waiting_pull()
    runtime.lost = True
    await runtime.change()
    with pytest.raises(DataLossError):
        await pull
