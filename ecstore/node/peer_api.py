"""What a node answers to other nodes: deltas and acknowledgements, reads for a decode, takeover, building of sinks.

One method per message kind; docs/PROTOCOL.md is the normative text. Everything that changes a shard is synchronous;
only waiting (for a newer map, for a cut to be reached, for a decode) is not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from ecstore import limits
from ecstore.errors import EcstoreError, FrameError, NotReadyError, ShapeError
from ecstore.node.data_shard import DataShard, SinkCursor, SinkKey
from ecstore.node.deltalog import DeltaFrame
from ecstore.node.messages import (
    Addressed,
    check_row_bytes,
    integer,
    pack_deltas,
    pack_requests,
    pack_tables,
    unpack_acks,
    unpack_deltas,
    unpack_requests,
    unpack_tables,
)
from ecstore.node.runtime import OwnedData, OwnedSink, Runtime
from ecstore.node.sink_shard import Applied, CutNotReached, LogTooShort, TableSnapshot
from ecstore.transport import Connection
from ecstore.wire import Frame

#: A read that waits for its cut gives up after this time; its epoch has usually passed long before.
CUT_WAIT_S = 2.0

Handler = Callable[[Connection, Frame], None]
Waiting = Callable[[Connection, Frame], Coroutine[Any, Any, None]]


class PeerApi:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.immediate: dict[str, Handler] = {
            "deltas": self._deltas,
            "acks": self._acks,
            "snapshot": self._snapshot,
            "blocks": self._blocks,
            "ping": self._ping,
        }
        self.waiting: dict[str, Waiting] = {
            "shard.read": self._shard_read,
            "shard.info": self._shard_info,
            "parity.read": self._parity_read,
            "sink.subscribe": self._subscribe,
            "sink.want": self._want,
            "sink.confirm": self._confirm,
            "takeover.begin": self._takeover_begin,
            "takeover.frames": self._takeover_frames,
            "takeover.forward": self._takeover_forward,
            "takeover.state": self._takeover_state,
            "takeover.resume": self._takeover_resume,
            "takeover.release": self._takeover_release,
        }

    def _ping(self, connection: Connection, frame: Frame) -> None:
        """Heartbeat of a peer: are you there, and am I up in your map?"""
        peer = connection.peer
        epoch, ours = integer(frame.meta, "epoch"), self._runtime.map.epoch
        # Who has missed an epoch may have lost shards in it: it must not go on serving on our word.
        up = epoch >= ours and self._runtime.map.is_alive(peer.name, integer(frame.meta, "incarnation"))
        connection.reply(frame.rid, {"epoch": ours, "up": up})
        if epoch > ours:
            self._runtime.map_is_old()

    # -- delta streams --------------------------------------------------------------------------------

    def _deltas(self, connection: Connection, frame: Frame) -> None:
        """Apply delta frames in order; acknowledge, or say why not, once per stream."""
        outcome: dict[tuple[int, int, int, int], str] = {}
        for item in unpack_deltas(frame):
            stream = (item.gid, item.src, item.dst, item.subscription)
            if outcome.get(stream, "ok") == "ok":
                outcome[stream] = self._apply(connection, item)
        self._runtime.notify_deltas()
        acks: list[list[Any]] = []
        for (gid, src, dst, subscription), verdict in outcome.items():
            # What a refused sender's shard has reached here are the deltas of its successor: none of its business.
            taken = verdict in ("ok", "gap")
            applied = self._runtime.sinks[gid, dst].shard.sources[src].applied if taken else 0
            acks.append([gid, src, dst, subscription, applied, verdict])
        connection.send("acks", {"acks": acks, "epoch": self._runtime.map.epoch})

    def _apply(self, connection: Connection, item: Addressed) -> str:
        sink = self._runtime.sinks.get((item.gid, item.dst))
        if sink is None or item.src not in sink.shard.sources:
            return "not_ready"
        sender = sink.senders.get(item.src)
        if sender is None or sender != (connection.peer.name, connection.peer.incarnation):
            self._runtime.count("frames_of_others_refused")
            return "not_ready"
        if item.subscription != sink.shard.sources[item.src].subscription:
            return "unsynced"
        if self._runtime.is_dropped(item.frame.table_id):
            sink.shard.drop_table(item.frame.table_id)
        try:
            self._check_width(item.frame)
            verdict = sink.shard.apply(item.src, item.frame, item.acked_by_all, self._runtime.loop.time())
        except EcstoreError as error:  # raised before a byte was written
            self._runtime.count("deltas_unfit")
            self._runtime.event("delta_unfit", f"group {item.gid} shard {item.src}: {error}")
            return "not_ready"
        if verdict is Applied.APPLIED or verdict is Applied.DUPLICATE:
            return "ok"
        return "gap" if verdict is Applied.GAP else "unsynced"

    def _check_width(self, frame: DeltaFrame) -> None:
        """The first delta of a table makes the slab of its width here; a wrong one would shut out all that follow."""
        table = self._runtime.tables.get(frame.table_id)
        if table is not None and frame.delta.shape[1] != table.spec.row_bytes:
            raise ShapeError(f"rows of table {table.id} have {table.spec.row_bytes} bytes; the owner is at fault")

    def _acks(self, connection: Connection, frame: Frame) -> None:
        acks, epoch = unpack_acks(frame)
        self._runtime.streams.answered(connection)
        name, incarnation = connection.peer.name, connection.peer.incarnation
        for gid, src, dst, subscription, applied, verdict in acks:
            owned = self._runtime.data.get((gid, src))
            shard = owned.shard if owned is not None else None
            if shard is None:
                continue
            key = SinkKey(dst, name, incarnation)
            cursor = shard.sinks.get(key)
            if cursor is None or cursor.subscription != subscription:
                continue
            if verdict == "unsynced" and not self._runtime.is_whole(gid, key):
                shard.remove_sink(key)
                continue
            if verdict in ("ok", "gap"):
                shard.acknowledge(key, applied, subscription)
            if verdict != "ok":
                self._runtime.streams.resend(shard, cursor, later=verdict != "gap")
        if epoch > self._runtime.map.epoch:
            self._runtime.map_is_old()

    def _snapshot(self, connection: Connection, frame: Frame) -> None:
        """A source begins its stream to a sink under construction here."""
        sink, src = self._fed_sink(connection, frame)
        if sink is None or sink.shard.sources[src].synced:
            return
        tables, requests = unpack_tables(frame.meta.get("tables"), frame), unpack_requests(frame.meta.get("requests"))
        seq = integer(frame.meta, "seq")
        for table in tables:
            check_row_bytes(table.row_bytes)
            if table.keys.size > limits.slab_rows(limits.MAX_ROWS_PER_SHARD, table.row_bytes):
                raise FrameError(f"the key list of table {table.table_id} is longer than a shard may be")
        for table in tables:
            if self._runtime.is_dropped(table.table_id):
                sink.shard.drop_table(table.table_id)
        sink.shard.load_snapshot(src, seq, tables, requests)
        if sink.recovery is not None:
            for table in tables:
                rows = int(np.count_nonzero(table.allocated))
                sink.recovery.rows_total += rows
                sink.recovery.bytes_total += rows * table.row_bytes
        sink.changed.set()

    def _blocks(self, connection: Connection, frame: Frame) -> None:
        sink, src = self._fed_sink(connection, frame)
        if sink is None:
            return
        row_bytes, block = integer(frame.meta, "row_bytes"), integer(frame.meta, "block")
        check_row_bytes(row_bytes)
        rows = frame.bin(0, np.uint8)
        if rows.size % row_bytes:
            raise FrameError(f"blocks have whole rows of {row_bytes} bytes, not {rows.size / row_bytes:g}")
        rows = rows.reshape(-1, row_bytes)
        seq, table_id, taken = (integer(frame.meta, name) for name in ("seq", "table", "rows"))
        if sink.shard.load_blocks(src, seq, table_id, block, rows) and sink.recovery is not None:
            sink.recovery.progress(taken, taken * row_bytes, self._runtime.wall())
            sink.recovery.rows_total = max(sink.recovery.rows_total, sink.recovery.rows_decoded)
        sink.changed.set()

    def _fed_sink(self, connection: Connection, frame: Frame) -> tuple[OwnedSink | None, int]:
        """The sink a stream message is for; None when the message belongs to a stream that is over."""
        src = integer(frame.meta, "src")
        sink = self._runtime.sinks.get((integer(frame.meta, "group"), integer(frame.meta, "dst")))
        if sink is None or src not in sink.shard.sources:
            return None, src
        if sink.senders.get(src) != (connection.peer.name, connection.peer.incarnation):
            return None, src
        if sink.shard.sources[src].subscription != integer(frame.meta, "subscription"):
            return None, src
        return sink, src

    # -- feeding sinks --------------------------------------------------------------------------------

    async def _source_for(self, connection: Connection, frame: Frame) -> tuple[OwnedData, DataShard, SinkKey]:
        """The data shard here that a sink asks about, when it serves and the sink is one of the map's."""
        gid, src, dst = (integer(frame.meta, name) for name in ("group", "src", "dst"))
        group_epoch = integer(frame.meta, "group_epoch")
        await self._runtime.at_group_epoch(gid, group_epoch)
        owned, shard = await self._live(gid, src, group_epoch)
        key = SinkKey(dst, connection.peer.name, connection.peer.incarnation)
        if key not in self._runtime.sink_keys(gid, src):
            raise NotReadyError(f"node {key.node} holds no sink {dst} of group {gid} in epoch {group_epoch}")
        return owned, shard, key

    async def _live(self, gid: int, index: int, group_epoch: int) -> tuple[OwnedData, DataShard]:
        """Data shard of this node, once it serves."""
        deadline = self._runtime.loop.time() + CUT_WAIT_S
        while True:
            self._runtime.same_group_epoch(gid, group_epoch)
            owned = self._runtime.data.get((gid, index))
            if owned is not None and owned.shard is not None:
                return owned, owned.shard
            if owned is None or self._runtime.loop.time() > deadline:
                raise NotReadyError(f"node {self._runtime.name} does not serve shard {index} of group {gid}")
            await self._runtime.map_change(0.1)

    async def _subscribe(self, connection: Connection, frame: Frame) -> None:
        _owned, shard, key = await self._source_for(connection, frame)
        shard.remove_sink(key)
        cursor = shard.add_sink(key, shard.seq, integer(frame.meta, "subscription"))
        snapshots = [
            TableSnapshot(table_id, store.row_bytes, store.keylist.keys, store.keylist.allocated)
            for table_id, store in shard.tables.items()
        ]
        heads, bins = pack_tables(snapshots)
        meta = self._stream_meta(shard, cursor) | {
            "seq": shard.seq, "tables": heads, "requests": pack_requests(shard.requests.entries()),
        }  # fmt: skip
        if not self._runtime.streams.send_in_order(shard, cursor, "snapshot", meta, bins):
            shard.remove_sink(key)
            raise NotReadyError(f"no connection to node {key.node} yet; subscribe again")
        connection.reply(frame.rid, {"seq": shard.seq})

    async def _want(self, connection: Connection, frame: Frame) -> None:
        owned, shard, key = await self._source_for(connection, frame)
        table_id, first, count = (integer(frame.meta, name) for name in ("table", "block", "count"))
        store = shard.tables.get(table_id)
        if store is None:
            raise NotReadyError(f"table {table_id} is gone")
        if not 0 <= first * limits.BLOCK_SLOTS < limits.MAX_ROWS_PER_SHARD:
            raise FrameError(f"block {first} is none of a shard of at most {limits.MAX_ROWS_PER_SHARD} slots")
        most = limits.blocks_of(store.row_bytes)
        if not 1 <= count <= most:
            raise FrameError(f"1 to {most} blocks of such rows may be asked for at once, not {count}")
        slots = np.arange(first * limits.BLOCK_SLOTS, (first + count) * limits.BLOCK_SLOTS, dtype=np.int64)
        if owned.decoder is not None:
            await owned.decoder.ensure(table_id, slots)
            _owned, shard, key = await self._source_for(connection, frame)
            if shard.tables.get(table_id) is not store:  # dropped meanwhile: its rows are gone
                raise NotReadyError(f"table {table_id} is gone")
        cursor = shard.sinks.get(key)
        if cursor is None or cursor.subscription != integer(frame.meta, "subscription"):
            raise NotReadyError(f"node {key.node} is not subscribed; subscribe again", unsubscribed=True)
        together = limits.blocks_in_frame(store.row_bytes)
        for block in range(first, first + count, together):
            start, end = block * limits.BLOCK_SLOTS, min(block + together, first + count) * limits.BLOCK_SLOTS
            meta = self._stream_meta(shard, cursor) | {
                "seq": shard.seq, "table": table_id, "block": block, "row_bytes": store.row_bytes,
                "rows": int(store.keylist.allocated[start:end].sum()),
            }  # fmt: skip
            rows = store.read_run(start, end - start)
            if not self._runtime.streams.send_in_order(shard, cursor, "blocks", meta, [rows]):
                raise NotReadyError(f"no connection to node {key.node} yet; ask again")
        connection.reply(frame.rid, {})

    @staticmethod
    def _stream_meta(shard: DataShard, cursor: SinkCursor) -> dict[str, Any]:
        return {
            "group": shard.gid, "src": shard.index, "dst": cursor.key.index, "subscription": cursor.subscription,
        }  # fmt: skip

    async def _confirm(self, connection: Connection, frame: Frame) -> None:
        _owned, shard, key = await self._source_for(connection, frame)
        cursor = shard.sinks.get(key)
        if cursor is None or cursor.subscription != integer(frame.meta, "subscription"):
            raise NotReadyError(f"node {key.node} is not subscribed; subscribe again", unsubscribed=True)
        if shard.acked < cursor.since:
            # Its log begins after `since`: until the other sinks are there, a takeover could not bring them along.
            raise NotReadyError(f"other sinks of shard {shard.index} are not yet at seq {cursor.since}; ask again")
        connection.reply(frame.rid, {"acked": cursor.acked})

    # -- reads for a decode ---------------------------------------------------------------------------

    async def _shard_read(self, connection: Connection, frame: Frame) -> None:
        """Rows at some slots and the seq at this instant; rows that are lost here too are marked erased."""
        gid, index, table_id = (integer(frame.meta, name) for name in ("group", "shard", "table"))
        group_epoch = integer(frame.meta, "group_epoch")
        await self._runtime.at_group_epoch(gid, group_epoch)
        _owned, shard = await self._live(gid, index, group_epoch)
        slots = frame.bin(0, np.uint32)
        store = shard.tables.get(table_id)
        if store is None:
            table = self._runtime.tables.get(table_id)
            if table is None:
                raise NotReadyError(f"table {table_id} is not in the map of node {self._runtime.name}")
            store = shard.open_table(table_id, table.spec)
        _check_reply(slots.size, store.row_bytes)
        lost = shard.lost_slots(table_id, slots)
        meta = {"seq": shard.seq, "erased": bool(lost.size)}
        bins: list[Any] = [store.read(slots)]
        if lost.size:
            bins.append(np.isin(slots, lost).astype(np.uint8))
        connection.reply(frame.rid, meta, bins)

    async def _shard_info(self, connection: Connection, frame: Frame) -> None:
        """[table, slots in use, row_bytes, rows] of every table of a data shard: what a verification has to read."""
        gid, index = integer(frame.meta, "group"), integer(frame.meta, "shard")
        group = self._runtime.group(gid)
        _owned, shard = await self._live(gid, index, group.epoch)
        used = [[table_id, store.used, store.row_bytes, len(store)] for table_id, store in shard.tables.items()]
        connection.reply(frame.rid, {"seq": shard.seq, "tables": used, "undecoded": shard.rows_undecoded()})

    async def _parity_read(self, connection: Connection, frame: Frame) -> None:
        """Rows of a parity shard exactly at a cut. Waits until the cut is reached; blocks nothing meanwhile."""
        gid, index, table_id = (integer(frame.meta, name) for name in ("group", "shard", "table"))
        group_epoch, row_bytes = integer(frame.meta, "group_epoch"), integer(frame.meta, "row_bytes")
        seqs = frame.meta.get("cut")
        await self._runtime.at_group_epoch(gid, group_epoch)
        slots = frame.bin(0, np.uint32).astype(np.int64)
        if slots.size and not (np.diff(slots) > 0).all():
            raise FrameError("slots of a parity read rise: sorted, each once")
        check_row_bytes(row_bytes)
        if not isinstance(seqs, list) or any(type(seq) is not int for seq in seqs):
            raise FrameError("a parity read names a cut: one seq per data shard")
        _check_reply(slots.size, row_bytes)
        cut = {src: int(seq) for src, seq in enumerate(seqs)}
        deadline = self._runtime.loop.time() + CUT_WAIT_S
        while True:
            self._runtime.same_group_epoch(gid, group_epoch)
            if table_id not in self._runtime.tables:  # dropped, or newer than the map here: zeros would be a lie
                raise NotReadyError(f"table {table_id} is not in the map of node {self._runtime.name}")
            sink = self._runtime.sinks.get((gid, index))
            if sink is None or sink.building or cut.keys() != sink.shard.sources.keys():
                raise NotReadyError(f"node {self._runtime.name} holds no whole parity shard {index} of group {gid}")
            try:
                rows = sink.shard.rows_at(table_id, slots, row_bytes, cut)
            except CutNotReached:
                if self._runtime.loop.time() > deadline:
                    raise NotReadyError(f"the cut of group {gid} was not reached in {CUT_WAIT_S} s") from None
                self._runtime.count("cut_waits")
                await self._runtime.deltas_applied(CUT_WAIT_S)
                continue
            except LogTooShort:
                self._runtime.count("log_too_short")
                raise NotReadyError("the delta log no longer reaches back to the cut; ask with a newer one") from None
            connection.reply(frame.rid, {}, [rows])
            return

    # -- takeover -------------------------------------------------------------------------------------

    async def _taken_sink(self, connection: Connection, frame: Frame) -> tuple[OwnedSink, int]:
        """The sink here that the new owner of data shard `src` speaks to, once this node has adopted its epoch."""
        gid, src, dst = (integer(frame.meta, name) for name in ("group", "src", "dst"))
        group = await self._runtime.at_group_epoch(gid, integer(frame.meta, "group_epoch"))
        sink = self._runtime.sinks.get((gid, dst))
        if sink is None or src not in sink.shard.sources:
            raise NotReadyError(f"node {self._runtime.name} holds no sink {dst} of group {gid}")
        owner = group.shards[src]
        if (owner.owner, owner.incarnation) != (connection.peer.name, connection.peer.incarnation):
            raise NotReadyError(f"node {connection.peer.name} does not own shard {src} of group {gid}")
        return sink, src

    async def _takeover_begin(self, connection: Connection, frame: Frame) -> None:
        sink, src = await self._taken_sink(connection, frame)
        source, attempt = sink.shard.sources[src], integer(frame.meta, "attempt")
        life = (connection.peer.name, connection.peer.incarnation)
        latest = sink.attempts.get(src)
        if latest is not None and latest[0] == life and latest[1] >= attempt:
            raise NotReadyError("a later attempt of this takeover is under way")
        sink.attempts[src] = (life, attempt)
        sink.senders[src] = None
        connection.reply(
            frame.rid,
            {
                "applied": source.applied, "log_first": source.log.first, "synced": source.synced,
                "subscription": source.subscription,
            },
        )  # fmt: skip

    async def _takeover_frames(self, connection: Connection, frame: Frame) -> None:
        sink, src = await self._taken_sink(connection, frame)
        after, upto = integer(frame.meta, "after"), integer(frame.meta, "upto")
        log = sink.shard.sources[src].log
        frames: list[DeltaFrame] = []
        if log.reaches(after):
            frames = [item for item in log.after(after) if item.seq <= upto][: limits.MAX_FRAMES_PER_MESSAGE]
        addressed = [Addressed(sink.key[0], src, sink.key[1], 0, 0, item) for item in frames]
        if not addressed:
            raise NotReadyError(f"the log here starts at {log.first}")
        meta, bins = pack_deltas(addressed)
        connection.reply(frame.rid, meta, bins)

    async def _takeover_forward(self, connection: Connection, frame: Frame) -> None:
        sink, src = await self._taken_sink(connection, frame)
        for item in unpack_deltas(frame):
            if self._runtime.is_dropped(item.frame.table_id):
                sink.shard.drop_table(item.frame.table_id)
            self._check_width(item.frame)
            sink.shard.apply(src, item.frame, now=self._runtime.loop.time())
        self._runtime.notify_deltas()
        connection.reply(frame.rid, {"applied": sink.shard.sources[src].applied})

    async def _takeover_state(self, connection: Connection, frame: Frame) -> None:
        sink, src = await self._taken_sink(connection, frame)
        source = sink.shard.sources[src]
        heads, bins = pack_tables(sink.shard.snapshot_keys(src))
        meta = {
            "applied": source.applied, "tables": heads, "requests": pack_requests(source.requests.entries()),
        }  # fmt: skip
        connection.reply(frame.rid, meta, bins)

    async def _takeover_resume(self, connection: Connection, frame: Frame) -> None:
        """Take frames of the new owner from `seq` on. A sink under construction that stands elsewhere starts anew."""
        sink, src = await self._taken_sink(connection, frame)
        source = sink.shard.sources[src]
        kept = source.synced and source.applied == integer(frame.meta, "seq")
        if kept or sink.building:  # one that is not kept takes nothing before the snapshot it will subscribe to
            sink.senders[src] = (connection.peer.name, connection.peer.incarnation)
        if not kept and sink.building and source.synced:
            self._runtime.count("sinks_reset")
            sink.shard.reset()
            if sink.recovery is not None:
                sink.recovery.restart()
            sink.changed.set()
        connection.reply(frame.rid, {"kept": kept})

    async def _takeover_release(self, connection: Connection, frame: Frame) -> None:
        """The new owner asks whether we, the former one, have stopped: adopting its epoch is all it takes."""
        gid = integer(frame.meta, "group")
        await self._runtime.at_group_epoch(gid, integer(frame.meta, "group_epoch"))
        connection.reply(frame.rid, {})


def _check_reply(rows: int, row_bytes: int) -> None:
    """FrameError before memory is taken for a reply that no frame holds."""
    if rows * row_bytes > limits.MAX_REPLY_BYTES:
        raise FrameError(f"{rows} rows of {row_bytes} bytes exceed one reply; ask in several requests")
