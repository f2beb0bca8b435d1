"""One group of real shards under random schedules: deltas in flight, cuts, sinks built while deltas keep coming.

Everything is pure, so a schedule is a seed. The truth is kept beside it: the rows of every data shard after each seq.
"""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from ecstore import limits
from ecstore.codec import Code, encode
from ecstore.node.data_shard import DataShard, SinkKey
from ecstore.node.decoding import DataAnswer, combine, parities_needed, patterns
from ecstore.node.sink_shard import Applied, CutNotReached, LogTooShort, SinkShard, TableSnapshot
from ecstore.optim import Adagrad
from ecstore.tables import TableSpec, Uniform

TABLE = 7
SPEC = TableSpec(name="t", dim=3, optimizer=Adagrad(lr=0.1), init=Uniform(-1, 1), seed=5, code="rs(2,1)")
MAX_ROWS = 4096
KEYS = 60


class Group:
    """k data shards, m parity shards, FIFO channels between them, and the truth."""

    def __init__(self, seed: int, k: int, m: int) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.code = Code.parse(f"rs({k},{m})")
        self.data = [DataShard(0, index, max_rows=MAX_ROWS) for index in range(k)]
        self.parity = [self.sink(k + p, building=False) for p in range(m)]
        #: (source, sink) -> messages on their way, in order
        self.channels: dict[tuple[int, int], deque] = {(i, k + p): deque() for i in range(k) for p in range(m)}
        self.truth: list[list[np.ndarray]] = [[self.rows(shard)] for shard in self.data]
        for shard in self.data:
            shard.open_table(TABLE, SPEC)
            for p in range(m):
                shard.add_sink(SinkKey(k + p, f"n{k + p}", 1), 0)

    def sink(self, index: int, *, building: bool) -> SinkShard:
        row = self.code.coefficients[index - self.code.k]
        coefficients = {src: int(row[src]) for src in range(self.code.k)}
        return SinkShard(0, index, coefficients, building=building, max_rows=MAX_ROWS)

    @staticmethod
    def rows(shard: DataShard) -> np.ndarray:
        """All slots in use, as one array."""
        store = shard.tables.get(TABLE)
        used = store.used if store is not None else 0
        return store.read(np.arange(used)) if store is not None else np.empty((0, SPEC.row_bytes), np.uint8)

    def change(self) -> None:
        """A push (mostly), a load or a delete on a random data shard."""
        shard = self.random.choice(self.data)
        keys = np.unique(self.rng.integers(0, KEYS, self.random.randint(1, 9))).astype(np.uint64)
        kind = self.random.random()
        if kind < 0.7:
            shard.push(TABLE, keys, self.rng.normal(size=(keys.size, 3)).astype(np.float32), b"c", shard.seq + 1)
        elif kind < 0.85:
            shard.delete(TABLE, keys, b"c", shard.seq + 1)
        else:
            rows = self.rng.integers(0, 256, (keys.size, SPEC.row_bytes), np.uint8)
            shard.put(TABLE, keys, rows, b"c", shard.seq + 1)
        self.truth[shard.index].append(self.rows(shard))
        for cursor in shard.sinks.values():
            for frame in shard.log.after(cursor.sent):
                self.channels[shard.index, cursor.key.index].append(("frame", frame))
            cursor.sent = shard.seq

    def deliver(self) -> None:
        """Hand the oldest message of a random channel to its sink."""
        waiting = [key for key, channel in self.channels.items() if channel]
        if not waiting:
            return
        src, dst = self.random.choice(waiting)
        kind, message = self.channels[src, dst].popleft()
        sink = self.parity[dst - self.code.k]
        if kind == "frame":
            verdict = sink.apply(src, message, self.data[src].acked)
            assert verdict in (Applied.APPLIED, Applied.UNSYNCED)
            if verdict is Applied.APPLIED:
                self.data[src].acknowledge(SinkKey(dst, f"n{dst}", 1), sink.sources[src].applied)
        elif kind == "snapshot":
            sink.load_snapshot(src, *message)
        else:
            assert sink.load_blocks(src, *message)

    def truth_at(self, index: int, seq: int, slots: np.ndarray) -> np.ndarray:
        rows = self.truth[index][seq]
        out = np.zeros((slots.size, SPEC.row_bytes), np.uint8)
        known = slots < rows.shape[0]
        out[known] = rows[slots[known]]
        return out

    def check_cut(self) -> bool:
        """Read a parity shard at a random reachable cut; it must be the encoding of the truth at that cut."""
        p = self.random.randrange(self.code.m)
        sink = self.parity[p]
        if not sink.complete:
            return False
        cut = {i: self.random.randint(max(0, s.applied - 40), s.applied) for i, s in sink.sources.items()}
        slots = np.unique(self.rng.integers(0, KEYS + 5, 12))
        try:
            got = sink.rows_at(TABLE, slots, SPEC.row_bytes, cut)
        except LogTooShort:
            return False
        want = encode(self.code, [self.truth_at(i, seq, slots) for i, seq in cut.items()])[p]
        assert np.array_equal(got, want)
        return True


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BLOCK_SLOTS", 8)
    monkeypatch.setattr(limits, "MAX_RECENT_BYTES", 4096)


