"""Taking over a data shard: from the parity shards when its owner was lost, or after a complete copy was made.

Let j be the shard, S_j the seq it continues from.
1. Every sink of j in the group (parity shards, whole or being built) adopts the epoch in which we are the owner;
   from then on it refuses frames of the former owner, and says how far it has applied j.
2. S_j = the highest seq that a whole parity shard (or our own copy) has applied; every push ever acknowledged is at
   or below it, because an acknowledgement needs them all. Sinks that lag get the missing frames from the log of
   the one that is ahead. A sink under construction that can't be brought to S_j starts again from nothing.
3. Key lists and request numbers come from a sink that stands at S_j.
4. Each sink is told to take our frames; then the shard serves: lost rows are decoded when asked for, and by a sweep.
If the group's owners change meanwhile, everything starts again; each step may be repeated without harm.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from ecstore import limits
from ecstore.cluster.map import Group
from ecstore.cluster.transitions import ShardReady
from ecstore.errors import (
    DataLossError,
    EcstoreError,
    FrameError,
    NotReadyError,
)
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.decoder import Decoder
from ecstore.node.dedupe import RequestTable
from ecstore.node.messages import (
    Addressed,
    integer,
    pack_deltas,
    unpack_deltas,
    unpack_requests,
    unpack_tables,
)
from ecstore.node.pacing import Pacer
from ecstore.node.recovery import Recovery
from ecstore.node.runtime import OwnedData, Runtime
from ecstore.node.sink_shard import Applied, SinkShard, TableSnapshot
from ecstore.wire import Frame

RETRY_S = 0.02
ASK_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Sink:
    """One sink of the shard, and what it answered."""

    key: SinkKey
    whole: bool
    applied: int = -1
    log_first: int = 0
    subscription: int = 0
    synced: bool = False


async def run(runtime: Runtime, owned: OwnedData, recovery: Recovery, pacer: Pacer) -> None:
    """Take the shard over, then decode it to the end and report it active. Ends early when the group is lost."""
    while owned.shard is None:
        try:
            group = runtime.group(owned.key[0])
            with pacer.waited_for():  # requests may be waiting for the shard; nothing waits for a sweep
                shard = await _attempt(runtime, owned, group)
            runtime.same_group_epoch(group.gid, group.epoch)
        except DataLossError:
            recovery.finish("lost", runtime.wall())
            return
        except EcstoreError as error:
            runtime.count("takeover_retries")
            recovery.failed()
            runtime.event("takeover_retry", f"group {owned.key[0]} shard {owned.key[1]}: {error}")
            await runtime.map_change(RETRY_S)
            continue
        _go_live(runtime, owned, shard, recovery, pacer)
    await _finish(runtime, owned, recovery)


def _go_live(runtime: Runtime, owned: OwnedData, shard: DataShard, recovery: Recovery, pacer: Pacer) -> None:
    owned.shard, owned.mirror = shard, None
    recovery.begun(runtime.wall())
    if recovery.kind == "data":
        recovery.rows_total, recovery.bytes_total = shard.rows_undecoded(), shard.bytes_undecoded()
    if shard.undecoded:
        owned.decoder = Decoder(runtime, shard, recovery, pacer)
    runtime.event(
        "took_over", f"group {shard.gid} shard {shard.index} serves from seq {shard.seq}", group=shard.gid,
        shard=shard.index, rows_lost=shard.rows_undecoded(),
    )  # fmt: skip
    runtime.shard_live(owned.key)


async def _finish(runtime: Runtime, owned: OwnedData, recovery: Recovery) -> None:
    """Decode what is left, then report the shard; whatever goes wrong on the way is tried again."""
    gid, index = owned.key
    while runtime.data.get(owned.key) is owned:
        try:
            if owned.decoder is not None:
                await owned.decoder.sweep()
            recovery.finish("done", runtime.wall())
            await report_active(runtime, gid, index)
            return
        except DataLossError:
            recovery.finish("lost", runtime.wall())
            return
        except EcstoreError as error:
            runtime.count("sweep_retries")
            runtime.event("sweep_retry", f"group {gid} shard {index}: {error}")
            await runtime.map_change(RETRY_S)


async def report_active(runtime: Runtime, gid: int, index: int, only_epoch: int | None = None) -> None:
    """Tell the map that this node holds the whole shard, until the map says so.

    `only_epoch`: return as soon as the group's epoch is another; the caller must make sure again that it is whole.
    """
    while True:
        group = runtime.group(gid)
        if only_epoch is not None and group.epoch != only_epoch:
            return
        shard = group.shards[index]
        mine = runtime.owns(shard.owner, shard.incarnation)
        joining = runtime.owns(shard.joining or "", shard.joining_incarnation)
        if not joining and (not mine or shard.state == "active"):
            return
        try:
            await runtime.coordination.propose(ShardReady(gid, index, runtime.name, runtime.incarnation, group.epoch))
        except EcstoreError as error:
            runtime.count("ready_proposals_failed")
            runtime.event("proposal_failed", f"group {gid} shard {index} is whole, not yet in the map: {error}")
        await runtime.map_change(0.1)


# -- one attempt --------------------------------------------------------------------------------------------


async def _attempt(runtime: Runtime, owned: OwnedData, group: Group) -> DataShard:
    index = owned.key[1]
    sinks = _sinks_of(runtime, group)
    await asyncio.gather(*(_begin(runtime, group, index, sink) for sink in sinks))
    whole = [sink for sink in sinks if sink.whole]
    mirror = owned.mirror
    if not whole and mirror is None:
        raise NotReadyError(f"group {group.gid} has no whole parity shard to take shard {index} over from")
    seq = _continue_from(whole, sinks, mirror, index)
    await _wait_for_predecessor(runtime, owned, group)
    await _roll_forward(runtime, group, index, sinks, mirror, seq)
    tables, requests = await _state(runtime, group, index, whole, mirror, seq)
    kept = await asyncio.gather(*(_resume(runtime, group, index, sink, seq) for sink in sinks))
    shard = await _build(runtime, owned, tables, requests, seq)
    for sink, ok in zip(sinks, kept, strict=True):
        if ok:
            shard.add_sink(sink.key, seq, sink.subscription)
    return shard


def _sinks_of(runtime: Runtime, group: Group) -> list[_Sink]:
    code = runtime.map.code(group)
    sinks = []
    for shard in group.shards[code.k :]:
        sinks.append(_Sink(SinkKey(shard.index, shard.owner, shard.incarnation), shard.state == "active"))
        if shard.joining is not None:
            sinks.append(_Sink(SinkKey(shard.index, shard.joining, shard.joining_incarnation), False))
    return sinks


async def _begin(runtime: Runtime, group: Group, index: int, sink: _Sink) -> None:
    attempt = runtime.next_subscription()
    answer = await _ask(runtime, group, index, sink.key, "takeover.begin", {"attempt": attempt})
    sink.applied = integer(answer.meta, "applied")
    sink.log_first = integer(answer.meta, "log_first")
    sink.subscription = integer(answer.meta, "subscription")
    sink.synced = bool(answer.meta.get("synced"))
    if sink.whole and not sink.synced:
        raise NotReadyError(f"parity shard {sink.key.index} of group {group.gid} says it is not whole")


def _continue_from(whole: list[_Sink], sinks: list[_Sink], mirror: SinkShard | None, index: int) -> int:
    """S_j: all that whole sinks have, and more where a sink under construction can bring everyone along."""
    lowest = min((sink.applied for sink in whole), default=None)
    seqs = [sink.applied for sink in whole]
    if mirror is not None:
        applied = mirror.sources[index].applied
        seqs.append(applied)
        lowest = applied if lowest is None else min(lowest, applied)
    assert lowest is not None
    seqs += [s.applied for s in sinks if not s.whole and s.synced and s.log_first <= lowest + 1]
    return max(seqs)


async def _wait_for_predecessor(runtime: Runtime, owned: OwnedData, group: Group) -> None:
    """The former owner must not serve any more. Alive, it says so; a dead process needs no asking; otherwise its
    lease must have run out: no majority is left that could renew it, and `lease_s` have passed since.
    """
    if owned.former is not None and runtime.map.is_alive(*owned.former):
        try:
            await runtime.peers.get(owned.former[0]).request(
                "takeover.release", _address(group, owned.key[1], owned.key[1]), timeout=runtime.config.lease_s
            )
            return
        except EcstoreError:
            runtime.count("releases_unanswered")
    elif _surely_dead(runtime, owned):
        return
    while not runtime.peers.adopted_by_majority(group.epoch):
        await runtime.map_change(runtime.config.heartbeat_s / 2)
        runtime.same_group_epoch(group.gid, group.epoch)
    await asyncio.sleep(runtime.config.lease_s)


def _surely_dead(runtime: Runtime, owned: OwnedData) -> bool:
    """Whether the former owner's process has ended: its address refuses connections, or belongs to a later life."""
    if owned.former is None or not owned.former_was_whole:  # the one before it may be the one that still serves
        return not any(node.down_reason == "silent" for node in runtime.map.nodes.values())
    name, incarnation = owned.former
    node = runtime.map.nodes[name]
    if node.incarnation == incarnation:
        return node.down_reason == "refused"
    return node.address == owned.former_address


