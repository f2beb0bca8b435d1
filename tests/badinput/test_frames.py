"""Whatever a socket may bring: the connection ends with a reason or the request with an error, the node goes on."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from node_processes import NodeProcesses, places, until_settled
from raw_client import RawClient, codes_of, pull_request, push_request

import ecstore
from ecstore import limits
from ecstore.errors import BY_CODE
from ecstore.wire import MAX_FRAME_BYTES, PROTOCOL_VERSION, pack_prefix

pytestmark = pytest.mark.cluster
CODE, DIM = "rs(2,1)", 4
ONES = np.ones((3, DIM), np.float32)
ROUTING_ERRORS = {"not_ready", "not_owner"}


@pytest.fixture
def node(three: NodeProcesses) -> str:
    return three.addresses["n1"]


@pytest.fixture
def raw(three: NodeProcesses, node: str) -> Iterator[RawClient]:
    """A connection to n1."""
    with RawClient(node, cluster=three.cluster) as client:
        yield client


@pytest.fixture
def place(store: ecstore.Store, table: ecstore.Table) -> tuple[int, int, int, np.ndarray]:
    """Group, shard index, table id, and three keys of a data shard on n1."""
    until_settled(store, CODE)
    keys = np.arange(3000, dtype=np.uint64)
    gids, indexes = places(store.cluster_map, CODE, keys)
    for group in store.cluster_map.groups_of(CODE):
        for shard in group.shards[:2]:
            if shard.owner == "n1":
                mine = keys[(gids == group.gid) & (indexes == shard.index)][:3]
                return group.gid, shard.index, store.cluster_map.tables["t"].id, mine
    raise AssertionError("n1 owns no data shard")


# -- before and around the hello ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        bytes(1000),
        b"\xff" * 1000,
        random.Random(1).randbytes(5000),
        pack_prefix(20, 30, 0) + bytes(20),  # a head longer than its body
        pack_prefix(5, 5, 0) + b"\xc1\xc1\xc1\xc1\xc1",  # a byte that msgpack never uses
    ],
)
def test_garbage_instead_of_a_frame(three: NodeProcesses, node: str, garbage: bytes) -> None:
    for introduce in (False, True):
        with RawClient(node, cluster=three.cluster, introduce=introduce) as client:
            client.send_bytes(garbage)
            assert client.goodbye().get("code") in {"frame", "frame_damaged", "frame_too_large", None}
    with RawClient(node, cluster=three.cluster) as client:
        client.send_bytes(garbage[:40])  # short enough to be read whole, so that the reason gets through
        assert client.goodbye()["code"] in {"frame", "frame_damaged", "frame_too_large"}


def test_a_frame_over_the_limit(raw: RawClient) -> None:
    raw.send_bytes(pack_prefix(MAX_FRAME_BYTES + 1, 100, 0) + bytes(1000))
    assert raw.goodbye()["code"] == "frame_too_large"


def test_a_large_hello(node: str, three: NodeProcesses) -> None:
    """Nobody gets more than a little memory before he has said who he is."""
    with RawClient(node, cluster=three.cluster, hello={"name": "x" * 100_000}) as client:
        assert client.goodbye()["code"] in {"frame", "frame_damaged", "frame_too_large"}


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 1 << 40])
def test_another_protocol_version(three: NodeProcesses, node: str, version: int) -> None:
    with RawClient(node, cluster=three.cluster, hello={"version": version}) as client:
        said = client.goodbye()
    assert said["code"] == "version_mismatch"
    assert said["details"] == {"ours": PROTOCOL_VERSION, "theirs": version}


@pytest.mark.parametrize(
    "wrong",
    [{"version": "1"}, {"version": None}, {"role": "king"}, {"name": None}, {"name": 5}, {"max_frame_bytes": -1}],
)
def test_a_hello_that_is_none(three: NodeProcesses, node: str, wrong: dict[str, Any]) -> None:
    with RawClient(node, cluster=three.cluster, hello=wrong) as client:
        assert client.goodbye()["code"] == "frame"


def test_another_cluster(three: NodeProcesses, node: str) -> None:
    with pytest.raises(ecstore.WrongClusterError, match="another"):
        ecstore.connect(node, timeout=5.0, cluster="another")
    for role in ("client", "node", "admin"):
        with RawClient(node, cluster="another", hello={"role": role, "name": "n2"}) as client:
            said = client.goodbye()
        assert said["code"] == "wrong_cluster"
        assert said["details"] == {"ours": three.cluster, "theirs": "another"}


# -- requests that parse as frames ----------------------------------------------------------------------------------


def test_requests_that_nobody_answers(raw: RawClient) -> None:
    assert codes_of(raw.ask("make.coffee", {})) == ["protocol"]
    for kind in ("deltas", "acks", "snapshot", "takeover.begin", "sink.subscribe", "coord.cas"):
        assert codes_of(raw.ask(kind, {})) == ["protocol"], "only nodes may say so"


def test_a_wrong_width(raw: RawClient, place: tuple[int, int, int, np.ndarray], table: ecstore.Table) -> None:
    gid, index, table_id, keys = place
    for dim in (1, 3, 5, 0):
        request = push_request(b"raw", gid, index, table_id, keys, np.ones((3, dim), np.float32), 1)
        assert codes_of(raw.ask("push", *request)) == ["shape"]
    assert len(table) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_gradients_past_the_client(
    raw: RawClient, place: tuple[int, int, int, np.ndarray], table: ecstore.Table, value: float
) -> None:
    grads = ONES.copy()
    grads[1, 1] = value
    assert codes_of(raw.ask("push", *push_request(b"raw", *place, grads, 1))) == ["non_finite"]
    assert len(table) == 0, "nothing of it"


def test_places_that_do_not_exist(
    raw: RawClient, place: tuple[int, int, int, np.ndarray], table: ecstore.Table
) -> None:
    gid, index, table_id, keys = place
    for where in [(10**6, index), (-1, index), (gid, 99), (gid, -1), (2**62, 2**62)]:
        for kind, request in [
            ("pull", pull_request(*where, table_id, keys)),
            ("push", push_request(b"raw", *where, table_id, keys, ONES, 1)),
        ]:
            codes = codes_of(raw.ask(kind, *request))
            assert codes
            assert set(codes) <= ROUTING_ERRORS, (where, codes)
    for unknown, wanted in [(table_id + 1000, "not_ready"), (-1, "unknown_table")]:
        assert codes_of(raw.ask("pull", *pull_request(gid, index, unknown, keys))) == [wanted]
        assert codes_of(raw.ask("push", *push_request(b"raw", gid, index, unknown, keys, ONES, 1))) == [wanted]
    assert len(table) == 0


def test_lengths_that_do_not_fit(raw: RawClient, place: tuple[int, int, int, np.ndarray], table: ecstore.Table) -> None:
    gid, index, table_id, keys = place
    meta, bins = push_request(b"raw", gid, index, table_id, keys, ONES, 1)
    for count, width in [(2, 16), (4, 16), (-3, 16), (3, -16), (3, 17), (3, 1 << 60), (1 << 60, 16), (0, 0)]:
        wrong = meta | {"sections": [[gid, index, table_id, count, width, 1, 0]]}
        assert codes_of(raw.ask("push", wrong, bins)) == ["frame"], (count, width)
    short_keys, short_rows, odd_keys = bins[0][:2], bins[1][:-1], bins[0].view(np.uint8)[:-1]
    for wrong_bins in ([], bins[:1], [short_keys, bins[1]], [bins[0], short_rows], [odd_keys, bins[1]]):
        assert codes_of(raw.ask("push", meta, wrong_bins)) == ["frame"]
        assert codes_of(raw.ask("pull", {"sections": [[gid, index, table_id, 3]]}, wrong_bins[:0])) == ["frame"]
    assert len(table) == 0


def test_too_many_ids(raw: RawClient, place: tuple[int, int, int, np.ndarray]) -> None:
    gid, index, table_id, _keys = place
    keys = np.zeros(limits.MAX_IDS_PER_REQUEST + 1, np.uint64)
    assert codes_of(raw.ask("pull", *pull_request(gid, index, table_id, keys))) == ["frame"]


def test_wrong_heads(raw: RawClient, place: tuple[int, int, int, np.ndarray], table: ecstore.Table) -> None:
    gid, index, table_id, keys = place
    meta, bins = push_request(b"raw", gid, index, table_id, keys, ONES, 1)
    head = meta["sections"][0]
    for wrong in (
        {"sections": None},
        {"sections": [None]},
        {"sections": [head[:-1]]},
        {"sections": [[*head, 0]]},
        {"sections": [["0", *head[1:]]]},
        {"sections": [[True, *head[1:]]]},
        {"sections": [[*head[:5], 0, 0]]},
        {"sections": [[*head[:5], 1, 1]]},
        {"sections": [[*head[:5], -5, -6]]},
        {"client": b""},
        {"client": b"x" * 33},
        {"client": "text"},
        {"client": None},
        {"op": "destroy"},
        {"op": None},
    ):
        assert codes_of(raw.ask("push", meta | wrong, bins)) == ["frame"], wrong
    assert codes_of(raw.ask("push", {}, bins)) == ["frame"]
    assert len(table) == 0


def test_wrong_tables_past_the_client(raw: RawClient, table: ecstore.Table) -> None:
    good = table.spec.to_wire()
    wrong = [{"dim": "4"}, {"dim": -1}, {"optimizer": {}}, {"name": "u", "code": "rs(9,9)"}]
    for spec in (None, 5, {}, *(good | changed for changed in wrong)):
        codes = codes_of(raw.ask("table.create", {"spec": spec}))
        assert len(codes) == 1
        assert codes[0] in {"frame", "config", "code", "input", "dtype", "shape"}, (spec, codes)
    assert codes_of(raw.ask("table.drop", {"name": "nowhere"})) == ["unknown_table"]


#: Every kind that a client may send, with a good set of fields to spoil.
KINDS: dict[str, dict[str, Any]] = {
    "pull": {"epoch": 1, "sections": [[0, 0, 1, 3]]},
    "push": {"client": b"raw", "op": "push", "ack": "parity", "sections": [[0, 0, 1, 3, 16, 1, 0]]},
    "scan": {"group": 0, "shard": 0, "table": 1, "start": 0, "count": 10},
    "ping": {"incarnation": 1, "epoch": 1},
    "shard.read": {"group": 0, "shard": 0, "table": 1, "group_epoch": 1},
    "shard.info": {"group": 0, "shard": 0},
    "parity.read": {"group": 0, "shard": 2, "table": 1, "group_epoch": 1, "row_bytes": 16, "cut": [0, 0]},
    "map.get": {},
    "status": {},
    "table.create": {"spec": {}},
    "table.drop": {"name": "x"},
}
ODD: list[Any] = [
    None, True, -1, 0, 1, 99, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, float("nan"), "", "text", b"", b"bytes",
    [], [None], ["x"], [[]], [0, "x"], [2**64 - 1, -1], {}, {"a": []},
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_odd_values_in_every_field(raw: RawClient, table: ecstore.Table, store: ecstore.Store, kind: str) -> None:
    """Each request gets an answer, on a connection that stays open, from a node that stays alive."""
    rng = random.Random(kind)
    good = KINDS[kind] | ({"group_epoch": store.cluster_map.groups[0].epoch} if "group_epoch" in KINDS[kind] else {})
    some_bins = [
        [], [np.zeros(3, np.uint64)], [np.zeros(3, np.uint32)], [np.full(3, 2**32 - 1, np.uint32)], [b"x"],
        [np.zeros(3, np.uint64), np.zeros(48, np.uint8)], [b"", b""],
    ]  # fmt: skip
    metas = [good, {}]
    metas += [good | {field: odd} for field in good for odd in ODD]
    metas += [{key: value for key, value in good.items() if key != field} for field in good]
    for meta in metas:
        if meta.get("group_epoch") in (99, 2**31, 2**63 - 1, 2**64 - 1):
            continue  # of the future: the node waits for such a map a while, as it should
        bins = rng.choice(some_bins)
        answer = raw.reply(raw.send(kind, meta, bins))
        assert answer is not None, f"{kind} {meta} ended the connection"
        assert set(codes_of(answer)) <= BY_CODE.keys() - {"error"}, f"{kind} {meta} met an error that nobody expected"


def test_bytes_changed_at_random(three: NodeProcesses, node: str, place: tuple[int, int, int, np.ndarray]) -> None:
    """Frames of a good conversation with some bytes changed."""
    rng = random.Random(7)
    gid, index, table_id, keys = place
    frames = [
        pull_request(gid, index, table_id, keys),
        push_request(b"mutant", gid, index, table_id, keys, 0 * ONES, 1),
    ]
    for number in range(150):
        meta, bins = frames[number % 2]
        items: list[Any] = [("pull", "push")[number % 2], 1, meta]
        for data in bins:
            items += [b"", data.tobytes()]
        body = bytearray(msgpack.packb(items))
        head = len(msgpack.packb(items[:3]))
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(min(len(body), head + 4))] = rng.randrange(256)
        with RawClient(node, cluster=three.cluster) as client:
            client.send_bytes(pack_prefix(len(body), head, zlib.crc32(body)) + body)
            client.send_frame("bye", 0, {"code": "closed", "reason": "done"})
            client.goodbye()
