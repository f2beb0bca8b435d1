"""The other nodes: one connection to each, heartbeats over it, suspicion, and this node's own lease.

Evidence against a peer, and what follows. Two witnesses are needed, for one of them may be the one that is cut off:
- its address refuses connections, or a later life of it answers, *and* the coordination service has lost it, too (its
  connection ended, or it was not heard for `suspect_after_s`): the process is gone, it is declared down at once;
- silence for `suspect_after_s`, and the service has lost it, too: declared down;
- silence three times as long, although the service hears it: declared down if we ourselves hear a majority of the
  nodes, and if no group is lost by it. Then only the two of us are apart, and the group can't work that way; who hears
  few blames nobody. Of two that blame each other the first is heard: who is down in the map blames nobody either.

A node that was itself paused or blocked has heard nobody and must not blame others: whoever finds that its own
clock jumped starts to count again.

The lease (guarantee G6): this node serves while its latest heartbeat answered by the coordination service, or by a
majority of the nodes in its map, was *sent* less than `lease_s` ago. A node declared down gets no such answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ecstore.cluster.map import ClusterMap, DownReason
from ecstore.cluster.transitions import NodeDown
from ecstore.errors import EcstoreError, UnavailableError
from ecstore.faults.control import Faults
from ecstore.node.runtime import Runtime
from ecstore.transport import Connection, Handler, Hello, connect
from ecstore.wire import Frame

#: Silence, in multiples of `suspect_after_s`, after which a peer is declared down whatever the service says.
LONE_WITNESS_FACTOR = 3.0

#: All peers of a node that has died find it out within milliseconds, and one proposal is enough: each waits so long
#: for those before it in the order of names. The others would make new maps only to lose with them.
STAGGER_S = 0.004

#: Between two attempts to reach a peer.
RECONNECT_S = 0.05


class Peer:
    """One life of one node (this node itself included: a shard may have a sink on the same node)."""

    def __init__(self, name: str, incarnation: int, address: str, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.connection: Connection | None = None
        self.connected = asyncio.Event()
        #: Loop time of the last proof of life.
        self.heard_at = now
        #: Newest epoch that the peer is known to have adopted.
        self.epoch = 0
        #: Loop time at which the last heartbeat that the peer answered with "you are up" was sent.
        self.lease_from = float("-inf")
        self.task: asyncio.Task[None] | None = None

    async def request(
        self, kind: str, meta: dict[str, Any], bins: Sequence[Any] = (), *, timeout: float = 2.0
    ) -> Frame:
        """Ask the peer; UnavailableError when it is not connected within `timeout` seconds."""
        connection = self.connection
        if connection is None:
            try:
                async with asyncio.timeout(timeout):
                    await self.connected.wait()
            except TimeoutError:
                raise UnavailableError(f"node {self.name} at {self.address} is not reachable") from None
            connection = self.connection
            if connection is None:
                raise UnavailableError(f"node {self.name} at {self.address} went away")
        return await connection.request(kind, meta, bins, timeout=timeout)


class Peers:
    """Keeps a connection to every node of the map that is up, and knows who is silent."""

    def __init__(
        self, runtime: Runtime, handler: Handler, hello: Callable[[], Hello], faults: Faults | None = None
    ) -> None:
        self._runtime = runtime
        self._faults = faults
        self._handler = handler
        self._hello = hello
        self._peers: dict[str, Peer] = {}
        self.on_connected: Callable[[Peer], None] = lambda peer: None

    def get(self, name: str) -> Peer:
        """The peer of that name in the newest map; UnavailableError when it is not up."""
        peer = self._peers.get(name)
        if peer is None:
            raise UnavailableError(f"node {name} is not up")
        return peer

    def find(self, name: str, incarnation: int) -> Peer | None:
        peer = self._peers.get(name)
        return peer if peer is not None and peer.incarnation == incarnation else None

    def follow(self, cluster_map: ClusterMap) -> None:
        """Peers of the newest map: start with new ones, stop with those gone."""
        alive = {node.id: node for node in cluster_map.nodes.values() if node.alive}
        for name, peer in list(self._peers.items()):
            node = alive.get(name)
            if node is None or node.incarnation != peer.incarnation:
                del self._peers[name]
                self._stop(peer)
        now = self._runtime.loop.time()
        for node in alive.values():
            if node.id not in self._peers:
                peer = self._peers[node.id] = Peer(node.id, node.incarnation, node.address, now)
                peer.task = self._runtime.spawn(self._watch(peer), f"watch {node.id}")

    def _stop(self, peer: Peer) -> None:
        if peer.task is not None:
            peer.task.cancel()
        if peer.connection is not None:
            peer.connection.close("the cluster map no longer names this life of the node")
            peer.connection = None
        peer.connected.set()  # whoever waits for a connection finds that there will be none

    # -- one peer -------------------------------------------------------------------------------------

    async def _watch(self, peer: Peer) -> None:
        while True:
            try:
                connection = await connect(
                    peer.address, self._hello(), self._handler,
                    expect_cluster=self._runtime.map.cluster, timeout=self._runtime.config.suspect_after_s,
                    tap=self._faults.tap(peer.name) if self._faults is not None else None,
                )  # fmt: skip
            except EcstoreError as error:
                await self._unreachable(peer, error)
                continue
            if connection.peer.name != peer.name or connection.peer.incarnation != peer.incarnation:
                connection.close("expected another life of this node")
                if connection.peer.name != peer.name or connection.peer.incarnation > peer.incarnation:
                    await self._blame(peer)
                await self._suspect(peer)
                await asyncio.sleep(RECONNECT_S)  # incarnation 0: it is joining and does not know its own yet
                continue
            await self._converse(peer, connection)

    async def _unreachable(self, peer: Peer, error: EcstoreError) -> None:
        if error.details.get("reason") == "refused":
            await self._blame(peer)
        await self._suspect(peer)
        await asyncio.sleep(RECONNECT_S)

    async def _converse(self, peer: Peer, connection: Connection) -> None:
        """Heartbeats over one connection until it ends."""
        peer.connection = connection
        peer.heard_at = self._runtime.loop.time()  # it has answered our hello
        connection.on_close.append(lambda _connection: self._disconnected(peer, connection))
        peer.connected.set()
        self.on_connected(peer)
        ended = asyncio.Event()
        connection.on_close.append(lambda _connection: ended.set())
        loop, config = self._runtime.loop, self._runtime.config
        beat: asyncio.Task[None] | None = None
        ticked_at = moved_at = loop.time()
        sent = 0
        try:
            while not connection.closed:
                now = loop.time()
                if connection.bytes_out - connection.write_buffered > sent:
                    moved_at, sent = now, connection.bytes_out - connection.write_buffered
                if now - ticked_at > 2 * config.heartbeat_s:  # we were paused: nobody else is to blame
                    peer.heard_at = now
                ticked_at = now
                if beat is None or beat.done():
                    beat = self._runtime.spawn(self._beat(peer, connection), f"beat {peer.name}")
                await self._suspect(peer)
                # Bytes that flow, either way, are life: a heartbeat may be stuck behind much larger frames.
                if now - max(peer.heard_at, connection.last_received_at, moved_at) >= config.suspect_after_s:
                    # Half-open, or TCP waits longer and longer before it tries again: a new connection will tell.
                    connection.close("no answer to heartbeats")
                    break
                try:
                    async with asyncio.timeout(config.heartbeat_s):
                        await ended.wait()
                except TimeoutError:
                    continue
        finally:
            if beat is not None:
                beat.cancel()

    async def _beat(self, peer: Peer, connection: Connection) -> None:
        loop = self._runtime.loop
        sent_at = loop.time()
        try:
            answer = await connection.request(
                "ping",
                {"incarnation": self._runtime.incarnation, "epoch": self._runtime.map.epoch},
                timeout=self._runtime.config.suspect_after_s,
            )
        except EcstoreError:
            return
        peer.heard_at = loop.time()
        epoch = answer.meta.get("epoch")
        if isinstance(epoch, int):
            peer.epoch = max(peer.epoch, epoch)
            if epoch > self._runtime.map.epoch:
                self._runtime.map_is_old()
        if answer.meta.get("up") is True:
            peer.lease_from = max(peer.lease_from, sent_at)

    def _disconnected(self, peer: Peer, connection: Connection) -> None:
        if peer.connection is connection:
            peer.connection = None
            peer.connected = asyncio.Event()

    async def _suspect(self, peer: Peer) -> None:
        """Declare `peer` down when it has been silent for too long and nobody else hears it."""
        if peer.name == self._runtime.name:
            return
        silent_s = self._runtime.loop.time() - peer.heard_at
        limit_s = self._runtime.config.suspect_after_s
        if silent_s < limit_s:
            return
        if await self._service_lost(peer):
            await self._declare_down(peer, "silent")
        elif silent_s >= LONE_WITNESS_FACTOR * limit_s and self._hears_majority():
            await self._declare_down(peer, "silent", sparing=True)

    async def _blame(self, peer: Peer) -> None:
        """Nothing of this life of the peer listens any more: declare it down if the service has lost it, too."""
        if await self._service_lost(peer):
            await self._declare_down(peer, "refused")

    async def _service_lost(self, peer: Peer) -> bool:
        try:
            sessions = await self._runtime.coordination.sessions()
        except EcstoreError:
            return False  # membership is frozen while the service is away
        return sessions.get(peer.name, float("inf")) >= self._runtime.config.suspect_after_s

    def _hears_majority(self) -> bool:
        now, limit_s = self._runtime.loop.time(), self._runtime.config.suspect_after_s
        heard = sum(peer.name == self._runtime.name or now - peer.heard_at < limit_s for peer in self._peers.values())
        return heard * 2 > len(self._peers)

    async def _declare_down(self, peer: Peer, reason: DownReason, *, sparing: bool = False) -> None:
        if peer.name == self._runtime.name:
            return
        ourselves = (self._runtime.name, self._runtime.incarnation)
        before = sum(name < self._runtime.name for name in self._peers if name != peer.name)
        await asyncio.sleep(before * STAGGER_S)
        if self._peers.get(peer.name) is not peer:
            return  # somebody else has said so
        try:
            await self._runtime.coordination.propose(
                NodeDown(peer.name, peer.incarnation, reason, by=ourselves, sparing=sparing)
            )
        except EcstoreError as error:
            self._runtime.count("down_proposals_failed")
            self._runtime.event("proposal_failed", f"could not declare {peer.name} down: {error}")

    # -- lease ----------------------------------------------------------------------------------------

    def may_serve(self) -> bool:
        """Whether the lease of this node runs."""
        now, config = self._runtime.loop.time(), self._runtime.config
        if self._runtime.coordination.fenced:
            return False
        if now < self._runtime.coordination.last_renewal + config.lease_s:
            return True
        others = [peer for peer in self._peers.values() if peer.name != self._runtime.name]
        if not others:  # a cluster that has always been this node alone has nobody who could take over
            return len(self._runtime.map.nodes) == 1
        confirmed = 1 + sum(now < peer.lease_from + config.lease_s for peer in others)
        return confirmed * 2 > len(others) + 1

    def adopted_by_majority(self, epoch: int) -> bool:
        """Whether so many nodes are known to have adopted `epoch` that the others are no majority any more."""
        adopted = sum(peer.name == self._runtime.name or peer.epoch >= epoch for peer in self._peers.values())
        return adopted * 2 > len(self._peers)

    def statistics(self) -> list[dict[str, Any]]:
        now = self._runtime.loop.time()
        return [
            {"node": peer.name, "connected": peer.connection is not None, "silent_s": now - peer.heard_at}
            for peer in self._peers.values()
        ]
