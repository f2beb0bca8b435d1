"""What a stranger who knows the protocol may send: strategies that are right in almost everything.

A message starts as a good one of its kind, built from the cluster's present map, and is then spoilt in a few places:
fields, list items and bins are replaced, removed, added, or grow beyond all bounds. So it gets past the first check,
and past the second, to wherever something is taken for granted.
"""

from __future__ import annotations

import copy
import reprlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np
from hypothesis import strategies as st

from ecstore import checksum
from ecstore.cluster.map import ClusterMap
from ecstore.wire import pack_prefix

Message = tuple[str, dict[str, Any], list[bytes]]


@dataclass
class World:
    """What the stranger knows of the cluster: everything, for it is told to every client."""

    map: ClusterMap
    table_id: int
    row_bytes: int
    #: A data shard of the node that is spoken to: group, index, its parity shard's index, keys of it.
    gid: int
    src: int
    dst: int
    keys: np.ndarray
    #: Requests that wait for a newer map or a later cut wait seconds. False: such numbers are made small.
    patient: bool = False

    @property
    def group_epoch(self) -> int:
        return self.map.groups[self.gid].epoch

    def place(self, **more: Any) -> dict[str, Any]:
        return {"group": self.gid, "src": self.src, "dst": self.dst, "group_epoch": self.group_epoch} | more


def client_messages(world: World) -> dict[str, Message]:
    """A good message of each kind that a client may send; none of them changes rows."""
    keys, n, dim = world.keys, world.keys.size, world.row_bytes // 4
    where = {"group": world.gid, "shard": world.src, "table": world.table_id, "group_epoch": world.group_epoch}
    k = len(world.map.groups[world.gid].shards) - 1
    spec = next(t.spec for t in world.map.tables.values() if t.id == world.table_id).to_wire()
    push = [world.gid, world.src, world.table_id, n, 4 * dim, 1, 0]
    slots = np.arange(3, dtype=np.uint32).tobytes()
    messages: list[Message] = [
        ("pull", {"epoch": 0, "sections": [[world.gid, world.src, world.table_id, n]]}, [keys.tobytes()]),
        ("push", {"client": b"hostile", "op": "push", "ack": "parity", "sections": [push]},
         [keys.tobytes(), bytes(4 * dim * n)]),
        ("push", {"client": b"hostile", "op": "delete", "ack": "local", "sections": [[*push[:4], 0, 1, 0]]},
         [(keys + np.uint64(1 << 40)).tobytes(), b""]),
        ("scan", {**where, "start": 0, "count": 10}, []),
        ("ping", {"incarnation": 1, "epoch": 0}, []),
        ("shard.read", where, [slots]),
        ("shard.info", where, []),
        ("parity.read", where | {"shard": k, "row_bytes": world.row_bytes, "cut": [0] * k}, [slots]),
        ("map.get", {}, []),
        ("status", {}, []),
        ("table.create", {"spec": spec | {"dim": 3}}, []),
        ("table.drop", {"name": "there is no such table"}, []),
        ("node.drain", {"node": "there is no such node"}, []),
        ("row.read", where, [keys.tobytes()]),
        ("throttle.set", {"profile": "balanced", "rate_bytes_per_s": 1e9, "revision": 0}, []),
        ("train.report", {"name": "stranger", "at": 1.0, "figures": {"batch": 3, "loss": 0.5}}, []),
        ("make.coffee", {"sugar": 2}, [b"milk"]),
    ]  # fmt: skip
    return {f"{kind} {number}": (kind, meta, bins) for number, (kind, meta, bins) in enumerate(messages)}


def peer_messages(world: World) -> dict[str, Message]:
    """A good message of each kind that only nodes may send, from an owner or a sink of the world's shard."""
    n, width = world.keys.size, world.row_bytes
    slots = np.arange(n, dtype=np.uint32).tobytes()
    head = [world.gid, world.src, world.dst, 0, 0, 1, world.table_id, n, width, n, 0, b"hostile", 1]
    deltas: Message = ("deltas", {"frames": [head]}, [slots + slots, world.keys.tobytes(), b"\1" * (n * width)])
    lists = [world.keys.tobytes(), b"\1" * n]
    block = bytes(1024 * width)
    stream = world.place(subscription=0, seq=0)
    messages: list[Message] = [
        deltas,
        ("acks", {"acks": [[world.gid, world.src, world.dst, 0, 1, "ok"]], "epoch": world.map.epoch}, []),
        ("snapshot", stream | {"tables": [[world.table_id, width, n]], "requests": [[b"hostile", 1, 1]]}, lists),
        ("blocks", stream | {"table": world.table_id, "block": 0, "row_bytes": width, "rows": 1}, [block]),
        ("ping", {"incarnation": 1, "epoch": world.map.epoch}, []),
        ("sink.subscribe", world.place(subscription=77), []),
        ("sink.want", world.place(subscription=0, table=world.table_id, block=0, count=1), []),
        ("sink.confirm", world.place(subscription=0), []),
        ("takeover.begin", world.place(attempt=1), []),
        ("takeover.frames", world.place(after=0, upto=5), []),
        ("takeover.forward", deltas[1] | world.place(), deltas[2]),
        ("takeover.state", world.place(), []),
        ("takeover.resume", world.place(seq=0), []),
        ("takeover.release", world.place(), []),
    ]
    return {f"{kind} {number}": (kind, meta, bins) for number, (kind, meta, bins) in enumerate(messages)}


