"""What messages of nodes may do to shards when they are wrong: nothing, with a typed error."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ecstore import limits
from ecstore.errors import CapacityError, FrameError, KeyRangeError, ShapeError
from ecstore.node.config import NodeConfig
from ecstore.node.deltalog import DeltaFrame
from ecstore.node.messages import unpack_acks, unpack_requests, unpack_tables
from ecstore.node.runtime import Runtime
from ecstore.node.sink_shard import Applied, SinkShard, TableSnapshot
from ecstore.wire import Frame

MIB = 1 << 20


def delta(seq: int, *, slots=(0,), new=(), freed=(), width: int = 16) -> DeltaFrame:
    rows = np.full((len(slots), width), 7, np.uint8)
    keys = np.arange(len(new), dtype=np.uint64)
    pick = [np.array(part, np.uint32) for part in (slots, new, freed)]
    return DeltaFrame(seq, 1, pick[0], rows, pick[1], keys, pick[2], b"c", seq)


def test_a_delta_that_is_refused_has_touched_nothing():
    """It comes again, and what it had changed would be changed twice."""
    sink = SinkShard(0, 2, {0: 3}, building=False)
    assert sink.apply(0, delta(1, new=(0,))) is Applied.APPLIED
    before = sink.slabs[1].rows[:4].copy()
    for wrong, error in [
        (delta(2, freed=(9,)), FrameError),
        (delta(2, new=(2**32 - 1,)), KeyRangeError),
        (delta(2, slots=(2**32 - 1,)), KeyRangeError),
        (delta(2, width=24), ShapeError),
    ]:
        with pytest.raises(error):
            sink.apply(0, wrong)
        assert np.array_equal(sink.slabs[1].rows[:4], before)
        assert (sink.sources[0].applied, sink.sources[0].keys[1].used) == (1, 1)
    assert sink.apply(0, delta(2, freed=(0,))) is Applied.APPLIED


def test_rows_are_read_in_their_own_width_only():
    sink = SinkShard(0, 2, {0: 3}, building=False)
    sink.apply(0, delta(1, new=(0,)))
    assert sink.rows_at(1, np.arange(2), 16, {0: 1}).shape == (2, 16)
    with pytest.raises(ShapeError):
        sink.rows_at(1, np.arange(2), 8, {0: 1})


def test_blocks_that_are_none():
    sink = SinkShard(0, 2, {0: 3}, building=True)
    sink.load_snapshot(0, 5, [TableSnapshot(1, 16, np.arange(10, dtype=np.uint64), np.ones(10, np.uint8))], [])
    rows = np.ones((limits.BLOCK_SLOTS, 16), np.uint8)
    for block in (-1, 1, 2**40):
        assert not sink.load_blocks(0, 5, 1, block, rows)
    for count in (1, 9, 11, limits.BLOCK_SLOTS):  # rows that are missing would be zeros, and parity wrong
        with pytest.raises(ShapeError, match="10 in use"):
            sink.load_blocks(0, 5, 1, 0, rows[:count])
    assert not sink.complete
    assert sink.load_blocks(0, 5, 1, 0, rows[:10])
    assert sink.complete


@pytest.mark.parametrize(
    "entries",
    [None, 5, [None], [[b"c", 1]], [["c", 1, 1]], [[2**33, 1, 1]], [[b"x" * 33, 1, 1]], [[b"c", 1.0, 1]],
     [[b"c", 1, 1]] * (limits.MAX_CLIENTS_PER_SHARD + 1)],
)  # fmt: skip
def test_request_numbers_that_are_none(entries):
    """`bytes(2**33)` would be 8 GiB of zeros."""
    with pytest.raises(FrameError):
        unpack_requests(entries)


@pytest.mark.parametrize(
    "heads",
    [None, [None], [[1, 16]], [[1, 16, -1]], [[1, 16, 3], [2, 16, -3]], [[-1, 16, 0]], [[1, 12, 0]], [[1, 2**40, 0]],
     [[1, float("inf"), 0]], [[1, 16, 1]], [[1, 8, 0]] * 5000],
)  # fmt: skip
def test_key_lists_that_are_none(heads):
    with pytest.raises(FrameError):
        unpack_tables(heads, Frame("snapshot", 0, {}, [np.empty(0, np.uint8)] * 2))


@pytest.mark.parametrize("acks", [None, [5], [[1, 2]], [[0, 0, 2, 0, "1", "ok"]], [[0, [], 2, 0, 1, "ok"]]])
def test_acknowledgements_that_are_none(acks):
    with pytest.raises(FrameError):
        unpack_acks(Frame("acks", 0, {"acks": acks, "epoch": 1}, []))


@pytest.mark.parametrize("of_node", [False, True])
async def test_requests_that_wait_are_bounded_by_bytes(of_node):
    """The first is let in whatever its size; those of nodes do not count against those of clients."""
    most = limits.MAX_WAITING_BYTES_OF_NODES if of_node else limits.MAX_WAITING_BYTES
    async with asyncio.TaskGroup() as tasks:
        config = NodeConfig(name="n", listen="127.0.0.1:0", coordination="127.0.0.1:1")
        runtime = Runtime(config, None, tasks)  # type: ignore[arg-type]
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        runtime.spawn_request(wait(), "first", nbytes=most - MIB, of_node=of_node)
        runtime.spawn_request(wait(), "fits", nbytes=MIB, of_node=of_node)
        with pytest.raises(CapacityError, match="wait on node n"):
            runtime.spawn_request(wait(), "too much", nbytes=1, of_node=of_node)
        runtime.spawn_request(wait(), "of others", nbytes=2 * most, of_node=not of_node)
        go.set()
        while runtime._waiting[of_node].requests:  # noqa: ASYNC110 - the tasks belong to the runtime
            await asyncio.sleep(0)
        runtime.spawn_request(wait(), "again", nbytes=2 * most, of_node=of_node)
