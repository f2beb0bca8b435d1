"""One connection per address, opened once for all who ask, with pauses after failures."""

from __future__ import annotations

import asyncio
import random

import pytest
from loops import CLUSTER, LONG, Pair, Recorder, hello, on_both_loops, settle, silent_listener, until

from ecstore.errors import TimeoutError, UnavailableError, WrongClusterError
from ecstore.transport import PassiveHandler, PeerPool, Server


def new_pool(**options) -> PeerPool:
    options.setdefault("expect_cluster", lambda: CLUSTER)
    return PeerPool(lambda: hello("node", name="n2"), PassiveHandler(), random.Random(1), **options)


async def unused_address() -> str:
    server = Server()
    await server.start("127.0.0.1", 0, lambda: hello("node"), PassiveHandler())
    await server.close()
    return server.address


@on_both_loops
async def test_everyone_shares_one_attempt_and_one_connection():
    async with Pair() as pair:
        pool = new_pool()
        address = pair.server.address
        assert pool.get(address) is None
        found = await asyncio.gather(*(pool.connection(address, LONG) for _ in range(20)))
        assert len(set(found)) == 1
        assert pool.get(address) is found[0] is await pool.connection(address, LONG)
        assert pool.connections == (found[0],)
        assert pair.server.statistics().accepted == 1
        await pool.close()
        assert found[0].closed
        assert pool.get(address) is None
        with pytest.raises(UnavailableError):
            await pool.connection(address, LONG)


@on_both_loops
async def test_it_reconnects_after_a_loss():
    async with Pair(Recorder()) as pair:
        pool = new_pool()
        first = await pool.connection(pair.server.address, LONG)
        pair.handler.opened[0].abort()
        await until(lambda: pool.get(pair.server.address) is None)
        second = await pool.connection(pair.server.address, LONG)
        assert second is not first
        assert (await second.request("echo", {"i": 1}, timeout=LONG)).meta == {"i": 1}
        await pool.close()


@on_both_loops
async def test_failures_are_raised_and_paced():
    address = await unused_address()
    pool = new_pool()
    loop = asyncio.get_running_loop()
    with pytest.raises(UnavailableError) as refused:
        await pool.connection(address, LONG)
    assert refused.value.details["reason"] == "refused"
    pauses = []
    for _ in range(3):
        peer = pool._peers[address]
        pauses.append(peer.not_before - loop.time())
        with pytest.raises(UnavailableError, match="next attempt"):
            await pool.connection(address, 0.0)  # it says so at once instead of hammering
        with pytest.raises(UnavailableError):
            await pool.connection(address, LONG)  # it waits for its turn
        assert peer.failures == len(pauses) + 1
    assert all(0 < pause <= 0.05 * 2**i for i, pause in enumerate(pauses))
    pool._peers[address].failures = 10**9
    with pytest.raises(UnavailableError):
        await pool.connection(address, LONG)
    assert 0 < pool._peers[address].not_before - loop.time() <= 2.0  # capped
    pool.forget(address)
    with pytest.raises(UnavailableError) as refused:
        await pool.connection(address, 0.5)
    assert refused.value.details["reason"] == "refused"
    await pool.close()


@on_both_loops
async def test_a_peer_that_hangs_up_at_once_is_paced_too():
    async with Pair(Recorder(lambda conn, frame: conn.close("not now"))) as pair:
        pool = new_pool()
        address = pair.server.address
        for failures in (1, 2):
            conn = await pool.connection(address, LONG)
            conn.send("knock", {})
            await until(lambda: pool.get(address) is None)
            await settle()
            assert pool._peers[address].failures == failures
        with pytest.raises(UnavailableError, match="next attempt"):
            await pool.connection(address, 0.0)
        await pool.close()


@on_both_loops
async def test_typed_errors_come_through():
    async with Pair() as pair:
        pool = new_pool(expect_cluster=lambda: "zoo")
        with pytest.raises(WrongClusterError):
            await pool.connection(pair.server.address, LONG)
        await pool.close()


@on_both_loops
async def test_callers_may_leave_and_the_pool_may_close_during_an_attempt():
    listener, address = await silent_listener()
    pool = new_pool()
    with pytest.raises(TimeoutError):
        await pool.connection(address, 0.02)
    leaver = asyncio.create_task(pool.connection(address, LONG))
    stayer = asyncio.create_task(pool.connection(address, LONG))
    await settle()
    leaver.cancel()
    await settle()
    assert not stayer.done()
    await pool.close()
    with pytest.raises(UnavailableError, match="gave up"):
        await stayer
    listener.close()
