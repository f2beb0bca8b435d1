"""The training loop: pull, forward, backward, push; and the report of a run.

Every batch takes one `pull_many` (its distinct embedding keys and all dense rows) and one `push_many` (their
gradients), which returns when it is acknowledged. The optimizers run in the store. So a worker holds no
parameter between two batches, and whatever store is behind the interface, one worker in strict order ends
with the same bits.

strict (default): the pull of a batch begins after the push of the batch before is acknowledged.
prefetch: while a batch is computed, the push of the batch before and then the pull of the next one are made. The store
    sees pull 1, pull 2, push 1, pull 3, push 2, ... one after the other: every batch is computed from parameters that
    lack exactly the push before it, a staleness of one batch, never more, and as reproducible as strict order (with
    other results). Between epochs it goes on.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Generic, Literal

import numpy as np

from ecstore.codec import Code
from ecstore.errors import ConfigError, NonFiniteError
from ecstore.optim import Adagrad, Optimizer
from ecstore.tables import Initializer, Uniform, Zeros
from ecstore.trainer.data import BadLine, Batch, Dataset
from ecstore.trainer.local import add_rows
from ecstore.trainer.metrics import auc, log_loss
from ecstore.trainer.model import Dlrm, ModelConfig
from ecstore.trainer.reporting import Listener, Reporting, default_name
from ecstore.trainer.source import FloatArray, KeyArray, Store, TableT

EVALUATION_BATCH = 1024  #: samples pulled at a time to evaluate; has no influence on training
LOSS_WINDOW = 50  #: batches that "first" and "last" loss are means of, at most; fewer in a short run


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a training run. Raises `ConfigError` when one is out of range.

    Learning rates, layers and epochs were chosen on the last seventh of the *training* part of a real day
    of clicks. Two epochs are enough there: most ids of a click log occur once or twice, and in a third epoch
    they are learned by heart.
    """

    code: str = "rs(3,2)"  #: of the embedding table
    dense_code: str | None = None  #: of the dense table; None = as many copies as survive what `code` survives
    batch_size: int = 128
    epochs: int = 2
    max_batches: int | None = None  #: end after so many batches (over all epochs); None = all
    mode: Literal["strict", "prefetch"] = "strict"
    seed: int = 1  #: of the initial embeddings and dense parameters
    model: ModelConfig = field(default_factory=ModelConfig)
    embedding_optimizer: Optimizer = field(default_factory=lambda: Adagrad(lr=0.003))
    dense_optimizer: Optimizer = field(default_factory=lambda: Adagrad(lr=0.02))
    embedding_init: Initializer = field(default_factory=lambda: Uniform(-0.01, 0.01))
    embedding_table: str = "embedding"
    dense_table: str = "dense"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.epochs < 1 or (self.max_batches is not None and self.max_batches < 1):
            raise ConfigError(
                f"batch_size {self.batch_size}, epochs {self.epochs} and max_batches {self.max_batches} "
                "must be at least 1"
            )
        if self.mode not in ("strict", "prefetch"):
            raise ConfigError(f'mode is "strict" or "prefetch", not {self.mode!r}')
        if self.embedding_table == self.dense_table:
            raise ConfigError(f"embedding and dense table have one name, {self.dense_table!r}; use two")
        Code.parse(self.code)
        Code.parse(self.replicas)

    @property
    def replicas(self) -> str:
        """The code of the dense table: `dense_code`, or replicate(m+1) for the m of `code`."""
        return self.dense_code if self.dense_code is not None else f"replicate({Code.parse(self.code).m + 1})"

    @property
    def tables(self) -> tuple[str, str]:
        """Names of the two tables, for comparisons."""
        return (self.embedding_table, self.dense_table)

    def batches(self, dataset: Dataset) -> int:
        """How many batches a run over `dataset` has."""
        total = -(-dataset.train_samples // self.batch_size) * self.epochs
        return total if self.max_batches is None else min(total, self.max_batches)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """After the push of a batch was acknowledged. Times in seconds of the run's clock.

    In prefetch mode a batch's push overlaps the next computation: its report comes when that one is over.
    """

    batch: int  #: number of the batch in the run, from 1
    batches: int  #: of the whole run
    epoch: int  #: from 1
    samples: int  #: of this batch
    loss: float  #: mean over the batch, before its update
    finished: float  #: the clock when the push was acknowledged
    pull_s: float  #: waited for the pull
    compute_s: float
    push_s: float  #: from then to the acknowledgement


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Of a whole run. `auc`, `log_loss`: of the held-out part; NaN when it lacks one of the classes."""

    dataset: str
    batches: int
    samples: int
    seconds: float  #: training alone, without the evaluation
    samples_per_s: float
    loss_first: float  #: mean over the first batches, see LOSS_WINDOW
    loss_last: float  #: mean over the last batches
    auc: float
    log_loss: float
    test_samples: int
    bad_lines: int
    bad_lines_first: tuple[BadLine, ...]

    def last_word(self) -> dict[str, Any]:
        """What the nodes are told at the end; a figure that is no number is left out."""
        told = {
            "batch": self.batches, "batches_total": self.batches, "samples": self.samples,
            "samples_per_s": self.samples_per_s, "loss": self.loss_last, "auc": self.auc,
        }  # fmt: skip
        return {key: value for key, value in told.items() if math.isfinite(value)}

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN becomes None, which JSON can say."""
        plain = asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in plain.items()}


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The parameters of one batch."""

    keys: KeyArray  #: u64[u], the distinct keys of the batch
    places: np.ndarray[Any, np.dtype[np.intp]]  #: [B * 26], index into `keys` of every category
    weights: FloatArray  #: f32[u, D]
    dense_rows: FloatArray  #: f32[chunks, chunk]


def train(
    store: Store[TableT],
    dataset: Dataset,
    config: TrainConfig | None = None,
    *,
    on_batch: Callable[[BatchReport], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    name: str | None = None,
) -> TrainReport:
    """Train on the training part of `dataset`, evaluate on the held-out part.

    While it runs, a store that can is told about once a second how it goes, under `name` (default: host and process).
    Tables that exist with the same options are trained on; new dense parameters are written first. `on_batch`
    is called after every batch; what it raises ends the run. Errors of the store come through as they are.
    Raises `NonFiniteError` when the loss is no longer finite.
    """
    config = config if config is not None else TrainConfig()
    worker = Worker(store, config)
    run = _Run(config.batches(dataset), clock, on_batch)
    if isinstance(store, Listener):
        run.reporting = Reporting(store, name or default_name(), config.batches(dataset), run.started)
        worker.on_scores = run.reporting.scored
    if config.mode == "strict":
        _in_strict_order(worker, _batches(dataset, config), run)
    else:
        with ThreadPoolExecutor(1, "prefetch") as ahead:
            try:
                _prefetching(worker, _batches(dataset, config), run, ahead)
            except BaseException:
                ahead.shutdown(wait=False, cancel_futures=True)  # nobody wants the next pull any more
                raise
    labels, logits = worker.predict(dataset)
    report = run.report(dataset, labels, logits)
    if run.reporting is not None:
        run.reporting.finished(report.last_word())
    return report


def evaluate(store: Store[TableT], dataset: Dataset, config: TrainConfig) -> tuple[float, float]:
    """AUC and log loss of the held-out part with the parameters in `store`; nothing is written."""
    labels, logits = Worker(store, config).predict(dataset)
    return auc(labels, logits), log_loss(labels, logits)


class Worker(Generic[TableT]):
    """One trainer's tables and model. It holds no parameters."""

    def __init__(self, store: Store[TableT], config: TrainConfig) -> None:
        """Open the two tables, or make them; dense parameters that are not there yet are written."""
        self._store = store
        #: Told the labels and logits of every batch that is computed, f32[B] each, before its update.
        self.on_scores: Callable[[FloatArray, FloatArray], None] | None = None
        self.model = Dlrm(config.model)
        self.embedding = store.create_table(
            config.embedding_table,
            dim=config.model.dim,
            optimizer=config.embedding_optimizer,
            code=config.code,
            init=config.embedding_init,
            seed=config.seed,
        )
        self.dense = store.create_table(
            config.dense_table,
            dim=config.model.chunk,
            optimizer=config.dense_optimizer,
            code=config.replicas,
            init=Zeros(),
            seed=config.seed,
        )
        self._dense_keys: KeyArray = np.arange(self.model.chunks, dtype=np.uint64)
        if len(self.dense) == 0:
            self.dense.load(self._dense_keys, self.model.initial_rows(config.seed))

    def pull(self, batch: Batch) -> _Pulled:
        """Pull what a batch needs, in one request."""
        keys, places = np.unique(batch.keys, return_inverse=True)
        pulled = self._store.pull_many({self.embedding: keys, self.dense: self._dense_keys})
        return _Pulled(keys, places.reshape(-1), pulled[self.embedding], pulled[self.dense])

    def push(self, updates: dict[TableT, tuple[KeyArray, FloatArray]]) -> None:
        """Push what `compute` gave; returns when it is acknowledged."""
        self._store.push_many(updates)

    def compute(self, batch: Batch, pulled: _Pulled) -> tuple[float, dict[TableT, tuple[KeyArray, FloatArray]]]:
        """Loss of a batch, and the push that follows from it: one gradient for each distinct key."""
        embeddings = pulled.weights[pulled.places].reshape(*batch.keys.shape, -1)
        with np.errstate(over="ignore", invalid="ignore"):  # a diverged model is reported below, once
            loss, gradients = self.model.loss_and_gradients(pulled.dense_rows, batch.dense, embeddings, batch.labels)
        if not math.isfinite(loss):
            raise NonFiniteError(f"the loss became {loss}; train again with lower learning rates")
        if self.on_scores is not None:
            self.on_scores(batch.labels, gradients.logits)
        sums = np.zeros_like(pulled.weights)
        add_rows(sums, pulled.places, np.ascontiguousarray(gradients.embeddings).reshape(-1, sums.shape[1]))
        return loss, {
            self.embedding: (pulled.keys, sums),
            self.dense: (self._dense_keys, gradients.dense_rows),
        }

    def predict(self, dataset: Dataset) -> tuple[FloatArray, FloatArray]:
        """Labels and logits, f32[test samples], of the held-out part; pulls only, nothing is written."""
        labels: list[FloatArray] = []
        logits: list[FloatArray] = []
        for batch in dataset.test_batches(EVALUATION_BATCH):
            pulled = self.pull(batch)
            embeddings = pulled.weights[pulled.places].reshape(*batch.keys.shape, -1)
            labels.append(batch.labels)
            logits.append(self.model.predict(pulled.dense_rows, batch.dense, embeddings).astype(np.float32))
        none = [np.empty(0, np.float32)]
        return np.concatenate(labels or none), np.concatenate(logits or none)


