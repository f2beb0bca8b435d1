"""One node: it listens, joins the cluster, follows the map, and serves until it is stopped.

A node lives several lives in one process: when the map declares its life over (it was paused, or cut off), it
forgets everything and joins again, empty, as a new incarnation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ecstore import buffers, limits
from ecstore.cluster.map import ClusterMap
from ecstore.cluster.transitions import CreateTable, Drain, DropTable, NodeJoin
from ecstore.coordination.base import Coordination
from ecstore.errors import (
    CapacityError,
    ConfigError,
    EcstoreError,
    FencedError,
    FrameError,
    ProtocolError,
    UnavailableError,
)
from ecstore.faults.control import Faults
from ecstore.node.client_api import ClientApi
from ecstore.node.config import NodeConfig
from ecstore.node.fault_api import FaultApi
from ecstore.node.insight_api import InsightApi
from ecstore.node.lag import LoopLag
from ecstore.node.ownership import Ownership
from ecstore.node.peer_api import PeerApi
from ecstore.node.peers import Peers
from ecstore.node.runtime import Runtime
from ecstore.node.scrub_api import ScrubApi
from ecstore.node.streams import DeltaStreams
from ecstore.tables import TableSpec
from ecstore.transport import Connection, Hello, Server, parse_address
from ecstore.wire import Frame

logger = logging.getLogger(__name__)

#: Opens this process's access to the coordination backend, given how the node introduces itself.
CoordinationFactory = Callable[[Callable[[], Hello]], Awaitable[Coordination]]

#: Message kinds that clients and the admin service may send besides nodes.
_OPEN_TO_CLIENTS = frozenset({"ping", "shard.read", "shard.info", "parity.read"})

#: Message kinds that have no answer.
_ONE_WAY = frozenset({"deltas", "acks", "snapshot", "blocks", "map"})

#: Connections of a node, and how many of them only nodes may take.
MAX_CONNECTIONS = 2048
RESERVED_FOR_NODES = 256

#: Between two attempts to join while the coordination service is away, and between two words about it.
JOIN_RETRY_S = 0.2
TELL_AGAIN_S = 30.0


class _LifeOver(Exception):
    """The map has ended this life of the node."""


class Node:
    def __init__(
        self, config: NodeConfig, coordination: CoordinationFactory, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        """`on_idle` is called, once, some seconds after traffic has ended."""
        self._config = config
        self._on_idle = on_idle
        self._make_coordination = coordination
        self._stop = asyncio.Event()
        #: "host:port" once the node listens.
        self.address = ""
        self.started_at = time.time()
        #: None: `fault.*` messages are refused, and nothing stands between connections and their sockets.
        self.faults = Faults(config.name) if config.allow_faults else None

    def stop(self) -> None:
        """End the present life and return from `run`."""
        self._stop.set()

    async def run(self, on_ready: Callable[[str], None] = lambda address: None) -> None:
        """Serve until `stop`. `on_ready` is called with the address once the node has joined."""
        while not self._stop.is_set():
            life = _Life(self._config, self.address or self._config.listen, self.faults, self._on_idle)
            coordination = await self._make_coordination(life.hello)
            stopping = asyncio.ensure_future(self._stop.wait())
            try:
                await life.run(coordination, stopping, self._joined(on_ready))
            finally:
                stopping.cancel()
                await coordination.close()

    def _joined(self, on_ready: Callable[[str], None]) -> Callable[[str], None]:
        def joined(address: str) -> None:
            first = not self.address
            self.address = address
            if first:
                on_ready(address)

        return joined


class _Life:
    """One incarnation: its runtime, and the dispatch of everything that arrives."""

    def __init__(self, config: NodeConfig, listen: str, faults: Faults | None, on_idle: Callable[[], None]) -> None:
        self._config = config
        self._on_idle = on_idle
        self._listen = listen
        self._faults = faults
        tap = faults.tap(None) if faults is not None else None
        self._server = Server(max_connections=MAX_CONNECTIONS, admit=self._admit, trusts=self._is_member, tap=tap)
        self._runtime: Runtime
        self._joined = False
        self._over: asyncio.Future[str]
        self._born = time.time()

    def _admit(self, hello: Hello) -> None:
        """Clients may not take all connections: nodes must get through."""
        if self._is_member(hello):
            return
        count = len(self._server.connections)
        if count >= MAX_CONNECTIONS - RESERVED_FOR_NODES and not self._server.make_room():
            raise CapacityError(f"node {self._config.name} has {count} connections; try another node, or later")

    def _is_member(self, hello: Hello) -> bool:
        """Whether this is how a node of the map introduces itself. Nothing proves that it is one."""
        return hello.role == "node" and self._joined and self._runtime.map.is_alive(hello.name, hello.incarnation)

    def hello(self) -> Hello:
        incarnation = self._runtime.incarnation if self._joined else 0
        cluster = self._runtime.map.cluster if self._joined else self._config.cluster
        return Hello(role="node", cluster=cluster, name=self._config.name, incarnation=incarnation)

    async def run(
        self, coordination: Coordination, stopping: asyncio.Future[Any], joined: Callable[[str], None]
    ) -> None:
        """Return when the life is over: fenced by the map, or stopped."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._lag = LoopLag(loop, self._config.lag_interval_s)
        self._lag.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._runtime = Runtime(self._config, coordination, tasks)
                self._assemble()
                try:
                    host, port = parse_address(self._listen)
                    await self._server.start(host, port, self.hello, self)
                    address = self._config.advertise or self._server.address
                    joining = tasks.create_task(self._join(coordination, address), name="join")
                    await asyncio.wait([joining, stopping], return_when=asyncio.FIRST_COMPLETED)
                    if joining.done() and not joining.cancelled() and joining.exception() is None:
                        joined(self._server.address)
                        self._runtime.spawn(self._tidy(), "tidy")
                        await asyncio.wait([self._over, stopping], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._runtime.closing = True
                raise _LifeOver
        except* _LifeOver:
            pass
        finally:
            self._lag.stop()
            self._ownership.release_all(FencedError(f"node {self._config.name} begins a new life; ask again"))
            await self._server.close()

    def _assemble(self) -> None:
        runtime = self._runtime
        runtime.peers = Peers(runtime, self, self.hello, self._faults)
        runtime.streams = DeltaStreams(runtime)
        runtime.peers.on_connected = runtime.streams.connected
        self._ownership = Ownership(runtime)
        self._peer_api = PeerApi(runtime)
        self._client_api = ClientApi(runtime)
        self._fault_api = FaultApi(runtime, self._faults)
        self._own = {
            "map.get": self._map_get, "status": self._status, "table.create": self._table_create,
            "table.drop": self._table_drop, "node.drain": self._drain,
        }  # fmt: skip
        self._scrub = ScrubApi(runtime)
        self._insight = InsightApi(runtime, self._ownership.pacer)
        self._own |= self._scrub.open | self._insight.open
        self._peer_api.waiting |= self._scrub.of_nodes

    async def _join(self, coordination: Coordination, address: str) -> None:
        loop = asyncio.get_running_loop()
        tell_at = loop.time() + 5 * JOIN_RETRY_S
        while True:
            try:
                current = await coordination.get()
                if self._config.cluster is not None and current.cluster != self._config.cluster:
                    raise ConfigError(
                        f"the coordination service serves cluster {current.cluster!r}, "
                        f"this node belongs to {self._config.cluster!r}; check the addresses"
                    )
                known = current.nodes.get(self._config.name)
                if known is not None and known.alive and known.address != address:
                    raise UnavailableError(
                        f"a node named {self._config.name!r} is up at {known.address}; give this one another name"
                    )
                joined = await coordination.propose(NodeJoin(self._config.name, address))
                break
            except EcstoreError as error:
                if not error.retryable:
                    raise
                if loop.time() >= tell_at:
                    logger.warning("node %s can't join yet, and keeps trying: %s", self._config.name, error)
                    tell_at = loop.time() + TELL_AGAIN_S
                await asyncio.sleep(JOIN_RETRY_S)
        self._runtime.incarnation = joined.nodes[self._config.name].incarnation
        self._joined = True
        coordination.subscribe(self._new_map)
        await coordination.session(self._config.name, self._runtime.incarnation)
        self._runtime.event("joined", f"node {self._config.name} joined as incarnation {self._runtime.incarnation}")

    async def _tidy(self) -> None:
        """Give back what is kept for traffic that has ended: deltas in the logs of sinks, and buffers."""
        quiet, moved = 0, -1
        while True:
            await asyncio.sleep(limits.MAX_RECENT_S / 2)
            for sink in self._runtime.sinks.values():
                sink.shard.tidy(self._runtime.loop.time())
            buffers.trim()
            counters = self._runtime.counters
            before, moved = moved, counters.get("rows_pulled", 0) + counters.get("rows_pushed", 0)
            quiet = quiet + 1 if moved == before else 0
            if quiet == 2:  # by now the logs are empty
                self._on_idle()

    # -- map ------------------------------------------------------------------------------------------

    def _new_map(self, new: ClusterMap) -> None:
        """Follow a newer map. An error here must end the node, not be logged and forgotten."""
        if new.epoch <= self._runtime.map.epoch or self._over.done() or self._runtime.closing:
            return
        try:
            self._follow(new)
        except Exception as error:
            self._runtime.spawn(_raise(error), "map error")
            raise

    def _follow(self, new: ClusterMap) -> None:
        runtime = self._runtime
        if not new.is_alive(runtime.name, runtime.incarnation):
            if new.epoch >= runtime.map.epoch and not self._over.done():
                self._over.set_result("declared down")
                self._ownership.release_all(
                    FencedError(f"node {runtime.name} was declared down; fetch the map and ask again")
                )
            return
        old = runtime.map
        runtime.set_map(new)
        runtime.peers.follow(new)
        runtime.streams.forget({(node.id, node.incarnation) for node in new.nodes.values() if node.alive})
        self._ownership.follow(old)
        message = {"map": new.to_wire()}
        for connection in self._server.connections:
            if connection.peer.role in ("client", "admin"):
                _send_map(connection, message)

    # -- dispatch -------------------------------------------------------------------------------------

    def on_open(self, conn: Connection) -> None:
        """Clients learn the map at once."""
        if conn.peer.role in ("client", "admin") and self._joined:
            _send_map(conn, {"map": self._runtime.map.to_wire()})

    def on_close(self, conn: Connection, reason: str) -> None:
        """Nothing to do: requests of a closed connection find out when they answer."""

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        if frame.kind.startswith("fault.") and conn.peer.role in ("client", "admin") and not self._runtime.closing:
            self._runtime.spawn_request(self._answer(self._fault_api.answer, conn, frame), frame.kind)
            return  # before anything else: a node that a partition has ended must hear of its end
        if not self._joined or self._over.done() or self._runtime.closing:
            raise FencedError(f"node {self._config.name} is not in the map at the moment; fetch the map")
        kind, from_node = frame.kind, conn.peer.role == "node"
        if kind in self._client_api.immediate:
            self._ownership.pacer.asked()
        if frame.rid and kind in _ONE_WAY:  # nothing would ever answer it
            raise ProtocolError(f"{kind!r} is a one-way message; send it with request id 0")
        if (handler := self._client_api.immediate.get(kind)) is not None or (
            (from_node or kind in _OPEN_TO_CLIENTS) and (handler := self._peer_api.immediate.get(kind)) is not None
        ):
            handler(conn, frame)
        elif (work := self._client_api.waiting.get(kind) or self._own.get(kind)) is not None or (
            (from_node or kind in _OPEN_TO_CLIENTS) and (work := self._peer_api.waiting.get(kind)) is not None
        ):
            self._runtime.spawn_request(self._answer(work, conn, frame), kind, nbytes=frame.nbytes, of_node=from_node)
        elif kind != "map":
            raise ProtocolError(f"a node does not answer {kind!r} from a {conn.peer.role}; see docs/PROTOCOL.md")

    async def _answer(self, work: Any, conn: Connection, frame: Frame) -> None:
        """Run a handler that may wait; its typed errors go back to the asker.

        An unexpected error ends the node when a node of the map has met it: its messages change shards, and a dead
        shard can be decoded, a wrong one can't. Anybody else is told: those can't be trusted to be well-formed, and
        change nothing before everything is checked.
        """
        try:
            await work(conn, frame)
        except EcstoreError as error:
            self._refuse(conn, frame, error)
        except RecursionError:  # of the text for an error; thus nothing has been changed
            self._refuse(conn, frame, FrameError(f"the meta of {frame.kind} is nested too deeply; send plain values"))
        except Exception as error:
            if self._is_member(conn.peer):
                raise
            logger.exception("answering %s of %s failed", frame.kind, conn)
            what = type(error).__name__
            self._refuse(conn, frame, EcstoreError(f"{frame.kind} failed inside the node ({what}); see the node's log"))

    @staticmethod
    def _refuse(conn: Connection, frame: Frame, error: EcstoreError) -> None:
        if frame.rid and not conn.closed:
            conn.reply_error(frame.rid, error)

    # -- the node's own answers -------------------------------------------------------------------------

    async def _map_get(self, conn: Connection, frame: Frame) -> None:
        """The map, unless the one that who asks says to know is as new: maps are long, and asked for often."""
        known, current = frame.meta.get("known"), self._runtime.map
        answer: dict[str, Any] = {"epoch": current.epoch}
        if type(known) is not int or known < current.epoch:
            answer["map"] = current.to_wire()
        conn.reply(frame.rid, answer)

    async def _table_create(self, conn: Connection, frame: Frame) -> None:
        spec = frame.meta.get("spec")
        if not isinstance(spec, dict):
            raise FrameError("table.create carries the table's spec")
        new = await self._runtime.coordination.propose(CreateTable(TableSpec.from_wire(spec)))
        conn.reply(frame.rid, {"map": new.to_wire()})

    async def _table_drop(self, conn: Connection, frame: Frame) -> None:
        new = await self._runtime.coordination.propose(DropTable(str(frame.meta.get("name"))))
        conn.reply(frame.rid, {"map": new.to_wire()})

    async def _drain(self, conn: Connection, frame: Frame) -> None:
        new = await self._runtime.coordination.propose(Drain(str(frame.meta.get("node"))))
        conn.reply(frame.rid, {"map": new.to_wire()})

    async def _status(self, conn: Connection, frame: Frame) -> None:
        conn.reply(frame.rid, self._statistics())

    def _statistics(self) -> dict[str, Any]:
        runtime = self._runtime
        memory: dict[str, int] = {}
        rows = 0
        for owned in runtime.data.values():
            if owned.shard is not None:
                rows += sum(len(store) for store in owned.shard.tables.values())
                _add(memory, owned.shard.memory())
        for sink in runtime.sinks.values():
            _add(memory, sink.shard.memory())
        return {
            "node": runtime.name, "incarnation": runtime.incarnation, "epoch": runtime.map.epoch,
            "address": self._server.address, "pid": os.getpid(), "started_at": self._born, "now": time.time(),
            "rows": rows, "data_shards": len(runtime.data), "parity_shards": len(runtime.sinks),
            "memory": memory, "rss_bytes": _rss_bytes(), "counters": dict(runtime.counters),
            "frames_sent": runtime.streams.frames_sent, "bytes_sent": runtime.streams.bytes_sent,
            "peers": runtime.peers.statistics(), "may_serve": runtime.peers.may_serve(),
            "coordination_available": runtime.coordination.available,
            "scrub": self._scrub.scrubber.statistics(), "loop_lag": self._lag.statistics(),
            "recoveries": runtime.recoveries.to_wire(time.time()), "events": list(runtime.events)[-200:],
            "recovery_totals": runtime.recoveries.totals(), "durations": runtime.durations.to_wire(),
        } | self._insight.statistics()  # fmt: skip


def _send_map(connection: Connection, message: dict[str, Any]) -> None:
    """Tell a client the map; one that can't take a message of that size is turned away."""
    try:
        connection.send("map", message)
    except EcstoreError as error:
        connection.refuse(error)


def _add(total: dict[str, int], part: dict[str, int]) -> None:
    for kind, size in part.items():
        total[kind] = total.get(kind, 0) + size


def _rss_bytes() -> int:
    """Resident memory of this process now (Linux), or its peak where /proc is absent."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


async def _raise(error: Exception) -> None:
    raise error
