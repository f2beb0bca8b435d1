"""G7 bounded: whoever does not read, or sends without end, costs a node a bounded amount of memory.

Fails when frames are applied (and kept) although a parity node does not acknowledge, when waiting pushes are kept
without a bound, or when replies pile up for a peer that does not read them. Also G2: while a parity node is silent
but not declared down, no push is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait

import numpy as np
import pytest
from node_processes import NodeProcesses, places, until, until_settled
from parity_equation import rows_with_wrong_parity
from raw_client import RawClient, pull_request

import ecstore
from ecstore import limits
from ecstore.launcher.nodes import NodeSettings

CODE = "rs(2,1)"
MIB = 1 << 20
DIM = 1024
#: Half a MiB of gradients, all for one data shard.
ROWS = 128
#: Nobody is declared down in these tests.
PATIENT = NodeSettings(suspect_after_s=120.0)
#: Room for what is bounded by rule: unacknowledged frames, as much of requests that wait, buffers of the connections.
BOUND = 2 * limits.MAX_UNACKED_BYTES + 96 * MIB


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with NodeProcesses(tmp_path_factory.mktemp("three"), 3, PATIENT) as started:
        yield started


@pytest.fixture
def store(nodes: NodeProcesses) -> Iterator[ecstore.Store]:
    with ecstore.connect(nodes.address, timeout=90.0) as opened:
        yield opened


def one_shard(store: ecstore.Store, name: str) -> tuple[ecstore.Table, np.ndarray, str, str]:
    """A table, keys of one data shard of it, the owner of that shard, and the node with the parity."""
    table = store.create_table(name, dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    until_settled(store, CODE)
    keys = np.arange(20_000, dtype=np.uint64)
    gids, indexes = places(store.cluster_map, CODE, keys)
    group = store.cluster_map.groups[int(gids[0])]
    keys = keys[(gids == gids[0]) & (indexes == indexes[0])]
    return table, keys, group.shards[int(indexes[0])].owner, group.shards[2].owner


@pytest.mark.cluster
def test_pushes_wait_for_a_parity_node_and_do_not_pile_up(nodes: NodeProcesses, store: ecstore.Store) -> None:
    table, keys, owner, parity = one_shard(store, "flood")
    keys = keys[: ROWS + 1]
    flooded, single = keys[:ROWS], keys[ROWS:]
    ones = np.ones((ROWS, DIM), np.float32)
    table.push(keys, np.zeros((keys.size, DIM), np.float32))
    before = nodes.rss_bytes(owner)
    clients = [ecstore.connect(nodes.address, timeout=90.0) for _ in range(10)]
    nodes.pause(parity)
    try:
        with pytest.raises(ecstore.TimeoutError):
            table.push(single, ones[:1], timeout=1.5)
        table.push(single, ones[:1], ack="local", timeout=30.0)  # promises less, so it need not wait
        # 10 clients x 64 pushes x 0.5 MiB: 320 MiB on their way at once, for a node that may apply 32 MiB of them.
        futures = [client.table("flood").push_async(flooded, ones) for client in clients for _ in range(64)]
        done, _waiting = wait(futures, timeout=3.0)
        grown = nodes.rss_bytes(owner) - before
        assert not done, "acknowledged without the parity node"
        assert grown < BOUND, f"the node grew by {grown / MIB:.0f} MiB"
        log = memory_of(store, owner)["log"]
        assert log <= limits.MAX_UNACKED_BYTES + 2 * ROWS * DIM * 4 + limits.MAX_RECENT_BYTES
    finally:
        nodes.resume(parity)
    for future in futures:
        future.result(90.0)
    assert nodes.rss_bytes(owner) - before < BOUND
    for client in clients:
        client.close()
    found = table.pull(keys)
    assert (found[:ROWS] == -len(futures)).all(), "each push once"
    assert (found[ROWS:] == -2).all(), "the push that timed out arrived in time, and counts once"
    assert rows_with_wrong_parity(nodes.address, CODE)[0] == 0
    store.drop_table("flood")


def memory_of(store: ecstore.Store, node: str) -> dict[str, int]:
    """What the node says of itself; asked of every node, the paused one does not answer."""
    return store.status(timeout=2.0)["nodes"][node]["statistics"]["memory"]


@pytest.mark.cluster
def test_a_client_that_does_not_read(nodes: NodeProcesses, store: ecstore.Store) -> None:
    """It asks for half a GiB of rows and reads nothing: the node stops reading its requests."""
    table, keys, owner, _parity = one_shard(store, "unread")
    current = store.cluster_map
    gids, indexes = places(current, CODE, keys[:1])
    request = pull_request(int(gids[0]), int(indexes[0]), current.tables["unread"].id, np.repeat(keys[:1], 1000))
    before = nodes.rss_bytes(owner)
    with RawClient(nodes.addresses[owner], cluster=nodes.cluster) as deaf:
        deaf.socket.settimeout(3.0)
        asked = 0
        try:
            for _ in range(131_072):  # far more than the buffers of a socket hold
                deaf.send("pull", *request)
                asked += 1
        except TimeoutError:
            pass  # the node reads no further
        assert asked < 131_072
        assert nodes.rss_bytes(owner) - before < 96 * MIB
        assert table.pull(keys[:10]).shape == (10, DIM), "others are served"
    until(lambda: nodes.rss_bytes(owner) - before < 96 * MIB, "memory after the end of the connection")
    store.drop_table("unread")


@pytest.mark.cluster
def test_requests_that_wait_are_counted(nodes: NodeProcesses, store: ecstore.Store) -> None:
    """Reads of a cut that never comes: beyond the bound they are refused, and the rest end by themselves."""
    table, keys, _owner, parity = one_shard(store, "waiting")
    table.push(keys[:10], np.ones((10, DIM), np.float32))
    current = store.cluster_map
    gid = int(places(current, CODE, keys[:1])[0][0])
    meta = {
        "group": gid, "shard": 2, "table": current.tables["waiting"].id, "group_epoch": current.groups[gid].epoch,
        "row_bytes": 4 * DIM, "cut": [10**9, 10**9],
    }  # fmt: skip
    with RawClient(nodes.addresses[parity], cluster=nodes.cluster) as client:
        count = limits.MAX_WAITING_REQUESTS + 500
        rids = {client.send("parity.read", meta, [np.zeros(1, np.uint32)]) for _ in range(count)}
        codes: dict[str, int] = {}
        while rids:
            frame = client.receive()
            assert frame is not None
            if frame.rid in rids:
                rids.remove(frame.rid)
                assert frame.kind == "error"
                codes[frame.meta["code"]] = codes.get(frame.meta["code"], 0) + 1
    assert set(codes) <= {"capacity", "not_ready"}, codes
    assert codes["not_ready"] > 0
    assert np.array_equal(table.pull(keys[:10]), -np.ones((10, DIM), np.float32))
    store.drop_table("waiting")
