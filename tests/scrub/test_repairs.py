"""The pure parts of a scrub: what a repair changes and what not, key lists at a cut, stripes under suspicion."""

from __future__ import annotations

import numpy as np
import pytest

import ecstore
from ecstore.codec import UNKNOWN, Code, encode
from ecstore.codec.locating import WrongStripes
from ecstore.node.data_shard import DataShard, Repair, SinkKey
from ecstore.node.keylist import digest
from ecstore.node.scrubbing import MAX_FINDINGS, MAX_LOOKS, Finding, GroupScrub, ScrubJob, outvoted
from ecstore.node.sink_shard import CutNotReached, LogTooShort, SinkShard
from ecstore.tables import TableSpec

SPEC = TableSpec("t", 4, ecstore.Adagrad(lr=0.1), ecstore.Uniform(-1, 1), 1, "rs(2,2)")
CODE = Code.parse("rs(2,2)")


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def shard_with(index: int, numbers: np.ndarray, sink: SinkShard | None = None) -> DataShard:
    """A data shard with these rows, and what it did applied to a sink."""
    shard = DataShard(0, index)
    shard.open_table(1, SPEC)
    if sink is not None:  # without one to follow it makes no deltas
        shard.add_sink(SinkKey(3, "n2", 1), 0)
    frame = shard.push(1, numbers, np.ones((numbers.size, 4), np.float32), b"c", 1)
    if sink is not None:
        sink.apply(index, frame)
    return shard


class TestDataRepair:
    def test_only_what_is_still_as_judged_is_changed_and_no_delta_is_made(self) -> None:
        shard = shard_with(0, keys(1, 2, 3))
        rows, slots = shard.tables[1].raw_rows, np.arange(3)
        right = rows[:3].copy()
        rows[0, 3] ^= 4
        rows[2, 5] ^= 1
        wrong, errors, seq = rows[:3].copy(), rows[:3] ^ right, shard.seq
        rows[2, 6] ^= 1  # changed once more since it was judged
        outcome = shard.repair(1, slots[[0, 2]], wrong[[0, 2]], errors[[0, 2]])
        assert outcome.tolist() == [Repair.DONE, Repair.CHANGED]
        assert np.array_equal(rows[0], right[0])
        assert shard.seq == seq
        # a repeated message does nothing
        assert shard.repair(1, slots[:1], wrong[:1], errors[:1]).tolist() == [Repair.CHANGED]
        assert np.array_equal(rows[0], right[0])

    def test_a_slot_without_a_key_is_right_when_it_is_zero(self) -> None:
        shard = shard_with(0, keys(1, 2))
        rows = shard.tables[1].raw_rows
        shard.delete(1, keys(2), b"c", 2)
        zero, error = np.zeros((1, 32), np.uint8), np.full((1, 32), 9, np.uint8)
        assert shard.repair(1, np.array([1]), zero, error).tolist() == [Repair.FREE]
        assert not rows[1].any()
        rows[1, 0] = 7
        assert shard.repair(1, np.array([1]), rows[1:2].copy(), error).tolist() == [Repair.DONE]
        assert not rows[1].any(), "whatever the code says, a free slot holds zeros"
        assert shard.repair(1, np.array([5]), zero, error).tolist() == [Repair.NEVER_USED]
        assert not rows[5].any()

    def test_a_row_that_is_not_decoded_yet_is_left_alone(self) -> None:
        shard = shard_with(0, keys(1, 2))
        shard.undecoded[1] = np.array([True, False])
        wrong = shard.tables[1].read(np.arange(1))
        assert shard.repair(1, np.arange(1), wrong, np.ones_like(wrong)).tolist() == [Repair.CHANGED]


class TestParityRepair:
    def test_it_commutes_with_deltas_and_is_done_once(self) -> None:
        sink = SinkShard(0, 3, {0: 1, 1: 2}, building=False)
        shards = [shard_with(0, keys(1, 2, 3), sink), shard_with(1, keys(4, 5, 6), sink)]
        slots, cut = np.arange(3), {0: shards[0].seq, 1: shards[1].seq}
        sink.slabs[1].rows[1, 7] ^= 16
        judged = sink.rows_at(1, slots, 32, cut)
        right = encode(CODE, [shard.tables[1].read(slots) for shard in shards])[1]
        errors = judged ^ right
        frame = shards[0].push(1, keys(2), np.ones((1, 4), np.float32), b"c", 9)  # a delta comes between
        sink.apply(0, frame)
        assert sink.repair(1, slots[1:2], judged[1:2], errors[1:2], cut).tolist() == [True]
        now = encode(CODE, [shard.tables[1].read(slots) for shard in shards])[1]
        assert np.array_equal(sink.slabs[1].rows[:3], now)
        assert np.array_equal(sink.rows_at(1, slots, 32, cut), right)
        assert sink.repair(1, slots[1:2], judged[1:2], errors[1:2], cut).tolist() == [False], "the message came twice"
        assert np.array_equal(sink.slabs[1].rows[:3], now)


