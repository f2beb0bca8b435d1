"""Bugs on purpose: each breaks one rule of the protocol, and must be caught by a checker within 300 seeds.

A mutation that survives means that a checker, or a kind of fault, is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from ecstore import checksum
from ecstore.cluster.transitions import NodeDown
from ecstore.coordination.service import CoordinationService
from ecstore.errors import DataLossError, EcstoreError
from ecstore.node import builder, decoder, takeover
from ecstore.node.client_api import ClientApi
from ecstore.node.data_shard import DataShard
from ecstore.node.dedupe import RequestTable, Verdict
from ecstore.node.deltalog import FrameLog
from ecstore.node.peer_api import PeerApi
from ecstore.node.peers import Peers
from ecstore.node.sink_shard import Applied, SinkShard
from ecstore.node.streams import DeltaStreams

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`caught_by`: checkers of which one must catch it. `seed`: one that did, to be tried first."""

    name: str
    caught_by: frozenset[str]
    seed: int
    patches: Callable[[], list[Patch]]

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, value in self.patches():
                stack.enter_context(patch.object(owner, name, value))
            yield


MUTATIONS: dict[str, Mutation] = {}


def _mutation(name: str, *caught_by: str, seed: int = 0) -> Callable[[Callable[[], list[Patch]]], None]:
    def add(patches: Callable[[], list[Patch]]) -> None:
        MUTATIONS[name] = Mutation(name, frozenset(caught_by), seed, patches)

    return add


# -- acknowledgements ----------------------------------------------------------------------------------------


@_mutation("acknowledge before parity has applied", "lost", "model", seed=13)
def _() -> list[Patch]:
    async def room(self: ClientApi, owned: Any) -> None:
        await asyncio.sleep(0.01)

    return [(DataShard, "when_acked", lambda self, callback: callback(None)), (ClientApi, "_room", room)]


@_mutation("acknowledge after the first parity", "lost", "model", "parity", "liveness", seed=3)
def _() -> list[Patch]:
    def acked(self: DataShard) -> int:
        return max((cursor.acked for cursor in self.sinks.values()), default=self.seq)

    return [(DataShard, "acked", property(acked))]


# -- exactly once --------------------------------------------------------------------------------------------


@_mutation("no de-duplication", "doubled", "model", seed=0)
def _() -> list[Patch]:
    original = RequestTable.judge

    def judge(self: RequestTable, *args: Any) -> Verdict:
        verdict = original(self, *args)
        return Verdict.NEW if verdict is Verdict.DUPLICATE else verdict

    return [(RequestTable, "judge", judge)]


@_mutation("no de-duplication after failover", "doubled", "model", "keys", seed=0)
def _() -> list[Patch]:
    original = takeover._build

    async def build(runtime: Any, owned: Any, tables: Any, requests: Any, seq: int) -> DataShard:
        return await original(runtime, owned, tables, RequestTable(), seq)

    def judge(self: RequestTable, client: bytes, request_no: int, previous: int, seq: int) -> Verdict:
        known = self._last.get(client)
        return Verdict.DUPLICATE if known is not None and request_no <= known[0] else Verdict.NEW

    return [(takeover, "_build", build), (RequestTable, "judge", judge)]


# -- decoding ------------------------------------------------------------------------------------------------


def _present_rows(self: SinkShard, table_id: int, slots: Any, row_bytes: int) -> Any:
    slab = self.slabs.get(table_id)
    return np.zeros((slots.size, row_bytes), np.uint8) if slab is None else slab.rows[slots]


@_mutation("decode ignores the cut", "model", "parity", seed=7)
def _() -> list[Patch]:
    def rows_at(self: SinkShard, table_id: int, slots: Any, row_bytes: int, cut: Any) -> Any:
        return _present_rows(self, table_id, slots, row_bytes)

    return [(SinkShard, "rows_at", rows_at)]


