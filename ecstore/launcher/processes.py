"""Processes of this machine: start them, know them again, end them, end with them.

A process is known by its number *and* its start time: numbers come again, and a wrong process must not be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ecstore.errors import ConfigError
from ecstore.threads import SINGLE_THREADED

#: Seconds between two looks whether a watched process is still there.
WATCH_PAUSE_S: Final = 0.2
#: A process that was told to end and has not after this time is ended by force.
GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, never to be mistaken for a later one with the same number."""

    pid: int
    started: str  #: as the system tells it; only compared


def identify(pid: int) -> ProcessId | None:
    """The running process with this number; None when there is none (or it has ended and waits to be reaped)."""
    return _from_proc(pid) if Path("/proc/self/stat").exists() else _from_ps(pid)


def _from_proc(pid: int) -> ProcessId | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X") and _threads(pid) <= 1:  # with more, it still holds its memory and its ports
        return None
    return ProcessId(pid, fields[19].decode())


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _from_ps(pid: int) -> ProcessId | None:
    """Where there is no /proc: macOS and the BSDs."""
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else ProcessId(pid, started.strip())


def is_running(process: ProcessId) -> bool:
    return identify(process.pid) == process


def is_stopped(process: ProcessId) -> bool:
    """Whether the process stands still by SIGSTOP; False where there is no /proc."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] == b"T" and fields[19].decode() == process.started


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone."""
    if not is_running(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process of its own session (Ctrl-C on the terminal does not reach it) that writes into `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | SINGLE_THREADED,
        )


def end(processes: Sequence[ProcessId], *, grace_s: float = GRACE_S) -> None:
    """SIGTERM to all, SIGKILL to those that are still there after `grace_s`; returns when all are gone."""
    left = [process for process in processes if send_signal(process, signal.SIGTERM)]
    left = _wait_gone(left, grace_s)
    for process in left:
        send_signal(process, signal.SIGKILL)
    _wait_gone(left, 5.0)


def _wait_gone(processes: Sequence[ProcessId], timeout_s: float) -> list[ProcessId]:
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if is_running(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if is_running(process)]
    return left


def exit_with(pid: int, stop: Callable[[], object], *, grace_s: float = 2 * GRACE_S) -> None:
    """Call `stop` once process `pid` has ended, from a thread; end this process by force after `grace_s` more.

    It works when the parent gets SIGKILL and when the event loop here hangs.
    """
    parent = identify(pid)

    def watch() -> None:
        while parent is not None and is_running(parent):
            time.sleep(WATCH_PAUSE_S)
        stop()
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="exit with parent", daemon=True).start()


def give_way(nice: int) -> None:
    """Let other processes of this machine go first: `nice` is 0 (an equal among them) to 19, as of nice(1).

    A share of a processor remains however busy the others are. Linux shares processors among sessions, if its
    autogroups are on, and niceness counts inside of one; the session of a process that leads one gets the same.
    """
    if not 0 <= nice <= 19:
        raise ConfigError(f"--nice is 0 to 19, not {nice}")
    if nice and hasattr(os, "nice"):
        os.nice(nice)
        if os.getsid(0) == os.getpid():
            threading.Thread(target=_weigh_session, args=(nice,), name="give way", daemon=True).start()


def _weigh_session(nice: int) -> None:
    """The kernel takes ten such wishes a second from all of a machine without privileges: nodes start more at once."""
    for _ in range(100):
        try:
            Path("/proc/self/autogroup").write_text(str(nice))
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:  # no autogroups here
            return
        else:
            return


def last_line(log: Path) -> str:
    """The last line that is not empty, for an error message; "" when there is none."""
    try:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip().removeprefix("ecstore: ") if lines else ""
