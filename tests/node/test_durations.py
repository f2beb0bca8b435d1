"""Histograms of durations: which bucket, what it costs in memory, and which answer belongs to which message."""

from __future__ import annotations

import pytest

from ecstore.node.durations import BOUNDS_S, MAX_TIMED_MESSAGES, Durations, Histogram, Unacknowledged


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram()
    for bound in BOUNDS_S:
        histogram.observe(bound)
    histogram.observe(BOUNDS_S[-1] + 1.0)
    histogram.observe(0.0)
    assert histogram.counts == [2, *[1] * len(BOUNDS_S[1:]), 1]
    assert histogram.sum_s == pytest.approx(sum(BOUNDS_S) + BOUNDS_S[-1] + 1.0)
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))


def test_what_is_told_is_a_copy() -> None:
    durations = Durations()
    told = durations.to_wire()
    durations.pull.observe(0.1)
    assert sum(told["pull"]["counts"]) == 0
    assert set(told) == {"bounds_s", "pull", "push", "delta_ack", "decode_on_demand", "decode_sweep"}


def test_answers_come_in_the_order_of_the_messages() -> None:
    waiting = Unacknowledged()
    for now in (1.0, 2.0, 4.0):
        waiting.sent(now)
    assert [waiting.answered(5.0), waiting.answered(5.0), waiting.answered(5.5)] == [4.0, 3.0, 1.5]
    assert waiting.answered(9.0) is None, "nobody asked"
    waiting.sent(10.0)
    assert waiting.answered(10.5) == 0.5


def test_beyond_the_bound_messages_are_counted_and_not_timed() -> None:
    waiting = Unacknowledged()
    for number in range(MAX_TIMED_MESSAGES + 2):
        waiting.sent(float(number))
    for number in range(MAX_TIMED_MESSAGES):
        assert waiting.answered(1e6) == 1e6 - number
    waiting.sent(2e6)  # behind two that are not timed: it must not take the place of one of them
    assert [waiting.answered(3e6) for _ in range(3)] == [None, None, None]
    waiting.sent(4e6)
    assert waiting.answered(5e6) == 1e6