@pytest.mark.parametrize("seed", range(40))
def test_parity_at_any_cut_is_the_encoding_of_that_cut(seed: int) -> None:
    group = Group(seed, k=1 + seed % 4, m=1 + seed % 3)
    checked = 0
    for _ in range(250):
        group.change() if group.random.random() < 0.4 else group.deliver()
        checked += group.check_cut()
    assert checked > 20
    drain(group)
    assert_equation(group)


@pytest.mark.parametrize("seed", range(40))
def test_sink_built_under_load_equals_one_that_was_always_there(seed: int) -> None:
    group = Group(seed, k=1 + seed % 4, m=2)
    for _ in range(120):
        group.change() if group.random.random() < 0.5 else group.deliver()
    replaced = group.code.k + seed % 2
    group.parity[replaced - group.code.k] = sink = group.sink(replaced, building=True)
    for src, shard in enumerate(group.data):
        shard.remove_sink(SinkKey(replaced, f"n{replaced}", 1))
        group.channels[src, replaced].clear()
    asked: set[tuple[int, int]] = set()
    for _ in range(4000):
        choice = group.random.random()
        if choice < 0.3:
            group.change()
        elif choice < 0.4:
            build_step(group, sink, asked)
        else:
            group.deliver()
        if sink.complete and choice < 0.05:
            break
    assert sink.complete
    drain(group)
    assert_equation(group)
    assert_same_key_lists(group)


def build_step(group: Group, sink: SinkShard, asked: set[tuple[int, int]]) -> None:
    """Subscribe to a source, or ask it for some more blocks: what the owner sends goes into the ordered stream."""
    src = group.random.randrange(group.code.k)
    shard, channel = group.data[src], group.channels[src, sink.index]
    key = SinkKey(sink.index, f"n{sink.index}", 1)
    store = shard.tables[TABLE]
    if key not in shard.sinks:
        shard.add_sink(key, shard.seq)
        snapshot = TableSnapshot(TABLE, store.row_bytes, store.keylist.keys.copy(), store.keylist.allocated.copy())
        channel.append(("snapshot", (shard.seq, [snapshot], shard.requests.entries())))
        return
    found = sink.next_unloaded(src, group.random.randint(1, 4))
    if found is None:
        return
    table, first, count = found
    assert table == TABLE
    assert sink.sources[src].unloaded[TABLE][first : first + count].all()
    wanted = [block for block in range(first, first + count) if (src, block) not in asked]
    if wanted:
        asked.update((src, block) for block in wanted)
        rows = store.read_run(wanted[0] * limits.BLOCK_SLOTS, len(wanted) * limits.BLOCK_SLOTS)
        channel.append(("blocks", (shard.seq, TABLE, wanted[0], rows)))


