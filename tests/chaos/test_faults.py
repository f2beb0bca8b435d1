"""Faults on order, on real processes: they do what they say, end by themselves, and the guarantees hold meanwhile."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from node_processes import NodeProcesses, keys_owned_by, newest_map, places, until, until_settled
from raw_client import RawClient, codes_of, pull_request, push_request

import ecstore
from ecstore.verify import verify
from tests.chaos.conftest import CODE, KEYS

pytestmark = pytest.mark.cluster

EVERYTHING = np.arange(KEYS)
ONES = np.ones((KEYS, 4), np.float32)


def order(nodes: NodeProcesses, store: ecstore.Store, node: str, **meta: Any) -> None:
    store.ask_node(nodes.addresses[node], "fault.set", {"id": "f", "duration_s": 60.0} | meta)


def faults_of(nodes: NodeProcesses, store: ecstore.Store, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.ask_node(nodes.addresses[node], "fault.list", {})["faults"]
    return found


def test_what_makes_no_sense_is_refused(faulty_six: NodeProcesses, store: ecstore.Store) -> None:
    with pytest.raises(ecstore.ConfigError, match="a fault is one of"):
        order(faulty_six, store, "n1", kind="flood")
    with pytest.raises(ecstore.ConfigError, match=r"fault\.set"):
        store.ask_node(faulty_six.addresses["n1"], "fault.begin", {})
    assert faults_of(faulty_six, store, "n1") == []


def test_an_isolated_node_is_declared_down_acknowledges_nothing_and_joins_again(
    faulty_six: NodeProcesses, store: ecstore.Store, counters: ecstore.Table
) -> None:
    """Clients still reach it, with the old map: the one case where only the lease keeps it from serving old values."""
    counters.push(EVERYTHING, ONES)
    old = newest_map(store)
    life = old.nodes["n2"].incarnation
    mine = keys_owned_by(old, CODE, "n2", EVERYTHING)
    gids, indexes = places(old, CODE, mine)
    place = int(gids[0]), int(indexes[0]), old.tables["t"].id
    keys = mine[(gids == gids[0]) & (indexes == indexes[0])]
    with RawClient(faulty_six.addresses["n2"], cluster=faulty_six.cluster) as client:
        assert codes_of(client.ask("pull", *pull_request(*place, keys))) == []
        order(faulty_six, store, "n2", kind="partition", peers=["*"])
        rid = client.send("push", *push_request(b"old", *place, keys, 7 * ONES[: keys.size], 1))
        until(lambda: not newest_map(store).is_alive("n2", life), "n2 to be declared down")
        counters.push(EVERYTHING, ONES)
        answer = client.ask("pull", *pull_request(*place, keys))
        assert codes_of(answer) == ["fenced"], "it served an old value"
        assert np.array_equal(counters.pull(EVERYTHING), -2 * ONES)
        assert newest_map(store).nodes["n2"].state == "down", "it has joined through the partition"
        assert store.ask_node(faulty_six.addresses["n2"], "fault.clear", {"id": "f"}) == {"cleared": 1}
        late = client.reply(rid)
        assert late is None or codes_of(late), "a push was acknowledged behind the partition"
    until(lambda: newest_map(store).nodes["n2"].alive, "n2 to join again")
    assert newest_map(store).nodes["n2"].incarnation > life
    until_settled(store, CODE)
    assert np.array_equal(counters.pull(EVERYTHING), -2 * ONES)
    assert verify(faulty_six.address).ok


def test_delays_keep_order_and_end_by_themselves(
    faulty_six: NodeProcesses, store: ecstore.Store, counters: ecstore.Table
) -> None:
    began = time.monotonic()
    order(faulty_six, store, "n1", kind="delay", peers=["*", "clients"], delay_ms=80, jitter_ms=70, duration_s=1.5)
    with RawClient(faulty_six.addresses["n1"], cluster=faulty_six.cluster) as client:
        sent_at = time.monotonic()
        asked = [client.send("map.get", {}) for _ in range(20)]
        answered = [next_answer(client) for _ in asked]
        took = time.monotonic() - sent_at
    assert answered == asked
    counters.push(EVERYTHING, ONES)
    assert took > 0.02 or time.monotonic() - began > 1.5, "nothing was held"
    until(lambda: not faults_of(faulty_six, store, "n1"), "the fault to end")
    assert np.array_equal(counters.pull(EVERYTHING), -ONES)


def next_answer(client: RawClient) -> int:
    while True:
        frame = client.receive()
        assert frame is not None
        if frame.kind == "ok":
            return frame.rid


def test_connections_are_cut_and_every_push_counts_once(
    faulty_six: NodeProcesses, store: ecstore.Store, counters: ecstore.Table
) -> None:
    for node in faulty_six.addresses:
        order(faulty_six, store, node, kind="drop", peers=["*", "clients"], probability=0.03)
    for _ in range(40):
        counters.push(EVERYTHING, ONES)
    for address in faulty_six.addresses.values():
        until(lambda address=address: cleared(store, address), f"an answer of {address}")
    until_settled(store, CODE)
    assert np.array_equal(counters.pull(EVERYTHING), -40 * ONES)
    assert verify(faulty_six.address).ok


def cleared(store: ecstore.Store, address: str) -> bool:
    try:
        store.ask_node(address, "fault.clear", {})
    except ecstore.UnavailableError:  # the answer was cut off
        return False
    return True


def test_a_slow_node_is_slow_and_right(
    faulty_six: NodeProcesses, store: ecstore.Store, counters: ecstore.Table
) -> None:
    order(faulty_six, store, "n4", kind="slow", block_ms=150, every_ms=200, duration_s=1.0)
    for _ in range(5):
        counters.push(EVERYTHING, ONES)
    assert np.array_equal(counters.pull(EVERYTHING), -5 * ONES)
    until(lambda: not faults_of(faulty_six, store, "n4"), "the fault to end")


def test_a_flipped_bit_is_found(faulty_six: NodeProcesses, store: ecstore.Store, counters: ecstore.Table) -> None:
    counters.push(EVERYTHING, ONES)
    assert verify(faulty_six.address).ok
    current = newest_map(store)
    group, table = current.groups_of(CODE)[0], current.tables["t"].id
    for shard in (0, 4):
        address = faulty_six.addresses[group.shards[shard].owner]
        spot = {"group": group.gid, "shard": shard, "table": table, "slot": 3, "byte": 5, "bit": 6}
        with pytest.raises(ecstore.KeyRangeError):
            store.ask_node(address, "fault.flip", spot | {"byte": 4000})
        store.ask_node(address, "fault.flip", spot)
        found = verify(faulty_six.address)
        assert [(m.group, m.table, m.stripes, m.first_slot) for m in found.mismatches] == [(group.gid, "t", 1, 3)]
        store.ask_node(address, "fault.flip", spot)
        assert verify(faulty_six.address).ok