async def _roll_forward(
    runtime: Runtime, group: Group, index: int, sinks: list[_Sink], mirror: SinkShard | None, seq: int
) -> None:
    """Bring every sink (and our copy) that lags to `seq`, with frames from the log of one that is there."""
    reach = min((sink.log_first for sink in sinks if sink.synced and sink.applied >= seq), default=seq + 1)
    copy = mirror.sources[index] if mirror is not None else None
    if copy is not None and copy.applied >= seq:
        reach = min(reach, copy.log.first)
    behind = [s for s in sinks if s.synced and s.applied < seq and (s.whole or s.applied + 1 >= reach)]
    lowest = min([sink.applied for sink in behind] + ([copy.applied] if copy is not None else []), default=seq)
    if lowest >= seq:
        return
    runtime.count("roll_forwards")
    frames = await _frames_after(runtime, group, index, sinks, mirror, lowest, seq)
    if mirror is not None:
        for item in frames:
            if mirror.apply(index, item.frame, now=runtime.loop.time()) is Applied.GAP:
                raise NotReadyError("the copy can't be rolled forward; start again")
    await asyncio.gather(*(_forward(runtime, group, index, sink, frames, seq) for sink in behind))


async def _frames_after(
    runtime: Runtime,
    group: Group,
    index: int,
    sinks: list[_Sink],
    mirror: SinkShard | None,
    after: int,
    seq: int,
) -> list[Addressed]:
    copy = mirror.sources[index] if mirror is not None else None
    if copy is not None and copy.applied >= seq and copy.log.reaches(after):
        return [Addressed(group.gid, index, 0, 0, 0, frame) for frame in copy.log.after(after) if frame.seq <= seq]
    for sink in sinks:
        if sink.synced and sink.applied >= seq and sink.log_first <= after + 1:
            return await _fetch_frames(runtime, group, index, sink, after, seq)
    raise NotReadyError(f"no log of group {group.gid} reaches back to seq {after} of shard {index}")


