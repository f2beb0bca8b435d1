"""Delta streams: from every data shard here to its sinks, coalesced per peer, in order, again after a reconnect.

The queue of a stream is the shard's own log, so it has the log's bound; a cursor says how far a sink has been sent
to. One pump task per peer writes while the connection's buffer has room.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable, Iterator

from ecstore import limits
from ecstore.errors import EcstoreError
from ecstore.node.data_shard import DataShard, SinkCursor, SinkKey
from ecstore.node.durations import Unacknowledged
from ecstore.node.messages import Addressed, Bins, Meta, pack_deltas
from ecstore.node.peers import Peer
from ecstore.node.runtime import Runtime
from ecstore.transport import Connection

#: A sink that was not ready for a frame gets it again after this time.
RESEND_DELAY_S = 0.02

#: After a message of this size others get their turn.
TURN_BYTES = 256 << 10

_Life = tuple[str, int]  # node, incarnation


class _Outlet:
    """Cursors with something to send to one life of one node."""

    def __init__(self) -> None:
        self.dirty: dict[tuple[int, int, SinkKey], tuple[DataShard, SinkCursor]] = {}
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class DeltaStreams:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._outlets: dict[_Life, _Outlet] = {}
        self._unacknowledged: weakref.WeakKeyDictionary[Connection, Unacknowledged] = weakref.WeakKeyDictionary()
        self.bytes_sent = 0
        self.frames_sent = 0

    def applied(self, shard: DataShard) -> None:
        """The shard has new frames: send them to its sinks."""
        for cursor in shard.sinks.values():
            self._mark(shard, cursor)

    def _mark(self, shard: DataShard, cursor: SinkCursor) -> None:
        if shard.sinks.get(cursor.key) is not cursor or self._runtime.closing:
            return
        life = (cursor.key.node, cursor.key.incarnation)
        outlet = self._outlets.get(life)
        if outlet is None:
            outlet = self._outlets[life] = _Outlet()
            outlet.task = self._runtime.spawn(self._pump(life, outlet), f"stream to {life[0]}")
        outlet.dirty[shard.gid, shard.index, cursor.key] = (shard, cursor)
        outlet.wake.set()

    def connected(self, peer: Peer) -> None:
        """A new connection: what was sent and not acknowledged goes out again."""
        for owned in self._runtime.data.values():
            shard = owned.shard
            if shard is None:
                continue
            for cursor in shard.sinks.values():
                if (cursor.key.node, cursor.key.incarnation) == (peer.name, peer.incarnation):
                    cursor.sent = cursor.acked
                    if cursor.sent < shard.seq:
                        self._mark(shard, cursor)

    def resend(self, shard: DataShard, cursor: SinkCursor, *, later: bool) -> None:
        """The sink asks for everything after `cursor.acked` again; `later`: it was not ready."""
        cursor.sent = cursor.acked
        if later:
            self._runtime.loop.call_later(RESEND_DELAY_S, self._mark, shard, cursor)
        else:
            self._mark(shard, cursor)

    def answered(self, connection: Connection) -> None:
        """The peer has acknowledged the oldest message of deltas that was sent on a connection, or refused it."""
        waiting = self._unacknowledged.get(connection)
        took = waiting.answered(self._runtime.clock()) if waiting is not None else None
        if took is not None:
            self._runtime.durations.delta_ack.observe(took)

    def forget(self, alive: set[_Life]) -> None:
        """End the pumps to lives that the map no longer names."""
        for life in [life for life in self._outlets if life not in alive]:
            outlet = self._outlets.pop(life)
            if outlet.task is not None:
                outlet.task.cancel()

    def send_in_order(self, shard: DataShard, cursor: SinkCursor, kind: str, meta: Meta, bins: Bins) -> bool:
        """Send a snapshot or block that must stand in the stream right after the shard's last delta.

        False when there is no connection: the sink will ask again.
        """
        peer = self._runtime.peers.find(cursor.key.node, cursor.key.incarnation)
        if peer is None or peer.connection is None:
            return False
        connection = peer.connection
        for message in _messages(_unsent(shard, cursor)):
            self._send(connection, message)
        connection.send(kind, meta, bins)
        self.bytes_sent += sum(item.nbytes for item in bins)
        return True

    # -- pump -----------------------------------------------------------------------------------------

    async def _pump(self, life: _Life, outlet: _Outlet) -> None:
        while True:
            await outlet.wake.wait()
            outlet.wake.clear()
            peer = self._runtime.peers.find(*life)
            connection = peer.connection if peer is not None else None
            if connection is None:
                continue  # `connected` marks everything again
            dirty, outlet.dirty = outlet.dirty, {}
            try:
                for message in _messages(self._collect(dirty.values())):
                    self._send(connection, message)
                    if connection.write_buffered > limits.STREAM_HIGH_WATER_BYTES:
                        await connection.drain()
                    elif sum(item.frame.nbytes for item in message) >= TURN_BYTES:
                        await asyncio.sleep(0)  # the other streams, and all who ask this node for something
                        if connection.closed:  # it takes what is sent, and nothing comes of it
                            break  # `connected` has marked everything again, or will
            except EcstoreError as error:
                # The connection ended, or must end now: `connected` starts over from what was acknowledged.
                if not connection.closed:
                    self._runtime.event("stream_failed", f"to node {life[0]}: {error}")
                    connection.close("a delta could not be sent")

    def _collect(self, entries: Iterable[tuple[DataShard, SinkCursor]]) -> Iterator[Addressed]:
        for shard, cursor in entries:
            if shard.sinks.get(cursor.key) is cursor:
                yield from _unsent(shard, cursor)

    def _send(self, connection: Connection, message: list[Addressed]) -> None:
        meta, bins = pack_deltas(message)
        connection.send("deltas", meta, bins)
        waiting = self._unacknowledged.get(connection)
        if waiting is None:
            waiting = self._unacknowledged[connection] = Unacknowledged()
        waiting.sent(self._runtime.clock())
        self.frames_sent += len(message)
        self.bytes_sent += sum(item.nbytes for item in bins)


def _unsent(shard: DataShard, cursor: SinkCursor) -> Iterator[Addressed]:
    """Frames after `cursor.sent`; each counts as sent when it is taken. Ends when somebody else moves the cursor."""
    for frame in shard.log.after(cursor.sent):
        if frame.seq != cursor.sent + 1:
            return
        cursor.sent = frame.seq
        yield Addressed(shard.gid, shard.index, cursor.key.index, cursor.subscription, shard.acked, frame)


def _messages(items: Iterator[Addressed]) -> Iterator[list[Addressed]]:
    """Cut a run of frames into messages within the bounds. Holds no item back while the caller sends."""
    batch: list[Addressed] = []
    size = 0
    for item in items:
        batch.append(item)
        size += item.frame.nbytes
        if len(batch) == limits.MAX_FRAMES_PER_MESSAGE or size >= limits.MAX_MESSAGE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