@_mutation("parity takes no later frame out of a read", "model", "parity", seed=7)
def _() -> list[Patch]:
    original = SinkShard.rows_at

    def rows_at(self: SinkShard, table_id: int, slots: Any, row_bytes: int, cut: Any) -> Any:
        original(self, table_id, slots, row_bytes, cut)
        return _present_rows(self, table_id, slots, row_bytes)

    return [(SinkShard, "rows_at", rows_at)]


@_mutation("owners that are still recovering are left out of the cut", "model", "parity", seed=7)
def _() -> list[Patch]:
    original, rows_at = decoder._data_answer, SinkShard.rows_at

    def data_answer(frame: Any, count: int, row_bytes: int) -> Any:
        answer = original(frame, count, row_bytes)
        if answer.erased is not None and answer.erased.all():
            answer.seq = -1
        return answer

    def any_cut(self: SinkShard, table_id: int, slots: Any, row_bytes: int, cut: Any) -> Any:
        here = {src: self.sources[src].applied if seq < 0 else seq for src, seq in cut.items()}
        return rows_at(self, table_id, slots, row_bytes, here)

    return [(decoder, "_data_answer", data_answer), (SinkShard, "rows_at", any_cut)]


@_mutation("substitute serves an undecoded row", "model", "lost", seed=2)
def _() -> list[Patch]:
    async def pull_later(self: ClientApi, connection: Any, frame: Any, sections: Any) -> None:
        self._answer_pull(connection, frame, sections, {})

    return [(ClientApi, "_pull_later", pull_later)]


@_mutation("a push to a lost row does not decode it first", "model", "lost", "parity", "exception", seed=0)
def _() -> list[Patch]:
    return [(ClientApi, "_needs_decode", lambda self, section: False)]


@_mutation("a decode overwrites rows that have come back meanwhile", "model", "parity", "lost", "progress", seed=0)
def _() -> list[Patch]:
    original = DataShard.restore

    def restore(self: DataShard, table_id: int, slots: Any, rows: Any) -> int:
        mask = self.undecoded.get(table_id)
        if mask is not None:
            mask[slots] = True
        return original(self, table_id, slots, rows)

    def lost_slots(self: DataShard, table_id: int, slots: Any) -> Any:
        mask = self.undecoded.get(table_id)
        if mask is None:
            return np.empty(0, np.int64)
        known = slots[(slots >= 0) & (slots < mask.size)].astype(np.int64, copy=False)
        return np.unique(known) if mask[known].any() else np.empty(0, np.int64)

    return [(DataShard, "restore", restore), (DataShard, "lost_slots", lost_slots)]


# -- takeover ------------------------------------------------------------------------------------------------


async def _resume_anyway(self: PeerApi, connection: Any, frame: Any) -> None:
    sink, src = await self._taken_sink(connection, frame)
    sink.senders[src] = (connection.peer.name, connection.peer.incarnation)
    connection.reply(frame.rid, {"kept": sink.shard.sources[src].synced})


def _taken_sink_resumes() -> list[Patch]:
    """Sinks go on from wherever they stand."""
    return [(PeerApi, "_takeover_resume", _resume_anyway)]


@_mutation("no roll forward between parities", "parity", "keys", "liveness", "model", seed=8)
def _() -> list[Patch]:
    async def roll_forward(*_args: Any) -> None:
        return

    original = SinkShard.apply

    def apply(self: SinkShard, src: int, frame: Any, *more: Any, **named: Any) -> Any:
        source = self.sources[src]
        if source.synced and frame.seq > source.applied + 1:  # as if nothing were missing
            source.applied = frame.seq - 1
            source.log.reset(frame.seq)
        return original(self, src, frame, *more, **named)

    return [(takeover, "_roll_forward", roll_forward), (SinkShard, "apply", apply), *_taken_sink_resumes()]


@_mutation("takeover continues from the lowest seq", "parity", "keys", "lost", "doubled", "model", seed=11)
def _() -> list[Patch]:
    def lowest(whole: Any, sinks: Any, mirror: Any, index: int) -> int:
        seqs = [sink.applied for sink in whole]
        return min([*seqs, mirror.sources[index].applied] if mirror is not None else seqs)

    return [(takeover, "_continue_from", lowest), *_taken_sink_resumes()]


