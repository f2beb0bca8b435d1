"""A delta stream whose connection ends while others have their turn: what was not sent does not count as sent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

import ecstore
from ecstore.node import streams
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.streams import DeltaStreams
from ecstore.tables import TableSpec

SPEC = TableSpec("t", 4, ecstore.SGD(0.1), ecstore.Zeros(), 1, "rs(2,1)")


class Connection:
    """Like a real one, it takes what is sent after its end, and drops it."""

    def __init__(self) -> None:
        self.closed = False
        self.write_buffered = 0
        self.frames: list[tuple[int, int]] = []  #: (shard, seq)

    def send(self, kind: str, meta: dict[str, Any], bins: list[Any]) -> None:
        if not self.closed:
            self.frames += meta["told"]


def shard_with_frames(index: int) -> DataShard:
    shard = DataShard(0, index)
    shard.open_table(1, SPEC)
    shard.add_sink(SinkKey(2, "peer", 1), 0)
    for number in range(1, 4):
        shard.push(1, np.array([number], np.uint64), np.ones((1, 4), np.float32), b"c", number)
    return shard


async def test_what_a_closed_connection_took_is_sent_again(monkeypatch):
    monkeypatch.setattr(streams, "TURN_BYTES", 0)  # each message ends a turn
    monkeypatch.setattr(streams.limits, "MAX_FRAMES_PER_MESSAGE", 1)
    monkeypatch.setattr(
        streams, "pack_deltas", lambda message: ({"told": [(each.src, each.frame.seq) for each in message]}, [])
    )
    first, second = Connection(), Connection()
    peer = SimpleNamespace(name="peer", incarnation=1, connection=first)
    shards = [shard_with_frames(index) for index in range(2)]
    async with asyncio.TaskGroup() as tasks:
        runtime = SimpleNamespace(
            closing=False, data={number: SimpleNamespace(shard=shard) for number, shard in enumerate(shards)},
            peers=SimpleNamespace(find=lambda name, incarnation: peer),
            spawn=lambda work, name: tasks.create_task(work), event=lambda *_: None,
            loop=asyncio.get_running_loop(), clock=lambda: 0.0,
        )  # fmt: skip
        outgoing: Any = DeltaStreams(runtime)  # type: ignore[arg-type]
        for shard in shards:
            outgoing.applied(shard)
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < len(first.frames) < 6
        first.closed, peer.connection = True, second  # cut in the middle, and there again at once
        outgoing.connected(peer)
        for _ in range(50):
            await asyncio.sleep(0)
        outgoing.forget(set())
    assert second.frames == [(index, seq) for index in range(2) for seq in (1, 2, 3)]
