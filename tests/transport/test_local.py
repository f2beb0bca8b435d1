"""The Unix socket beside the TCP one: used where it is there, never needed."""

from __future__ import annotations

import asyncio
import os
import socket
from unittest.mock import patch

import numpy as np
import pytest
from loops import LONG, Pair, hello, on_both_loops, until

from ecstore.errors import UnavailableError
from ecstore.transport import Connection, PassiveHandler, connect, local, parse_address

pytestmark = pytest.mark.skipif(not local.AVAILABLE, reason="only Linux has an abstract namespace")


def family(conn: Connection) -> socket.AddressFamily:
    assert conn._transport is not None
    return conn._transport.get_extra_info("socket").family


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"),
        ("::1", "::1"), ("10.0.0.5", None), ("::", None), ("node-7.example", None),
    ],
)  # fmt: skip
def test_only_loopback_addresses_have_one(host: str, named: str | None) -> None:
    assert local.name_of(host, 7400) == (None if named is None else f"\0ecstore {named}:7400")
    assert local.name_of(host, 0) is None


@on_both_loops
async def test_it_is_used_and_carries_every_byte():
    async with Pair() as pair:
        conn = await pair.connect()
        assert family(conn) == family(pair.handler.opened[0]) == socket.AF_UNIX
        large = np.random.default_rng(1).integers(0, 256, 20_000_003, np.uint8)
        reply = await conn.request("echo", {}, [large], timeout=LONG)
        assert np.array_equal(reply.bins[0], large)
        assert str(pair.handler.opened[0])


@on_both_loops
async def test_without_it_tcp_is_taken():
    async with Pair() as pair:
        with patch.object(local, "AVAILABLE", False):
            assert family(await pair.connect()) == socket.AF_INET
        with patch.object(local, "_user_of", lambda sock: 12_345):  # somebody else has taken the name
            assert family(await pair.connect()) == socket.AF_INET
        assert family(await pair.connect()) == socket.AF_UNIX


@on_both_loops
async def test_a_server_whose_name_is_taken_is_reached_by_tcp():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    squatter = local.listen("127.0.0.1", port)
    assert squatter is not None
    with squatter, patch.object(local, "dial", lambda host, port: None):
        pair = Pair()
        await pair.server.start("127.0.0.1", port, lambda: pair.server_hello, pair.handler)
        assert family(await pair.connect()) == socket.AF_INET
        await pair.__aexit__()


@on_both_loops
async def test_a_server_that_has_ended_refuses_and_leaves_no_name():
    async with Pair() as pair:
        address = pair.server.address
        await pair.connect()
    with pytest.raises(UnavailableError) as refused:
        await connect(address, hello(), PassiveHandler(), expect_cluster=None, timeout=LONG)
    assert refused.value.details["reason"] == "refused"
    again = local.listen(*parse_address(address))
    assert again is not None
    again.close()


@on_both_loops
async def test_a_dial_that_is_cancelled_ends_cancelled_whenever_that_is():
    async with Pair() as pair:
        await pair.connect()
        before = len(os.listdir("/proc/self/fd"))
        for turns in range(12):
            dial = asyncio.create_task(pair.connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            if not dial.cancel():
                (await dial).close("it was too fast")
            else:
                with pytest.raises(asyncio.CancelledError):
                    await dial
        await until(lambda: len(pair.server.connections) == 1)
        await until(lambda: len(os.listdir("/proc/self/fd")) == before)
        await (await pair.connect()).request("echo", {}, timeout=LONG)  # no descriptor of another was closed