async def _fetch_frames(
    runtime: Runtime, group: Group, index: int, sink: _Sink, after: int, seq: int
) -> list[Addressed]:
    frames: list[Addressed] = []
    while after < seq:
        answer = await _ask(runtime, group, index, sink.key, "takeover.frames", {"after": after, "upto": seq})
        part = unpack_deltas(answer)
        if not part or part[0].frame.seq != after + 1:
            raise NotReadyError(f"the log of parity shard {sink.key.index} no longer reaches back to {after}")
        frames += part
        after = part[-1].frame.seq
    return frames


async def _forward(runtime: Runtime, group: Group, index: int, sink: _Sink, frames: list[Addressed], seq: int) -> None:
    missing = [item for item in frames if item.frame.seq > sink.applied]
    peer = runtime.peers.get(sink.key.node)
    for start in range(0, len(missing), limits.MAX_FRAMES_PER_MESSAGE):
        meta, bins = pack_deltas(missing[start : start + limits.MAX_FRAMES_PER_MESSAGE])
        meta |= _address(group, index, sink.key.index)
        answer = await peer.request("takeover.forward", meta, bins, timeout=ASK_TIMEOUT_S)
        sink.applied = integer(answer.meta, "applied")
    if sink.whole and sink.applied != seq:
        raise NotReadyError(f"parity shard {sink.key.index} of group {group.gid} stands at {sink.applied}, not {seq}")


