"""A trainer says how it is doing, without waiting, and goes on when nobody listens."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from ecstore.errors import UnavailableError
from ecstore.trainer import LocalStore, SyntheticConfig, SyntheticLog, TrainConfig, auc, compare_stores, train
from ecstore.trainer.reporting import EVERY_S, WINDOW_SAMPLES, Reporting, default_name
from ecstore.training import checked_figures, checked_name

LOG = SyntheticLog(SyntheticConfig(samples=3_000, seed=3))


class Listening(LocalStore):
    """Takes reports as the blocking client does: each answer is a future."""

    def __init__(self, outcome: Any = None) -> None:
        super().__init__()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.outcome = outcome

    def report_async(self, name: str, figures: Any) -> Future[None]:
        self.told.append((name, checked_figures(figures)))
        answer: Future[None] = Future()
        if self.outcome is None:
            answer.set_result(None)
        elif isinstance(self.outcome, Exception):
            answer.set_exception(self.outcome)
        return answer


def clock(step: float) -> Any:
    """A clock that goes on by `step` whenever it is looked at."""
    now = -step

    def tick() -> float:
        nonlocal now
        now += step
        return now

    return tick


@pytest.mark.parametrize("mode", ["strict", "prefetch"])
def test_it_reports_about_once_a_second_and_at_the_end(mode: Any) -> None:
    store = Listening()
    report = train(store, LOG, TrainConfig(mode=mode), clock=clock(EVERY_S / 10), name="me")
    assert {name for name, _ in store.told} == {"me"}
    running = [figures for _, figures in store.told[:-1]]
    assert 3 <= len(running) <= report.seconds / EVERY_S
    batches = [figures["batch"] for figures in running]
    assert batches == sorted(set(batches))
    assert all(figures["batches_total"] == report.batches for figures in running)
    assert all(0 <= figures["auc"] <= 1 and figures["samples_per_s"] > 0 for figures in running)
    last = store.told[-1][1]
    assert (last["state"], last["batch"], last["samples"]) == ("finished", report.batches, report.samples)
    assert (last["auc"], last["loss"]) == (report.auc, report.loss_last)


@pytest.mark.parametrize("outcome", [UnavailableError("nobody is there"), "never"])
def test_it_goes_on_when_nobody_listens(
    outcome: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecstore.trainer.reporting._LAST_WORD_S", 0.01)
    deaf, alone = Listening(outcome), LocalStore()
    config = TrainConfig(max_batches=20)
    train(deaf, LOG, config, clock=clock(EVERY_S / 10))
    train(alone, LOG, config)
    assert compare_stores(deaf, alone, config.tables).equal, "reporting changes no bit"
    assert len([record for record in caplog.records if "it goes on" in record.message]) == 1
    assert len(deaf.told) == (2 if outcome == "never" else len(deaf.told)), "one on its way, and the last word"


def test_a_store_that_cannot_listen_is_trained_on_all_the_same() -> None:
    assert train(LocalStore(), LOG, TrainConfig(max_batches=3)).batches == 3


def test_the_running_auc_is_that_of_the_latest_samples() -> None:
    store = Listening()
    reporting = Reporting(store, "me", 100, 0.0)
    random = np.random.default_rng(1)
    labels = (random.random((40, 500)) < 0.3).astype(np.float32)
    logits = random.standard_normal((40, 500)).astype(np.float32) + labels
    for number in range(40):
        reporting.scored(labels[number], logits[number])
        reporting.batch(number + 1, 500, 0.5, EVERY_S * (number + 1))
    kept = -(-WINDOW_SAMPLES // 500)
    assert store.told[-1][1]["auc"] == pytest.approx(auc(labels[-kept:].reshape(-1), logits[-kept:].reshape(-1)))


def test_the_default_name_is_one() -> None:
    assert checked_name(default_name()) == default_name()
