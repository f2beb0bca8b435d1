"""A line between a connection and its socket: bytes wait, stall and go on, none is lost, none overtakes; cuts cut."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from loops import LONG, Pair, Recorder, hello, on_both_loops, settle, until

from ecstore.errors import TimeoutError, UnavailableError
from ecstore.faults.control import Faults
from ecstore.transport import PassiveHandler, connect

BLOB = np.arange(300_000, dtype=np.uint32).view(np.uint8)  # far above what one read brings


def order(faults: Faults, kind: str, peers: list[str], **more: Any) -> None:
    meta = {"id": "f", "kind": kind, "peers": peers, "direction": "both", "duration_s": 60.0}
    faults.add(faults.check(meta | more))


class Faulty(Pair):
    """The server is node n1 and its connections have lines; so has a client that asks for it."""

    def __init__(self) -> None:
        self.faults = Faults("n1", random.Random(1))
        super().__init__(Recorder(), tap=self.faults.tap(None))
        self.far = Faults("c1", random.Random(2))

    async def connect_with_line(self):
        return await self.connect(tap=self.far.tap("n1"))

    async def __aexit__(self, *error: object) -> None:
        for faults in (self.faults, self.far):
            faults.clear(None)
        await super().__aexit__(*error)


async def exchange(conn, count: int = 12) -> None:
    """Large and small requests at once; every answer is right, and they arrive in the order they were sent."""
    sizes = [0 if number % 3 else BLOB.size for number in range(count)]
    asked = [conn.request("echo", {"i": i}, [BLOB[:size]], timeout=LONG) for i, size in enumerate(sizes)]
    answers = await asyncio.gather(*asked)
    assert [answer.meta["i"] for answer in answers] == list(range(count))
    for answer, size in zip(answers, sizes, strict=True):
        assert np.array_equal(answer.bin(0, np.uint8), BLOB[:size])


async def ask_again_and_again(conn) -> None:
    for i in range(200):
        await conn.request("echo", {"i": i}, timeout=LONG)


@on_both_loops
async def test_without_faults_a_line_passes_everything_on() -> None:
    async with Faulty() as pair:
        await exchange(await pair.connect_with_line())


@on_both_loops
async def test_delayed_bytes_arrive_in_order() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.faults, "delay", ["clients"], delay_ms=8, jitter_ms=8)
        order(pair.far, "delay", ["n1"], delay_ms=3, jitter_ms=3)
        await exchange(conn)
        sent = [frame.meta["i"] for frame in pair.handler.frames]
        assert sent == sorted(sent)
        pair.faults.clear(None)
        await exchange(conn)


@on_both_loops
async def test_a_handler_that_holds_is_respected_behind_a_delay() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.faults, "delay", ["clients"], delay_ms=5)
        pair.handler.opened[0].hold()
        calls = [asyncio.create_task(conn.request("echo", {"i": i}, [BLOB[:70_000]], timeout=LONG)) for i in range(9)]
        await asyncio.sleep(0.05)
        assert pair.handler.frames == []
        pair.handler.opened[0].release()
        assert [(await call).meta["i"] for call in calls] == list(range(9))


@on_both_loops
async def test_a_partition_stalls_silently_and_what_was_sent_goes_on_afterwards() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.faults, "partition", ["clients"])
        with pytest.raises(TimeoutError):
            await conn.request("echo", {"lost": True}, timeout=0.05)
        assert not conn.closed
        assert pair.handler.frames == []
        waiting = asyncio.create_task(conn.request("echo", {"i": 1}, [BLOB], timeout=LONG))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        pair.faults.clear(None)
        assert np.array_equal((await waiting).bin(0, np.uint8), BLOB)
        await exchange(conn)


@on_both_loops
async def test_an_attempt_to_connect_through_a_partition_hangs_until_it_is_over() -> None:
    async with Faulty() as pair:
        order(pair.faults, "partition", ["clients"], direction="out")
        with pytest.raises(TimeoutError):
            await pair.connect(timeout=0.1)
        order(pair.far, "partition", ["n1"])
        with pytest.raises(TimeoutError):
            await pair.connect(timeout=0.1, tap=pair.far.tap("n1"))
        later = asyncio.create_task(pair.connect_with_line())
        await asyncio.sleep(0.05)
        assert not later.done()
        pair.faults.clear(None)
        pair.far.clear(None)
        await exchange(await later, 3)


@on_both_loops
async def test_an_end_behind_a_partition_is_not_heard_by_the_other_side_before_it_is_over() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.far, "partition", ["n1"])
        conn.abort()
        await until(lambda: conn.closed)
        await asyncio.sleep(0.05)
        assert pair.handler.ended == [], "neither a FIN nor a RST gets through"
        pair.far.clear(None)
        await until(lambda: pair.handler.ended)


@on_both_loops
async def test_a_fault_ends_by_itself() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.faults, "partition", ["clients"], duration_s=0.1)
        assert (await conn.request("echo", {"i": 1}, timeout=LONG)).meta == {"i": 1}
        assert pair.faults.to_wire() == []


@on_both_loops
async def test_a_cut_ends_the_connection_and_loses_nothing_before_it() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.far, "drop", ["n1"], probability=0.2, direction="out")
        with pytest.raises(UnavailableError):
            await ask_again_and_again(conn)
        arrived = [frame.meta["i"] for frame in pair.handler.frames]
        assert arrived == list(range(len(arrived)))
        await until(lambda: pair.handler.ended)
        await settle()


@on_both_loops
async def test_an_attempt_that_failed_leaves_no_line_behind() -> None:
    async with Faulty() as pair:
        address = pair.server.address
    far = Faults("c1", random.Random(2))
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await connect(address, hello(), PassiveHandler(), expect_cluster=None, timeout=LONG, tap=far.tap("n1"))
    order(far, "partition", ["n1"])  # it would fail where a line without a socket were left
    far.clear(None)


@on_both_loops
async def test_an_end_that_came_while_the_line_was_dead_is_told_once_it_works() -> None:
    async with Faulty() as pair:
        conn = await pair.connect_with_line()
        order(pair.far, "partition", ["n1"], direction="in")
        pair.handler.opened[0].abort()
        for _ in range(3):  # the system tells of the end to who writes
            await asyncio.sleep(0.03)
            conn.send("note", {})
        await asyncio.sleep(0.03)
        assert not conn.closed
        pair.far.clear(None)
        await until(lambda: conn.closed)
