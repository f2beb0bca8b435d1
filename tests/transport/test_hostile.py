"""Whatever connects: it is refused with a reason, and the server and all other connections go on."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from loops import CLUSTER, LONG, Pair, Recorder, hello, on_both_loops, silent_listener, until

from ecstore import checksum, wire
from ecstore.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    FencedError,
    FrameError,
    TimeoutError,
    UnavailableError,
    VersionMismatchError,
    WrongClusterError,
)
from ecstore.transport import ConnectionLimits, Hello, PassiveHandler, Server, connect, parse_address


async def read_frame(reader: asyncio.StreamReader) -> wire.Frame:
    length, head_length, body_checksum = wire.decode_prefix(await reader.readexactly(wire.PREFIX_BYTES))
    body = np.frombuffer(bytearray(await reader.readexactly(length)), np.uint8)
    return wire.decode(body, head_length, body_checksum)


#: What bytes that are no frame are refused with.
REFUSED = ("frame", "frame_damaged", "frame_too_large")


async def read_bye(reader: asyncio.StreamReader) -> dict:
    """The bye that must come; frames before it are skipped."""
    while (frame := await read_frame(reader)).kind != "bye":
        pass
    assert await reader.read() == b""
    return frame.meta


async def refused_bytes(pair: Pair, data: bytes, *, after_hello: bool) -> dict:
    """What the server says to `data`; an innocent connection must not notice."""
    innocent = await pair.connect()
    reader, writer = await pair.raw()
    greeting = b"".join(wire.encode("hello", 0, hello().to_wire())) if after_hello else b""
    writer.write(greeting + data)
    bye = await read_bye(reader)
    writer.close()
    assert (await innocent.request("echo", {"fine": True}, timeout=LONG)).meta == {"fine": True}
    return bye


def frame_bytes(kind: str, meta: dict, rid: int = 0, bins=()) -> bytes:
    return b"".join(wire.encode(kind, rid, meta, bins))


@on_both_loops
async def test_garbage_instead_of_a_hello():
    async with Pair() as pair:
        rng = random.Random(5)
        samples = [
            b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
            b"\0" * 64,
            b"\xff" * 64,
            wire.pack_prefix(60_000, 20, 0) + rng.randbytes(60_000),
            frame_bytes("pull", {}),
            frame_bytes("hello", {}),
            frame_bytes("hello", hello().to_wire() | {"role": "king"}),
            frame_bytes("hello", hello().to_wire() | {"name": None}),
            frame_bytes("hello", hello().to_wire() | {"incarnation": -1}),
            frame_bytes("hello", hello().to_wire() | {"cluster": "x" * 5000}),
            frame_bytes("hello", {"version": wire.PROTOCOL_VERSION}),
        ]
        for sample in samples:
            bye = await refused_bytes(pair, sample, after_hello=False)
            assert bye["code"] in REFUSED, sample[:20]
            assert bye["reason"]
        refused = pair.server.statistics().refused
        assert sum(refused.get(code, 0) for code in REFUSED) == len(samples)
        assert refused["frame_damaged"] >= 3


@on_both_loops
async def test_garbage_after_the_hello():
    async with Pair() as pair:
        good = frame_bytes("echo", {}, rid=1, bins=[b"x" * 100])
        head = b"\xc1" * 8  # whole, but no msgpack
        for sample in (
            wire.pack_prefix(len(head), len(head), checksum.add(head)) + head,
            b"\0" * 16,
            good + b"\xff" * 20,
            frame_bytes("hello", hello().to_wire()),
        ):
            assert (await refused_bytes(pair, sample, after_hello=True))["code"] in REFUSED
        ended = pair.server.statistics().ended
        assert ended["frame"] == 2  # the head, the second hello
        assert ended["frame_damaged"] == 2


@on_both_loops
async def test_a_frame_that_announces_too_much_takes_no_memory():
    async with Pair(limits=ConnectionLimits(max_frame_bytes=1 << 20)) as pair:
        flood = wire.pack_prefix(1 << 30, 100, 0) + bytes(500_000)  # it also keeps sending
        bye = await refused_bytes(pair, flood, after_hello=True)
        assert bye["code"] == "frame_too_large"
        assert bye["details"] == {"size": 1 << 30, "limit": 1 << 20}
        hello_flood = wire.pack_prefix(100_000, 100, 0)  # before a hello far less is allowed
        assert (await refused_bytes(pair, hello_flood, after_hello=False))["code"] == "frame_too_large"


@on_both_loops
async def test_one_byte_at_a_time():
    async with Pair() as pair:
        reader, writer = await pair.raw()
        writer.transport.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY
        stream = frame_bytes("hello", hello().to_wire()) + frame_bytes("echo", {"a": 1}, rid=9, bins=[b"abc"])
        for position in range(len(stream)):
            writer.write(stream[position : position + 1])
            await asyncio.sleep(0)
        assert (await read_frame(reader)).kind == "hello"
        reply = await read_frame(reader)
        assert (reply.kind, reply.rid, reply.bins[0].tobytes()) == ("ok", 9, b"abc")
        writer.close()


@on_both_loops
async def test_a_hello_must_come_in_time():
    async with Pair(limits=ConnectionLimits(hello_timeout=0.03)) as pair:
        reader, writer = await pair.raw()
        writer.write(frame_bytes("hello", hello().to_wire())[:-1])  # all but one byte
        bye = await read_bye(reader)
        assert bye["code"] == "protocol"
        assert "hello" in bye["reason"]
        assert pair.server.statistics().refused == {"hello_late": 1}
        writer.close()


@on_both_loops
async def test_another_version_is_refused_by_both_ends():
    async with Pair() as pair:
        bye = await refused_bytes(pair, frame_bytes("hello", {"version": 99}), after_hello=False)
        assert (bye["code"], bye["details"]) == (
            "version_mismatch",
            {"ours": wire.PROTOCOL_VERSION, "theirs": 99},
        )
        old = Hello("client", CLUSTER, "old", version=99)
        with pytest.raises(VersionMismatchError, match="99"):
            await pair.connect(ours=old)
        pair.server_hello = Hello("node", CLUSTER, "new", version=98)
        with pytest.raises(VersionMismatchError, match="98") as mismatch:
            await pair.connect()
        assert mismatch.value.details == {"ours": wire.PROTOCOL_VERSION, "theirs": 98}


@on_both_loops
async def test_another_cluster_is_refused_by_both_ends():
    async with Pair() as pair:
        with pytest.raises(WrongClusterError, match=r"'lab'.*'zoo'") as wrong:
            await pair.connect(ours=hello(cluster="zoo"))
        assert wrong.value.details == {"ours": CLUSTER, "theirs": "zoo"}
        with pytest.raises(WrongClusterError, match=r"'zoo'.*'lab'"):
            await pair.connect(ours=hello(cluster=None), expect_cluster="zoo")
        anyone = await pair.connect(ours=hello(cluster=None), expect_cluster=None)
        assert anyone.peer.cluster == CLUSTER
        await until(lambda: pair.server.statistics().refused == {"wrong_cluster": 1})


@on_both_loops
async def test_tokens_and_admission():
    def admit(peer: Hello) -> None:
        if peer.name == "ghost":
            raise FencedError("that life is over; rejoin")

    async with Pair(token="secret", admit=admit) as pair:
        for token in (None, "", "wrong", "secrets", "sécret"):
            with pytest.raises(AuthError):
                await pair.connect(ours=hello(token=token))
        with pytest.raises(FencedError):
            await pair.connect(ours=hello(token="secret", name="ghost"))
        conn = await pair.connect(ours=hello(token="secret"))
        assert conn.peer.token is None
        assert "secret" not in repr(hello(token="secret"))
        pair.server_hello = hello("node", token="secret")
        assert (await pair.connect(ours=hello(token="secret"))).peer.token is None
        assert pair.server.statistics().refused == {"auth": 5, "fenced": 1}


@on_both_loops
async def test_excess_connections_are_refused_with_a_reason():
    async with Pair(max_connections=2) as pair:
        first, _ = await pair.connect(), await pair.connect()
        with pytest.raises(CapacityError, match="at most 2"):
            await pair.connect()
        first.close("making room")
        await until(lambda: pair.server.statistics().open == 1)
        await until(lambda: len(pair.server._sockets) == 1)
        third = await pair.connect()
        assert (await third.request("echo", {}, timeout=LONG)).meta == {}
        assert pair.server.statistics().refused == {"capacity": 1}


@on_both_loops
async def test_a_handler_may_refuse_at_open_and_fail_at_messages():
    class Picky(Recorder):
        def on_open(self, conn):
            if conn.peer.name == "ghost":
                raise FencedError("rejoin first")

        def on_frame(self, conn, frame):
            raise FrameError("not like that") if frame.kind == "bad" else ZeroDivisionError

    async with Pair(Picky()) as pair:
        try:
            ghost = await pair.connect(ours=hello(name="ghost"))
        except FencedError:
            pass  # the bye came with the hello
        else:
            await until(lambda: ghost.closed)
            assert isinstance(ghost.end, FencedError)
        conn = await pair.connect()
        conn.send("bad", {})
        conn.send("worse", {})
        await until(lambda: pair.server.connections and pair.server.connections[0].handler_errors == 2)
        assert not conn.closed


@on_both_loops
async def test_a_bye_gives_the_reason_and_an_abort_gives_none():
    async with Pair(Recorder()) as pair:
        for how, reason, words in (("close", "bye", "moving house"), ("abort", None, "")):
            conn = await pair.connect()
            server_side = pair.handler.opened[-1]
            server_side.close("moving house") if how == "close" else server_side.abort()
            await until(lambda conn=conn: conn.closed)
            assert conn.end_reason == reason or conn.end_reason in ("eof", "lost")
            assert words in str(conn.end)


@on_both_loops
async def test_closing_the_server_ends_everything_in_bounded_time():
    pair = Pair(limits=ConnectionLimits(linger=0.05))
    async with pair:
        conn = await pair.connect()
        reader, writer = await pair.raw()  # never says hello, never closes
        await until(lambda: pair.server.statistics().accepted == 2)
        await pair.server.close()
        await until(lambda: conn.closed)
        assert "server is closing" in str(conn.end)
        assert (await read_bye(reader))["code"] == "closed"
        writer.close()
        with pytest.raises(UnavailableError) as refused:
            await pair.connect()
        assert refused.value.details["reason"] == "refused"


@on_both_loops
async def test_connecting_to_nobody():
    listener, address = await silent_listener()
    with pytest.raises(TimeoutError):  # accepts and says nothing
        await connect(address, hello(), PassiveHandler(), expect_cluster=None, timeout=0.05)
    listener.close()
    with pytest.raises(UnavailableError):
        await connect(address, hello(), PassiveHandler(), expect_cluster=None, timeout=LONG)
    server = Server()
    async with Pair() as pair:
        with pytest.raises(UnavailableError, match="cannot listen"):
            await server.start(*parse_address(pair.server.address), lambda: hello(), PassiveHandler())


def test_addresses():
    assert parse_address("[::1]:80") == ("::1", 80)
    assert parse_address("node-1.lab:7400") == ("node-1.lab", 7400)
    for address in ("", "host", "host:", ":80", "host:http", "host:70000", "host:-1"):
        with pytest.raises(ConfigError):
            parse_address(address)


def test_limits_are_checked():
    for bad in (
        {"max_in_flight": 0},
        {"write_low_bytes": 1 << 30},
        {"hello_timeout": 0},
        {"max_frame_bytes": 5},
    ):
        with pytest.raises(ConfigError):
            ConnectionLimits(**bad)
