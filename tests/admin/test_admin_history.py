"""The history: one order for all services that share it, whatever moment they are killed at."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path

import pytest
from ecstore_admin import history as module
from ecstore_admin.history import History, Mark, order_of

from ecstore.launcher.cluster import HISTORY_FILE


def recovery(
    shard: int = 0, *, at: float = 10.0, rows: int = 0, state: str = "running", end: float | None = None
) -> dict:
    return {
        "group": 1, "shard": shard, "kind": "data", "lost_node": "n1", "new_owner": "n2", "epoch": 4, "state": state,
        "rows_total": 100, "rows_decoded": rows, "rows_on_demand": 0, "bytes_decoded": 8 * rows,
        "rate_rows_per_s": 0.0, "eta_s": None, "started_at": at, "serving_at": None, "first_row_at": None,
        "last_progress_at": at + rows, "finished_at": end,
    }  # fmt: skip


def tell(history: History, text: str, mark: Mark | None = None) -> None:
    history.note({"at": 1.0, "message": text}, mark)
    history.sync()


def told(history: History) -> list[tuple[int, str]]:
    history.sync()
    return [(event["id"], event["message"]) for event in history.events()]


def recoveries(history: History) -> list[dict]:
    history.sync()
    return sorted((known.recovery for known in history.known.values()), key=order_of)


def test_a_new_service_knows_what_the_former_one_knew(tmp_path: Path) -> None:
    first = History(tmp_path)
    tell(first, "a")
    first.report(recovery(), 1)
    first.report(recovery(1, rows=100, state="done", end=12.0), 1)
    tell(first, "b", Mark("node:n1", [1, 2]))
    second = History(tmp_path)
    assert told(second) == told(first) == [(1, "a"), (2, "b")]
    assert recoveries(second) == recoveries(first)
    tell(second, "the same again", Mark("node:n1", [1, 2]))
    tell(second, "later", Mark("node:n1", [2, 0]))
    assert told(first) == [(1, "a"), (2, "b"), (3, "later")]


def test_two_services_agree_on_ids_and_ends(tmp_path: Path) -> None:
    one, two = History(tmp_path), History(tmp_path)
    for history in (one, two):  # both see the same before either has written
        history.note({"at": 1.0, "message": "n1 is down"}, Mark("node:n1", [1, 2]))
        history.report(recovery(rows=30), 1)
    one.sync()
    two.end(module.key_of(recovery()), "cancelled", 20.0)
    two.sync()
    one.end(module.key_of(recovery()), "cancelled", 21.0)
    assert told(one) == told(two) == [(1, "n1 is down")]
    (ended,) = recoveries(one)
    assert (ended["state"], ended["finished_at"], ended["rows_decoded"]) == ("cancelled", 20.0, 30)
    assert recoveries(two) == [ended]
    one.report(recovery(rows=99), 1)
    assert recoveries(one) == [ended]


def test_an_event_that_comes_late_comes_after_what_is_known(tmp_path: Path) -> None:
    history = History(tmp_path)
    tell(history, "now")
    place = history.newest_id
    history.note({"at": 0.0, "message": "before that, from a node that was cut off"}, Mark("log:n9", [0.0]))
    history.sync()
    assert [event["message"] for event in history.after(place, 10)] == ["before that, from a node that was cut off"]


def test_any_cut_of_the_file_is_a_whole_history_and_goes_on(tmp_path: Path) -> None:
    """As after SIGKILL in the middle of a write: what was whole is there, the next one is not glued to the rest."""
    writer = History(tmp_path / "a") if (tmp_path / "a").mkdir() is None else None
    assert writer is not None
    for number in range(6):
        tell(writer, f"event {number}")
        writer.report(recovery(number, rows=number), 1)
    writer.sync()
    whole = (tmp_path / "a" / HISTORY_FILE).read_bytes()
    rng = random.Random(3)
    for cut in [0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))]:
        folder = tmp_path / f"cut{cut}"
        folder.mkdir(exist_ok=True)
        (folder / HISTORY_FILE).write_bytes(whole[:cut])
        survivor = History(folder)
        before = told(survivor)
        assert before == [(number + 1, f"event {number}") for number in range(len(before))]
        tell(survivor, "goes on")
        assert told(History(folder)) == [*before, (len(before) + 1, "goes on")]


def test_garbage_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(tmp_path)
    tell(history, "a")
    with (tmp_path / HISTORY_FILE).open("ab") as file:
        file.write(b'\xff\x00 not json\n{"type": "event"}\n[]\n{"type": "event", "event": 3, "mark": null}\n')
    tell(history, "b")
    assert told(History(tmp_path)) == told(history) == [(1, "a"), (2, "b")]
    assert "does not parse" in caplog.text


def test_it_is_bounded_and_forgets_nothing_that_would_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 20_000)
    monkeypatch.setattr(module, "MAX_RECOVERIES", 40)
    history, other = History(tmp_path), History(tmp_path)
    for number in range(400):
        tell(history, "x" * 100, Mark("log:n1", [float(number)]))
        history.report(recovery(number, at=float(number), rows=100, state="done", end=number + 1.0), 1)
    history.report(recovery(1000, at=0.5), 1)  # runs for long: stays
    history.sync()
    other.sync()
    assert len(history.known) <= 40
    assert len((tmp_path / HISTORY_FILE).read_bytes()) < 400 * 400
    head = json.loads((tmp_path / HISTORY_FILE).read_bytes().splitlines()[0])
    assert head["type"] == "begin"
    fresh = History(tmp_path)
    assert told(fresh) == told(history) == told(other)
    assert recoveries(fresh) == recoveries(history)
    fresh.report(recovery(3, at=3.0, rows=100, state="done", end=4.0), 1)  # a node still tells of a forgotten one
    tell(fresh, "old", Mark("log:n1", [17.0]))
    assert told(fresh) == told(history)
    assert recoveries(fresh) == recoveries(history)
    tell(fresh, "new")
    assert told(history)[-1] == (401, "new")


def test_another_cluster_in_the_same_folder(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.belongs_to("one/1")
    history.report(recovery(), 1)
    tell(history, "a", Mark("node:n1", [5, 0]))
    history.belongs_to("two/2")
    tell(history, "b", Mark("node:n1", [1, 0]))
    assert recoveries(history) == []
    assert told(History(tmp_path)) == [(1, "a"), (2, "b")]
    assert recoveries(History(tmp_path)) == []


def test_without_the_lock_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, other = History(tmp_path), History(tmp_path)
    with other._lock.held():
        tell(history, "a")
        assert told(history) == []
    assert told(history) == [(1, "a")] == told(other)
    monkeypatch.setattr(module, "LOCK_PATIENCE_S", 0.0)
    with other._lock.held():  # it is stopped, for instance
        tell(history, "b")
        tell(history, "c")
        assert told(history) == [(1, "a"), (2, "b"), (3, "c")]
        assert "lock" in history.problem


def test_a_full_disk_costs_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path)
    tell(history, "a")
    real = module.os.write

    def full(file: int, data: bytes) -> int:
        real(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    tell(history, "b")
    assert told(history) == [(1, "a"), (2, "b")]
    assert "No space left" in history.problem
    monkeypatch.setattr(module.os, "write", real)
    tell(history, "c")
    assert told(history) == [(1, "a"), (2, "b"), (3, "c")]
    assert history.problem == ""
    assert told(History(tmp_path)) == [(1, "a"), (3, "c")]


def test_what_json_has_no_words_for_holds_nothing_else_up(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.note({"at": 1.0, "message": "odd", "details": {"key": b"\x00"}})
    tell(history, "even")
    assert told(history) == [(1, "odd"), (2, "even")]
    assert told(History(tmp_path)) == [(1, "odd"), (2, "even")]