@_mutation("seq starts anew on takeover", "parity", "lost", "model", "liveness", seed=0)
def _() -> list[Patch]:
    original = takeover._build

    async def build(runtime: Any, owned: Any, tables: Any, requests: Any, seq: int) -> DataShard:
        shard = await original(runtime, owned, tables, requests, seq)
        shard.seq = 0
        shard.log = FrameLog(1)
        return shard

    def add_sink(self: DataShard, key: Any, acked: int, subscription: int = 0) -> Any:
        return add(self, key, min(acked, self.seq), subscription)

    add = DataShard.add_sink
    return [(takeover, "_build", build), (DataShard, "add_sink", add_sink)]


@_mutation(
    "a fenced owner works on, and parity takes its frames", "parity", "keys", "model", "lost", "doubled", seed=14
)
def _() -> list[Patch]:
    original = PeerApi._apply

    def apply(self: PeerApi, connection: Any, item: Any) -> str:
        sink = self._runtime.sinks.get((item.gid, item.dst))
        if sink is None or item.src not in sink.senders:
            return original(self, connection, item)
        before = sink.senders[item.src]
        sink.senders[item.src] = (connection.peer.name, connection.peer.incarnation)
        try:
            return original(self, connection, item)
        finally:
            sink.senders[item.src] = before

    async def at_once(*_args: Any) -> None:
        return

    # Without the lease: it alone already keeps the frames of a former owner from coming so late.
    return [
        (PeerApi, "_apply", apply),
        (Peers, "may_serve", lambda self: True),
        (takeover, "_wait_for_predecessor", at_once),
    ]


@_mutation("the successor does not wait for its predecessor", "owner", seed=14)
def _() -> list[Patch]:
    async def at_once(*_args: Any) -> None:
        return

    return [(takeover, "_wait_for_predecessor", at_once)]


@_mutation("no lease: who has lost touch goes on serving", "owner", "lost", "model", seed=20)
def _() -> list[Patch]:
    return [(Peers, "may_serve", lambda self: True)]


# -- delta streams -------------------------------------------------------------------------------------------


@_mutation("skip a seq gap", "parity", "keys", seed=69)
def _() -> list[Patch]:
    original = SinkShard.apply

    def apply(self: SinkShard, src: int, frame: Any, *more: Any, **named: Any) -> Any:
        source = self.sources[src]
        if source.synced and frame.seq > source.applied + 1:
            source.applied = frame.seq - 1
            source.log.reset(frame.seq)
        return original(self, src, frame, *more, **named)

    return [(SinkShard, "apply", apply)]


@_mutation("frames sent again after a reconnect are applied again", "parity", "keys", "exception", seed=1)
def _() -> list[Patch]:
    original = SinkShard.apply

    def apply(self: SinkShard, src: int, frame: Any, *more: Any, **named: Any) -> Any:
        verdict = original(self, src, frame, *more, **named)
        if verdict is Applied.DUPLICATE and frame.table_id not in self.dropped:
            self._apply_bytes(self.sources[src], frame)
        return verdict

    return [(SinkShard, "apply", apply)]


@_mutation("parity log trimmed too early", "liveness", seed=8)
def _() -> list[Patch]:
    original = SinkShard.apply

    def apply(self: SinkShard, src: int, frame: Any, *more: Any, **named: Any) -> Any:
        verdict = original(self, src, frame, *more, **named)
        source = self.sources[src]
        source.log.trim(source.applied)
        return verdict

    return [(SinkShard, "apply", apply)]


@_mutation("reuse of a freed slot without its key list", "keys", "model", seed=0)
def _() -> list[Patch]:
    original = DataShard._commit

    def commit(self: DataShard, table_id: int, change: Any, client: bytes, request_no: int) -> Any:
        frame = original(self, table_id, change, client, request_no)
        frame.freed_slots = frame.freed_slots[:0]
        return frame

    return [(DataShard, "_commit", commit)]


