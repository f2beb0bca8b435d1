"""Access to the embedded coordination service, over one connection that comes back by itself.

One task owns the connection: connect, watch, wait for its end, pause, again. Heartbeats are sent by a timer
of the loop and answered by callbacks, so they need no task and never queue behind a slow answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ecstore.cluster.map import ClusterMap
from ecstore.cluster.transitions import Event, next_map
from ecstore.coordination.base import MAX_PROPOSE_ROUNDS
from ecstore.coordination.mapfile import pack_map, unpack_map
from ecstore.coordination.service import LIMITS
from ecstore.errors import (
    AuthError,
    CapacityError,
    EcstoreError,
    FencedError,
    FrameError,
    ProtocolError,
    TimeoutError,
    UnavailableError,
    WrongClusterError,
)
from ecstore.transport import Connection, Frame, Hello, PassiveHandler, Tap, connect

logger = logging.getLogger("ecstore.coordination")

#: Pause after a first failed attempt to connect, doubled up to the longest, in seconds, times a random 0.5
#: to 1.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
#: Heartbeats sent and not answered before no more are sent.
MAX_BEATS_IN_FLIGHT: Final = 8


class EmbeddedCoordination(PassiveHandler):
    """`Coordination` over `coord.*` requests; see `ecstore.coordination.base` for what the methods
    promise."""

    def __init__(
        self,
        address: str,
        hello: Hello | Callable[[], Hello],
        *,
        rng: random.Random | None = None,
        heartbeat_s: float = 0.2,
        timeout_s: float = 2.0,
        tap: Tap | None = None,
    ) -> None:
        """`address`: "host:port" of the service. `hello`: how this process introduces itself, or what says
        so at each attempt; its cluster, if it names one, must be the service's. `timeout_s` bounds each
        request, the wait for a connection before one, and the silence after which a connection is given up.
        `tap`: faults, for tests. Call `start` next.
        """
        self.address = address
        self._tap = tap
        self._hello = hello if callable(hello) else lambda: hello
        self._rng = rng if rng is not None else random.Random()
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._conn: Connection | None = None  # None unless the watch on it was answered
        self._ready = asyncio.Event()
        self._trouble: EcstoreError | None = None  # why there is no connection
        self._newest: ClusterMap | None = None
        self._callbacks: list[Callable[[ClusterMap], None]] = []
        self._session: dict[str, Any] | None = None
        self._first_beat: asyncio.Event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._beats_in_flight = 0
        self._proposing = asyncio.Lock()
        self.last_renewal = -math.inf
        self.fenced = False
        self.connections = 0  #: made so far; 1 without trouble

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, timeout_s: float | None = None) -> None:
        """Begin to connect, for ever. With `timeout_s`, wait for the first connection and raise
        `UnavailableError` when there is none by then, or the error with which the service refused us
        (another cluster, version or token). Attempts go on until `close`.
        """
        if self._closed:
            raise UnavailableError("this access to the coordination service is closed; make a new one")
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stay_connected(), name="coordination connection")
        if timeout_s is not None:
            await self._connection("start", timeout_s)

    async def close(self) -> None:
        """End the session, the subscriptions and the connection. Idempotent."""
        self._closed = True
        self._callbacks.clear()
        self._session = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    @property
    def available(self) -> bool:
        """Whether the service answers on the present connection."""
        return self._conn is not None and not self._conn.closed and not self._silent(self._conn)

    @property
    def newest(self) -> ClusterMap | None:
        return self._newest

    # -- requests --------------------------------------------------------------------------------------------

    async def get(self) -> ClusterMap:
        known = self._newest
        meta = {} if known is None else {"epoch": known.epoch}
        frame = await self._request("coord.get", meta)
        self._learn(frame)
        assert self._newest is not None, "without a known epoch the answer carries a map"
        return self._newest

    async def compare_and_swap(self, old_epoch: int, new: ClusterMap) -> bool:
        frame = await self._request("coord.cas", {"old_epoch": old_epoch}, [pack_map(new)])
        if frame.meta.get("won") is True:
            self._adopt(new)
            return True
        self._learn(frame)
        return False

    async def sessions(self) -> dict[str, float]:
        frame = await self._request("coord.sessions", {})
        ages = frame.meta.get("sessions")
        if not isinstance(ages, Mapping):
            raise FrameError("the list of sessions does not parse; check that all processes run the same version")
        return {str(node): float(age) for node, age in ages.items()}

    async def propose(self, event: Event) -> ClusterMap:
        async with self._proposing:  # two of our own would only make each other lose
            for _ in range(MAX_PROPOSE_ROUNDS):
                base, new = await self._apply(event)
                if new is base or await self._swap(base, new):
                    return new
        raise CapacityError(
            f"{type(event).__name__} lost against other changes {MAX_PROPOSE_ROUNDS} times; propose it again"
        )

    async def _apply(self, event: Event) -> tuple[ClusterMap, ClusterMap]:
        """A base and the map after `event`. Before it is said that nothing changes, or cannot, a map is
        asked for: the one at hand may be behind."""
        cached = self._newest
        if cached is not None:
            try:
                new = next_map(cached, event)
            except EcstoreError:
                new = cached
            if new is not cached:
                return cached, new
        base = await self.get()
        return base, next_map(base, event)

    async def _swap(self, base: ClusterMap, new: ClusterMap) -> bool:
        """Compare and swap; where the answer was lost, the next map tells whether it went in."""
        try:
            return await self.compare_and_swap(base.epoch, new)
        except (UnavailableError, TimeoutError):
            return await self.get() == new

    async def _request(self, kind: str, meta: Mapping[str, Any], bins: Sequence[bytes] = ()) -> Frame:
        conn = await self._connection(kind, self._timeout_s)
        return await conn.request(kind, meta, bins, timeout=self._timeout_s)

    async def _connection(self, what: str, timeout_s: float) -> Connection:
        await self.start()
        if self._conn is None:
            ready = asyncio.ensure_future(self._ready.wait())
            try:
                await asyncio.wait((ready,), timeout=timeout_s)
            finally:
                ready.cancel()
        if self._conn is None:
            if isinstance(self._trouble, ProtocolError | AuthError):
                raise self._trouble  # it answers, and waiting won't make it take us
            raise UnavailableError(
                f"{what}: the coordination service at {self.address} cannot be reached "
                f"({self._trouble or 'no answer'}); membership is frozen until it is back, the data path goes on. "
                "Start it again if it has ended"
            )
        return self._conn

    # -- the map ---------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[ClusterMap], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        if self._newest is not None:
            self._tell(callback, self._newest)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def on_frame(self, conn: Connection, frame: Frame) -> None:
        """Of the transport: a pushed map."""
        if frame.kind != "coord.map":
            super().on_frame(conn, frame)
            return
        try:
            self._learn(frame)
        except EcstoreError as error:
            conn.refuse(error)

    def _learn(self, frame: Frame, *, may_be_older: bool = True) -> None:
        """Take the map of a frame, if it carries one and it is newer."""
        if not frame.bins:
            return
        known = self._newest
        epoch = frame.meta.get("epoch")
        if known is not None and type(epoch) is int and epoch <= known.epoch and may_be_older:
            return
        seen = unpack_map(frame.bin(0, "u1").tobytes())
        if known is not None and (seen.cluster, seen.seed) != (known.cluster, known.seed):
            raise WrongClusterError(
                f"the coordination service at {self.address} keeps another cluster now "
                f"({seen.cluster!r}, seed {seen.seed}; was {known.cluster!r}, seed {known.seed}); "
                "start it with its state file"
            )
        if known is not None and seen.epoch < known.epoch:
            raise UnavailableError(
                f"the coordination service at {self.address} went back from epoch {known.epoch} to "
                f"{seen.epoch}: it lost its state file. Start it with the right one, or restart all nodes"
            )
        self._adopt(seen)

    def _adopt(self, seen: ClusterMap) -> None:
        if self._newest is not None and seen.epoch <= self._newest.epoch:
            return
        self._newest = seen
        for callback in tuple(self._callbacks):
            if self._newest is not seen:
                return  # a callback led to a newer one, which everybody has got by now
            self._tell(callback, seen)

    @staticmethod
    def _tell(callback: Callable[[ClusterMap], None], seen: ClusterMap) -> None:
        try:
            callback(seen)
        except Exception:  # foreign code: the other subscribers must get the map all the same
            logger.exception("a subscriber of the cluster map failed at epoch %d", seen.epoch)

    # -- the connection --------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        """Owned by `start`/`close`."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._one_connection()
                pause = FIRST_PAUSE
                logger.warning("coordination service at %s lost: %s", self.address, self._trouble)
            except EcstoreError as error:
                if self._trouble is None or str(self._trouble) != str(error):
                    logger.warning("coordination service at %s: %s", self.address, error)
                self._trouble = error
            except Exception:  # a fault of ours must not end the reconnecting
                logger.exception("the connection to the coordination service at %s failed", self.address)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _one_connection(self) -> None:
        """Connect and watch; return when the connection has ended after that. Raises when it did not come
        so far."""
        hello = self._hello()
        conn = await connect(
            self.address,
            hello,
            self,
            expect_cluster=hello.cluster,
            timeout=self._timeout_s,
            limits=LIMITS,
            tap=self._tap,
        )
        ended = asyncio.Event()
        conn.on_close.append(lambda _: ended.set())
        try:
            frame = await conn.request("coord.watch", {}, timeout=self._timeout_s)
            self._learn(frame, may_be_older=False)
            self.connections += 1
            logger.info("connected to the coordination service at %s", self.address)
            self._conn, self._beats_in_flight = conn, 0
            self._ready.set()
            self._tick()
            await ended.wait()
        finally:
            if self._conn is conn:
                self._conn = None
                self._ready.clear()
            self._stop_timer()
            self._trouble = conn.end or UnavailableError("the connection has ended")
            conn.close("closing")

    def _silent(self, conn: Connection) -> bool:
        return asyncio.get_running_loop().time() - conn.last_received_at > self._timeout_s

    # -- heartbeats ------------------------------------------------------------------------------------------

    async def session(self, node_id: str, incarnation: int) -> None:
        self._session = {"node": node_id, "incarnation": incarnation}
        self._first_beat = asyncio.Event()
        self.fenced = False
        self.last_renewal = -math.inf  # another life's renewals are not this one's
        await self.start()
        self._tick()
        first = asyncio.ensure_future(self._first_beat.wait())
        try:
            await asyncio.wait((first,), timeout=self._timeout_s)
        finally:
            first.cancel()

    def _tick(self) -> None:
        """Send a heartbeat (or, without a session, ask whether there is a newer map) and come again."""
        self._stop_timer()
        conn = self._conn
        if conn is None or conn.closed:
            return
        loop = asyncio.get_running_loop()
        if self._silent(conn) and self._beats_in_flight:
            self._trouble = TimeoutError(f"no answer for {self._timeout_s:g} s")
            conn.close("no answer to heartbeats")
            return
        if self._beats_in_flight < MAX_BEATS_IN_FLIGHT:
            self._send_beat(conn, loop.time())
        # Without a session only a dead connection must be noticed in time.
        pause = self._heartbeat_s if self._session is not None else self._timeout_s / 2
        self._timer = loop.call_later(pause, self._tick)

    def _send_beat(self, conn: Connection, sent_at: float) -> None:
        session = self._session
        kind, meta = "coord.beat", session
        if meta is None:
            kind, meta = "coord.get", {"epoch": -1 if self._newest is None else self._newest.epoch}
            if self._newest is None:
                meta = {}

        def answered(outcome: Frame | EcstoreError) -> None:
            if self._conn is not conn:
                return
            self._beats_in_flight -= 1
            try:
                self._beat_answered(outcome, session, sent_at)
            except EcstoreError as error:
                conn.refuse(error)

        self._beats_in_flight += 1
        conn.request_nowait(kind, meta, (), answered, self._timeout_s)

    def _beat_answered(self, outcome: Frame | EcstoreError, session: dict[str, Any] | None, sent_at: float) -> None:
        if isinstance(outcome, Frame):
            self._learn(outcome)
        if session is None or session is not self._session:
            return
        if isinstance(outcome, FencedError):
            self.fenced = True
        elif isinstance(outcome, Frame):
            self.last_renewal = max(self.last_renewal, sent_at)
        else:
            return
        self._first_beat.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