@pytest.mark.parametrize("seed", range(30))
def test_lost_rows_are_decoded_from_any_survivors_at_a_cut(seed: int) -> None:
    """Data shards are lost together, one of them half decoded already; parity is ahead of or behind the cut."""
    k, m = 2 + seed % 3, 1 + seed % 3
    group = Group(seed, k, m)
    for _ in range(300):
        group.change() if group.random.random() < 0.5 else group.deliver()
    lost = group.random.sample(range(k), min(m, k))
    wanted, half = lost[0], lost[1:]
    slots = np.arange(KEYS)
    row_bytes = SPEC.row_bytes
    answers, cut = {}, {wanted: group.data[wanted].seq}
    for index in range(k):
        if index == wanted:
            continue
        shard = group.data[index]
        rows = group.truth_at(index, shard.seq, slots)
        erased = group.rng.random(slots.size) < 0.5 if index in half else None
        if erased is not None:
            rows[erased] = 255  # must not be looked at
        answers[index], cut[index] = DataAnswer(shard.seq, rows, erased), shard.seq
    group.change()  # after the cut: must not show
    split = patterns(wanted, slots.size, answers)
    parity = {}
    for p in group.random.sample(range(m), parities_needed(split)):
        parity[k + p] = read_at_cut(group, p, slots, row_bytes, cut)
    got = combine(group.code, wanted, split, answers, parity)
    assert np.array_equal(got, group.truth_at(wanted, cut[wanted], slots))


def read_at_cut(group: Group, p: int, slots: np.ndarray, row_bytes: int, cut: dict[int, int]) -> np.ndarray:
    while True:
        try:
            return group.parity[p].rows_at(TABLE, slots, row_bytes, cut)
        except CutNotReached:
            group.deliver()


def drain(group: Group) -> None:
    while any(group.channels.values()):
        group.deliver()


def assert_equation(group: Group) -> None:
    slots = np.arange(KEYS + 10)
    data = [group.truth_at(i, shard.seq, slots) for i, shard in enumerate(group.data)]
    for p, want in enumerate(encode(group.code, data)):
        cut = {i: shard.seq for i, shard in enumerate(group.data)}
        assert np.array_equal(group.parity[p].rows_at(TABLE, slots, SPEC.row_bytes, cut), want)


def assert_same_key_lists(group: Group) -> None:
    for src, shard in enumerate(group.data):
        mine = shard.tables[TABLE].keylist
        for sink in group.parity:
            source = sink.sources[src]
            theirs = source.keys[TABLE]
            assert np.array_equal(theirs.allocated, mine.allocated[: theirs.used])
            assert not mine.allocated[theirs.used :].any()
            live = theirs.allocated.astype(bool)
            assert np.array_equal(theirs.keys[live], mine.keys[: theirs.used][live])
            assert source.requests.last(b"c") == shard.requests.last(b"c")


def test_gap_is_refused_and_duplicate_ignored() -> None:
    group = Group(1, k=1, m=1)
    shard, sink = group.data[0], group.parity[0]
    frames = []
    for number in range(3):
        keys = np.array([number], np.uint64)
        frames.append(shard.push(TABLE, keys, np.ones((1, 3), np.float32), b"c", number + 1))
    assert sink.apply(0, frames[0]) is Applied.APPLIED
    before = sink.slabs[TABLE].rows[:4].copy()
    assert sink.apply(0, frames[2]) is Applied.GAP
    assert sink.apply(0, frames[0]) is Applied.DUPLICATE
    assert np.array_equal(sink.slabs[TABLE].rows[:4], before)
    assert sink.sources[0].applied == 1


def test_acknowledgement_waits_for_every_sink() -> None:
    shard = DataShard(0, 0, max_rows=MAX_ROWS)
    shard.open_table(TABLE, SPEC)
    keys = [SinkKey(1, "a", 1), SinkKey(2, "b", 1)]
    for key in keys:
        shard.add_sink(key, 0)
    shard.push(TABLE, np.array([1], np.uint64), np.ones((1, 3), np.float32), b"c", 1)
    outcome: list[object] = []
    shard.when_acked(outcome.append)
    shard.acknowledge(keys[0], 1)
    assert not outcome
    shard.acknowledge(keys[1], 1, subscription=9)  # of another stream: does not count
    assert not outcome
    shard.remove_sink(keys[1])  # declared down: the live ones suffice
    assert outcome == [None]
