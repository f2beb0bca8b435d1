"""A client's view of the cluster: the newest map it has seen, and one connection to each node it talks to."""

from __future__ import annotations

import asyncio
import builtins
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ecstore.cluster.map import ClusterMap
from ecstore.errors import (
    EcstoreError,
    InputError,
    ProtocolError,
    TimeoutError,
    UnavailableError,
    WrongClusterError,
)
from ecstore.transport import Connection, Hello, connect
from ecstore.wire import Frame

#: One attempt to reach a node.
CONNECT_TIMEOUT_S = 1.0


class Session:
    """Used from one event loop. Nothing here raises out of background work."""

    def __init__(self, addresses: Sequence[str], *, cluster: str | None) -> None:
        if not addresses:
            raise InputError("name at least one node as host:port")
        self._addresses = list(addresses)
        self._cluster = cluster
        self.map: ClusterMap
        self._has_map = False
        self._connections: dict[str, Connection] = {}
        self._dialing: dict[str, asyncio.Task[Connection]] = {}
        self._dialed: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()  # in order of arrival
        self._changed = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self.on_map: list[Callable[[], None]] = []
        self.closed = False

    # -- map ------------------------------------------------------------------------------------------

    async def start(self, timeout: float) -> None:
        """Learn the map from the first node that answers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        last: EcstoreError | None = None
        while True:
            for address in self._addresses:
                try:
                    connection = await self._dial(address)
                    answer = await connection.request("map.get", {}, timeout=CONNECT_TIMEOUT_S)
                    self._adopt(ClusterMap.from_wire(answer.meta.get("map")))
                    connection.close("the map names the node; a named connection follows")
                    return
                except ProtocolError:
                    raise
                except EcstoreError as error:
                    last = error
            if loop.time() > deadline:
                raise UnavailableError(
                    f"no node answered at {', '.join(self._addresses)} within {timeout:g} s ({last}); "
                    "is the cluster running? `ecstore up` starts one"
                )
            await asyncio.sleep(0.1)

    def _adopt(self, new: ClusterMap) -> None:
        if self._has_map:
            if new.cluster != self.map.cluster:
                raise WrongClusterError(f"a node of cluster {new.cluster!r} answered, not of {self.map.cluster!r}")
            if new.epoch <= self.map.epoch:
                return
        old = self.map if self._has_map else None
        self.map, self._has_map = new, True
        self._cluster = new.cluster
        if old is not None:
            for node in old.nodes.values():
                if not new.is_alive(node.id, node.incarnation):
                    gone = self._connections.pop(node.id, None)
                    if gone is not None:
                        gone.close("the node was declared down")
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self.on_map:
            callback()

    async def map_change(self, timeout: float) -> None:
        """Return when the map has changed, or after `timeout` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except builtins.TimeoutError:
            return

    def refresh_soon(self) -> None:
        """Something was out of date: ask the nodes for a newer map, in the background."""
        if not self.closed and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh(), name="ecstore map refresh")

    async def refresh(self) -> None:
        """Ask all nodes for their map; the newest stays. If none answers, ask the addresses we began with."""
        alive = [node.id for node in self.map.nodes.values() if node.alive]
        if not any(await asyncio.gather(*(self._learn_from(node_id) for node_id in alive))):
            await asyncio.gather(*(self._learn_at(address) for address in self._addresses))

    async def _learn_from(self, node_id: str) -> bool:
        try:
            answer = await self.ask(node_id, "map.get", {"known": self.map.epoch}, timeout=CONNECT_TIMEOUT_S)
            if "map" in answer.meta:  # else it knows no newer one
                self._adopt(ClusterMap.from_wire(answer.meta["map"]))
        except EcstoreError:
            return False  # another node may know
        return True

    async def _learn_at(self, address: str) -> None:
        try:
            connection = await self._dial(address)
        except EcstoreError:
            return
        try:
            answer = await connection.request("map.get", {}, timeout=CONNECT_TIMEOUT_S)
            self._adopt(ClusterMap.from_wire(answer.meta.get("map")))
        except EcstoreError:
            return
        finally:
            connection.close("asked for the map only")

    # -- connections ------------------------------------------------------------------------------------

    def open_connection(self, node_id: str) -> Connection | None:
        """The connection to a node if there is one now."""
        found = self._connections.get(node_id)
        return None if found is None or found.closed else found

    async def connection(self, node_id: str) -> Connection:
        """The connection to a node of the map, opened when there is none."""
        found = self._connections.get(node_id)
        if found is not None and not found.closed:
            return found
        node = self.map.nodes.get(node_id)
        if node is None or not node.alive:
            raise UnavailableError(f"node {node_id} is down")
        task = self._dialing.get(node_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._dial(node.address), name=f"ecstore dial {node_id}")
            self._dialing[node_id] = task
            task.add_done_callback(lambda _task: self._dialing.pop(node_id, None))
        connection = await asyncio.shield(task)
        if connection.peer.name != node_id:
            connection.close("another node answers at this address")
            raise UnavailableError(f"{node.address} is node {connection.peer.name!r} now, not {node_id!r}")
        self._connections[node_id] = connection
        return connection

    async def _dial(self, address: str) -> Connection:
        hello = Hello(role="client", cluster=self._cluster, name=f"client-{os.getpid()}")
        connection = await connect(address, hello, self, expect_cluster=self._cluster, timeout=CONNECT_TIMEOUT_S)
        self._dialed[connection] = None
        return connection

    async def ask(
        self, node_id: str, kind: str, meta: dict[str, Any], bins: Sequence[Any] = (), *, timeout: float
    ) -> Frame:
        connection = await self.connection(node_id)
        return await connection.request(kind, meta, bins, timeout=timeout)

    async def ask_address(self, address: str, kind: str, meta: dict[str, Any], *, timeout: float) -> Frame:
        """Ask whoever listens at an address, over a connection of its own: in the map or not, up or down."""
        hello = Hello(role="client", cluster=self._cluster, name=f"client-{os.getpid()}")
        connection = await connect(address, hello, self, expect_cluster=None, timeout=min(timeout, CONNECT_TIMEOUT_S))
        self._dialed[connection] = None
        try:
            return await connection.request(kind, meta, timeout=timeout)
        finally:
            connection.close("asked for one thing only")

    async def ask_any(self, kind: str, meta: dict[str, Any], *, timeout: float) -> Frame:
        """Ask one node after the other until one answers; errors that are not about reaching it go to the caller."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        last: EcstoreError | None = None
        while loop.time() < deadline:
            for node_id in self.map.up_nodes():
                try:
                    return await self.ask(node_id, kind, meta, timeout=max(0.05, deadline - loop.time()))
                except EcstoreError as error:
                    if not error.retryable:
                        raise
                    last = error
            await self.map_change(0.1)
            await self.refresh()
        raise TimeoutError(f"no node answered {kind!r} within {timeout:g} s: {last}")

    # -- handler of connections -------------------------------------------------------------------------

    def on_open(self, conn: Connection) -> None:
        """Nothing to do: the node sends its map."""

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        if frame.kind == "map":
            told = frame.meta.get("map")
            # Every node tells every map: only the first of them is worth reading.
            epoch = told.get("epoch") if isinstance(told, dict) and self._has_map else None
            if type(epoch) is not int or epoch > self.map.epoch:
                self._adopt(ClusterMap.from_wire(told))
        elif frame.rid:
            raise ProtocolError(f"a client answers no requests, {frame.kind!r} was sent to it")

    def on_close(self, conn: Connection, reason: str) -> None:
        for node_id, known in list(self._connections.items()):
            if known is conn:
                del self._connections[node_id]
                self.refresh_soon()  # others tell the next map, once we are connected to them

    async def close(self) -> None:
        """End every connection; returns when all sockets are closed, so that the loop may be closed next."""
        self.closed = True
        tasks = [*self._dialing.values(), *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        dialed = list(self._dialed.keys())
        for connection in dialed:
            connection.close("the client closes")
        self._connections.clear()
        await asyncio.gather(*(connection.wait_gone() for connection in dialed))
