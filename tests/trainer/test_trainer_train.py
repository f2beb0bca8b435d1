"""The training loop: it learns, its bits repeat, order of pulls and pushes, reports, progress."""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecstore.errors import ConfigError, NonFiniteError, TableExistsError, UnavailableError
from ecstore.optim import SGD
from ecstore.trainer import (
    BatchReport,
    Dlrm,
    LocalStore,
    LocalTable,
    SyntheticConfig,
    SyntheticLog,
    TrainConfig,
    compare_stores,
    evaluate,
    load_criteo,
    progress,
    train,
)

LOG = SyntheticLog(SyntheticConfig(samples=3500, seed=3))
SHORT = TrainConfig(max_batches=12)
TABLES = TrainConfig().tables


class RecordingStore(LocalStore):
    """Writes down the order of pulls and pushes, and can fail at one of them."""

    def __init__(self, fail_at: str = "") -> None:
        super().__init__()
        self.calls: list[str] = []
        self.pushed: list[dict[str, np.ndarray]] = []
        self.fail_at = fail_at

    def _note(self, kind: str) -> None:
        number = sum(call.startswith(kind) for call in self.calls) + 1
        self.calls.append(f"{kind}{number}")
        if self.calls[-1] == self.fail_at:
            raise UnavailableError("made to fail")

    def pull_many(self, requests: Mapping[LocalTable, Any]) -> dict[LocalTable, Any]:
        self._note("pull")
        return super().pull_many(requests)

    def push_many(self, updates: Mapping[LocalTable, tuple[Any, Any]]) -> None:
        self._note("push")
        self.pushed.append({table.name: keys for table, (keys, _) in updates.items()})
        super().push_many(updates)


def test_it_learns() -> None:
    log = SyntheticLog(SyntheticConfig(samples=14_000, seed=3))
    report = train(LocalStore(), log, TrainConfig(epochs=1))
    assert report.loss_last < 0.9 * report.loss_first
    assert report.auc > 0.72
    assert report.log_loss < report.loss_first
    assert (report.batches, report.samples, report.test_samples) == (94, 12_000, 2000)


def test_it_learns_from_the_embeddings() -> None:
    """Without embeddings that move the same run is clearly worse: their gradients point the right way."""
    log = SyntheticLog(SyntheticConfig(samples=14_000, seed=3))
    still = TrainConfig(epochs=1, embedding_optimizer=SGD(lr=1e-30))
    assert train(LocalStore(), log, TrainConfig(epochs=1)).auc > train(LocalStore(), log, still).auc + 0.05


@pytest.mark.parametrize("mode", ["strict", "prefetch"])
def test_two_runs_have_the_same_bits(mode: Any) -> None:
    first, second = LocalStore(), LocalStore()
    config = TrainConfig(mode=mode, epochs=2, batch_size=200)
    left, right = train(first, LOG, config), train(second, LOG, config)
    assert compare_stores(first, second, TABLES).equal
    assert (left.auc, left.loss_last) == (right.auc, right.loss_last)


def test_another_seed_or_mode_has_other_bits() -> None:
    stores = [LocalStore() for _ in range(3)]
    for store, changes in zip(stores, ({}, {"seed": 2}, {"mode": "prefetch"}), strict=True):
        if changes == {"seed": 2}:
            train(store, LOG, TrainConfig(max_batches=12, seed=2))
        else:
            train(store, LOG, TrainConfig(max_batches=12, **changes))
    assert not compare_stores(stores[0], stores[1], TABLES).equal
    assert not compare_stores(stores[0], stores[2], TABLES).equal


def test_strict_order_pulls_after_the_push_before() -> None:
    store = RecordingStore()
    train(store, LOG, TrainConfig(max_batches=3))
    assert store.calls == [
        "pull1",
        "push1",
        "pull2",
        "push2",
        "pull3",
        "push3",
        "pull4",
    ]  # the last one evaluates


def test_prefetch_is_one_batch_ahead_never_more() -> None:
    store = RecordingStore()
    train(store, LOG, TrainConfig(max_batches=3, mode="prefetch"))
    assert store.calls == ["pull1", "pull2", "push1", "pull3", "push2", "push3", "pull4"]


