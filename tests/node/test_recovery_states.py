"""What a recovery is called, how fast it is and when it will end: from its counters and the time alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ecstore.node.recovery import (
    MARK_EVERY_S,
    MAX_REMEMBERED,
    RATE_WINDOW_S,
    STUCK_AFTER_S,
    Recovery,
    RecoveryBook,
)

START = 1000.0


def recovery(rows: int = 1000, kind: str = "data") -> Recovery:
    made = Recovery(0, 1, kind, "n1", "n2", START, 7)  # type: ignore[arg-type]
    made.rows_total, made.bytes_total = rows, 64 * rows
    return made


def at(now: float) -> Callable[[], float]:
    return lambda: now


def test_it_waits_until_its_shard_serves_and_runs_from_then_on() -> None:
    one = recovery()
    assert one.state(START + 0.5) == "waiting"
    one.begun(START + 1.0)
    assert one.state(START + 1.0) == "running"
    with one.held(at(START + 1.0)):
        assert one.state(START + 1.5) == "waiting", "it waits for its first turn"
    one.progress(10, 640, START + 2.0)
    with one.held(at(START + 2.0)):
        assert one.state(START + 2.5) == "throttled"
    one.finish("done", START + 3.0)
    assert one.state(START + 300.0) == "done"
    one.finish("lost", START + 4.0)
    assert (one.state(START + 5.0), one.finished_at) == ("done", START + 3.0), "an end is an end"


def test_it_is_stuck_when_nothing_comes_although_nothing_holds_it() -> None:
    one = recovery()
    one.begun(START)
    one.progress(10, 640, START + 1.0)
    assert one.state(START + 1.0 + STUCK_AFTER_S - 0.1) == "running"
    assert one.state(START + 1.0 + STUCK_AFTER_S) == "stuck"
    assert one.to_wire(START + 1.0 + STUCK_AFTER_S)["rate_rows_per_s"] == 0.0
    assert one.to_wire(START + 1.0 + STUCK_AFTER_S)["eta_s"] is None
    one.progress(10, 640, START + 20.0)
    assert one.state(START + 20.5) == "running", "it is not for ever"


def test_a_takeover_that_does_not_come_through_is_stuck_too() -> None:
    assert recovery().state(START + STUCK_AFTER_S) == "stuck"


def test_time_in_which_it_was_held_does_not_count() -> None:
    one = recovery()
    one.begun(START)
    now = START
    hold = one.held(lambda: now)
    hold.__enter__()
    assert one.state(START + 100.0) == "waiting"
    now = START + 100.0
    hold.__exit__(None, None, None)
    assert one.state(START + 100.0 + STUCK_AFTER_S - 0.1) == "running"
    assert one.state(START + 100.0 + STUCK_AFTER_S) == "stuck"


def test_attempts_that_fail_again_and_again_are_stuck_although_each_takes_its_turn() -> None:
    one = recovery()
    one.begun(START)
    for number in range(30):
        moments = iter([START + number, START + number + 0.1])
        with one.held(lambda moments=moments: next(moments)):
            pass
        one.failed()
    assert one.state(START + 30.0) == "stuck"
    assert one.to_wire(START + 30.0)["retries"] == 30


def test_held_twice_is_held_until_both_have_ended() -> None:
    one = recovery(kind="parity")
    one.progress(1, 64, START)
    with one.held(at(START)):
        with one.held(at(START + 1.0)):
            pass
        assert one.state(START + 50.0) == "throttled"
    assert one.idle_s(START) == 0.0


def test_the_rate_is_that_of_the_last_seconds_not_of_all() -> None:
    one = recovery(100_000)
    one.begun(START)
    for second in range(1, 101):
        one.progress(10 if second <= 50 else 1000, 64, START + second)
    told = one.to_wire(START + 100.0)
    assert told["rate_rows_per_s"] == pytest.approx(1000.0)
    assert told["eta_s"] == pytest.approx((100_000 - one.rows_decoded) / 1000.0)


def test_a_rate_falls_when_nothing_comes() -> None:
    one = recovery()
    one.begun(START)
    for tenth in range(1, 51):
        one.progress(10, 640, START + tenth / 10)
    rates = [one.rate(START + 5.0 + later) for later in (0.0, 2.0, 4.0, 8.0)]
    assert rates[0] == pytest.approx(100.0)
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


def test_blocks_that_come_less_often_than_the_window_have_a_rate() -> None:
    one = recovery()
    one.begun(START)
    step = 3 * RATE_WINDOW_S
    for block in range(1, 5):
        one.progress(30, 30 * 64, START + block * step)
    assert one.rate(START + 4 * step) == pytest.approx(30 / step)
    told = one.to_wire(START + 4 * step)
    assert told["rate_bytes_per_s"] == pytest.approx(64 * 30 / step)
    assert told["eta_s"] == pytest.approx((1000 - 120) * step / 30)


def test_thousands_of_small_steps_a_second_are_as_exact() -> None:
    one = recovery(10**6)
    one.begun(START)
    for number in range(1, 40_001):
        one.progress(1, 64, START + number / 4000)
    assert one.rate(START + 10.0) == pytest.approx(4000.0, rel=0.02)
    assert len(one._marks) <= 256
    assert RATE_WINDOW_S / MARK_EVERY_S < 256, "the window fits what is remembered"


def test_rows_that_a_lost_group_takes_along_are_failed() -> None:
    book = RecoveryBook()
    one = book.open(recovery())
    one.begun(START)
    one.progress(300, 300 * 64, START + 1.0, on_demand=True)
    one.progress(100, 100 * 64, START + 2.0)
    one.finish("lost", START + 3.0)
    told = one.to_wire(START + 4.0)
    assert (told["state"], told["rows_failed"], told["eta_s"]) == ("lost", 600, None)
    assert book.totals()["data"] == {
        "started": 1, "done": 0, "lost": 1, "cancelled": 0, "rows_on_demand": 300, "rows_swept": 100,
        "rows_failed": 600, "bytes": 400 * 64, "retries": 0,
    }  # fmt: skip


def test_totals_stay_when_recoveries_are_forgotten_and_never_fall() -> None:
    book = RecoveryBook()
    for number in range(MAX_REMEMBERED + 50):
        one = book.open(recovery(kind="parity"))
        one.progress(2, 128, START + number)
        if number % 2:
            one.restart()
            assert (one.rows_total, one.rows_decoded, one.rate(START + number)) == (0, 0, 0.0)
            assert (one.bytes_total, one.bytes_decoded, one.rows_on_demand) == (0, 0, 0)
        one.finish("done", START + number)
    assert len(book.to_wire(START)) == MAX_REMEMBERED
    assert book.totals()["parity"]["done"] == MAX_REMEMBERED + 50
    assert book.totals()["parity"]["rows_swept"] == 2 * (MAX_REMEMBERED + 50)
    assert book.totals()["data"]["started"] == 0
