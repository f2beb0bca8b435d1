"""On-demand decodes and the sweep share jobs: one giving up must not take the other along."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ecstore.errors import NotOwnerError
from ecstore.node.config import NodeConfig
from ecstore.node.data_shard import DataShard
from ecstore.node.decoder import Decoder
from ecstore.node.durations import Durations
from ecstore.node.pacing import Pacer
from ecstore.node.recovery import Recovery
from ecstore.optim import SGD
from ecstore.tables import TableSpec, Zeros

TABLE = 3
SPEC = TableSpec(name="t", dim=2, optimizer=SGD(lr=1.0), init=Zeros(), seed=1, code="rs(2,1)")


class SlowDecoder(Decoder):
    """Decodes to rows of 7s, once `go` is set."""

    def __init__(self, shard: DataShard, **settings: Any) -> None:
        config = NodeConfig(name="b", listen="127.0.0.1:1", coordination="127.0.0.1:2", **settings)

        async def map_change(timeout: float) -> None:
            await asyncio.sleep(0)

        runtime = SimpleNamespace(
            loop=asyncio.get_running_loop(), group=lambda gid: SimpleNamespace(gid=gid, epoch=1),
            same_group_epoch=lambda gid, epoch: None, count=lambda name: None, map_change=map_change, wall=lambda: 1.0,
            config=config, clock=lambda: 1.0, durations=Durations(),
        )  # fmt: skip
        recovery = Recovery(0, 0, "data", "a", "b", 0.0, 1)
        super().__init__(runtime, shard, recovery, Pacer(1e9))  # type: ignore[arg-type]
        self.go = asyncio.Event()
        self.attempts: list[int] = []

    async def _attempt(self, group: object, table_id: int, slots: np.ndarray) -> np.ndarray:
        self.attempts.append(slots.size)
        await self.go.wait()
        return np.full((slots.size, SPEC.row_bytes), 7, np.uint8)


def lost_shard(rows: int = 10) -> DataShard:
    shard = DataShard(0, 0, max_rows=1024)
    shard.open_table(TABLE, SPEC).adopt(np.arange(rows, dtype=np.uint64), np.ones(rows, np.uint8))
    shard.undecoded[TABLE] = np.ones(rows, np.bool_)
    return shard


async def test_sweep_survives_a_reader_that_gives_up() -> None:
    shard = lost_shard()
    decoder = SlowDecoder(shard)
    reader = asyncio.create_task(decoder.ensure(TABLE, np.arange(10)))
    await asyncio.sleep(0)
    sweep = asyncio.create_task(decoder.sweep())
    for _ in range(5):
        await asyncio.sleep(0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    decoder.go.set()
    await asyncio.wait_for(sweep, 5)
    assert shard.rows_undecoded() == 0
    assert (shard.tables[TABLE].read(np.arange(10)) == 7).all()
    assert len(decoder.attempts) == 2


async def test_rows_asked_for_twice_are_decoded_once() -> None:
    shard = lost_shard()
    decoder = SlowDecoder(shard)
    first = asyncio.create_task(decoder.ensure(TABLE, np.arange(6)))
    await asyncio.sleep(0)
    second = asyncio.create_task(decoder.ensure(TABLE, np.arange(4, 9)))
    await asyncio.sleep(0.01)
    decoder.go.set()
    await asyncio.gather(first, second)
    assert decoder.attempts == [6, 3]
    assert shard.rows_undecoded() == 1
    assert decoder._recovery.rows_on_demand == 9


async def test_wide_decode_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from ecstore import limits

    monkeypatch.setattr(limits, "MAX_DECODE_BYTES", 4 * SPEC.row_bytes)
    decoder = SlowDecoder(lost_shard())
    decoder.go.set()
    await decoder.ensure(TABLE, np.arange(10))
    assert decoder.attempts == [4, 4, 2]


def test_delete_beyond_one_delta_is_refused_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from ecstore import limits
    from ecstore.errors import CapacityError

    shard = DataShard(0, 0, max_rows=1024)
    shard.open_table(TABLE, SPEC)
    keys = np.arange(8, dtype=np.uint64)
    shard.push(TABLE, keys, np.ones((8, 2), np.float32), b"c", 1)
    monkeypatch.setattr(limits, "MAX_DELTA_BYTES", 7 * SPEC.row_bytes)
    with pytest.raises(CapacityError):
        shard.check_room(TABLE, keys, growing=False)
    shard.check_room(TABLE, np.arange(4, 12, dtype=np.uint64), growing=False)  # only four of them have rows
    assert shard.seq == 1


async def test_without_decoding_on_demand_a_reader_waits_for_the_sweep() -> None:
    shard = lost_shard()
    decoder = SlowDecoder(shard, decode_only="sweep", decode_block_rows=4)
    decoder.go.set()
    reader = asyncio.create_task(decoder.ensure(TABLE, np.arange(5, 10)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert decoder.attempts == []
    await decoder.sweep()
    await reader
    assert decoder.attempts == [4, 4, 2]
    assert shard.rows_undecoded() == 0


async def test_without_a_sweep_only_what_is_asked_for_is_decoded() -> None:
    shard = lost_shard()
    decoder = SlowDecoder(shard, decode_only="on-demand")
    decoder.go.set()
    sweep = asyncio.create_task(decoder.sweep())
    await decoder.ensure(TABLE, np.arange(3))
    await asyncio.sleep(0.01)
    assert (decoder.attempts, shard.rows_undecoded()) == ([3], 7)
    await decoder.ensure(TABLE, np.arange(3, 10))
    await sweep  # nothing is left: the recovery is over


async def test_a_reader_that_waits_for_the_sweep_learns_that_the_shard_has_left() -> None:
    decoder = SlowDecoder(lost_shard(), decode_only="sweep")
    reader = asyncio.create_task(decoder.ensure(TABLE, np.arange(5)))
    await asyncio.sleep(0.01)
    decoder.close(NotOwnerError("gone"))
    with pytest.raises(NotOwnerError):
        await reader