def coordination_messages(current: ClusterMap) -> dict[str, Message]:
    """A good message of each kind of the coordination service. The swap would change nothing but the epoch."""
    wire = current.to_wire() | {"epoch": current.epoch + 1}
    messages: list[Message] = [
        ("coord.get", {"epoch": 0}, []),
        ("coord.cas", {"old_epoch": current.epoch}, [msgpack.packb(wire)]),
        ("coord.cas", {"old_epoch": current.epoch}, [msgpack.packb(wire | {"groups": []})]),
        ("coord.watch", {}, []),
        ("coord.beat", {"node": "n1", "incarnation": 1}, []),
        ("coord.sessions", {}, []),
        ("coord.map", {"epoch": current.epoch}, [msgpack.packb(wire)]),
        ("pull", {"sections": []}, []),
    ]
    return {f"{kind} {number}": (kind, meta, bins) for number, (kind, meta, bins) in enumerate(messages)}


# -- bytes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raw:
    """Packed bytes in the place of a value: for what no library packs, such as a map with a key twice."""

    data: bytes


@dataclass(frozen=True)
class Twice:
    """A map in which every key comes twice, the second time with nil."""

    fields: dict[str, Any]


def pack(value: Any) -> bytes:
    """msgpack of plain values, `Raw` and `Twice`."""
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, Twice):
        pairs = [(key, item) for key, item in value.fields.items()] + [(key, None) for key in value.fields]
        return struct.pack(">BH", 0xDE, len(pairs)) + b"".join(pack(key) + pack(item) for key, item in pairs)
    if isinstance(value, dict):
        return struct.pack(">BH", 0xDE, len(value)) + b"".join(pack(key) + pack(item) for key, item in value.items())
    if isinstance(value, list):
        plain = len(value) > 500  # such a long one is no place for a `Raw`
        return struct.pack(">BI", 0xDD, len(value)) + (
            pack(value[0]) * len(value) if plain else b"".join(map(pack, value))
        )
    packed: bytes = msgpack.packb(value)
    return packed


def frame_bytes(kind: str, rid: int, meta: Any, bins: list[bytes]) -> bytes:
    """Prefix and body, by the rules of docs/PROTOCOL.md, whatever `meta` holds."""
    items = 3 + 2 * len(bins)
    header = bytes((0x90 | items,)) if items < 16 else struct.pack(">BH", 0xDC, items)
    body = bytearray(header + pack(kind) + pack(rid) + pack(meta))
    head = len(body)
    summed = found = 0
    for item in bins:
        start = msgpack.packb(item)[: -len(item) or None] if item else b"\xc4\0"
        pad = -(len(body) + 2 + len(start)) % 8
        body += bytes((0xC4, pad)) + bytes(pad) + start
        if len(item) >= checksum.FOLD_FROM_BYTES:
            found = checksum.add_array(memoryview(item), checksum.add(body[summed:], found))
            summed = len(body) + len(item)
        body += item
    return pack_prefix(len(body), head, checksum.add(body[summed:], found)) + body


# -- what is wrong with them ------------------------------------------------------------------------------------------

NUMBERS = [0, 1, -1, 2, 7, 255, 256, 1023, 1024, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**60,
           2**63 - 1, -(2**31), -(2**63), 2**63, 2**64 - 1]  # fmt: skip

