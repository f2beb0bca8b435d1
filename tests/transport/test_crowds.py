"""Many connections at once: what they hold together is bounded, and who makes use of his gets what others waste."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from loops import LONG, Pair, Recorder, hello, on_both_loops, until
from msgpack import packb

from ecstore import wire
from ecstore.errors import CapacityError, ConfigError
from ecstore.transport import Connection, ConnectionLimits, Frame
from ecstore.transport import server as server_module

MIB = 1 << 20


def frame_bytes(kind: str, meta: dict, rid: int = 0, bins=()) -> bytes:
    return b"".join(wire.encode(kind, rid, meta, bins))


async def introduced(pair: Pair, **more) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection by hand, past the hellos."""
    reader, writer = await pair.raw()
    writer.write(frame_bytes("hello", hello(**more).to_wire()))
    await next_frame(reader)
    return reader, writer


async def next_frame(reader: asyncio.StreamReader) -> wire.Frame:
    length, head, body_checksum = wire.decode_prefix(await reader.readexactly(wire.PREFIX_BYTES))
    return wire.decode(np.frombuffer(bytearray(await reader.readexactly(length)), np.uint8), head, body_checksum)


async def end_of(reader: asyncio.StreamReader) -> dict:
    """Meta of the bye, at the end of the connection."""
    while (frame := await next_frame(reader)).kind != "bye":
        pass
    return frame.meta


def announce(size: int) -> bytes:
    """The beginning of a frame of `size` bytes."""
    return frame_bytes("echo", {}, 1, [bytes(size)])[: 40 << 10]


ROOM = ConnectionLimits(max_frame_bytes=2 * MIB, max_receiving_bytes=4 * MIB)


@on_both_loops
async def test_frames_that_stand_still_make_room_for_those_that_come():
    """Forty times what may be in reception is announced. Nothing more is allocated, and an honest frame passes."""
    async with Pair(limits=ROOM) as pair:
        budget = pair.server._receptions[False]
        honest = await pair.connect(limits=ROOM)
        held = [await introduced(pair) for _ in range(80)]
        for _reader, writer in held:
            writer.write(announce(2 * MIB - 100))
        await until(lambda: budget.used + budget.waiting * 2 * MIB > 75 * 2 * MIB)
        assert budget.used <= 4 * MIB
        reply = await honest.request("echo", {}, [bytes(MIB)], timeout=LONG)
        assert reply.bins[0].size == MIB
        assert budget.cut_off >= 2
        assert (await end_of(held[0][0]))["code"] == "capacity"
        for _reader, writer in held:
            writer.close()
        await until(lambda: not budget.used and not budget.waiting)


@on_both_loops
async def test_without_need_a_slow_frame_may_take_its_time():
    async with Pair(limits=ROOM) as pair:
        reader, writer = await introduced(pair)
        data = frame_bytes("echo", {}, 1, [bytes(MIB)])
        writer.write(data[:50_000])
        await until(lambda: pair.server._receptions[False].used > 0)
        await asyncio.sleep(0.6)  # longer than two looks
        writer.write(data[50_000:])
        assert (await next_frame(reader)).bins[0].size == MIB
        assert pair.server._receptions[False].used == 0
        writer.close()


@on_both_loops
async def test_many_honest_frames_take_turns():
    async with Pair(limits=ROOM) as pair:
        conns = [await pair.connect(limits=ROOM) for _ in range(12)]
        payloads = [bytes([number]) * (MIB + number) for number in range(12)]
        replies = await asyncio.gather(
            *(conn.request("echo", {}, [payload], timeout=LONG) for conn, payload in zip(conns, payloads, strict=True))
        )
        assert [reply.bins[0].tobytes() for reply in replies] == payloads
        assert pair.server._receptions[False].cut_off == 0
        assert pair.server._receptions[False].used == 0


@on_both_loops
async def test_those_who_are_trusted_do_not_wait_for_the_others():
    async with Pair(limits=ROOM, trusts=lambda peer: peer.name == "friend") as pair:
        slow = [await introduced(pair) for _ in range(2)]
        for _reader, writer in slow:
            writer.write(announce(2 * MIB - 100))
        await until(lambda: pair.server._receptions[False].used > 3 * MIB)
        friend = await pair.connect(ours=hello(name="friend"), limits=ROOM)
        assert (await friend.request("echo", {}, [bytes(MIB)], timeout=LONG)).kind == "ok"
        assert pair.server._receptions[False].cut_off == 0
        for _reader, writer in slow:
            writer.close()


