"""The log of a sink: frames that somebody may need stay, the others go after a while and not before."""

from __future__ import annotations

import numpy as np

from ecstore import limits
from ecstore.node.deltalog import DeltaFrame, FrameLog
from ecstore.node.sink_shard import SinkShard


def frame(seq: int) -> DeltaFrame:
    none = np.empty(0, np.uint32)
    delta = np.full((1, 8), seq % 255 + 1, np.uint8)
    return DeltaFrame(seq, 1, np.array([0], np.uint32), delta, none, np.empty(0, np.uint64), none, b"", 0)


def test_frames_that_all_sinks_have_are_forgotten_after_a_while() -> None:
    """Fails when memory is bounded by size alone: a node has many sources, and idle megabytes for each add up."""
    sink = SinkShard(0, 3, {0: 1}, building=False, max_rows=64)
    for seq in range(1, 101):
        sink.apply(0, frame(seq), acked_by_all=seq - 1, now=seq * 0.1)
    log = sink.sources[0].log
    assert log.last == 100
    assert len(log) == int(limits.MAX_RECENT_S / 0.1) + 1
    assert log.reaches(60)
    assert not log.reaches(58)
    assert log.nbytes == sum(one.nbytes for one in log.after(log.first - 1))


def test_what_some_sink_lacks_is_kept_however_old_it_is() -> None:
    sink = SinkShard(0, 3, {0: 1}, building=False, max_rows=64)
    for seq in range(1, 101):
        sink.apply(0, frame(seq), acked_by_all=min(seq - 1, 10), now=seq * 1.0)
    log = sink.sources[0].log
    assert log.first == 11
    assert [one.seq for one in log.after(95)] == [96, 97, 98, 99, 100]
    sink.apply(0, frame(101), acked_by_all=99, now=101.0)
    assert log.first == 97, "the last four seconds"


def test_a_log_that_is_reset_begins_anew() -> None:
    log = FrameLog()
    log.append(frame(1), 5.0)
    log.reset(7)
    log.append(frame(7), 6.0)
    log.trim(7, keep_bytes=1 << 20, keep_frames=10, keep_since=6.0)
    assert [len(log), log.first] == [1, 7]
    log.trim(7, keep_bytes=1 << 20, keep_frames=10, keep_since=6.1)
    assert [len(log), log.nbytes, log.first] == [0, 0, 8]