@dataclass(frozen=True, slots=True)
class _Computed(Generic[TableT]):
    """A batch whose push is still to be acknowledged. Times of the run's clock."""

    epoch: int
    samples: int
    loss: float
    updates: dict[TableT, tuple[KeyArray, FloatArray]]
    started: float
    received: float
    computed: float


class _Run:
    """What a run has done so far."""

    def __init__(
        self, batches: int, clock: Callable[[], float], on_batch: Callable[[BatchReport], None] | None
    ) -> None:
        self._batches = batches
        self.clock = clock
        self._on_batch = on_batch
        self._done = 0
        self._window = max(1, min(LOSS_WINDOW, batches // 2))
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=self._window)
        self.started = self._finished = clock()
        self.reporting: Reporting | None = None
        self._samples = 0

    def acknowledged(self, batch: _Computed[Any], at: float) -> None:
        """Count a batch and report it."""
        self._done += 1
        self._finished = at
        self._samples += batch.samples
        if len(self._first) < self._window:
            self._first.append(batch.loss)
        self._last.append(batch.loss)
        if self.reporting is not None:
            self.reporting.batch(self._done, batch.samples, batch.loss, at)
        if self._on_batch is not None:
            self._on_batch(
                BatchReport(
                    batch=self._done, batches=self._batches, epoch=batch.epoch, samples=batch.samples, loss=batch.loss,
                    finished=at, pull_s=batch.received - batch.started, compute_s=batch.computed - batch.received,
                    push_s=at - batch.computed,
                )
            )  # fmt: skip

    def report(self, dataset: Dataset, labels: FloatArray, logits: FloatArray) -> TrainReport:
        seconds = self._finished - self.started
        return TrainReport(
            dataset=dataset.name,
            batches=self._done,
            samples=self._samples,
            seconds=seconds,
            samples_per_s=self._samples / seconds if seconds > 0 else 0.0,
            loss_first=_mean(self._first),
            loss_last=_mean(self._last),
            auc=auc(labels, logits),
            log_loss=log_loss(labels, logits),
            test_samples=len(labels),
            bad_lines=dataset.bad_lines.count,
            bad_lines_first=tuple(dataset.bad_lines.first),
        )


def _batches(dataset: Dataset, config: TrainConfig) -> Iterator[tuple[int, Batch]]:
    """(epoch from 1, batch) of a whole run, in order."""
    epochs = ((epoch, batch) for epoch in range(config.epochs) for batch in dataset.train_batches(config.batch_size))
    for epoch, batch in islice(epochs, config.max_batches):
        yield epoch + 1, batch


def _in_strict_order(worker: Worker[TableT], batches: Iterator[tuple[int, Batch]], run: _Run) -> None:
    started = run.clock()
    for epoch, batch in batches:
        pulled = worker.pull(batch)
        done = _compute(worker, epoch, batch, pulled, run, started)
        worker.push(done.updates)
        run.acknowledged(done, run.clock())
        started = run.clock()


def _prefetching(
    worker: Worker[TableT], batches: Iterator[tuple[int, Batch]], run: _Run, ahead: ThreadPoolExecutor
) -> None:
    """`ahead` has one thread: what it is given is done one after the other.

    Whatever fails, a batch that was computed is pushed and reported before the error comes through, unless it is the
    push before it, or its report, that has failed.
    """

    def push(updates: dict[TableT, tuple[KeyArray, FloatArray]]) -> float:
        worker.push(updates)
        return run.clock()

    current = next(batches, None)
    pulling = ahead.submit(worker.pull, current[1]) if current is not None else None
    done: _Computed[TableT] | None = None
    while current is not None and pulling is not None:
        started = run.clock()
        pushing = ahead.submit(push, done.updates) if done is not None else None
        before = done
        try:
            pulled = pulling.result()
            epoch, batch = current
            current = next(batches, None)
            pulling = ahead.submit(worker.pull, current[1]) if current is not None else None
            done = _compute(worker, epoch, batch, pulled, run, started)
        finally:
            if before is not None and pushing is not None:
                run.acknowledged(before, pushing.result())
    if done is not None:
        run.acknowledged(done, push(done.updates))


def _compute(
    worker: Worker[TableT], epoch: int, batch: Batch, pulled: _Pulled, run: _Run, started: float
) -> _Computed[TableT]:
    received = run.clock()
    loss, updates = worker.compute(batch, pulled)
    return _Computed(epoch, len(batch), loss, updates, started, received, run.clock())


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
