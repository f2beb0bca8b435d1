"""What the parts of one node share: the newest map, the shards in memory, peers, streams and running tasks.

The map only moves forward; `changed` tells waiters. Tasks are children of the node's TaskGroup: an error that nobody
expected ends the node (a dead node is recovered from; a wrong one is not).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ecstore import limits
from ecstore.cluster.map import ClusterMap, Group, Table, empty_map, parse_code
from ecstore.coordination.base import Coordination
from ecstore.errors import CapacityError, DataLossError, EcstoreError, FencedError, NotReadyError
from ecstore.node.config import NodeConfig
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.durations import Durations
from ecstore.node.recovery import Recovery, RecoveryBook
from ecstore.node.sink_shard import SinkShard

if TYPE_CHECKING:
    from ecstore.node.decoder import Decoder
    from ecstore.node.peers import Peers
    from ecstore.node.streams import DeltaStreams

Key = tuple[int, int]  # (group, shard index)

#: A request that depends on a newer map waits this long for it.
MAP_WAIT_S = 2.0

#: Remembered events of one node (shown by GET /events).
MAX_EVENTS = 1000


@dataclass(slots=True, eq=False)
class OwnedData:
    """A data shard that this node owns by the map. `shard` is None until it can serve."""

    key: Key
    owner_epoch: int
    shard: DataShard | None = None
    decoder: Decoder | None = None
    task: asyncio.Task[None] | None = None
    recovery: Recovery | None = None
    #: Life that owned the shard before us, if we saw it: it must have stopped serving before we start.
    former: tuple[str, int] | None = None
    former_address: str = ""
    former_was_whole: bool = False
    #: Complete copy of the rows when the shard moved here from a living owner; None when it was lost.
    mirror: SinkShard | None = None


@dataclass(slots=True, eq=False)
class OwnedSink:
    """A parity shard, or the copy of a data shard on its way here."""

    key: Key
    shard: SinkShard
    building: bool
    #: source index -> (node, incarnation) whose deltas are taken; None while a takeover of the source is under way.
    senders: dict[int, tuple[str, int] | None]
    changed: asyncio.Event
    #: Epoch in which this node became the owner of the shard; 0 while it only joins.
    owner_epoch: int = 0
    #: source index -> latest takeover attempt, (owner's life, number): a delayed earlier one changes nothing.
    attempts: dict[int, tuple[tuple[str, int], int]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    recovery: Recovery | None = None


class Numbers(NamedTuple):
    """The data shards of a group in the routing rule of its code."""

    first: int  #: number of the group's first data shard
    per_group: int
    shards: int  #: data shards of all groups of the code


@dataclass(slots=True, eq=False)
class _Waiting:
    """Requests that wait, and what they keep in memory."""

    requests: int = 0
    nbytes: int = 0

    def done(self, nbytes: int, _task: asyncio.Task[None]) -> None:
        self.requests -= 1
        self.nbytes -= nbytes


class Runtime:
    """Shared state of one life of a node."""

    def __init__(self, config: NodeConfig, coordination: Coordination, tasks: asyncio.TaskGroup) -> None:
        self.config = config
        self.coordination = coordination
        self.name = config.name
        self.incarnation = 0
        self.map: ClusterMap = empty_map(config.cluster or "", 0)
        self.tables: dict[int, Table] = {}  # of `map`, by id
        self.numbers: dict[int, Numbers] = {}  # of `map`, by gid
        self.data: dict[Key, OwnedData] = {}
        self.sinks: dict[Key, OwnedSink] = {}
        self.recoveries = RecoveryBook()
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self.counters: dict[str, int] = {}
        self.durations = Durations()
        #: Seconds, for durations that are only told; never for a decision.
        self.clock: Callable[[], float] = time.perf_counter
        self.closing = False
        self.peers: Peers
        self.streams: DeltaStreams
        self.loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._changed = asyncio.Event()
        self._deltas = asyncio.Event()
        self._deltas_awaited = False
        self._refresh: asyncio.Task[None] | None = None
        self._waiting = {False: _Waiting(), True: _Waiting()}  # of clients, of nodes
        self._subscriptions = 0

    # -- map ------------------------------------------------------------------------------------------

    def group(self, gid: int) -> Group:
        """The group in the newest map; NotReadyError when the map here does not know it."""
        if not 0 <= gid < len(self.map.groups):
            raise NotReadyError(f"node {self.name} does not know group {gid} yet; ask again", epoch=self.map.epoch)
        group = self.map.groups[gid]
        if group.lost:
            raise DataLossError(groups=[gid])
        return group

    def set_map(self, new: ClusterMap) -> None:
        self.map = new
        self.tables = {table.id: table for table in new.tables.values()}
        self.numbers = {
            group.gid: Numbers(k * number, k, k * len(groups))
            for groups, k in ((new.groups_of(code), parse_code(code).k) for code in new.codes())
            for number, group in enumerate(groups)
        }
        self._changed.set()
        self._changed = asyncio.Event()
        self.notify_deltas()

    def shard_live(self, key: Key) -> None:
        """Shard `key` serves from now on: whoever waits for that looks again."""
        self.count("takeovers")
        self._changed.set()
        self._changed = asyncio.Event()

    async def map_change(self, timeout: float) -> None:
        """Return when the map changes or a shard here begins to serve, or after `timeout` seconds."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return

    def notify_deltas(self) -> None:
        """Sinks here have applied deltas: reads that wait for a cut look again."""
        if self._deltas_awaited:
            self._deltas_awaited = False
            self._deltas.set()
            self._deltas = asyncio.Event()

    async def deltas_applied(self, timeout: float) -> None:
        """Return when a sink here has applied deltas or the map has changed, or after `timeout` seconds."""
        self._deltas_awaited = True
        event = self._deltas
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return

    def map_is_old(self) -> None:
        """Somebody showed a newer epoch: fetch the map now rather than wait for the watch."""
        if self._refresh is None or self._refresh.done():
            self._refresh = self.spawn(self._fetch_map(), "fetch map")

    async def _fetch_map(self) -> None:
        try:
            await self.coordination.get()  # subscribers get what is new
        except EcstoreError:
            self.count("map_fetches_failed")

    async def at_epoch(self, epoch: int) -> None:
        """Wait until the map here is at least as new as `epoch`."""
        deadline = self.loop.time() + MAP_WAIT_S
        while self.map.epoch < epoch:
            left = deadline - self.loop.time()
            if left <= 0:
                raise NotReadyError(
                    f"node {self.name} is at epoch {self.map.epoch}, not yet at {epoch}", epoch=self.map.epoch
                )
            await self.map_change(left)

    async def at_group_epoch(self, gid: int, group_epoch: int) -> Group:
        """The group, when its owners here are those of `group_epoch`; waits for a newer map, refuses an older epoch."""
        if not (0 <= gid < len(self.map.groups) and self.map.groups[gid].epoch == group_epoch):
            await self.at_epoch(group_epoch)
        return self.same_group_epoch(gid, group_epoch)

    def same_group_epoch(self, gid: int, group_epoch: int) -> Group:
        group = self.group(gid)
        if group.epoch != group_epoch:
            raise NotReadyError(
                f"owners of group {gid} changed (epoch {group.epoch}, not {group_epoch}); start again",
                epoch=self.map.epoch,
            )
        return group

    def sink_keys(self, gid: int, src: int) -> set[SinkKey]:
        """Every sink that data shard `src` of a group has in the newest map: parity shards, and copies being built."""
        group = self.map.groups[gid]
        k = self.map.code(group).k
        keys = {SinkKey(s.index, s.owner, s.incarnation) for s in group.shards[k:]}
        for shard in (group.shards[src], *group.shards[k:]):
            if shard.joining is not None:
                keys.add(SinkKey(shard.index, shard.joining, shard.joining_incarnation))
        return keys

    def is_dropped(self, table_id: int) -> bool:
        """Whether the newest map has had this table and has it no more."""
        return table_id not in self.tables and table_id < self.map.next_table_id

    def is_whole(self, gid: int, key: SinkKey) -> bool:
        """Whether the newest map names this sink as an active parity shard."""
        shard = self.map.groups[gid].shards[key.index]
        return (shard.owner, shard.incarnation, shard.state) == (key.node, key.incarnation, "active")

    def owns(self, node: str, incarnation: int) -> bool:
        return node == self.name and incarnation == self.incarnation

    # -- tasks ----------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A child task of the node. Once this life is ending, its caller ends instead."""
        return self._start(work, name, asyncio.CancelledError())

    def spawn_request(
        self, work: Coroutine[Any, Any, None], name: str, *, nbytes: int = 0, of_node: bool = False
    ) -> None:
        """A child task for a request that has to wait and keeps `nbytes` of memory until it ends; bounded in number
        and bytes (G7). Nodes have bounds of their own: what clients wait for may need them.
        """
        waiting = self._waiting[of_node]
        if waiting.requests >= limits.MAX_WAITING_REQUESTS or (
            waiting.nbytes and waiting.nbytes + nbytes > (limits.MAX_WAITING_BYTES_OF_NODES if of_node
                                                          else limits.MAX_WAITING_BYTES)
        ):  # fmt: skip
            work.close()
            raise CapacityError(
                f"{waiting.requests} requests of {waiting.nbytes} bytes wait on node {self.name}; ask again later"
            )
        ending = FencedError(f"node {self.name} is ending this life; fetch the map and ask again")
        task = self._start(work, name, ending)
        waiting.requests += 1
        waiting.nbytes += nbytes
        task.add_done_callback(partial(waiting.done, nbytes))

    def _start(self, work: Coroutine[Any, Any, None], name: str, ending: BaseException) -> asyncio.Task[None]:
        if not self.closing:
            try:
                return self._tasks.create_task(work, name=name)
            except RuntimeError:  # another child has failed: the group takes no more tasks
                self.closing = True
        work.close()
        raise ending

    def next_subscription(self) -> int:
        """A number for a new delta stream, unique in this life of the node."""
        self._subscriptions += 1
        return self._subscriptions

    # -- observation ----------------------------------------------------------------------------------

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + by

    def event(self, kind: str, message: str, **details: Any) -> None:
        self.events.append(
            {"at": time.time(), "node": self.name, "epoch": self.map.epoch, "kind": kind, "message": message} | details
        )

    @staticmethod
    def wall() -> float:
        """Unix seconds, for what people read; never for a decision."""
        return time.time()
