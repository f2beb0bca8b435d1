"""Processes forked by a nursery: their logs, their exit codes, and that they outlive it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ecstore.errors import UnavailableError
from ecstore.launcher.nursery import Nursery
from ecstore.launcher.processes import identify, is_running

PATIENCE_S = 60.0

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (answer := condition()) is None or answer is False:
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.01)
    return answer


def says(log: Path, words: str) -> bool:
    return log.exists() and words in log.read_text()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "nursery.log")
    yield made
    made.close()


def test_exit_codes_and_logs(nursery: Nursery, tmp_path: Path) -> None:
    fine = nursery.spawn(["--version"], tmp_path / "fine.log")
    wrong = nursery.spawn(["up", "--nodes", "0"], tmp_path / "wrong.log")
    usage = nursery.spawn(["nope"], tmp_path / "usage.log")
    long = nursery.spawn(["coordination", "--listen", "127.0.0.1:0"], tmp_path / "long.log")
    assert len({fine.pid, wrong.pid, usage.pid, long.pid}) == 4
    assert until(fine.poll, "an end") == 0
    assert until(wrong.poll, "an end") == 2
    assert until(usage.poll, "an end") == 2
    assert (tmp_path / "fine.log").read_text().startswith("ecstore ")
    assert "1 to 64" in (tmp_path / "wrong.log").read_text()
    until(lambda: says(tmp_path / "long.log", "listening"), "a service")
    assert long.poll() is None
    assert os.getsid(long.pid) == long.pid
    os.kill(long.pid, signal.SIGKILL)
    assert until(long.poll, "an end") == -signal.SIGKILL


def test_children_outlive_their_nursery_and_their_end_is_still_seen(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path / "nursery.log")
    child = nursery.spawn(["coordination", "--listen", "127.0.0.1:0"], tmp_path / "child.log")
    process = identify(child.pid)
    assert process is not None
    try:
        os.kill(nursery._process.pid, signal.SIGKILL)
        nursery._process.wait()
        assert child.poll() is None
        assert is_running(process)
        with pytest.raises(UnavailableError, match="starts nodes"):
            nursery.spawn(["--version"], tmp_path / "late.log")
    finally:
        os.kill(child.pid, signal.SIGKILL)
    until(lambda: not is_running(process), "the end of the child")
    nursery.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the system does not show command lines so")
def test_a_child_is_shown_as_what_it_is(nursery: Nursery, tmp_path: Path) -> None:
    child = nursery.spawn(["coordination", "--listen", "127.0.0.1:0"], tmp_path / "child.log")
    try:
        until(lambda: says(tmp_path / "child.log", "listening"), "a service")
        shown = Path(f"/proc/{child.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert shown[1:] == [b"-m", b"ecstore", b"coordination", b"--listen", b"127.0.0.1:0"]
    finally:
        os.kill(child.pid, signal.SIGKILL)