def test_prefetch_pushes_while_the_next_batch_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    from ecstore.trainer.train import Worker

    batches, computes, changed = 4, [0], threading.Condition()
    compute = Worker.compute

    def counted(*arguments: Any) -> Any:
        with changed:
            computes[0] += 1
            changed.notify_all()
        return compute(*arguments)

    class PatientStore(LocalStore):
        """A push takes until the next computation has begun."""

        pushes = 0

        def push_many(self, updates: Mapping[LocalTable, tuple[Any, Any]]) -> None:
            self.pushes += 1
            with changed:
                assert changed.wait_for(lambda: computes[0] >= min(self.pushes + 1, batches), timeout=30.0)
            super().push_many(updates)

    monkeypatch.setattr(Worker, "compute", counted)
    store = PatientStore()
    assert train(store, LOG, TrainConfig(max_batches=batches, mode="prefetch")).batches == batches
    assert store.pushes == batches


def test_prefetch_equals_training_on_parameters_one_push_old() -> None:
    """The staleness that is documented, made by hand from the parts of the loop."""
    from ecstore.trainer.train import Worker

    store, by_hand = LocalStore(), LocalStore()
    config = TrainConfig(max_batches=5, mode="prefetch")
    train(store, LOG, config)
    worker = Worker(by_hand, config)
    batches = list(LOG.train_batches(config.batch_size))[:5]
    pulled = [worker.pull(batches[0]), worker.pull(batches[1])]
    for number, batch in enumerate(batches):
        _, updates = worker.compute(batch, pulled[number])
        by_hand.push_many(updates)
        if number + 2 < len(batches):
            pulled.append(worker.pull(batches[number + 2]))
    assert compare_stores(store, by_hand, TABLES).equal


def test_pushes_hold_each_key_of_the_batch_once() -> None:
    store = RecordingStore()
    train(store, LOG, SHORT)
    model = Dlrm(SHORT.model)
    for batch, pushed in zip(LOG.train_batches(SHORT.batch_size), store.pushed, strict=False):
        assert pushed["embedding"].tolist() == sorted(set(batch.keys.reshape(-1).tolist()))
        assert pushed["dense"].tolist() == list(range(model.chunks))
    trained = {key for pushed in store.pushed for key in pushed["embedding"].tolist()}
    assert set(store.table("embedding").export()[0].tolist()) == trained  # evaluation has written nothing
    assert len(store.table("dense")) == model.chunks


def test_gradient_of_a_repeated_category_is_the_sum() -> None:
    from ecstore.trainer.train import Worker

    store = LocalStore()
    worker = Worker(store, SHORT)
    batch = next(LOG.train_batches(64))
    pulled = worker.pull(batch)
    _, updates = worker.compute(batch, pulled)
    keys, sums = updates[worker.embedding]
    embeddings = worker.embedding.pull(batch.keys.reshape(-1)).reshape(64, 26, -1)
    _, gradients = worker.model.loss_and_gradients(pulled.dense_rows, batch.dense, embeddings, batch.labels)
    expected = {int(key): np.zeros(16, np.float32) for key in keys}
    for key, gradient in zip(batch.keys.reshape(-1).tolist(), gradients.embeddings.reshape(-1, 16), strict=True):
        expected[key] = expected[key] + gradient
    assert sums.tobytes() == np.array([expected[int(key)] for key in keys]).tobytes()
    assert len(keys) < batch.keys.size


def test_batch_reports_and_the_run_report() -> None:
    ticks = iter(range(10_000))
    reports: list[BatchReport] = []
    config = TrainConfig(epochs=2, batch_size=500, max_batches=8)
    report = train(LocalStore(), LOG, config, on_batch=reports.append, clock=lambda: float(next(ticks)))
    assert [entry.batch for entry in reports] == list(range(1, 9))
    assert {entry.batches for entry in reports} == {8} == {config.batches(LOG)}
    assert [entry.epoch for entry in reports] == [1] * 6 + [2] * 2
    assert [entry.samples for entry in reports] == [500] * 8
    assert all((entry.pull_s, entry.compute_s, entry.push_s) == (1.0, 1.0, 1.0) for entry in reports)
    assert report.loss_first == pytest.approx(np.mean([entry.loss for entry in reports[:4]]))
    assert report.loss_last == pytest.approx(np.mean([entry.loss for entry in reports[4:]]))
    assert report.samples == 4000
    assert report.seconds == reports[-1].finished - 0.0
    assert report.samples_per_s == pytest.approx(4000 / report.seconds)
    assert config.batches(LOG) == 8
    assert TrainConfig(epochs=3, batch_size=499).batches(LOG) == 21


