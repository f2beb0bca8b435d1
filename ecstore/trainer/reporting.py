"""How a run is doing, told to the nodes about once a second, for `GET /training`.

Telling costs the batch loop next to nothing, and it never waits: a report is sent on the client's own thread, the next
one only when the one before has come through. A trainer that cannot report goes on training.

The AUC while training is that of the last WINDOW_SAMPLES training samples, each scored before the model has learned
from it ("progressive validation", Blum, Kalai & Langford, COLT 1999); the final one is of the held-out part.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ecstore.errors import EcstoreError
from ecstore.trainer.metrics import Throughput, auc
from ecstore.trainer.source import FloatArray
from ecstore.training import MAX_NAME

logger = logging.getLogger(__name__)

EVERY_S = 1.0  #: between two reports
WINDOW_SAMPLES = 8192  #: latest samples that the AUC while training is of
_RATE_WINDOW_S = 3.0
_LAST_WORD_S = 2.0  # the end of a run waits so long for its report to arrive


@runtime_checkable
class Listener(Protocol):
    """A store that passes reports on, as the blocking client does; others are trained on without."""

    def report_async(self, name: str, figures: Mapping[str, Any]) -> Future[None]: ...


def default_name() -> str:
    """Of this process: one trainer of many on one machine, or on several."""
    return f"{socket.gethostname()[: MAX_NAME - 12]}-{os.getpid()}"


class Reporting:
    """Reports of one run. Used from the thread that trains."""

    def __init__(self, listener: Listener, name: str, batches: int, started: float) -> None:
        self._listener = listener
        self._name = name
        self._batches = batches
        self._due = started + EVERY_S
        self._throughput = Throughput(started, max_entries=4096)
        self._losses: list[float] = []  # since the last report
        self._scores: deque[tuple[FloatArray, FloatArray]] = deque()
        self._scored = 0
        self._pending: Future[None] | None = None
        self._complained = False

    def scored(self, labels: FloatArray, logits: FloatArray) -> None:
        """The model's answers for a batch, before its update."""
        self._scores.append((labels, logits))
        self._scored += len(labels)
        while self._scored - len(self._scores[0][0]) >= WINDOW_SAMPLES:
            self._scored -= len(self._scores.popleft()[0])

    def batch(self, number: int, samples: int, loss: float, now: float) -> None:
        """Batch `number` was acknowledged at `now`, by the run's clock."""
        self._throughput.add(now, samples)
        self._losses.append(loss)
        if now < self._due or (self._pending is not None and not self._pending.done()):
            return
        self._due = now + EVERY_S
        labels, logits = zip(*self._scores, strict=True)
        area = auc(np.concatenate(labels), np.concatenate(logits))
        self._send({
            "state": "running", "batch": number, "batches_total": self._batches, "samples": self._throughput.samples,
            "samples_per_s": self._throughput.rate(now - _RATE_WINDOW_S),
            "loss": sum(self._losses) / len(self._losses), "auc": None if math.isnan(area) else area,
        })  # fmt: skip
        self._losses.clear()

    def finished(self, figures: Mapping[str, Any]) -> None:
        """The run is over. Waits a moment for the last word to arrive: the store may be closed next."""
        self._send({"state": "finished"} | dict(figures))
        if self._pending is not None:
            try:
                self._pending.result(_LAST_WORD_S)
            except (EcstoreError, FutureTimeoutError) as error:
                self._complain(error)

    def _send(self, figures: dict[str, Any]) -> None:
        before, self._pending = self._pending, None
        if before is not None and before.done() and not before.cancelled() and (error := before.exception()):
            self._complain(error)
        try:
            self._pending = self._listener.report_async(self._name, figures)
        except EcstoreError as error:
            self._complain(error)

    def _complain(self, error: BaseException) -> None:
        """Once a run: nobody needs to hear every second that nobody listens."""
        if not self._complained:
            self._complained = True
            logger.warning("the nodes could not be told how the training is doing; it goes on: %s", error)
