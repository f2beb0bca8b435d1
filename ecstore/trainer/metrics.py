"""How good and how fast: log loss, AUC, samples per second."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt


def log_loss(labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> float:
    """Mean of -log P(label) under P(1) = sigmoid(logit), in float64; NaN for no samples.

    labels [n] of 0 and 1, logits [n]. log(1 + e^z) - y z is computed as max(z, 0) - y z + log(1 + e^-|z|),
    which neither overflows nor loses digits for any logit.
    """
    if len(labels) == 0:
        return float("nan")
    z = np.asarray(logits, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    return float(np.mean(np.maximum(z, 0.0) - y * z + np.log1p(np.exp(-np.abs(z)))))


def auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """Area under the ROC curve, exact: P(score of a click > score of a non-click), a tie counts one half.

    labels [n] of 0 and 1, scores [n]. It is the Mann-Whitney rank statistic with mid-ranks for ties
    (Hanley & McNeil, Radiology 143, 1982). NaN when one of the two classes is absent.
    """
    positive = np.asarray(labels) > 0.5
    positives = int(np.count_nonzero(positive))
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, tie, counts = np.unique(np.asarray(scores), return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mid_rank = last_rank - (counts - 1) / 2.0  # ranks from 1; halves are exact in float64
    rank_sum = float(np.sum(mid_rank[tie.reshape(-1)][positive]))
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


class Throughput:
    """Samples per second over any window of the recent past.

    One entry a batch; at most `max_entries` are kept, the oldest go first. Times come from the caller's
    clock, in seconds.
    """

    def __init__(self, started: float, *, max_entries: int = 65536) -> None:
        self._entries: deque[tuple[float, int]] = deque([(started, 0)], maxlen=max_entries)

    def add(self, now: float, samples: int) -> None:
        """`samples` more are done at time `now`; times never go back."""
        self._entries.append((now, self._entries[-1][1] + samples))

    @property
    def samples(self) -> int:
        """All samples so far."""
        return self._entries[-1][1]

    def rate(self, start: float = float("-inf"), end: float = float("inf")) -> float:
        """Samples per second of the batches that ended in (start, end]; 0 when fewer than one did.

        The window is the time from the last entry at or before `start` (or the oldest kept) to the last entry
        at or before `end`, so that a batch counts whole or not at all.
        """
        first: tuple[float, int] | None = None
        last: tuple[float, int] | None = None
        for entry in self._entries:
            if entry[0] > end:
                break
            if first is None or entry[0] <= start:
                first = entry
            last = entry
        if first is None or last is None or last[0] <= first[0]:
            return 0.0
        return (last[1] - first[1]) / (last[0] - first[0])
