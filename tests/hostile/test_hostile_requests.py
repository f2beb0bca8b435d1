"""Requests that once did harm, one by one, each with what must come of it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from node_processes import NodeProcesses, newest_map, places, until_settled
from raw_client import RawClient, codes_of, pull_request, push_request
from witness import CODE, DIM, Witness

import ecstore

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def target(witness: Witness) -> tuple[int, int, int, np.ndarray, str, str]:
    """Group, shard, table id, keys of it, its owner, and the node with its parity; of a table of ours."""
    store = witness.store
    store.create_table("target", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    until_settled(store, CODE)
    current = newest_map(store)
    group = current.groups_of(CODE)[0]
    keys = np.arange(4000, dtype=np.uint64)
    gids, indexes = places(current, CODE, keys)
    mine = keys[(gids == group.gid) & (indexes == 0)]
    return group.gid, 0, current.tables["target"].id, mine, group.shards[0].owner, group.shards[2].owner


def grads(count: int) -> np.ndarray:
    return np.ones((count, DIM), np.float32)


def test_keys_of_another_shard(attacked: NodeProcesses, witness: Witness, target: Any) -> None:
    """Rows where no other client looks for them would be lost rows. Nothing of the request is applied."""
    gid, index, table_id, mine, owner, _parity = target
    foreign = np.setdiff1d(np.arange(2000, dtype=np.uint64), mine)[:1]
    keys = np.concatenate([mine[:5], foreign])
    with RawClient(attacked.addresses[owner], cluster=attacked.cluster) as raw:
        meta, bins = push_request(b"stray", gid, index, table_id, keys, grads(6), 1)
        for op, width, rows in (("push", 4 * DIM, bins[1]), ("load", 4 * DIM, bins[1]), ("delete", 0, b"")):
            head = [gid, index, table_id, 6, width, 1, 0]
            assert codes_of(raw.ask("push", meta | {"op": op, "sections": [head]}, [bins[0], rows])) == ["key_range"]
        good, bad = [gid, index, table_id, 5, 4 * DIM, 1, 0], [gid, index, table_id, 1, 4 * DIM, 2, 1]
        reply = raw.ask("push", meta | {"sections": [good, bad]}, bins)
        assert (reply.kind, reply.meta["code"]) == ("error", "key_range"), "the whole request"
        assert codes_of(raw.ask("pull", *pull_request(gid, index, table_id, keys))) == ["key_range"]
        assert codes_of(raw.ask("pull", *pull_request(gid, index, table_id, mine))) == []
    assert len(witness.store.table("target")) == 0


def test_a_table_of_another_code(attacked: NodeProcesses, witness: Witness, target: Any) -> None:
    gid, index, _table_id, mine, owner, _parity = target
    witness.store.create_table("other", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code="none", init=ecstore.Zeros())
    other = newest_map(witness.store).tables["other"].id
    with RawClient(attacked.addresses[owner], cluster=attacked.cluster) as raw:
        assert codes_of(raw.ask("pull", *pull_request(gid, index, other, mine[:3]))) == ["code"]
        assert codes_of(raw.ask("push", *push_request(b"c", gid, index, other, mine[:3], grads(3), 1))) == ["code"]
    assert len(witness.store.table("other")) == 0


def test_an_answer_that_does_not_fit_holds_up_nobody(attacked: NodeProcesses, witness: Witness, target: Any) -> None:
    """Two clients wait for the same acknowledgement; the answer to the first has no room in its frames."""
    gid, index, table_id, mine, owner, parity = target
    small = {"role": "coordinator", "max_frame_bytes": 1024}  # a client would be sent the map
    address = attacked.addresses[owner]
    with RawClient(address, cluster=attacked.cluster, hello=small) as odd, \
            RawClient(address, cluster=attacked.cluster) as good:  # fmt: skip
        attacked.pause(parity)
        resume = threading.Timer(0.5, attacked.resume, (parity,))
        resume.start()
        try:
            meta, bins = push_request(b"odd", gid, index, table_id, mine[:2], grads(2), 1)
            nowhere = [[10**6, index, table_id, 0, 4 * DIM, 1, 0]] * 40
            asked = odd.send("push", meta | {"sections": nowhere + meta["sections"]}, bins)
            last = good.send("push", *push_request(b"good", gid, index, table_id, mine[:2], grads(2), 1))
            good.socket.settimeout(10.0)
            answer = good.reply(last)
            assert answer is not None
            assert codes_of(answer) == []
            refusal = odd.reply(asked)
            assert refusal is not None
            assert codes_of(refusal) == ["capacity"]
        finally:
            resume.join()
    assert (witness.store.table("target").pull(mine[:2]) == -2).all()


def test_more_failed_sections_than_a_head_could_tell(attacked: NodeProcesses, target: Any) -> None:
    gid, index, table_id, mine, owner, _parity = target
    with RawClient(attacked.addresses[owner], cluster=attacked.cluster) as raw:
        meta, bins = push_request(b"many", gid, index, table_id, mine[:2], grads(2), 1)
        nowhere = [[10**6, index, table_id, 0, 4 * DIM, 1, 0]] * 65_000
        reply = raw.ask("push", meta | {"sections": nowhere + meta["sections"]}, bins)
    assert reply.kind == "ok"
    assert set(codes_of(reply)) == {"not_ready"}
    assert len(codes_of(reply)) == 65_000


def test_a_read_that_would_take_more_than_it_says(attacked: NodeProcesses, witness: Witness, target: Any) -> None:
    """Wide rows asked for as narrow ones: memory is counted by what is said, and was taken by what is."""
    wide = witness.store.create_table("wide", dim=16_384, optimizer=ecstore.SGD(lr=1.0), code=CODE)
    gid, _index, _table_id, mine, _owner, parity = target
    wide.push(mine[:1], np.ones((1, 16_384), np.float32))
    current = newest_map(witness.store)
    before = attacked.rss_bytes(parity)
    meta = {
        "group": gid, "shard": 2, "table": current.tables["wide"].id, "group_epoch": current.groups[gid].epoch,
        "row_bytes": 8, "cut": [0, 0],
    }  # fmt: skip
    with RawClient(attacked.addresses[parity], cluster=attacked.cluster) as raw:
        assert codes_of(raw.ask("parity.read", meta, [np.arange(20_000, dtype=np.uint32)])) == ["shape"]
    assert attacked.rss_bytes(parity) - before < 100 << 20
    witness.store.drop_table("wide")


def test_one_way_kinds_have_no_answer_to_wait_for(attacked: NodeProcesses) -> None:
    hello = {"role": "node", "name": "nobody", "incarnation": 1}
    with RawClient(attacked.addresses["n1"], cluster=attacked.cluster, hello=hello) as raw:
        for kind in ("deltas", "acks", "snapshot", "blocks", "map"):
            assert codes_of(raw.ask(kind, {})) == ["protocol"]
