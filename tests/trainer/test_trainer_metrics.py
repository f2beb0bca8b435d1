"""Log loss, AUC against all pairs, throughput windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecstore.trainer.metrics import Throughput, auc, log_loss


def auc_of_all_pairs(labels: list[int], scores: list[float]) -> float:
    clicks = [score for label, score in zip(labels, scores, strict=True) if label]
    others = [score for label, score in zip(labels, scores, strict=True) if not label]
    wins = sum(1.0 if click > other else 0.5 if click == other else 0.0 for click in clicks for other in others)
    return wins / (len(clicks) * len(others))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=2, max_size=60))
def test_auc_equals_the_count_over_all_pairs_with_ties(samples: list[tuple[int, int]]) -> None:
    labels = [label for label, _ in samples]
    scores = [score / 4 for _, score in samples]
    result = auc(np.array(labels, np.float32), np.array(scores, np.float32))
    if 0 < sum(labels) < len(labels):
        assert result == pytest.approx(auc_of_all_pairs(labels, scores), abs=1e-12)
    else:
        assert math.isnan(result)


def test_auc_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    assert auc(labels, np.array([0.1, 0.4, 0.35, 0.8])) == 0.75
    assert auc(labels, np.array([1.0, 2.0, 3.0, 4.0])) == 1.0
    assert auc(labels, np.zeros(4)) == 0.5
    assert math.isnan(auc(np.empty(0), np.empty(0)))


def test_log_loss_by_hand_and_at_the_ends() -> None:
    assert log_loss(np.array([1, 0]), np.array([0.0, 0.0])) == pytest.approx(math.log(2))
    probability = 1 / (1 + math.exp(-1.5))
    expected = -(math.log(probability) + math.log(1 - probability)) / 2
    assert log_loss(np.array([1, 0]), np.array([1.5, 1.5])) == pytest.approx(expected)
    assert log_loss(np.array([1, 0]), np.array([1e4, -1e4])) == 0.0
    assert log_loss(np.array([0]), np.array([1e4])) == 1e4
    assert math.isnan(log_loss(np.empty(0), np.empty(0)))


def test_throughput_windows() -> None:
    meter = Throughput(10.0)
    for second in range(1, 11):
        meter.add(10.0 + second, 100 if second <= 5 else 20)
    assert meter.samples == 600
    assert meter.rate() == 60.0
    assert meter.rate(10.0, 15.0) == 100.0
    assert meter.rate(start=15.0) == 20.0
    assert meter.rate(14.5, 16.5) == 60.0  # (14, 16]: whole batches only
    assert meter.rate(18.2, 18.4) == 0.0
    assert meter.rate(end=9.0) == 0.0
    assert Throughput(0.0).rate() == 0.0


def test_throughput_is_bounded() -> None:
    meter = Throughput(0.0, max_entries=4)
    for second in range(1, 100):
        meter.add(float(second), 3)
    assert meter.samples == 297
    assert meter.rate() == 3.0
    assert meter.rate(98.0) == 3.0
