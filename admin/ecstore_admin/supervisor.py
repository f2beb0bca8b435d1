"""The node processes of this machine: started, watched, killed, started again, and known again after a restart.

What is wanted and what runs is kept in a state file in the run directory, written before anything is done. So a new
admin process finds the nodes that a former one started, by process number *and* start time, and goes on with them.

Several services may share the directory. Rule 1: the file is changed under its lock, after it has been read again. So
each does what it is asked for, whoever started the node. Rule 2: only the one that holds the supervisor's lock starts
nodes again that ended by themselves, and ends pauses; when it dies, another one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ecstore.errors import CapacityError, ConfigError, EcstoreError, UnavailableError
from ecstore.launcher.cluster import NODES_FILE
from ecstore.launcher.nodes import node_command
from ecstore.launcher.nursery import Child, Nursery
from ecstore.launcher.processes import (
    ProcessId,
    end,
    identify,
    is_running,
    is_stopped,
    last_line,
    send_signal,
    spawn,
)
from ecstore_admin.locking import TIMEOUT_S, FileLock
from ecstore_admin.settings import AdminSettings

logger = logging.getLogger(__name__)

#: `drained`: it runs until it ends, and is not started again.
Wanted = Literal["up", "down", "drained"]
Outcome = Literal["killed", "already_down", "started", "already_up", "paused", "resumed"]
Report = Callable[[str, str, str], None]  # kind, node, message

#: Between two looks at the processes.
WATCH_PAUSE_S: Final = 0.1
#: A node that ended by itself is started again after this time: by then its peers have declared that life down. Each
#: further end in a row doubles it, up to the longest pause.
RESTART_PAUSE_S: Final = 3.0
#: What is only watched for waits so long for the state file: the next look tries again, and everybody else is served.
BRIEF_S: Final = 0.02
LONGEST_RESTART_PAUSE_S: Final = 60.0
#: A node that has run this long begins anew with the shortest pause.
STABLE_AFTER_S: Final = 60.0
#: Most nodes of one service.
MAX_NODES: Final = 64
#: After SIGKILL the kernel ends a process within milliseconds.
KILL_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class NodeProcess:
    """One node of this machine. The first fields are what the state file holds."""

    id: str
    address: str
    wanted: Wanted = "up"
    pid: int | None = None
    started: str = ""  #: with `pid`, the identity of the process
    started_at: float | None = None  #: unix seconds
    starts: int = 0
    exit_code: int | None = None  #: of the last process that ended; None: running, or it was not our child
    exited_at: float | None = None
    resume_at: float | None = None  #: end of a pause, unix seconds
    added: bool = False  #: by `add`: not in the settings
    child: subprocess.Popen[bytes] | Child | None = field(default=None, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    restarts_in_a_row: int = 0
    restart_at: float | None = None

    @property
    def process(self) -> ProcessId | None:
        return None if self.pid is None else ProcessId(self.pid, self.started)

    def running(self) -> bool:
        """Whether the process runs now; a child that has ended is reaped."""
        if self.child is not None:
            return self.child.poll() is None
        process = self.process
        return process is not None and is_running(process)

    def paused(self) -> bool:
        return self.process is not None and is_stopped(self.process)


_STORED: Final = (
    "id", "address", "wanted", "pid", "started", "started_at", "starts", "exit_code", "exited_at", "resume_at", "added",
)  # fmt: skip


class Supervisor:
    def __init__(self, settings: AdminSettings, report: Report, nursery: Nursery | None = None) -> None:
        """`nursery`: starts nodes faster than an interpreter for each; not needed."""
        self._settings = settings
        self._nursery = nursery
        self._report = report
        self._file = settings.run_dir / NODES_FILE
        self._lock = FileLock(settings.run_dir / "nodes.lock")
        self._office = FileLock(settings.run_dir / "supervisor.lock")
        self._in_office = False
        self._read: tuple[int, int] | None = None  #: inode and time of the state file as it was read or written last
        self._foreign: list[dict[str, Any]] = []  #: in the file, and not ours
        self.nodes: dict[str, NodeProcess] = {}
        self.problem = ""  #: why the processes are not watched; "" when all is well

    # -- state file -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Nodes of the settings, and what the state file knows of them, and nodes that were added later."""
        for name, address in self._settings.nodes.items():
            self.nodes[name] = NodeProcess(name, address)
        self._reload(first=True)
        for node in self.nodes.values():
            if node.running():
                self._report("adopted", node.id, f"node {node.id} runs as process {node.pid} since before this service")

    def _reload(self, *, first: bool = False) -> None:
        """Take what others have written since. What does not parse is as if it was not there."""
        try:
            status = self._file.stat()
            place = (status.st_ino, status.st_mtime_ns)
            if place == self._read:
                return
            stored = json.loads(self._file.read_text())["nodes"]
            found = [NodeProcess(**{key: item.get(key, False) for key in _STORED}) for item in stored]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if first:
                text = f"{self._file} does not parse ({error}); running nodes are not known"
                self._report("state_unreadable", "", text)
            return
        self._read = place
        self._foreign = []
        for node, item in zip(found, stored, strict=True):
            if node.id in self.nodes:
                self._take(self.nodes[node.id], node, first=first)
            elif node.added:
                self.nodes[node.id] = node
            else:
                self._foreign.append(item)

    def _take(self, ours: NodeProcess, stored: NodeProcess, *, first: bool) -> None:
        if ours.child is not None and ours.process != stored.process:
            ours.child.poll()  # it has ended: somebody else has started the node again
            ours.child = None
        address = ours.address
        for key in _STORED:
            setattr(ours, key, getattr(stored, key))
        if first and not ours.running() and not ours.added:
            ours.address, ours.pid = address, None  # the settings may have changed

    def _save(self) -> None:
        stored = [*(_plain(node) for node in self.nodes.values()), *self._foreign]
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps({"nodes": stored}, indent=1))
        draft.replace(self._file)
        status = self._file.stat()
        self._read = (status.st_ino, status.st_mtime_ns)

    @contextlib.contextmanager
    def _changing(self, patience_s: float = TIMEOUT_S) -> Iterator[None]:
        """For a block without an await that changes what the state file holds. UnavailableError when it is not free."""
        with self._lock.held(patience_s):
            self._reload()
            yield
            self._save()

    # -- what is asked for ------------------------------------------------------------------------------

    def start_wanted(self) -> None:
        """Start every node that should run and does not."""
        with self._changing():
            for node in self.nodes.values():
                if node.wanted == "up" and not node.running():
                    self._start(node)

    def add(self, name: str, address: str) -> NodeProcess:
        """Start a node that was not there; it stays, also for later services. ConfigError, CapacityError."""
        with self._changing():
            if name in self.nodes:
                raise ConfigError(f"node {name} is there already, at {self.nodes[name].address}; choose another id")
            if len(self.nodes) >= MAX_NODES:
                raise CapacityError(f"this service runs {MAX_NODES} nodes, its bound; add the node on another machine")
            node = self.nodes[name] = NodeProcess(name, address, added=True)
            try:
                self._save()  # a process that could not be written down would be nobody's
                self._start(node)
            except BaseException:
                del self.nodes[name]
                raise
            return node

    async def kill(self, node_id: str) -> Outcome:
        """SIGKILL; returns when the process is gone. It stays down until `recover`."""
        node = self.nodes[node_id]
        async with node.lock:
            with self._changing():
                node.wanted, node.restart_at, node.resume_at = "down", None, None
                process = node.process
            if process is None or not node.running() or not send_signal(process, signal.SIGKILL):
                return "already_down"
            self._report("killed", node.id, f"node {node.id} (process {node.pid}) was killed on request")
            deadline = time.monotonic() + KILL_TIMEOUT_S
            while (is_running(process) or _not_reaped(node)) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.002)  # nobody tells us of an end
            with self._changing():
                if node.process == process:
                    self._ended(node)
            return "killed"

    async def recover(self, node_id: str) -> Outcome:
        """Start the node again, with its name and address, as a new incarnation; returns when its process runs."""
        node = self.nodes[node_id]
        async with node.lock:
            with self._changing():
                if node.running():
                    if node.wanted == "down":
                        node.wanted = "up"
                    return "already_up"
                node.wanted, node.restart_at, node.restarts_in_a_row = "up", None, 0
                self._start(node)
                return "started"

    async def retire(self, node_id: str) -> None:
        """The node is being emptied: should it end, it stays down until `recover`."""
        node = self.nodes[node_id]
        async with node.lock:
            with self._changing():
                if node.wanted == "up":
                    node.wanted, node.restart_at = "drained", None

    async def pause(self, node_id: str, duration_s: float | None) -> Outcome:
        """SIGSTOP; for `duration_s` seconds, or until `resume`. A node that was declared down meanwhile joins again,
        empty, when it goes on."""
        node = self.nodes[node_id]
        async with node.lock:
            with self._changing():
                if node.process is None or not send_signal(node.process, signal.SIGSTOP):
                    return "already_down"
                node.resume_at = None if duration_s is None else time.time() + duration_s
            self._report("paused", node.id, f"node {node.id} (process {node.pid}) was paused on request")
            return "paused"

    async def resume(self, node_id: str) -> Outcome:
        """SIGCONT, whether this service has paused the node or somebody else."""
        node = self.nodes[node_id]
        async with node.lock:
            with self._changing():
                return self._go_on(node)

    def _go_on(self, node: NodeProcess) -> Outcome:
        node.resume_at = None
        if node.process is None or not send_signal(node.process, signal.SIGCONT):
            return "already_down"
        self._report("resumed", node.id, f"node {node.id} (process {node.pid}) goes on")
        return "resumed"

    def _start(self, node: NodeProcess) -> None:
        settings = self._settings
        command = node_command(
            node.id,
            node.address,
            settings.coordination,
            settings.node_settings,
            cluster=settings.cluster,
            exit_with=settings.exit_with,
        )
        node.child = self._spawn(command, settings.run_dir / f"{node.id}.log")
        found = identify(node.child.pid)
        node.pid, node.started = node.child.pid, found.started if found is not None else ""
        node.started_at, node.exit_code, node.exited_at, node.restart_at = time.time(), None, None, None
        node.starts, node.resume_at = node.starts + 1, None
        self._save()
        self._report("started", node.id, f"node {node.id} was started as process {node.pid}")

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes] | Child:
        if self._nursery is not None:
            try:
                return self._nursery.spawn(command[command.index("ecstore") + 1 :], log)
            except UnavailableError as error:
                self._report("nursery_lost", "", f"{error}; from now on every node has an interpreter of its own")
                self._nursery.close()  # else it might still carry out the order, beside the process started here
                self._nursery = None
        return spawn(command, log)

    # -- watching ---------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Notice ends, and start nodes again that ended by themselves. Runs until cancelled."""
        while True:
            await asyncio.sleep(WATCH_PAUSE_S)
            try:
                self._look()
            except (OSError, EcstoreError) as error:  # the next look tries again
                if str(error) != self.problem:
                    logger.warning("the nodes of %s are not watched: %s", self._settings.run_dir, error)
                self.problem = str(error)
            else:
                self.problem = ""

    def _look(self) -> None:
        self._reload()
        if not self._in_office and self._office.try_acquire():
            self._in_office = True
            self._take_office()
        for node in list(self.nodes.values()):
            if node.lock.locked():
                continue
            if node.child is not None and node.exited_at is not None and not _not_reaped(node):
                self._learn_exit_code(node)
            if self._in_office:
                self._look_at(node)

    def _take_office(self) -> None:
        """Whoever was here before may have died before he started a node again."""
        for node in self.nodes.values():
            if node.wanted == "up" and node.exited_at is not None and self._settings.restart_crashed:
                node.restart_at = time.monotonic() + RESTART_PAUSE_S

    def _learn_exit_code(self, node: NodeProcess) -> None:
        """Another service has seen the end of our child first; only we know how it ended."""
        assert node.child is not None
        code, node.child = node.child.poll(), None
        with self._changing(BRIEF_S):
            node.exit_code = code

    def _look_at(self, node: NodeProcess) -> None:
        now = time.monotonic()
        if node.resume_at is not None and time.time() >= node.resume_at:
            with self._changing(BRIEF_S):
                self._go_on(node)
        if node.pid is not None and node.exited_at is None and not node.running():
            with self._changing(BRIEF_S):
                if node.exited_at is None and not node.running():
                    self._ended(node)
                    self._ended_by_itself(node, now)
        if node.restart_at is not None and now >= node.restart_at:
            with self._changing(BRIEF_S):
                wanted = node.wanted == "up" and not node.running()
                node.restart_at = now + RESTART_PAUSE_S if wanted else None  # should it not even start: once more
                if wanted:
                    self._start(node)

    def _ended_by_itself(self, node: NodeProcess, now: float) -> None:
        if node.wanted == "down":
            return  # another service was asked to kill it
        said = last_line(self._settings.run_dir / f"{node.id}.log")
        code = "unknown" if node.exit_code is None else node.exit_code
        self._report("exited", node.id, f"node {node.id} ended by itself, exit code {code}: {said}")
        if node.wanted == "up" and self._settings.restart_crashed:
            ran = time.time() - (node.started_at or 0.0)
            node.restarts_in_a_row = 0 if ran > STABLE_AFTER_S else node.restarts_in_a_row + 1
            pause = RESTART_PAUSE_S * 2 ** max(0, node.restarts_in_a_row - 1)
            node.restart_at = now + min(pause, LONGEST_RESTART_PAUSE_S)

    def _ended(self, node: NodeProcess) -> None:
        if node.child is not None:
            node.exit_code = node.child.poll()
            node.child = None
        node.exited_at, node.resume_at = node.exited_at or time.time(), None

    def end_all(self) -> None:
        """End every node process; for the end of the cluster."""
        running = [node.process for node in self.nodes.values() if node.process is not None and node.running()]
        for process in running:
            if process is not None:
                send_signal(process, signal.SIGCONT)  # a paused one could not end in order
        end([process for process in running if process is not None], grace_s=0.5)
        for node in self.nodes.values():
            if node.child is not None:
                node.child.poll()


def _not_reaped(node: NodeProcess) -> bool:
    """Whether it is our child, and nobody has told us yet how it ended."""
    return node.child is not None and node.child.poll() is None


def _plain(node: NodeProcess) -> dict[str, Any]:
    return {key: getattr(node, key) for key in _STORED}
