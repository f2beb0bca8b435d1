"""A peer that does not read bounds what waits for it; nothing grows without a limit and nothing locks up."""

from __future__ import annotations

import asyncio

import pytest
from loops import LONG, Pair, Recorder, on_both_loops, settle, until

from ecstore.errors import TimeoutError, UnavailableError
from ecstore.transport import ConnectionLimits

KIB = 1 << 10
SMALL = ConnectionLimits(write_high_bytes=64 * KIB, write_low_bytes=16 * KIB, max_write_bytes=4096 * KIB)
BLOB = bytes(256 * KIB)


@on_both_loops
async def test_requests_and_drain_wait_for_a_peer_that_does_not_read():
    async with Pair(Recorder()) as pair:
        conn = await pair.connect(limits=SMALL)
        server_side = pair.handler.opened[0]
        server_side.hold()
        calls = [asyncio.create_task(conn.request("echo", {"i": i}, [BLOB], timeout=LONG)) for i in range(100)]
        drained = asyncio.create_task(conn.drain())
        await until(lambda: conn.write_buffered > SMALL.write_high_bytes)
        await settle(50)
        assert conn.write_buffered <= SMALL.write_high_bytes + len(BLOB) + KIB
        assert conn.in_flight < 100
        with pytest.raises(TimeoutError):  # the wait for room is inside the deadline
            await conn.request("echo", {}, timeout=0.02)
        drained_late = asyncio.create_task(conn.drain())
        await settle()
        assert not drained_late.done()
        server_side.release()
        replies = await asyncio.gather(*calls)
        assert [reply.meta["i"] for reply in replies] == list(range(100))
        await drained
        await drained_late


@on_both_loops
async def test_writing_without_waiting_ends_the_connection_at_the_limit():
    async with Pair(Recorder()) as pair:
        conn = await pair.connect(limits=SMALL)
        pair.handler.opened[0].hold()
        waiting = asyncio.create_task(conn.request("silent", {}, timeout=LONG))
        await settle()
        largest = 0
        for _ in range(1000):
            conn.send("flood", {}, [BLOB])
            largest = max(largest, conn.write_buffered)
            await settle(1)
            if conn.closed:
                break
        assert conn.end_reason == "not_reading"
        assert SMALL.max_write_bytes - len(BLOB) - KIB <= largest <= SMALL.max_write_bytes
        with pytest.raises(UnavailableError, match="does not read"):
            await waiting
        with pytest.raises(UnavailableError):
            await conn.drain()


@on_both_loops
async def test_a_requester_that_reads_no_replies_is_not_read_from():
    """Its requests stop at the server, so the server's memory is bounded by one mark and one batch."""
    async with Pair(Recorder(), limits=SMALL) as pair:
        conn = await pair.connect()
        server_side = pair.handler.opened[0]
        conn.hold()
        calls = [asyncio.create_task(conn.request("echo", {}, [BLOB], timeout=LONG)) for _ in range(100)]
        await until(lambda: server_side.write_buffered > SMALL.write_high_bytes)
        await settle(100)
        assert server_side.write_buffered <= SMALL.write_high_bytes + len(BLOB) + KIB
        assert len(pair.handler.frames) < 100
        conn.release()
        assert len(await asyncio.gather(*calls)) == 100
        assert not server_side.closed


@on_both_loops
async def test_two_ends_that_flood_each_other_do_not_lock_up():
    # The end that opened always reads; what it answers piles up in part, so the limit must have room for it.
    mine = Recorder()
    limits = ConnectionLimits(write_high_bytes=64 * KIB, write_low_bytes=16 * KIB, max_write_bytes=65_536 * KIB)
    async with Pair(Recorder(), limits=limits) as pair:
        conn = await pair.connect(mine, limits=limits)
        server_side = pair.handler.opened[0]
        there = [asyncio.create_task(conn.request("echo", {}, [BLOB], timeout=LONG)) for _ in range(60)]
        back = [asyncio.create_task(server_side.request("echo", {}, [BLOB], timeout=LONG)) for _ in range(60)]
        replies = await asyncio.gather(*there, *back)
        assert all(reply.bins[0].size == len(BLOB) for reply in replies)


@on_both_loops
async def test_hold_stops_frames_at_once_and_release_goes_on_where_it_stopped():
    class Slow(Recorder):
        def on_frame(self, conn, frame):
            self.frames.append(frame)
            conn.hold()

    handler = Slow()
    async with Pair(handler) as pair:
        conn = await pair.connect()
        for i in range(200):
            conn.send("note", {"i": i})  # all of them fit into one read
        for count in range(1, 201):
            await until(lambda count=count: len(handler.frames) == count)
            await settle()
            assert len(handler.frames) == count
            handler.opened[0].release()
        assert [frame.meta["i"] for frame in handler.frames] == list(range(200))


@on_both_loops
async def test_small_frames_of_one_turn_share_a_write():
    class Counting:
        def __init__(self, transport):
            self.transport, self.calls = transport, 0

        def __getattr__(self, name):
            if name in ("write", "writelines"):
                self.calls += 1
            return getattr(self.transport, name)

    handler = Recorder()
    async with Pair(handler) as pair:
        conn = await pair.connect()
        counting = Counting(conn._transport)
        conn._writer.attach(counting)
        for i in range(100):
            conn.send("note", {"i": i})
        await until(lambda: len(handler.frames) == 100)
        assert counting.calls == 1


@on_both_loops
async def test_close_lets_what_was_written_arrive_first():
    handler = Recorder()
    async with Pair(handler) as pair:
        conn = await pair.connect()
        for i in range(40):
            conn.send("note", {"i": i}, [BLOB])
        conn.close("done")
        await until(lambda: handler.ended)
        assert [frame.meta["i"] for frame in handler.frames] == list(range(40))
        assert "done" in handler.ended[0]


@on_both_loops
async def test_close_does_not_wait_for_a_peer_that_does_not_read():
    async with Pair(Recorder()) as pair:
        conn = await pair.connect(limits=ConnectionLimits(linger=0.05))
        pair.handler.opened[0].hold()
        for _ in range(80):
            conn.send("note", {}, [BLOB])
        conn.close("done")
        await until(lambda: conn.write_buffered == 0 or conn._transport.is_closing())
        await until(lambda: conn._timer is None)  # the socket is gone
        pair.handler.opened[0].release()
        await until(lambda: pair.handler.ended)