def test_training_goes_on_from_existing_tables() -> None:
    store, whole = LocalStore(), LocalStore()
    for _ in range(2):
        train(store, LOG, TrainConfig(epochs=1))
    train(whole, LOG, TrainConfig(epochs=2))
    assert compare_stores(store, whole, TABLES).equal
    with pytest.raises(TableExistsError):
        train(store, LOG, TrainConfig(seed=9))


def test_evaluate_gives_the_reported_figures() -> None:
    store = LocalStore()
    report = train(store, LOG, SHORT)
    assert evaluate(store, LOG, SHORT) == (report.auc, report.log_loss)


@pytest.mark.parametrize("mode", ["strict", "prefetch"])
@pytest.mark.parametrize("fail_at", ["pull1", "pull3", "push2", "pull12"])
def test_errors_of_the_store_come_through(mode: Any, fail_at: str) -> None:
    store = RecordingStore(fail_at)
    reports: list[BatchReport] = []
    with pytest.raises(UnavailableError, match="made to fail"):
        train(store, LOG, TrainConfig(max_batches=12, mode=mode), on_batch=reports.append)
    pushes = sum(call.startswith("push") for call in store.calls)
    assert pushes == {"pull1": 0, "pull3": 2, "push2": 2, "pull12": 11}[fail_at]
    assert len(reports) == (1 if fail_at == "push2" else pushes)  # what was acknowledged is reported


@pytest.mark.parametrize("mode", ["strict", "prefetch"])
def test_on_batch_may_end_the_run(mode: Any) -> None:
    class Enough(Exception):
        pass

    def stop(report: BatchReport) -> None:
        if report.batch == 4:
            raise Enough

    store = RecordingStore()
    with pytest.raises(Enough):
        train(store, LOG, TrainConfig(mode=mode), on_batch=stop)
    assert sum(call.startswith("push") for call in store.calls) == 4


def test_a_diverging_model_is_reported() -> None:
    config = TrainConfig(embedding_optimizer=SGD(lr=1e30), dense_optimizer=SGD(lr=1e30))
    with pytest.raises(NonFiniteError, match="lower learning rates"):
        train(LocalStore(), LOG, config)


def test_dense_parameters_survive_what_the_embeddings_survive() -> None:
    codes = {"rs(3,2)": "replicate(3)", "rs(2,1)": "replicate(2)", "replicate(3)": "replicate(3)"}
    assert {code: TrainConfig(code=code).replicas for code in codes} == codes
    assert TrainConfig(code="rs(4,2)", dense_code="none").replicas == "none"


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"epochs": 0},
        {"max_batches": 0},
        {"mode": "loose"},
        {"dense_table": "embedding"},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TrainConfig(**wrong)


def test_report_is_json() -> None:
    tiny = SyntheticLog(SyntheticConfig(samples=5))  # too few to hold any out
    report = train(LocalStore(), tiny, TrainConfig(batch_size=2))
    assert math.isnan(report.auc)
    plain = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert plain["auc"] is None
    assert plain["batches"] == 6


def test_bad_lines_are_in_the_report(tmp_path: Path, good_lines: list[str]) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("\n".join([*good_lines[:100], "x", *good_lines[100:300]]))
    report = train(LocalStore(), load_criteo(path), SHORT)
    assert (report.bad_lines, report.bad_lines_first[0].number) == (1, 101)
    assert json.loads(json.dumps(report.to_json()))["bad_lines_first"][0]["number"] == 101


def test_plain_progress_lines() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.1
        return now

    stream = io.StringIO()
    with progress(stream, clock=clock, every_s=2.0) as show:
        train(LocalStore(), LOG, SHORT, on_batch=show, clock=clock)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 4
    assert lines[-1].startswith("training: batch 12/12, epoch 1, loss 0.")
    assert lines[-1].endswith("samples/s")


def test_progress_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress(stream) as show:
        train(LocalStore(), LOG, SHORT, on_batch=show)
    assert "12/12" in stream.getvalue()
    assert "training: batch" not in stream.getvalue()


def test_real_sample_reaches_a_sensible_auc(criteo_sample: Path) -> None:
    report = train(LocalStore(), load_criteo(criteo_sample))
    assert report.auc > 0.65  # 38 clicks in the held-out part: the error of the AUC is about 0.04
    assert report.loss_last < report.loss_first