@on_both_loops
async def test_replies_that_nobody_reads_are_bounded_together():
    """Each deaf peer stays within its own bound; all of them together do not stay."""

    def answer(conn: Connection, frame: Frame) -> None:
        conn.reply(frame.rid, {}, [bytes(6 * MIB)])

    limits = ConnectionLimits(max_unsent_bytes=16 * MIB)
    async with Pair(Recorder(answer), limits=limits) as pair:
        unsent: Callable[[], int] = lambda: sum(conn.write_buffered for conn in pair.server.connections)  # noqa: E731
        deaf = [await introduced(pair) for _ in range(12)]
        for reader, writer in deaf:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame_bytes("give", {}, 1))
        await until(lambda: pair.server._unsent.cut_off >= 2)
        await until(lambda: len(pair.server._sockets) <= 10)
        assert unsent() <= 16 * MIB
        good = await pair.connect()
        for _ in range(8):
            assert (await good.request("give", {}, timeout=LONG)).bins[0].size == 6 * MIB
        for _reader, writer in deaf:
            writer.transport.abort()


@on_both_loops
async def test_those_who_never_say_hello_cannot_keep_others_out():
    async with Pair(max_connections=8) as pair:
        mute = [await pair.raw() for _ in range(100)]
        conn = await pair.connect()
        assert (await conn.request("echo", {}, timeout=LONG)).kind == "ok"
        assert (await end_of(mute[0][0]))["code"] == "capacity"
        assert len(pair.server._newcomers) <= server_module.MIN_NEWCOMERS
        for _reader, writer in mute:
            writer.close()


@on_both_loops
async def test_the_longest_silent_makes_room():
    """One that has only said hello goes first; one that talks does not go."""
    silent_newcomer, silent = server_module.SILENT_NEWCOMER_S, server_module.SILENT_S
    server_module.SILENT_NEWCOMER_S, server_module.SILENT_S = 0.05, 0.4
    try:
        async with Pair(max_connections=3) as pair:
            talking, once, never = [await pair.connect() for _ in range(3)]
            await once.request("echo", {}, timeout=LONG)
            for _ in range(6):
                await talking.request("echo", {}, timeout=LONG)
                await asyncio.sleep(0.02)
            await pair.connect()
            await until(lambda: never.closed)
            assert isinstance(never.end, CapacityError)
            assert not once.closed
            with pytest.raises(CapacityError, match="at most 3"):
                await pair.connect()
    finally:
        server_module.SILENT_NEWCOMER_S, server_module.SILENT_S = silent_newcomer, silent


@on_both_loops
async def test_an_error_fits_frames_of_any_size():
    """It was a request whose error did not fit that once ended a node."""

    def answer(conn: Connection, frame: Frame) -> None:
        raise ConfigError("é" * 5000, names=["x" * 500] * 9)

    async with Pair(Recorder(answer)) as pair:
        conn = await pair.connect(limits=ConnectionLimits(max_frame_bytes=1024))
        with pytest.raises(ConfigError, match=r"^é{100}"):
            await conn.request("wrong", {}, timeout=LONG)
        assert not conn.closed


@on_both_loops
async def test_a_meta_nested_to_the_limit():
    packed = packb(["x", 1, {"a": 0, "b": 0}])[:-1]
    nested = b"\x91" * 1000 + b"\xc0"

    def answer(conn: Connection, frame: Frame) -> None:
        raise ConfigError(f"{frame.meta!r} is not what was asked for")

    async with Pair(Recorder(answer)) as pair:
        reader, writer = await introduced(pair)
        body = packed + nested
        writer.write(wire.pack_prefix(len(body), len(body), zlib.crc32(body)) + body)
        reply = await next_frame(reader)
        assert (reply.kind, reply.meta["code"]) == ("error", "frame")
        bye = packb(["bye", 0, {"code": 0}])[:-1] + nested
        writer.write(wire.pack_prefix(len(bye), len(bye), zlib.crc32(bye)) + bye)
        await until(lambda: pair.handler.ended)
        writer.close()
