"""Building a sink: a lost parity shard, or a copy of a shard that is moving to this node.

The sink subscribes to each of its sources. The source's owner sends a snapshot (key list, request numbers, seq) in
its delta stream and every later delta after it. Then the sink asks for the rows in blocks; each block arrives within
the same stream, so it stands exactly between two deltas and nothing can be counted twice or missed.
"""

from __future__ import annotations

import asyncio

from ecstore import limits
from ecstore.errors import DataLossError, EcstoreError
from ecstore.node import takeover
from ecstore.node.pacing import Pacer
from ecstore.node.recovery import Recovery
from ecstore.node.runtime import OwnedSink, Runtime

RETRY_S = 0.05
ASK_TIMEOUT_S = 2.0

#: A snapshot or block that was promised and has not come after this time is asked for again.
PATIENCE_S = 0.5


async def run(runtime: Runtime, sink: OwnedSink, recovery: Recovery, pacer: Pacer) -> None:
    """Build the sink to the end and report it. Runs until it is whole, or is cancelled with the sink."""
    gid, index = sink.key
    try:
        while sink.building:
            group = runtime.group(gid)
            async with asyncio.TaskGroup() as group_tasks:
                for src in sink.shard.sources:
                    group_tasks.create_task(_follow(runtime, sink, src, recovery, pacer))
            if await _confirmed(runtime, sink, group.epoch):
                if index not in sink.shard.sources:  # a moved data shard is done when it serves here
                    recovery.finish("done", runtime.wall())
                await takeover.report_active(runtime, gid, index, only_epoch=group.epoch)
            await runtime.map_change(RETRY_S)
    except* DataLossError:
        recovery.finish("lost", runtime.wall())


async def _follow(runtime: Runtime, sink: OwnedSink, src: int, recovery: Recovery, pacer: Pacer) -> None:
    """Return when the sink has every row of source `src`."""
    while not sink.shard.sources[src].loaded:
        try:
            if not sink.shard.sources[src].synced:
                with recovery.held(runtime.wall):
                    await pacer.take(0)  # key lists are long, too
                if not sink.shard.sources[src].synced:  # the snapshot of an attempt given up may have come meanwhile
                    await _subscribe(runtime, sink, src)
            else:
                await _fetch_blocks(runtime, sink, src, pacer)
        except DataLossError:
            raise
        except EcstoreError as error:
            runtime.count("build_retries")
            recovery.failed()
            _start_over_if_unsubscribed(runtime, sink, error)
            await asyncio.sleep(RETRY_S)


def _start_over_if_unsubscribed(runtime: Runtime, sink: OwnedSink, error: EcstoreError) -> None:
    """The source has dropped our stream (a move was called off and began again): nothing here can be trusted."""
    if error.details.get("unsubscribed"):
        runtime.count("sinks_reset")
        sink.shard.reset()


async def _subscribe(runtime: Runtime, sink: OwnedSink, src: int) -> None:
    gid, dst = sink.key
    group = runtime.group(gid)
    owner = group.shards[src]
    assert not sink.shard.sources[src].synced, "a stream that is followed would lose its number"
    number = runtime.next_subscription()
    sink.shard.sources[src].subscription = number
    sink.senders[src] = (owner.owner, owner.incarnation)
    await runtime.peers.get(owner.owner).request(
        "sink.subscribe",
        {"group": gid, "src": src, "dst": dst, "group_epoch": group.epoch, "subscription": number},
        timeout=ASK_TIMEOUT_S,
    )
    await _until(runtime, sink, lambda: sink.shard.sources[src].synced)


async def _fetch_blocks(runtime: Runtime, sink: OwnedSink, src: int, pacer: Pacer) -> None:
    """Ask for the next few missing blocks, and wait for them."""
    gid, dst = sink.key
    source = sink.shard.sources[src]
    group = runtime.group(gid)
    owner = runtime.peers.get(group.shards[src].owner)
    found = sink.shard.next_unloaded(src, limits.MAX_BLOCKS_IN_FLIGHT)
    if found is None:
        return
    table_id, block, count = found
    slab = sink.shard.slabs.get(table_id)
    if slab is not None:
        count = min(count, limits.blocks_of(slab.rows.shape[1]))
    slots = min(count * limits.BLOCK_SLOTS, source.keys[table_id].used - block * limits.BLOCK_SLOTS)
    # The rate is one of rows that come back: a parity row needs one row of each source.
    assert sink.recovery is not None
    with sink.recovery.held(runtime.wall):
        await pacer.take(slots * (slab.rows.shape[1] if slab is not None else 0) // len(sink.shard.sources))
    await owner.request(
        "sink.want",
        {
            "group": gid, "src": src, "dst": dst, "group_epoch": group.epoch, "subscription": source.subscription,
            "table": table_id, "block": block, "count": count,
        },
        timeout=ASK_TIMEOUT_S,
    )  # fmt: skip
    await _until(
        runtime, sink, lambda: sink.shard.sources[src] is not source or not _missing(sink, src, table_id, block, count)
    )


def _missing(sink: OwnedSink, src: int, table_id: int, block: int, count: int) -> bool:
    mask = sink.shard.sources[src].unloaded.get(table_id)
    return mask is not None and bool(mask[block : block + count].any())


async def _until(runtime: Runtime, sink: OwnedSink, condition: object) -> None:
    """Wait until `condition()` holds; give up after PATIENCE_S without a change of the sink."""
    assert callable(condition)
    while not condition():
        sink.changed.clear()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await sink.changed.wait()
        except TimeoutError:
            runtime.count("build_timeouts")
            return


async def _confirmed(runtime: Runtime, sink: OwnedSink, group_epoch: int) -> bool:
    """Ask each source's owner whether our stream is one it waits for; only then the sink may be called whole."""
    gid, dst = sink.key
    try:
        group = runtime.same_group_epoch(gid, group_epoch)
        for src, source in sink.shard.sources.items():
            await runtime.peers.get(group.shards[src].owner).request(
                "sink.confirm",
                {
                    "group": gid, "src": src, "dst": dst, "group_epoch": group_epoch,
                    "subscription": source.subscription,
                },
                timeout=ASK_TIMEOUT_S,
            )  # fmt: skip
        runtime.same_group_epoch(gid, group_epoch)
    except DataLossError:
        raise
    except EcstoreError as error:
        _start_over_if_unsubscribed(runtime, sink, error)
        return False
    return sink.shard.complete and all(sender is not None for sender in sink.senders.values())
