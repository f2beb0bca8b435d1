"""Requests and replies over real sockets."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from loops import LONG, Pair, Recorder, on_both_loops, settle, until

from ecstore.errors import (
    CapacityError,
    DataLossError,
    EcstoreError,
    FrameError,
    FrameTooLargeError,
    NotOwnerError,
    ProtocolError,
    TimeoutError,
    UnavailableError,
)
from ecstore.transport import ConnectionLimits


@on_both_loops
async def test_requests_are_pipelined_and_answered_by_id():
    async def later(conn, frame):
        await asyncio.sleep(0.001 * (50 - frame.meta["i"]))  # answered in the reverse order
        conn.reply(frame.rid, frame.meta)

    async with asyncio.TaskGroup() as group:
        handler = Recorder(lambda conn, frame: group.create_task(later(conn, frame)) and None)
        async with Pair(handler) as pair:
            conn = await pair.connect()
            calls = (conn.request("later", {"i": i}, timeout=LONG) for i in range(50))
            replies = await asyncio.gather(*calls)
            assert [reply.meta["i"] for reply in replies] == list(range(50))
            assert [frame.meta["i"] for frame in handler.frames] == list(range(50))  # sent in order
            assert conn.in_flight == 0


@on_both_loops
async def test_large_and_small_bins_keep_their_bytes():
    async with Pair() as pair:
        conn = await pair.connect()
        large = np.random.default_rng(1).integers(0, 256, 20_000_003, np.uint8)
        sizes = [0, 1, 16_383, 16_384, 70_000]
        replies = await asyncio.gather(
            conn.request("echo", {}, [large, b"tail"], timeout=LONG),
            *(conn.request("echo", {"size": size}, [large[:size]], timeout=LONG) for size in sizes),
        )
        assert np.array_equal(replies[0].bins[0], large)
        assert replies[0].bins[1].tobytes() == b"tail"
        for size, reply in zip(sizes, replies[1:], strict=True):
            assert np.array_equal(reply.bins[0], large[:size])
        assert conn.bytes_in == pair.server.connections[0].bytes_out > 20_000_003
        assert conn.bytes_out == pair.server.connections[0].bytes_in


@on_both_loops
async def test_errors_come_back_as_the_class_that_was_raised():
    def answer(conn, frame):
        if frame.kind == "loss":
            raise DataLossError(groups=[3, 1])
        if frame.kind == "odd":
            raise NotOwnerError("ask n2", owner=object(), big=1 << 80, at={1: ("a", 2)}, path="\udc80")
        if frame.kind == "later":
            conn.reply_error(frame.rid, CapacityError("full"))
        if frame.kind == "bug":
            raise ZeroDivisionError
        if frame.kind == "misfit":
            frame.bin(0, np.float32)

    async with Pair(Recorder(answer)) as pair:
        conn = await pair.connect()
        with pytest.raises(DataLossError) as loss:
            await conn.request("loss", {}, timeout=LONG)
        assert loss.value.groups == (1, 3)
        with pytest.raises(NotOwnerError, match="ask n2") as odd:
            await conn.request("odd", {}, timeout=LONG)
        assert odd.value.details["at"] == {"1": ["a", 2]}
        with pytest.raises(CapacityError):
            await conn.request("later", {}, timeout=LONG)
        with pytest.raises(FrameError):
            await conn.request("misfit", {}, timeout=LONG)
        with pytest.raises(EcstoreError, match="ZeroDivisionError"):
            await conn.request("bug", {}, timeout=LONG)
        assert (await conn.request("echo", {"still": "here"}, timeout=LONG)).meta == {"still": "here"}


@on_both_loops
async def test_an_error_without_a_known_form_is_a_protocol_error():
    def answer(conn, frame):
        conn._write("error", frame.rid, frame.meta)

    async with Pair(Recorder(answer)) as pair:
        conn = await pair.connect()
        for meta in (
            {"code": "data_loss", "details": {"groups": ["x"]}},
            {"code": "input", "details": {"self": 1}},
        ):
            with pytest.raises(ProtocolError):
                await conn.request("raw", meta, timeout=LONG)
        with pytest.raises(EcstoreError):
            await conn.request("raw", {"code": ["no", "code"]}, timeout=LONG)


@on_both_loops
async def test_the_deadline_ends_a_request_and_its_late_reply_is_dropped():
    held = []
    async with Pair(Recorder(lambda conn, frame: held.append((conn, frame)))) as pair:
        conn = await pair.connect()
        with pytest.raises(TimeoutError, match="may or may not"):
            await conn.request("slow", {}, timeout=0.02)
        outcomes = []
        conn.request_nowait("slow", {}, [], outcomes.append, 0.02)
        conn.request_nowait("slow", {}, [], outcomes.append, LONG)
        await until(lambda: outcomes)
        assert isinstance(outcomes[0], TimeoutError)
        for server_side, frame in held:
            server_side.reply(frame.rid, {"late": True})
        await until(lambda: len(outcomes) == 2)
        assert outcomes[1].meta == {"late": True}
        assert conn.late_replies == 2
        assert conn.in_flight == 0


@on_both_loops
async def test_a_lost_connection_fails_every_request_on_its_way():
    handler = Recorder()
    async with Pair(handler) as pair:
        mine = Recorder()
        conn = await pair.connect(mine)
        closed = []
        conn.on_close.append(closed.append)
        outcomes = []
        conn.request_nowait("silent", {}, [], outcomes.append, LONG)
        waiting = asyncio.gather(*(conn.request("silent", {}, timeout=LONG) for _ in range(3)), return_exceptions=True)
        await until(lambda: len(handler.frames) == 4)
        handler.opened[0].abort()
        results = await waiting
        assert all(isinstance(result, UnavailableError) for result in [*results, *outcomes])
        assert len(outcomes) == 1
        assert closed == [conn]
        assert len(mine.ended) == len(handler.ended) == 1
        with pytest.raises(UnavailableError):
            await conn.request("echo", {}, timeout=LONG)
        conn.request_nowait("echo", {}, [], outcomes.append, LONG)
        conn.send("note", {})  # lost, as one-way messages may be
        assert len(outcomes) == 1  # never inside the call
        await settle()
        assert isinstance(outcomes[1], UnavailableError)


@on_both_loops
async def test_in_flight_requests_are_bounded_and_let_in_by_order():
    held = []
    limits = ConnectionLimits(max_in_flight=2)
    async with Pair(Recorder(lambda conn, frame: held.append((conn, frame)))) as pair:
        conn = await pair.connect(limits=limits)
        outcomes = []
        calls = [asyncio.create_task(conn.request("r", {"i": i}, timeout=LONG)) for i in range(5)]
        gone = asyncio.create_task(conn.request("r", {"i": 99}, timeout=LONG))
        impatient = asyncio.create_task(conn.request("r", {"i": 98}, timeout=0.02))
        await until(lambda: len(held) == 2)
        conn.request_nowait("r", {}, [], outcomes.append, LONG)
        await settle()
        assert isinstance(outcomes[0], CapacityError)
        gone.cancel()
        with pytest.raises(TimeoutError):
            await impatient
        for done in range(5):
            await until(lambda done=done: len(held) > done)
            assert len(held) <= done + 2
            server_side, frame = held[done]
            server_side.reply(frame.rid, frame.meta)
        assert [(await call).meta["i"] for call in calls] == list(range(5))
        assert [frame.meta["i"] for _, frame in held] == list(range(5))


@on_both_loops
async def test_a_request_that_timed_out_makes_room():
    async with Pair() as pair:
        conn = await pair.connect(limits=ConnectionLimits(max_in_flight=1))
        first = asyncio.create_task(conn.request("silent", {}, timeout=0.02))
        await settle()
        second = await conn.request("echo", {"i": 2}, timeout=LONG)
        assert second.meta == {"i": 2}
        with pytest.raises(TimeoutError):
            await first


@on_both_loops
async def test_a_cancelled_request_makes_room_too():
    handler = Recorder()
    async with Pair(handler) as pair:
        conn = await pair.connect(limits=ConnectionLimits(max_in_flight=1))
        first = asyncio.create_task(conn.request("silent", {}, timeout=LONG))
        second = asyncio.create_task(conn.request("silent", {}, timeout=LONG))
        third = asyncio.create_task(conn.request("echo", {"i": 3}, timeout=LONG))
        await until(lambda: handler.frames)
        first.cancel()
        second.cancel()
        assert (await third).meta == {"i": 3}


@on_both_loops
async def test_what_cannot_be_sent_is_refused_before_it_leaves():
    async with Pair(limits=ConnectionLimits(max_frame_bytes=100_000)) as pair:
        conn = await pair.connect()
        with pytest.raises(FrameTooLargeError):  # the limit of the peer, learnt from its hello
            await conn.request("echo", {}, [bytes(100_000)], timeout=LONG)
        with pytest.raises(FrameError):
            await conn.request("echo", {"x": object()}, timeout=LONG)
        with pytest.raises(FrameTooLargeError):
            conn.send("note", {}, [bytes(100_000)])
        assert conn.in_flight == 0
        assert (await conn.request("echo", {"i": 1}, [bytes(99_000)], timeout=LONG)).meta == {"i": 1}


@on_both_loops
async def test_a_reply_that_is_too_large_becomes_an_error_for_the_requester():
    handler = Recorder(lambda conn, frame: conn.reply(frame.rid, {}, [bytes(5000)]))
    async with Pair(handler) as pair:
        conn = await pair.connect(limits=ConnectionLimits(max_frame_bytes=4000))
        with pytest.raises(FrameTooLargeError):
            await conn.request("big", {}, timeout=LONG)
        assert not conn.closed


@on_both_loops
async def test_both_ends_may_ask():
    mine = Recorder()
    async with Pair(Recorder()) as pair:
        conn = await pair.connect(mine)
        server_side = pair.server.connections[0]
        reply = await server_side.request("echo", {"from": "server"}, [b"xyz"], timeout=LONG)
        assert reply.bins[0].tobytes() == b"xyz"
        conn.send("note", {"one": "way"})
        await until(lambda: pair.handler.frames)
        assert (pair.handler.frames[0].rid, pair.handler.frames[0].meta) == (0, {"one": "way"})
        plain = await pair.connect()
        assert plain.peer.incarnation == 3
        with pytest.raises(ProtocolError, match="answers no requests"):
            await pair.handler.opened[-1].request("echo", {}, timeout=LONG)
