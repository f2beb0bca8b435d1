"""The embedded backend's service: one process that keeps the cluster map and hears the nodes.

It decides nothing: peers compute the next map and hand it in. One map at a time is compared, written to the
state file, put in force, pushed to the watchers and only then acknowledged, by one writer task. Everything
else is answered straight from memory, so heartbeats do not wait for the disk.

    kind            meta                     bins     answer
    coord.get       {epoch}                           {epoch} and the map, if newer than the asker's `epoch`
    coord.cas       {old_epoch}              map      {won, epoch}; the map in force too when it was not won
    coord.watch     {}                                {epoch} and the map; from now on pushes of "coord.map"
    coord.map       {epoch}                  map      (one-way, to watchers)
    coord.beat      {node, incarnation}               {epoch}; FencedError when that life was declared down
    coord.sessions  {}                                {sessions: {node: seconds since last heard}}
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ecstore.cluster.map import MAX_NODES, ClusterMap, check_successor, empty_map
from ecstore.coordination.mapfile import MAX_MAP_BYTES, pack_map, read_map_file, unpack_map, write_map_file
from ecstore.errors import (
    CapacityError,
    ConfigError,
    EcstoreError,
    FencedError,
    FrameError,
    ProtocolError,
    UnavailableError,
    WrongClusterError,
)
from ecstore.transport import Connection, ConnectionLimits, Frame, Hello, Server

logger = logging.getLogger("ecstore.coordination")

#: Compare-and-swaps that wait for the writer. All but one of those with the same epoch lose anyway.
MAX_WAITING_SWAPS: Final = 256
#: Bytes a watcher may leave unread before it is cut off (it reconnects and gets the newest map only).
MAX_WATCH_BACKLOG: Final = 2 * MAX_MAP_BYTES
#: Nodes whose heartbeats are remembered: every id that may join, and as many that have not yet.
MAX_SESSIONS: Final = 2 * MAX_NODES

LIMITS: Final = ConnectionLimits(
    max_frame_bytes=MAX_MAP_BYTES + (1 << 20), max_write_bytes=MAX_WATCH_BACKLOG + 2 * MAX_MAP_BYTES
)


@dataclass(slots=True)
class _Session:
    incarnation: int
    heard_at: float  #: loop time; -inf once the connection it beat on has ended
    conn: Connection | None = None  #: None: only joined so far, or known from before a restart of the service


@dataclass(frozen=True, slots=True)
class _Swap:
    conn: Connection
    rid: int
    old_epoch: int
    new: ClusterMap


class CoordinationService:
    """Runs in one event loop: `start`, then `close`. A transport handler; `current` is the map in force."""

    def __init__(
        self,
        cluster: str | None = None,
        seed: int | None = None,
        state_file: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
    ) -> None:
        """`cluster`, `seed`: of a new cluster, random when None; where a state file says otherwise, a given
        cluster must match and the seed is the file's. `state_file` None: the cluster is forgotten when the
        service ends.
        """
        self._cluster = cluster
        self._seed = seed
        self._path = state_file
        self._host, self._port = host, port
        self._server = Server(limits=LIMITS, token=token)
        self._watchers: dict[Connection, None] = {}  # in order of arrival
        self._sessions: dict[str, _Session] = {}
        self._swaps: asyncio.Queue[_Swap | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="ecstore-map")
        self._closing = False
        self.current: ClusterMap
        self._packed = b""
        self._answers: dict[str, Callable[[Connection, Frame], None]] = {
            "coord.get": self._get,
            "coord.cas": self._cas,
            "coord.watch": self._watch,
            "coord.beat": self._beat,
            "coord.sessions": self._list_sessions,
        }

    @property
    def address(self) -> str:
        """Where it listens: "host:port"."""
        return self._server.address

    async def start(self) -> None:
        """Read or make the state, then listen. `ConfigError`: the state file; `UnavailableError`: the
        address."""
        self.current = self._load()
        self._packed = pack_map(self.current)
        loop = asyncio.get_running_loop()
        # Silence counts from here: what the nodes said before the restart is not known any more.
        for node in self.current.nodes.values():
            if node.alive:
                self._sessions[node.id] = _Session(node.incarnation, loop.time())
        await self._server.start(self._host, self._port, self._hello, self)
        self._writer = loop.create_task(self._write_swaps(), name="coordination map writer")
        logger.info("cluster %s, epoch %d, at %s", self.current.cluster, self.current.epoch, self.address)

    async def close(self) -> None:
        """Finish the swaps handed in, then close all connections. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self._writer is not None:
            self._swaps.put_nowait(None)
            await self._writer
        await self._server.close()
        self._disk.shutdown()

    def statistics(self) -> dict[str, Any]:
        """Counts for people and tests."""
        return {
            "epoch": self.current.epoch,
            "watchers": len(self._watchers),
            "sessions": len(self._sessions),
            "waiting_swaps": self._swaps.qsize(),
            "transport": self._server.statistics(),
        }

    def _load(self) -> ClusterMap:
        found = read_map_file(self._path) if self._path is not None else None
        if found is None:
            seed = secrets.randbits(63) if self._seed is None else self._seed
            if not 0 <= seed < 2**64:
                raise ConfigError(f"the seed of a cluster is an integer in [0, 2**64), got {seed}")
            fresh = empty_map(self._cluster or f"cluster-{secrets.token_hex(4)}", seed)
            if self._path is not None:
                self._save_first(self._path, fresh)
            return fresh
        if self._cluster is not None and self._cluster != found.cluster:
            raise ConfigError(
                f"the state file {self._path} belongs to cluster {found.cluster!r}, not {self._cluster!r}; "
                "give the right file, or another one for a new cluster"
            )
        return found

    @staticmethod
    def _save_first(path: Path, fresh: ClusterMap) -> None:
        try:
            write_map_file(path, pack_map(fresh))
        except OSError as error:
            raise ConfigError(f"cannot write the state file {path}: {error}; choose a writable place") from error

    def _hello(self) -> Hello:
        return Hello(role="coordinator", cluster=self.current.cluster, name="coordination")

    # -- transport handler -----------------------------------------------------------------------------------

    def on_open(self, conn: Connection) -> None:
        """Nothing to do: peers say what they want."""

    def on_close(self, conn: Connection, reason: str) -> None:
        """A node whose connection has ended counts as not heard, until it beats on a new one."""
        self._watchers.pop(conn, None)
        for session in self._sessions.values():
            if session.conn is conn:
                session.heard_at = -math.inf

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        answer = self._answers.get(frame.kind)
        if answer is None:
            raise ProtocolError(f"the coordination service does not know {frame.kind!r}; ask a node for that")
        if frame.rid == 0:
            raise ProtocolError(f"{frame.kind!r} is a request; send it with a request id")
        answer(conn, frame)

    def _get(self, conn: Connection, frame: Frame) -> None:
        known = _integer(frame, "epoch") if "epoch" in frame.meta else -1
        bins = [self._packed] if self.current.epoch > known else []
        conn.reply(frame.rid, {"epoch": self.current.epoch}, bins)

    def _watch(self, conn: Connection, frame: Frame) -> None:
        self._watchers[conn] = None
        conn.reply(frame.rid, {"epoch": self.current.epoch}, [self._packed])

    def _beat(self, conn: Connection, frame: Frame) -> None:
        node, incarnation = frame.meta.get("node"), _integer(frame, "incarnation")
        if type(node) is not str or not 0 < len(node) <= 128:
            raise FrameError("a heartbeat names its node, a string of 1 to 128 characters")
        if node in self.current.nodes and not self.current.is_alive(node, incarnation):
            raise FencedError(
                f"incarnation {incarnation} of node {node} was declared down; join again, empty", node=node
            )
        session = self._sessions.get(node)
        if session is None and len(self._sessions) >= MAX_SESSIONS:
            raise CapacityError(f"heartbeats of {MAX_SESSIONS} nodes are watched already; use fewer node ids")
        self._sessions[node] = _Session(incarnation, asyncio.get_running_loop().time(), conn)
        conn.reply(frame.rid, {"epoch": self.current.epoch})

    def _list_sessions(self, conn: Connection, frame: Frame) -> None:
        now = asyncio.get_running_loop().time()
        ages = {node: now - session.heard_at for node, session in self._sessions.items()}
        conn.reply(frame.rid, {"sessions": ages})

    def _cas(self, conn: Connection, frame: Frame) -> None:
        old_epoch = _integer(frame, "old_epoch")
        if self._closing or self._swaps.qsize() >= MAX_WAITING_SWAPS:
            raise CapacityError("the coordination service is busy or closing; try again in a moment")
        if old_epoch != self.current.epoch:
            self._lost(conn, frame.rid)
            return
        new = unpack_map(frame.bin(0, "u1").tobytes())
        if (new.cluster, new.seed) != (self.current.cluster, self.current.seed):
            raise WrongClusterError(
                f"this service keeps cluster {self.current.cluster!r}, the map is of {new.cluster!r} or has "
                "another seed; check the address"
            )
        if new.epoch != old_epoch + 1:
            raise FrameError(f"the map after epoch {old_epoch} must have epoch {old_epoch + 1}, not {new.epoch}")
        check_successor(self.current, new)
        self._swaps.put_nowait(_Swap(conn, frame.rid, old_epoch, new))

    def _lost(self, conn: Connection, rid: int) -> None:
        conn.reply(rid, {"won": False, "epoch": self.current.epoch}, [self._packed])

    # -- the writer ------------------------------------------------------------------------------------------

    async def _write_swaps(self) -> None:
        """Owned by `start`/`close`: puts maps in force, one after the other."""
        while (swap := await self._swaps.get()) is not None:
            try:
                await self._swap(swap)
            except EcstoreError as error:
                logger.error("epoch %d was not put in force: %s", swap.new.epoch, error)
                swap.conn.reply_error(swap.rid, error)
            except Exception:  # a fault of ours must not end the writer: all membership would hang on it
                logger.exception("epoch %d was not put in force", swap.new.epoch)
                swap.conn.reply_error(swap.rid, UnavailableError("the coordination service failed; see its log"))

    async def _swap(self, swap: _Swap) -> None:
        if swap.old_epoch != self.current.epoch:
            self._lost(swap.conn, swap.rid)
            return
        packed = await self._persist(swap.new)
        self.current, self._packed = swap.new, packed
        self._forget_sessions()
        self._push()
        swap.conn.reply(swap.rid, {"won": True, "epoch": self.current.epoch})

    async def _persist(self, new: ClusterMap) -> bytes:
        packed = pack_map(new)
        if self._path is not None:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._disk, write_map_file, self._path, packed)
            except OSError as error:
                raise UnavailableError(
                    f"the coordination service cannot write its state file: {error}; make room, then try again"
                ) from error
        return packed

    def _push(self) -> None:
        for conn in tuple(self._watchers):
            if conn.write_buffered > MAX_WATCH_BACKLOG:
                conn.close("this watcher does not read the maps pushed to it")
                continue
            try:
                conn.send("coord.map", {"epoch": self.current.epoch}, [self._packed])
            except EcstoreError as error:  # the map is larger than what this watcher accepts
                conn.refuse(error)

    def _forget_sessions(self) -> None:
        """Drop what a life that is over has said: its last words must not vouch for the next."""
        self._sessions = {
            node: session
            for node, session in self._sessions.items()
            if node not in self.current.nodes or self.current.is_alive(node, session.incarnation)
        }
        now = asyncio.get_running_loop().time()
        for node in self.current.nodes.values():
            if node.alive and node.id not in self._sessions:
                self._sessions[node.id] = _Session(node.incarnation, now)  # it has just joined


def _integer(frame: Frame, key: str) -> int:
    value = frame.meta.get(key)
    if type(value) is not int or value < 0:
        raise FrameError(f"{key} of {frame.kind!r} must be an integer of at least 0")
    return value