async def _state(
    runtime: Runtime, group: Group, index: int, whole: list[_Sink], mirror: SinkShard | None, seq: int
) -> tuple[list[TableSnapshot], RequestTable]:
    if mirror is not None:
        return mirror.snapshot_keys(index), mirror.sources[index].requests
    source = whole[0]
    answer = await _ask(runtime, group, index, source.key, "takeover.state")
    if integer(answer.meta, "applied") != seq:
        raise NotReadyError(f"parity shard {source.key.index} of group {group.gid} moved during the takeover")
    tables = unpack_tables(answer.meta.get("tables"), answer)
    return tables, RequestTable(unpack_requests(answer.meta.get("requests")))


async def _resume(runtime: Runtime, group: Group, index: int, sink: _Sink, seq: int) -> bool:
    """Let the sink take our frames from `seq` on. False: it was under construction and begins anew."""
    answer = await _ask(runtime, group, index, sink.key, "takeover.resume", {"seq": seq})
    kept = bool(answer.meta.get("kept"))
    if sink.whole and not kept:
        raise NotReadyError(f"parity shard {sink.key.index} of group {group.gid} is not at seq {seq}")
    return kept


async def _build(
    runtime: Runtime, owned: OwnedData, tables: list[TableSnapshot], requests: RequestTable, seq: int
) -> DataShard:
    """The shard as of `seq`. Others get their turn while long key lists are taken in: nothing that is read here
    changes, and whether the owners have changed meanwhile is looked at after the attempt.
    """
    gid, index = owned.key
    shard = DataShard(gid, index, seq=seq, requests=requests)
    for snapshot in tables:
        table = runtime.tables.get(snapshot.table_id)
        if table is None:
            if snapshot.table_id >= runtime.map.next_table_id:
                raise NotReadyError(f"table {snapshot.table_id} is newer than the map here")
            continue  # dropped
        store = shard.open_table(table.id, table.spec)
        if snapshot.row_bytes not in (0, store.row_bytes):
            raise FrameError(f"table {table.spec.name!r} has {snapshot.row_bytes} bytes a row at a parity shard")
        for _ in store.adopting(snapshot.keys, snapshot.allocated):
            await asyncio.sleep(0)
        if owned.mirror is None:
            lost = snapshot.allocated.astype(np.bool_)
            if lost.any():
                shard.undecoded[table.id] = lost
        elif store.used:
            store.take_rows(owned.mirror.slabs[table.id])
    for table_id in [table_id for table_id in shard.tables if runtime.is_dropped(table_id)]:
        shard.drop_table(table_id)  # meanwhile
    return shard


def _address(group: Group, src: int, dst: int) -> dict[str, int]:
    return {"group": group.gid, "src": src, "dst": dst, "group_epoch": group.epoch}


async def _ask(
    runtime: Runtime, group: Group, index: int, key: SinkKey, kind: str, more: dict[str, int] | None = None
) -> Frame:
    peer = runtime.peers.get(key.node)
    return await peer.request(kind, _address(group, index, key.index) | (more or {}), timeout=ASK_TIMEOUT_S)
