"""Pushes on their way: per data shard a lane, in which they keep their order across retries and failovers.

Rule 1: an item gets its request number when it enters its lane, for good. Numbers rise by one.
Rule 2: items of a lane are in flight together (pipelined) only while nothing went wrong; after a failure the lane
waits until all of them are settled and sends what is unacknowledged again, in order, to the newest owner.
Rule 3: an item whose deadline passed is given up: it may have been applied or not, once; later items don't wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ecstore.client.pieces import pieces
from ecstore.client.session import Session
from ecstore.errors import (
    CapacityError,
    DataLossError,
    EcstoreError,
    RequestGapError,
    TimeoutError,
    UnavailableError,
    from_wire,
)
from ecstore.routing import joined
from ecstore.transport import Connection
from ecstore.wire import Frame

#: One attempt to push waits this long for its answer; the map tells of dead nodes much earlier.
ATTEMPT_TIMEOUT_S = 15.0

#: First and longest pause before a lane tries again.
RETRY_S = (0.01, 0.05)

#: Gaps in a row, at the first item of a lane, after which the shard has forgotten this client.
MAX_GAPS = 20

#: Items and payload bytes that are sent again at once: many lanes may try at the same moment, and in vain.
MAX_RESEND_ITEMS = 64
MAX_RESEND_BYTES = 4 << 20

#: A message from this size on has a turn of the loop for itself.
LARGE_BYTES = 128 << 10


def new_client_id() -> bytes:
    """16 random bytes: who pushes, for the store's memory of what it has applied."""
    return os.urandom(16)