#: Values for any place. Nested to msgpack's own limit, claiming far more items than there are bytes, and long.
ODD = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([None, True, False, 0.5, -0.0, float("nan"), float("inf"), -float("inf"), 1e308]),
    st.text(max_size=8),
    st.binary(max_size=40),
    st.sampled_from([b"\0" * 33, "x" * 5000, "ok", "gap", "unsynced", "rs(2,1)", "rs(1,2)", "", b""]),
    st.lists(st.one_of(st.integers(-5, 5), st.none(), st.text(max_size=2)), max_size=6),
    st.dictionaries(st.text(max_size=4), st.one_of(st.integers(-9, 9), st.none()), max_size=3),
    st.builds(lambda depth: Raw(b"\x91" * depth + b"\xc0"), st.sampled_from([3, 30, 500, 999, 1015])),
    st.builds(lambda depth: Raw(b"\x81\xa1a" * depth + b"\xc0"), st.sampled_from([3, 500, 1015])),
    st.builds(lambda count, item: [item] * count, st.sampled_from([200, 65_536]), st.sampled_from([0, None, []])),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a meta, outer ones first; of long lists the first items."""
    found: list[tuple[Any, ...]] = []
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value[:14]))
    for key, item in inner:
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places_in(item, (*path, key))
    return found


def _spoil_meta(draw: st.DrawFn, meta: dict[str, Any]) -> None:
    path = draw(st.sampled_from(places_in(meta) or [("epoch",)]))
    inside: Any = meta
    for key in path[:-1]:
        inside = inside[key]
    action = draw(st.sampled_from(["set", "set", "set", "set", "remove", "add", "repeat"]))
    if action == "set":
        inside[path[-1]] = draw(ODD)
    elif action == "remove" and path[-1] in (inside if isinstance(inside, dict) else range(len(inside))):
        del inside[path[-1]]
    elif action == "add" and isinstance(inside, dict):
        inside[draw(st.text(max_size=5))] = draw(ODD)
    elif isinstance(inside, list) and inside:
        at = min(path[-1], len(inside) - 1)
        inside[at:at] = [copy.deepcopy(inside[at])] * draw(st.sampled_from([1, 5, 300]))


def _spoil_bins(draw: st.DrawFn, bins: list[bytes]) -> None:
    at = draw(st.integers(0, len(bins)))
    noise = draw(st.one_of(st.binary(max_size=64), st.sampled_from([bytes(8), b"\xff" * 64, b"\xff" * 4096])))
    action = draw(st.sampled_from(["insert", "remove", "replace", "truncate", "extend", "overwrite"]))
    if action == "insert" or at == len(bins):
        bins.insert(at, noise)
    elif action == "remove":
        del bins[at]
    else:
        was = bins[at]
        new = {"replace": noise, "truncate": was[: -1 - len(noise) % 16], "extend": was + noise}
        bins[at] = new.get(action, noise[: len(was)] + was[len(noise) :])


def _make_small(world: World | None, meta: dict[str, Any]) -> None:
    """Numbers for which an answer waits, as it should: an epoch or a cut of the future."""
    if world is None or world.patient:
        return
    if isinstance(meta.get("group_epoch"), int) and meta["group_epoch"] > world.group_epoch:
        meta["group_epoch"] = world.group_epoch
    if isinstance(meta.get("cut"), list):
        meta["cut"] = [-1 if isinstance(seq, int) and seq > 0 else seq for seq in meta["cut"][:300]]


#: One wrong value of each sort, for a sweep over all places.
WRONG: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**60, 2**64 - 1, -(2**63), 1.5, float("nan"), "x", b"x" * 40, [], {}, [None], [[]],
    Raw(b"\x91" * 1000 + b"\xc0"),
)  # fmt: skip


class Packet(NamedTuple):
    """One message to be sent."""

    kind: str
    meta: Any
    bins: list[bytes]

    def __repr__(self) -> str:
        sizes = [len(item) for item in self.bins]
        return f"Packet({self.kind!r}, {reprlib.repr(self.meta)}, bins of {sizes[:5]} bytes)"


def sweep(messages: dict[str, Message], world: World | None = None) -> Iterator[Packet]:
    """Each good message, and each with one place, wherever it is, taken out or set to each of the wrong values."""
    for kind, good, bins in messages.values():
        yield Packet(kind, good, bins)
        for path in places_in(good):
            for wrong in (*WRONG, ...):
                meta = copy.deepcopy(good)
                inside: Any = meta
                for key in path[:-1]:
                    inside = inside[key]
                if wrong is ...:
                    del inside[path[-1]]
                else:
                    inside[path[-1]] = wrong
                _make_small(world, meta)
                yield Packet(kind, meta, bins)


@st.composite
def spoilt(draw: st.DrawFn, messages: dict[str, Message], world: World | None = None) -> Packet:
    """One message with up to four faults."""
    kind, good, good_bins = messages[draw(st.sampled_from(sorted(messages)))]
    meta, bins = copy.deepcopy(good), list(good_bins)
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        _spoil_meta(draw, meta)
    if draw(st.integers(0, 3)) == 0:
        _spoil_bins(draw, bins)
    _make_small(world, meta)
    if draw(st.integers(0, 19)) == 0 and isinstance(meta, dict):
        return Packet(kind, Twice(meta), bins)
    return Packet(kind, meta, bins)


@st.composite
def torn(draw: st.DrawFn, messages: dict[str, Message]) -> bytes:
    """Bytes of a good frame with some changed, cut out, put in or repeated; or of no frame at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    kind, meta, bins = messages[draw(st.sampled_from(sorted(messages)))]
    data = bytearray(frame_bytes(kind, draw(st.sampled_from([0, 1, 2**63 - 1, 2**63])), meta, bins))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.one_of(st.integers(0, min(len(data), 120)), st.integers(0, len(data))))
        end = at + draw(st.integers(0, 9))
        data[at:end] = draw(st.one_of(st.binary(max_size=9), st.just(bytes(data[at:end]) * 2)))
    return bytes(data)
