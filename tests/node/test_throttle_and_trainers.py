"""Which setting wins, what is none, and what nodes remember of trainers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ecstore.errors import InputError
from ecstore.node.trainers import FORGET_FINISHED_S, FORGET_RUNNING_S, MAX_TRAINERS, Trainers
from ecstore.throttle import MAX_RATE, MIN_RATE, PROFILES, Throttle
from ecstore.training import FIELDS, MAX_NAME, checked_figures, checked_name


def test_nodes_agree_in_whatever_order_they_are_told() -> None:
    told = [Throttle("balanced", None, 2), Throttle("recovery_first", 4096.0, 2), Throttle("training_first", None, 1)]
    for order in itertools.permutations(told):
        held = Throttle()
        for setting in (*order, *order):
            if setting.replaces(held):
                held = setting
        assert held == told[1]
    assert not held.replaces(held)


def test_profiles_are_faster_one_after_the_other() -> None:
    rates = [Throttle(profile).rate(10.0) for profile in PROFILES]
    assert rates[0] == 10.0
    assert rates == sorted(set(rates))
    assert [Throttle(profile).lets_requests_go_first for profile in PROFILES] == [True, True, False]
    assert Throttle("balanced", 77.0).rate(10.0) == 77.0


def test_a_setting_survives_the_wire() -> None:
    for setting in (Throttle(), Throttle("balanced", 5e6, 9)):
        assert Throttle.from_wire(setting.to_wire()) == setting


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "fast"}, {"profile": None}, {"profile": ["balanced"]}, {"rate_bytes_per_s": 0},
        {"rate_bytes_per_s": MIN_RATE / 2}, {"rate_bytes_per_s": 2 * MAX_RATE}, {"rate_bytes_per_s": float("nan")},
        {"rate_bytes_per_s": float("inf")}, {"rate_bytes_per_s": True}, {"rate_bytes_per_s": "1e6"},
        {"revision": -1}, {"revision": 1.0}, {"revision": True}, {"revision": 1 << 60}, {"revision": None},
    ],
)  # fmt: skip
def test_what_is_no_throttle_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Throttle.from_wire(Throttle("balanced", 5e6, 9).to_wire() | wrong)


def test_a_report_has_all_fields_whatever_was_given() -> None:
    assert checked_figures({}) == dict(FIELDS)
    assert checked_figures({"loss": 1, "batch": 3})["loss"] == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "dead"}, {"batch": -1}, {"batch": 1.5}, {"batch": None}, {"batch": True}, {"samples": 1 << 60},
        {"loss": float("nan")}, {"loss": "low"}, {"auc": 1.5}, {"samples_per_s": -1.0}, {"samples_per_s": None},
        {"samples_per_s": float("inf")}, {"note": "hello"}, {"batches_total": "many"},
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        checked_figures(wrong)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\nb", None, 7])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(InputError):
        checked_name(name)


def report(trainers: Trainers, name: str, at: float, now: float, **figures: Any) -> None:
    trainers.report(name, at, checked_figures(figures), now)


def names(trainers: Trainers, now: float) -> set[str]:
    return {entry["id"] for entry in trainers.to_wire(now)}


def test_the_newest_report_counts_by_the_trainers_clock() -> None:
    trainers = Trainers()
    report(trainers, "a", 100.0, 0.0, batch=2)
    report(trainers, "a", 99.0, 1.0, batch=1)
    (told,) = trainers.to_wire(1.0)
    assert (told["id"], told["at"], told["batch"]) == ("a", 100.0, 2)


def test_silent_trainers_are_forgotten_and_finished_ones_later() -> None:
    trainers = Trainers()
    report(trainers, "silent", 1.0, 0.0)
    report(trainers, "done", 1.0, 0.0, state="finished")
    assert names(trainers, FORGET_RUNNING_S) == {"silent", "done"}
    assert names(trainers, FORGET_RUNNING_S + 1.0) == {"done"}
    assert names(trainers, FORGET_FINISHED_S + 1.0) == set()


def test_there_is_room_for_so_many_and_the_longest_silent_goes_first() -> None:
    trainers = Trainers()
    for number in range(MAX_TRAINERS):
        report(trainers, f"t{number}", 1.0, 0.0)
    report(trainers, "t0", 2.0, 1.0)
    report(trainers, "new", 2.0, 1.0)
    assert len(trainers.to_wire(1.0)) == MAX_TRAINERS
    assert names(trainers, 1.0) == {f"t{number}" for number in range(MAX_TRAINERS) if number != 1} | {"new"}
