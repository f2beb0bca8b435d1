"""G3 exactly once, request by request: the same push sent again, to the same node, another one, after a failover.

Fails without de-duplication, when request numbers don't travel with the deltas, or when a gap is jumped over.
"""

from __future__ import annotations

import numpy as np
import pytest
from node_processes import NodeProcesses, newest_map, places, until, until_settled
from raw_client import RawClient, codes_of, push_request

import ecstore

CODE = "rs(3,2)"
ONE = np.ones((1, 4), np.float32)


@pytest.mark.cluster
def test_a_push_sent_again_is_applied_once(six: NodeProcesses, store: ecstore.Store) -> None:
    table = store.create_table("once", dim=4, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    until_settled(store, CODE)
    keys = np.arange(50, dtype=np.uint64)
    table.push(keys, np.zeros((50, 4), np.float32))
    gids, indexes = places(store.cluster_map, CODE, keys)
    gid, index, key = int(gids[0]), int(indexes[0]), keys[:1]
    table_id = store.cluster_map.tables["once"].id

    def send(request_no: int, *, previous: int | None = None) -> list[str]:
        """Through a new connection to whoever owns the shard now; codes of errors, again while it is not ready."""
        request = push_request(b"client-one", gid, index, table_id, key, ONE, request_no, previous=previous)
        while True:
            owner = newest_map(store).groups[gid].shards[index].owner
            with RawClient(six.addresses[owner], cluster=six.cluster) as client:
                codes = codes_of(client.ask("push", *request))
            if not set(codes) & {"not_ready", "not_owner", "fenced"}:
                return codes

    assert send(1) == []
    assert send(1) == []
    assert np.array_equal(table.pull(key), -ONE), "the same request again on the same node"
    assert send(2) == []
    assert send(1) == [], "an old one after a newer one"
    assert np.array_equal(table.pull(key), -2 * ONE)
    assert send(5) == ["request_gap"], "3 and 4 have not arrived"
    assert np.array_equal(table.pull(key), -2 * ONE)
    assert send(5, previous=2) == [], "the client has given up 3 and 4"
    assert send(4) == [], "and if one of them turns up late, it is not applied"
    assert np.array_equal(table.pull(key), -3 * ONE)

    for _life in range(2):
        owner = newest_map(store).groups[gid].shards[index].owner
        six.kill(owner)
        until(lambda gone=owner: newest_map(store).groups[gid].shards[index].owner != gone, "a substitute")
        assert send(5, previous=2) == []
        assert send(2) == []
        assert np.array_equal(table.pull(key), -3 * ONE), "the substitute knows what was applied"
    assert send(6) == []
    assert np.array_equal(table.pull(key), -4 * ONE)
    store.drop_table("once")
