"""Node processes that start at once: children of a process that has loaded everything a node needs.

A fresh interpreter takes a second of a core to import and to load the kernels, and six of them take six. A *nursery*
does it once and forks: a node is there some 20 ms after it was asked for, and its memory of code is shared. It is a
process of its own, with one thread and nothing open, because only such a one can be forked safely.

The nursery ends when its owner does; nodes go on then, as processes of their own sessions.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ecstore.errors import UnavailableError
from ecstore.launcher.processes import identify
from ecstore.threads import SINGLE_THREADED

#: Longest wait for a node: of the first one, until the nursery has loaded everything.
SPAWN_TIMEOUT_S: Final = 30.0

#: Bytes of one message, a JSON object and a line feed. A command line is far shorter.
_MAX_MESSAGE: Final = 1 << 16

#: Room in the nursery's own command line for that of a child.
_ROOM: Final = " " * 2000


class Child:
    """A node process: `pid`, and `poll` as of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code once it has ended (minus the signal that ended it); None before."""
        return self._nursery.exit_code(self.pid)


class Nursery:
    """Its owner's end. Made at once; ready a second later, which the first `spawn` waits for."""

    def __init__(self, log: Path) -> None:
        """`log`: where it writes what goes wrong."""
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), _ROOM],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[theirs.fileno()], env=os.environ | SINGLE_THREADED,
            )  # fmt: skip
        self._received = b""
        self._exited: dict[int, int] = {}

    def spawn(self, arguments: Sequence[str], log: Path) -> Child:
        """Start `ecstore` with these arguments in a session of its own, writing into `log`.

        Raises UnavailableError when the nursery has ended, or does not answer; another one may be made then.
        """
        order = json.dumps({"arguments": list(arguments), "log": str(log)}) + "\n"
        deadline = time.monotonic() + SPAWN_TIMEOUT_S
        try:
            self._socket.sendall(order.encode())
            while (left := deadline - time.monotonic()) > 0:
                for message in self._messages(left):
                    if "pid" in message:
                        return Child(self, int(message["pid"]))
            raise TimeoutError(f"nothing in {SPAWN_TIMEOUT_S:g} s")
        except OSError as error:
            raise UnavailableError(f"the process that starts nodes does not answer ({error}); see its log") from error

    def exit_code(self, pid: int) -> int | None:
        """Of a child that has ended; -1 when it has and nobody knows how."""
        if pid not in self._exited:
            try:
                self._messages(0.0)
            except OSError:  # the nursery has ended, and nobody waits for its children
                if identify(pid) is None:
                    self._exited[pid] = -1
        return self._exited.get(pid)

    def close(self) -> None:
        """End the nursery; its children go on."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _messages(self, timeout: float) -> list[dict[str, Any]]:
        """What has come, after at most `timeout` seconds; ends of children are noted. OSError when nothing will."""
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("it has ended")
        *lines, self._received = (self._received + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if "exited" in message:
                self._exited[message["exited"]] = message["code"]
            else:  # born: a former child of that number is not meant any more
                self._exited.pop(message["pid"], None)
        return messages


# -- the nursery itself -----------------------------------------------------------------------------------------


def _load() -> None:
    """Everything that a node imports, and every kernel."""
    from ecstore.warmup import warm_up

    warm_up()
    gc.collect()
    gc.freeze()  # collections of the children leave what they share alone


def _serve(owner: socket.socket) -> None:
    """Fork on demand, and say which children have ended, until the owner is gone."""
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(owner, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _events in selector.select()]
            if woken in ready:
                woken.recv(4096)
                _reap(owner)
            if owner in ready:
                data = owner.recv(_MAX_MESSAGE)
                if not data:
                    return
                *orders, received = (received + data).split(b"\n")
                for order in orders:
                    _bear(owner, json.loads(order), (owner, woken, wakes))


def _reap(owner: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(owner, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def _bear(owner: socket.socket, order: dict[str, Any], ours: Sequence[socket.socket]) -> None:
    pid = os.fork()
    if pid:
        _tell(owner, {"pid": pid})
        return
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        for each in ours:
            each.close()
        from ecstore.cli import main

        sys.argv = ["ecstore", *order["arguments"]]
        _call_yourself([sys.executable, "-m", *sys.argv])
        code = main(order["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call_yourself(command: Sequence[str]) -> None:
    """Be shown by `ps` as what we are, where the system keeps the command line in our memory and says where (Linux)."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, size = int(fields[45]), int(fields[46]) - int(fields[45])
    except (OSError, IndexError, ValueError):
        return
    if start and size > 1:
        text = b"\0".join(part.encode() for part in command)
        ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)


def _tell(owner: socket.socket, message: dict[str, Any]) -> None:
    owner.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _load()
        _serve(connection)
