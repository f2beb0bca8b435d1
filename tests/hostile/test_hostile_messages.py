"""Messages of every kind that nodes and the coordination service know, nearly right, from clients and from impostors.

Each request is answered: by a typed error, or plausibly. No process ends or begins a new life, and the rows and the
parity of honest clients are exactly what they must be, after every batch.

Nodes do not authenticate each other. Who calls itself a node that is none changes nothing. Who takes the name *and* the
incarnation of a living one is believed: what it says of that node's shards may spoil them (docs/ARCHITECTURE.md,
"Limits"). It must not bring down the process that hears it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from grammar import (
    Packet,
    World,
    client_messages,
    coordination_messages,
    frame_bytes,
    peer_messages,
    spoilt,
    sweep,
    torn,
)
from hypothesis import given
from hypothesis import strategies as st
from node_processes import NodeProcesses, newest_map
from profiles import FUZZ, profile
from raw_client import RawClient
from witness import CODE, DIM, Witness

import ecstore
from ecstore.cluster.map import ClusterMap
from ecstore.cluster.transitions import CreateTable, NodeJoin, next_map
from ecstore.coordination.mapfile import pack_map, unpack_map
from ecstore.errors import BY_CODE, EcstoreError
from ecstore.launcher.nodes import NodeSettings
from ecstore.tables import TableSpec, Zeros
from ecstore.wire import PREFIX_BYTES, PROTOCOL_VERSION, Frame, decode, decode_prefix

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(0 if FUZZ else 120)]

ONE_WAY = {"deltas", "acks", "snapshot", "blocks"}

#: "error" says that something met an error that nobody had thought of.
KNOWN = BY_CODE.keys() - {"error"}
#: How a connection with torn frames may end; None: what came was the beginning of a frame, or a good one.
TORN = {"frame", "frame_damaged", "frame_too_large", None}
MIB = 1 << 20

Batch = list[Packet]


def exchange(address: str, cluster: str, hello: dict[str, Any], batch: Batch, *, one_way: bool = False) -> None:
    """Send a batch over one connection; each request must be answered, well, before the connection ends."""
    with RawClient(address, cluster=cluster, hello=hello) as raw:
        raw.socket.settimeout(12.0)  # the longest that a node lets a request wait is 10 s
        asked = {}
        for rid, (kind, meta, bins) in enumerate(batch, 1):
            silent = one_way and kind in ONE_WAY
            data = frame_bytes(kind, 0 if silent else rid, meta, bins)
            if not parses(data):
                continue  # ends the connection, as it should: see the torn frames
            raw.send_bytes(data)
            if not silent:
                asked[rid] = kind
        while asked:
            frame = raw.receive()
            assert frame is not None, f"the connection ended before answers to {asked}"
            assert frame.kind != "bye", f"{frame.meta}, instead of answers to {asked}"
            if frame.kind in ("ok", "error") and frame.rid in asked:
                kind = asked.pop(frame.rid)
                codes = [frame.meta["code"]] if frame.kind == "error" else []
                codes += [error["code"] for _number, error in frame.meta.get("errors", ())]
                assert set(codes) <= KNOWN, f"{kind}: {frame.meta}"


def last_words(raw: RawClient) -> str | None:
    """Say no more, and read on to the end: the code of the bye; None when there was none."""
    with contextlib.suppress(OSError):  # it may have ended already
        raw.socket.shutdown(socket.SHUT_WR)
    raw.socket.settimeout(12.0)
    return raw.goodbye().get("code")


def batches(packets: Iterator[Packet]) -> Iterator[Batch]:
    """As lists of fifty."""
    while batch := list(itertools.islice(packets, 50)):
        yield batch


def parses(data: bytes) -> bool:
    """Whether these bytes are one frame by the rules."""
    try:
        _length, head, body_checksum = decode_prefix(data)
        decode(np.frombuffer(bytearray(data[PREFIX_BYTES:]), np.uint8), head, body_checksum)
    except EcstoreError:
        return False
    return True


def world_of(store: ecstore.Store, table: str, *, source: str | None = None, sink: str | None = None) -> World:
    """A group in which `source` owns data shard `src`, or `sink` the parity shard."""
    current = newest_map(store)
    entry = current.tables[table]
    for group in current.groups_of(CODE):
        for src in (0, 1):
            owners = (group.shards[src].owner, group.shards[2].owner)
            if source in (None, owners[0]) and sink in (None, owners[1]):
                found = World(current, entry.id, entry.spec.row_bytes, group.gid, src, 2, np.empty(0, np.uint64))
                found.patient = bool(FUZZ)
                return found
    raise AssertionError(f"{source} owns no data shard, or {sink} no parity shard")


@pytest.fixture(scope="module")
def prey(witness: Witness) -> World:
    """A data shard on n1 of a table whose rows are nobody's."""
    witness.store.create_table("prey", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    world = world_of(witness.store, "prey", source="n1")
    world.keys = witness.keys_of(world.gid, world.src)[:3]
    return world


def test_from_clients(attacked: NodeProcesses, witness: Witness, prey: World) -> None:
    messages = client_messages(prey)

    @profile(15)
    @given(
        st.lists(spoilt(messages, prey), min_size=10, max_size=30),
        st.sampled_from([("coordinator", 1024), ("client", 1 << 28)]),
    )
    def attack(batch: Batch, who: tuple[str, int]) -> None:
        hello = {"role": who[0], "max_frame_bytes": who[1]}
        exchange(attacked.addresses["n1"], attacked.cluster, hello, batch)
        witness.check()

    before = attacked.rss_bytes("n1")
    for batch in batches(sweep(messages, prey)):
        exchange(attacked.addresses["n1"], attacked.cluster, {"role": "client"}, batch)
    witness.check()
    attack()
    witness.check_logs()
    if not FUZZ:
        assert attacked.rss_bytes("n1") - before < 200 * MIB


@pytest.mark.parametrize(("name", "incarnation"), [("nobody", 1), ("n2", 0), ("n2", 99), ("n1", 99)])
def test_from_impostors(attacked: NodeProcesses, witness: Witness, name: str, incarnation: int) -> None:
    """Messages of nodes from one that is none, about the shards of the witness."""
    messages = {}
    for role in ("source", "sink"):
        world = world_of(witness.store, "witness", **{role: "n1"})
        world.keys = witness.keys_of(world.gid, world.src)[:3]
        messages |= {f"{role} {what}": message for what, message in peer_messages(world).items()}

    @profile(4)
    @given(st.lists(spoilt(messages, world), min_size=10, max_size=30), st.booleans())
    def attack(batch: Batch, one_way: bool) -> None:
        hello = {"role": "node", "name": name, "incarnation": incarnation}
        exchange(attacked.addresses["n1"], attacked.cluster, hello, batch, one_way=one_way)
        witness.check()

    hello = {"role": "node", "name": name, "incarnation": incarnation}
    if FUZZ or name == "n2":
        for batch in batches(sweep(messages, world)):
            exchange(attacked.addresses["n1"], attacked.cluster, hello, batch, one_way=batch[0].kind in ONE_WAY)
        witness.check()
    attack()
    witness.check_parity()
    witness.check_logs()


@pytest.mark.parametrize(("name", "incarnation"), [("nobody", 1), ("n2", 99), ("n3", 99)])
def test_forged_deltas(attacked: NodeProcesses, witness: Witness, name: str, incarnation: int) -> None:
    """The very next ones of a shard, right in everything but who sends them."""
    world = world_of(witness.store, "witness", sink="n1")
    group = world.map.groups[world.gid]
    with RawClient(attacked.addresses[group.shards[world.src].owner], cluster=attacked.cluster) as honest:
        seq = honest.ask("shard.info", {"group": world.gid, "shard": world.src}).meta["seq"]
    world.keys = witness.keys_of(world.gid, world.src)[:3]
    kind, meta, bins = peer_messages(world)["deltas 0"]
    hello = {"role": "node", "name": name, "incarnation": incarnation}
    with RawClient(attacked.addresses["n1"], cluster=attacked.cluster, hello=hello) as raw:
        for number in range(1, 4):
            head = list(meta["frames"][0])
            head[5] = seq + number
            raw.send_frame(kind, 0, {"frames": [head]}, bins)
            while (frame := raw.receive()) is not None and frame.kind != "acks":
                pass
            assert frame is not None
            assert [ack[-1] for ack in frame.meta["acks"]] == ["not_ready"]
    witness.check()
    witness.check_parity()


def test_from_one_with_a_stolen_identity(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is believed, so rows are not what is looked at here: the processes are."""
    settings = NodeSettings(suspect_after_s=60.0)
    with NodeProcesses(tmp_path_factory.mktemp("stolen"), 3, settings) as nodes:
        victim = Witness(nodes)
        before = {name: nodes.pid(name) for name in nodes.addresses}
        messages = {}
        for role, others in (("source", {"sink": "n2"}), ("sink", {"source": "n2"})):
            world = world_of(victim.store, "witness", **{role: "n1"}, **others)
            world.keys = victim.keys_of(world.gid, world.src)[:3]
            messages |= {f"{role} {what}": message for what, message in peer_messages(world).items()}
        hello = {"role": "node", "name": "n2", "incarnation": world.map.nodes["n2"].incarnation}

        @profile(8)
        @given(st.lists(spoilt(messages, world), min_size=10, max_size=30), st.booleans())
        def attack(batch: Batch, one_way: bool) -> None:
            exchange(nodes.addresses["n1"], nodes.cluster, hello, batch, one_way=one_way)
            assert {name: nodes.pid(name) for name in nodes.addresses} == before

        for batch in batches(sweep(messages, world)):
            exchange(nodes.addresses["n1"], nodes.cluster, hello, batch, one_way=batch[0].kind in ONE_WAY)
            assert {name: nodes.pid(name) for name in nodes.addresses} == before
        attack()
        victim.check_logs()
        told = victim.store.status()["nodes"]
        assert {name: node["statistics"]["pid"] for name, node in told.items()} == before
        victim.close()


@pytest.mark.parametrize("role", ["client", "node"])
def test_torn_frames(attacked: NodeProcesses, witness: Witness, prey: World, role: str) -> None:
    messages = client_messages(prey) | peer_messages(prey)
    hello = {"role": role, "name": "n2", "incarnation": 99}

    @profile(60)
    @given(torn(messages), st.booleans())
    def attack(data: bytes, introduced: bool) -> None:
        with RawClient(attacked.addresses["n1"], cluster=attacked.cluster, hello=hello, introduce=introduced) as raw:
            raw.send_bytes(data)
            assert last_words(raw) in TORN

    attack()
    witness.check()


def test_hellos(attacked: NodeProcesses, witness: Witness) -> None:
    good = {"version": PROTOCOL_VERSION, "role": "client", "cluster": attacked.cluster, "name": "x", "incarnation": 0,
            "token": None, "max_frame_bytes": 1 << 20}  # fmt: skip

    @profile(50)
    @given(spoilt({"hello": ("hello", good, [])}))
    def attack(message: Packet) -> None:
        kind, meta, bins = message
        with RawClient(attacked.addresses["n1"], introduce=False) as raw:
            raw.send_bytes(frame_bytes(kind, 0, meta, bins))
            assert last_words(raw) in KNOWN | {None}

    attack()
    witness.check()


# -- the coordination service -----------------------------------------------------------------------------------------


def grown(current: ClusterMap) -> ClusterMap:
    """A map with three nodes and a table: something to lose."""
    for name in ("n1", "n2", "n3"):
        current = next_map(current, NodeJoin(name, f"127.0.0.1:{7000 + int(name[1])}"))
    spec = TableSpec("t", 4, ecstore.SGD(lr=1.0), Zeros(), 1, CODE)
    return next_map(current, CreateTable(spec))


class Coordination:
    """A coordination service in a process of its own, and honest questions to it."""

    cluster = "hostile"

    def __enter__(self) -> Coordination:
        command = [sys.executable, "-m", "ecstore.coordination", "--listen=127.0.0.1:0", "--seed=7",
                   f"--cluster={self.cluster}", f"--exit-with={os.getpid()}"]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["listening"]
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, kind: str, meta: dict[str, Any], bins: Sequence[Any] = ()) -> Frame:
        with RawClient(self.address, cluster=self.cluster) as honest:
            return honest.ask(kind, meta, bins)

    def now(self) -> ClusterMap:
        return unpack_map(self.ask("coord.get", {}).bins[0].tobytes())


@pytest.fixture
def coordination() -> Iterator[Coordination]:
    """With a map that has something to lose. No nodes: they would follow what a stranger swaps in."""
    with Coordination() as service:
        target = grown(service.now())
        for epoch in range(1, target.epoch + 1):  # one swap for each epoch; only the last map matters
            wire = target.to_wire() | {"epoch": epoch}
            won = service.ask("coord.cas", {"old_epoch": epoch - 1}, [pack_map(ClusterMap.from_wire(wire))])
            assert won.meta["won"] is True
        yield service
        assert service.process.poll() is None


def test_the_coordination_service(coordination: Coordination) -> None:
    """The map in force stays one of this cluster, newer at each swap that was won, with every node, group and table
    id that it had.
    """
    known = [coordination.now()]
    harmless = {what: message for what, message in coordination_messages(known[0]).items() if message[0] != "coord.cas"}
    for batch in batches(sweep(harmless)):
        exchange(coordination.address, coordination.cluster, {}, batch)

    @profile(15)
    @given(st.data(), st.sampled_from(["client", "node", "admin", "coordinator"]))
    def attack(data: st.DataObject, role: str) -> None:
        messages = coordination_messages(known[-1])
        batch = data.draw(st.lists(spoilt(messages), min_size=5, max_size=15))
        exchange(coordination.address, coordination.cluster, {"role": role, "name": "n1", "incarnation": 1}, batch)
        found, before = coordination.now(), known[-1]
        assert (found.cluster, found.seed) == (before.cluster, before.seed)
        assert before.epoch <= found.epoch <= before.epoch + 15
        for node in before.nodes.values():
            assert found.nodes[node.id].incarnation >= node.incarnation
        assert [group.code for group in found.groups[: len(before.groups)]] == [group.code for group in before.groups]
        assert found.next_table_id >= before.next_table_id
        known[:] = [found]

    attack()


def test_torn_frames_at_the_coordination_service(coordination: Coordination) -> None:
    before = coordination.now()

    @profile(60)
    @given(torn(coordination_messages(before)))
    def attack(data: bytes) -> None:
        with RawClient(coordination.address, cluster=coordination.cluster) as raw:
            raw.send_bytes(data)
            assert last_words(raw) in TORN

    attack()
    assert coordination.now().nodes.keys() == before.nodes.keys()