class Batch:
    """One call of the application: done when each of its items is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ack: str, op: str, deadline: float) -> None:
        self.future: asyncio.Future[None] = loop.create_future()
        self.ack = ack
        self.op = op
        self.deadline = deadline
        self.items: list[Item] = []
        self._left = 0

    def add(self, item: Item) -> None:
        self.items.append(item)
        self._left += 1

    def settle(self, error: EcstoreError | None) -> None:
        self._left -= 1
        if not self._left:
            self.items = []  # items know their batch: without the cycle their memory is free at once
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif not self._left:
            self.future.set_result(None)


@dataclass(slots=True, eq=False)
class Item:
    """Ids (uint64 (n,)) and payload (uint8 (n, width)) of one table for one data shard."""

    batch: Batch
    lane: Lane
    table_id: int
    keys: NDArray[np.uint64]
    payload: NDArray[np.uint8]
    request_no: int = 0
    done: bool = False

    def nbytes(self) -> int:
        """Of the item in a message."""
        return self.payload.nbytes + self.keys.nbytes


class Lane:
    """Everything unacknowledged for one data shard, in order."""

    def __init__(self, gid: int, index: int, client: bytes) -> None:
        self.gid = gid
        self.index = index
        self.client = client
        self.unacked: dict[int, Item] = {}
        self.in_flight = 0
        self.recovery: asyncio.Task[None] | None = None
        #: First failure, of the latest attempt, that made the lane try again.
        self.last_error: EcstoreError | None = None
        self.settled = asyncio.Event()
        self._next = 1
        self._sure = 0  # highest request number acknowledged by parity

    def enter(self, item: Item) -> None:
        item.request_no = self._next
        self._next += 1
        self.unacked[item.request_no] = item

    def previous(self, request_no: int) -> int:
        """The latest earlier request that the shard must have applied before this one: one acknowledged by parity,
        or one still on its way. Those given up, and those only acknowledged locally, may be missing for good.
        """
        earlier = [number for number in self.unacked if number < request_no]
        return max(earlier[-1] if earlier else 0, self._sure if self._sure < request_no else 0)

    def leave(self, item: Item, *, acknowledged: bool) -> None:
        """The item is settled: acknowledged, or failed, or given up."""
        if self.unacked.pop(item.request_no, None) is not None and acknowledged and item.batch.ack == "parity":
            self._sure = max(self._sure, item.request_no)

    def start_over(self) -> None:
        """The shard has forgotten this client: go on as a new one."""
        self.client = new_client_id()
        self.unacked.clear()
        self._sure = 0
        self._next = 1


class Pusher:
    """Sends items, and brings lanes back after failures."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._client = new_client_id()
        self._closing = False
        #: Messages of batches that travel in several: each goes out in a turn of the loop of its own, so that the node
        #: is at work on the first while the next is made. Later batches queue behind them.
        self._outbox: deque[tuple[str, Sequence[Item]]] = deque()
        #: owner -> messages that wait for the connection to it: all later ones queue there, or they would overtake.
        self._undialed: dict[str, list[Sequence[Item]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.retries = 0

    def lane(self, gid: int, index: int) -> Lane:
        key = (gid, index)
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Lane(gid, index, self._client)
        return found

    def submit(self, batch: Batch) -> None:
        """Put a batch's items in their lanes and send those whose lane is open, one message per node.

        `batch.future` tells the outcome: TimeoutError at the batch's deadline.
        """
        if not batch.items:
            batch.future.set_result(None)
            return
        timer = self._loop.call_at(batch.deadline, self._expire, batch)
        batch.future.add_done_callback(lambda _future: timer.cancel())
        ready: list[Item] = []
        for item in batch.items:
            item.lane.enter(item)
            if item.lane.recovery is None:
                ready.append(item)
        groups = self._session.map.groups

        def owner_of(item: Item) -> str:
            return groups[item.lane.gid].shards[item.lane.index].owner

        waiting = bool(self._outbox)
        runs = [
            [(owner, part) for part in pieces(list(items), Item.nbytes)]
            for owner, items in itertools.groupby(sorted(ready, key=owner_of), key=owner_of)
        ]
        for turn in itertools.zip_longest(*runs):  # the first message to every node, then the second ones, ...
            self._outbox += [message for message in turn if message is not None]
        for item in ready:
            item.lane.in_flight += 1
        if not waiting:
            self._send_next()

    def _send_next(self) -> None:
        """Send what is small, and the first that is large; the rest in later turns."""
        while self._outbox and not self._closing:
            owner, items = self._outbox.popleft()
            self._send(owner, items)
            if self._outbox and sum(map(Item.nbytes, items)) >= LARGE_BYTES:
                self._loop.call_soon(self._send_next)
                return

    def _expire(self, batch: Batch) -> None:
        """The deadline of the batch has passed: its unacknowledged items are given up."""
        late = [item for item in batch.items if not item.done]
        for item in late:
            item.done = True
            item.lane.leave(item, acknowledged=False)
        if not batch.future.done():
            groups = sorted({item.lane.gid for item in late})
            reasons = sorted({str(item.lane.last_error) for item in late if item.lane.last_error is not None})
            batch.future.set_exception(
                TimeoutError(
                    f"{len(late)} of {len(batch.items)} parts of the {batch.op} were not acknowledged in time "
                    f"(groups {groups}{'; ' + reasons[0] if reasons else ''}); each may be in or not, once",
                    groups=groups,
                )
            )
        batch.items = []

    async def close(self) -> None:
        self._closing = True
        tasks = [*self._tasks, *(lane.recovery for lane in self._lanes.values() if lane.recovery is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- sending --------------------------------------------------------------------------------------

    def _send(self, owner: str, items: Sequence[Item]) -> None:
        """Send items of one kind of batch to one node. Each counts as in flight, until `_settle`."""
        if owner in self._undialed:
            self._undialed[owner].append(items)
            return
        connection = self._session.open_connection(owner)
        if connection is None:
            self._undialed[owner] = [items]
            task = self._loop.create_task(self._send_after_dial(owner), name="ecstore push")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._write(connection, items)

    async def _send_after_dial(self, owner: str) -> None:
        try:
            connection = await self._session.connection(owner)
        except EcstoreError as error:
            for items in self._undialed.pop(owner):
                self._failed(items, error)
            return
        except BaseException:
            for items in self._undialed.pop(owner):
                self._failed(items, UnavailableError("the client closes"))
            raise
        for items in self._undialed.pop(owner):
            self._write(connection, items)

    def _write(self, connection: Connection, items: Sequence[Item]) -> None:
        batch = items[0].batch
        for ours in _by_client(items):
            heads = [
                [
                    item.lane.gid, item.lane.index, item.table_id, item.keys.size, item.payload.shape[1],
                    item.request_no, item.lane.previous(item.request_no),
                ]
                for item in ours
            ]  # fmt: skip
            meta = {"client": ours[0].lane.client, "op": batch.op, "ack": batch.ack, "sections": heads}
            keys = joined([item.keys for item in ours])
            payload = joined([item.payload.reshape(-1) for item in ours])
            timeout = min(ATTEMPT_TIMEOUT_S, max(0.05, batch.deadline - self._loop.time() + 1.0))
            try:
                connection.request_nowait(
                    "push",
                    meta,
                    [keys, payload],
                    partial(self._answered, ours),
                    timeout,
                )
            except EcstoreError as error:
                self._failed(ours, error)

    def _answered(self, items: Sequence[Item], answer: Frame | EcstoreError) -> None:
        if isinstance(answer, EcstoreError):
            self._failed(items, answer)
            return
        errors = {number: from_wire(error) for number, error in answer.meta.get("errors", [])}
        for number, item in enumerate(items):
            self._settle(item, errors.get(number))

    def _failed(self, items: Iterable[Item], error: EcstoreError) -> None:
        for item in items:
            self._settle(item, error)

    def _settle(self, item: Item, error: EcstoreError | None) -> None:
        lane = item.lane
        lane.in_flight -= 1
        if not item.done:
            if error is None:
                self._finish(item, None)
            elif error.retryable:
                self.retries += 1
                if lane.last_error is None:  # the first one: those of later items may only follow from it
                    lane.last_error = error
                self._session.refresh_soon()
                self._recover(lane)
            else:
                self._finish(item, error)
        if not lane.in_flight:
            lane.settled.set()

    @staticmethod
    def _finish(item: Item, error: EcstoreError | None) -> None:
        item.done = True
        item.lane.leave(item, acknowledged=error is None)
        item.batch.settle(error)

    # -- recovery of a lane -----------------------------------------------------------------------------

    def _recover(self, lane: Lane) -> None:
        if lane.recovery is None and not self._closing:
            lane.recovery = self._loop.create_task(self._bring_back(lane), name=f"ecstore lane {lane.gid}/{lane.index}")

    async def _bring_back(self, lane: Lane) -> None:
        """Resend until nothing is unacknowledged; what arrives meanwhile queues behind."""
        pause, gaps = RETRY_S[0], 0
        try:
            while True:
                await self._settled(lane)
                if not lane.unacked:
                    return
                if self._session.map.groups[lane.gid].lost:
                    self._lose(lane)
                    return
                await self._session.map_change(pause)
                before = len(lane.unacked)
                crowded = isinstance(lane.last_error, CapacityError)  # don't send all that there is no room for
                lane.last_error = None
                await self._resend(lane, 1 if crowded else MAX_RESEND_ITEMS)
                progress = len(lane.unacked) < before
                pause = RETRY_S[0] if progress else min(2 * pause, RETRY_S[1])
                gaps = gaps + 1 if not progress and isinstance(lane.last_error, RequestGapError) else 0
                if gaps >= MAX_GAPS:
                    self._forgotten(lane)
        finally:
            lane.recovery = None

    @staticmethod
    async def _settled(lane: Lane) -> None:
        while lane.in_flight:
            lane.settled.clear()
            await lane.settled.wait()

    async def _resend(self, lane: Lane, count: int) -> None:
        """Send the first `count` unacknowledged items of the lane again, in order, runs of one kind at a time; stop
        at the first failure.
        """
        waiting: list[Item] = []
        size = 0
        for item in itertools.islice(lane.unacked.values(), count):
            size += item.payload.nbytes
            if waiting and size > MAX_RESEND_BYTES:
                break
            waiting.append(item)
        for _kind, run in itertools.groupby(waiting, key=lambda item: (item.batch.op, item.batch.ack)):
            for part in pieces(list(run), Item.nbytes):
                part = [item for item in part if not item.done]
                if not part:
                    continue
                owner = self._session.map.groups[lane.gid].shards[lane.index].owner
                lane.in_flight += len(part)
                self._send(owner, part)
                await self._settled(lane)
                if any(item.request_no in lane.unacked for item in part):
                    return

    def _lose(self, lane: Lane) -> None:
        for item in list(lane.unacked.values()):
            self._finish(item, DataLossError(groups=[lane.gid]))

    @staticmethod
    def _forgotten(lane: Lane) -> None:
        """The shard no longer knows this client: what is unacknowledged may be in or not, once."""
        for item in list(lane.unacked.values()):
            item.done = True
            item.batch.settle(
                TimeoutError(
                    f"shard {lane.index} of group {lane.gid} has forgotten this client after a long silence; "
                    "the push may be in or not, once"
                )
            )
        lane.start_over()


def _by_client(items: Sequence[Item]) -> Iterable[Sequence[Item]]:
    """Items by the client id of their lane: one run, unless a lane had to start over."""
    first = items[0].lane.client
    if all(item.lane.client == first for item in items):
        return [items]
    by_client: dict[bytes, list[Item]] = {}
    for item in items:
        by_client.setdefault(item.lane.client, []).append(item)
    return list(by_client.values())