@_mutation(
    "damaged frames are taken", "parity", "keys", "model", "exception", "pull", "liveness", "lost", "deadline", seed=29
)
def _() -> list[Patch]:
    return [(checksum, "add", lambda data, before=0: 0), (checksum, "add_array", lambda data, before: 0)]


# -- building and moving shards ------------------------------------------------------------------------------


@_mutation("new parity counts a delta twice", "parity", seed=3)
def _() -> list[Patch]:
    original = SinkShard._apply_bytes

    def apply_bytes(self: SinkShard, source: Any, frame: Any) -> None:
        unloaded, source.unloaded = source.unloaded, {}
        try:
            original(self, source, frame)
        finally:
            source.unloaded = unloaded

    return [(SinkShard, "_apply_bytes", apply_bytes)]


@_mutation("blocks overtake deltas", "parity", "model", seed=148)
def _() -> list[Patch]:
    original = SinkShard.load_blocks

    def send_in_order(self: DeltaStreams, shard: Any, cursor: Any, kind: str, meta: Any, bins: Any) -> bool:
        peer = self._runtime.peers.find(cursor.key.node, cursor.key.incarnation)
        if peer is None or peer.connection is None:
            return False
        peer.connection.send(kind, meta, bins)
        return True

    def load_blocks(self: SinkShard, src: int, seq: int, table_id: int, block: int, rows: Any) -> bool:
        return original(self, src, self.sources[src].applied, table_id, block, rows)

    return [(DeltaStreams, "send_in_order", send_in_order), (SinkShard, "load_blocks", load_blocks)]


@_mutation("a sink is called whole before it is", "parity", "model", "keys", "liveness", seed=0)
def _() -> list[Patch]:
    async def follow(runtime: Any, sink: Any, src: int, recovery: Any, pacer: Any) -> None:
        while not sink.shard.sources[src].synced:
            try:
                await builder._subscribe(runtime, sink, src)
            except EcstoreError:
                await builder.asyncio.sleep(0.05)

    return [(builder, "_follow", follow), (SinkShard, "complete", property(lambda self: True))]


@_mutation("a stream that is followed is subscribed to again", "exception", "liveness", seed=4)
def _() -> list[Patch]:
    """A node waits for its turn, and does not look again whether what it had asked for before has come."""

    async def follow(runtime: Any, sink: Any, src: int, recovery: Any, pacer: Any) -> None:
        while not sink.shard.sources[src].loaded:
            try:
                if not sink.shard.sources[src].synced:
                    await builder.asyncio.sleep(0.05)
                    await builder._subscribe(runtime, sink, src)
                else:
                    await builder._fetch_blocks(runtime, sink, src, pacer)
            except DataLossError:
                raise
            except EcstoreError as error:
                builder._start_over_if_unsubscribed(runtime, sink, error)
                await builder.asyncio.sleep(builder.RETRY_S)

    return [(builder, "_follow", follow)]


# -- membership ----------------------------------------------------------------------------------------------


@_mutation("stale map wins", "map", "owner", "dataloss", "liveness", "model", "parity", "lost", "exception", seed=3)
def _() -> list[Patch]:
    async def swap(self: CoordinationService, swap: Any) -> None:
        packed = await self._persist(swap.new)
        self.current, self._packed = swap.new, packed
        self._forget_sessions()
        self._push()
        swap.conn.reply(swap.rid, {"won": True, "epoch": self.current.epoch})

    return [(CoordinationService, "_swap", swap)]


@_mutation("two nodes that cannot hear each other both go down", "dataloss", seed=59)
def _() -> list[Patch]:
    async def declare_down(self: Peers, peer: Any, reason: Any, *, sparing: bool = False) -> None:
        with contextlib.suppress(EcstoreError):
            await self._runtime.coordination.propose(NodeDown(peer.name, peer.incarnation, reason))

    return [(Peers, "_declare_down", declare_down)]