def test_key_lists_at_a_cut_equal_those_of_the_owner_then() -> None:
    """Random pushes and deletes; the sink is asked for every earlier seq of the owner."""
    rng = np.random.default_rng(3)
    shard, sink = DataShard(0, 0), SinkShard(0, 2, {0: 1}, building=False)
    shard.open_table(1, SPEC)
    then = {0: digest(*shard.tables[1].keylist.block(4, 30))}
    refused = answered = 0
    for step in range(1, 60):
        some = np.unique(rng.integers(0, 40, 3).astype(np.uint64))
        if rng.random() < 0.4:
            frame = shard.delete(1, some, b"c", step)
        else:
            frame = shard.push(1, some, np.ones((some.size, 4), np.float32), b"c", step)
        sink.apply(0, frame)
        then[shard.seq] = digest(*shard.tables[1].keylist.block(4, 30))
        for seq in range(max(0, step - 6), step + 1):
            try:
                assert sink.key_digest(0, 1, 4, 30, seq) == then[seq]
                answered += 1
            except LogTooShort:
                refused += 1  # a slot was freed and given away since: its former key is forgotten
    assert answered > refused > 0
    with pytest.raises(CutNotReached):
        sink.key_digest(0, 1, 4, 30, shard.seq + 1)


def test_votes() -> None:
    assert outvoted({0: b"a", 4: b"a", 5: b"a"}) == []
    assert outvoted({0: b"a", 4: b"x", 5: b"a"}) == [4]
    assert outvoted({0: b"x", 4: b"a", 5: b"a"}) == [0]
    assert outvoted({0: b"a", 4: b"b"}) is None
    assert outvoted({0: b"a", 4: b"b", 5: b"c"}) is None


class TestGroupScrub:
    @staticmethod
    def look(part: GroupScrub, wrong: dict[int, int]) -> dict:
        """A look at which stripe s is wrong and shard wrong[s] is named."""
        slots = part.to_look_at(32)
        positions = np.array([np.flatnonzero(slots == slot)[0] for slot in sorted(wrong)], np.int64)
        errors = np.ones((len(wrong), 32), np.uint8)
        return part.judge(slots, WrongStripes(positions, np.array([wrong[s] for s in sorted(wrong)], np.int64), errors))

    def begun(self) -> GroupScrub:
        part = GroupScrub(0)
        part.begin({7: 2000, 3: 0, 5: 10})
        return part

    def test_blocks_cover_every_slot_of_every_table_once(self) -> None:
        part, seen = self.begun(), []
        while part.table is not None:
            block = part.block(32)
            seen += [(part.table, int(slot)) for slot in block]
            assert block.size <= 1024
            assert self.look(part, {}) == {}
            assert part.settled(repair=True)
            part.advance(block)
        assert seen == [(5, slot) for slot in range(10)] + [(7, slot) for slot in range(2000)]
        assert part.stripes_total == 2010

    def test_wide_rows_make_short_blocks(self) -> None:
        part = self.begun()
        part.skip_table()
        assert part.block(1 << 18).size == 4

    def test_a_low_rate_makes_short_blocks_and_a_row_at_least(self) -> None:
        part = GroupScrub(0)
        part.begin({7: 2000}, 100)
        assert part.block(32).size == 3
        assert part.block(4096).size == 1

    def test_repaired_is_what_agrees_when_it_is_read_again(self) -> None:
        part = self.begun()
        assert self.look(part, {2: 1, 6: 0, 8: UNKNOWN}) == {}
        assert not part.settled(repair=True)
        assert part.to_look_at(32).tolist() == [2, 6, 8]
        assert list(self.look(part, {6: 0, 8: UNKNOWN})) == [2]
        assert list(self.look(part, {8: UNKNOWN})) == [6]
        assert part.settled(repair=True)
        assert part.outcome(part.suspects[8], repair=True) == "not_attributable"

    def test_without_repair_one_look_is_enough_where_a_shard_is_named(self) -> None:
        part = self.begun()
        self.look(part, {2: 1})
        assert part.settled(repair=False)
        assert part.outcome(part.suspects[2], repair=False) == "found"

    def test_a_row_that_always_changes_is_given_up(self) -> None:
        part = self.begun()
        for _ in range(MAX_LOOKS - 1):
            self.look(part, {2: 1})
            assert not part.settled(repair=True)
        self.look(part, {2: 1})
        assert part.settled(repair=True)
        assert part.outcome(part.suspects[2], repair=True) == "unrepaired"

    def test_a_shard_that_was_refuted_is_not_named_again(self) -> None:
        part = self.begun()
        self.look(part, {2: 1})
        part.suspects[2].refuted = True
        self.look(part, {2: 1})
        assert part.settled(repair=True)
        assert part.outcome(part.suspects[2], repair=True) == "not_attributable"


def test_findings_are_bounded() -> None:
    job = ScrubJob("r", None, 1.0, True, 0.0)
    for slot in range(MAX_FINDINGS + 5):
        job.note(Finding(0, "t", slot, 1, "n1", "repaired", 1, 0.0, ""))
    told = job.to_wire(after=10)
    assert len(told["findings"]) == MAX_FINDINGS - 10
    assert told["findings_omitted"] == 5
