"""The node processes of this machine: started, watched, killed, started again, and known again after a restart.

What is wanted and what runs is kept in a state file in the run directory, written before anything is done. So a new
admin process finds the nodes that a former one started, by process number *and* start time, and goes on with them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ecstore.errors import UnavailableError
from ecstore.launcher.cluster import NODES_FILE
from ecstore.launcher.nodes import node_command
from ecstore.launcher.nursery import Child, Nursery
from ecstore.launcher.processes import ProcessId, end, identify, is_running, last_line, send_signal, spawn
from ecstore_admin.settings import AdminSettings

Wanted = Literal["up", "down"]
Outcome = Literal["killed", "already_down", "started", "already_up", "paused", "resumed"]
Report = Callable[[str, str, str], None]  # kind, node, message

#: Between two looks at the processes.
WATCH_PAUSE_S: Final = 0.1
#: A node that ended by itself is started again after this time: by then its peers have declared that life down. Each
#: further end in a row doubles it, up to the longest pause.
RESTART_PAUSE_S: Final = 3.0
LONGEST_RESTART_PAUSE_S: Final = 60.0
#: A node that has run this long begins anew with the shortest pause.
STABLE_AFTER_S: Final = 60.0
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
    child: subprocess.Popen[bytes] | Child | None = field(default=None, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    restarts_in_a_row: int = 0
    restart_at: float | None = None
    resume_at: float | None = None  #: end of a pause

    @property
    def process(self) -> ProcessId | None:
        return None if self.pid is None else ProcessId(self.pid, self.started)

    def running(self) -> bool:
        """Whether the process runs now; a child that has ended is reaped."""
        if self.child is not None:
            return self.child.poll() is None
        process = self.process
        return process is not None and is_running(process)


_STORED: Final = ("id", "address", "wanted", "pid", "started", "started_at", "starts", "exit_code", "exited_at")


class Supervisor:
    def __init__(self, settings: AdminSettings, report: Report, nursery: Nursery | None = None) -> None:
        """`nursery`: starts nodes faster than an interpreter for each; not needed."""
        self._settings = settings
        self._nursery = nursery
        self._report = report
        self._file = settings.run_dir / NODES_FILE
        self.nodes: dict[str, NodeProcess] = {}

    # -- state file -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Nodes of the settings, and what the state file knows of them and of others."""
        for name, address in self._settings.nodes.items():
            self.nodes[name] = NodeProcess(name, address)
        try:
            stored = json.loads(self._file.read_text())["nodes"]
            found = [NodeProcess(**{key: item[key] for key in _STORED}) for item in stored]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._report("state_unreadable", "", f"{self._file} does not parse ({error}); running nodes are not known")
            return
        for node in found:
            if node.id in self._settings.nodes and node.running():
                self.nodes[node.id] = node
                self._report("adopted", node.id, f"node {node.id} runs as process {node.pid} since before this service")
            elif node.id in self._settings.nodes:
                node.address, node.pid = self._settings.nodes[node.id], None
                self.nodes[node.id] = node

    def _save(self) -> None:
        stored = [_plain(node) for node in self.nodes.values()]
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps({"nodes": stored}, indent=1))
        draft.replace(self._file)

    # -- what is asked for ------------------------------------------------------------------------------

    def start_wanted(self) -> None:
        """Start every node that should run and does not."""
        for node in self.nodes.values():
            if node.wanted == "up" and not node.running():
                self._start(node)

    async def kill(self, node_id: str) -> Outcome:
        """SIGKILL; returns when the process is gone. It stays down until `recover`."""
        node = self.nodes[node_id]
        async with node.lock:
            node.wanted, node.restart_at = "down", None
            self._save()
            process = node.process
            if process is None or not node.running() or not send_signal(process, signal.SIGKILL):
                return "already_down"
            self._report("killed", node.id, f"node {node.id} (process {node.pid}) was killed on request")
            deadline = time.monotonic() + KILL_TIMEOUT_S
            while node.running() and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells us of an end
                await asyncio.sleep(0.002)
            self._ended(node)
            return "killed"

    async def recover(self, node_id: str) -> Outcome:
        """Start the node again, with its name and address, as a new incarnation; returns when its process runs."""
        node = self.nodes[node_id]
        async with node.lock:
            node.wanted, node.restart_at, node.restarts_in_a_row = "up", None, 0
            if node.running():
                self._save()
                return "already_up"
            self._start(node)
            return "started"

    async def pause(self, node_id: str, duration_s: float | None) -> Outcome:
        """SIGSTOP; for `duration_s` seconds, or until `resume`. A node that was declared down meanwhile joins again,
        empty, when it goes on."""
        node = self.nodes[node_id]
        async with node.lock:
            if node.process is None or not send_signal(node.process, signal.SIGSTOP):
                return "already_down"
            node.resume_at = None if duration_s is None else time.monotonic() + duration_s
            self._report("paused", node.id, f"node {node.id} (process {node.pid}) was paused on request")
            return "paused"

    async def resume(self, node_id: str) -> Outcome:
        """SIGCONT, whether this service has paused the node or somebody else."""
        node = self.nodes[node_id]
        async with node.lock:
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
        node.starts += 1
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
            for node in self.nodes.values():
                if not node.lock.locked():
                    self._look_at(node)

    def _look_at(self, node: NodeProcess) -> None:
        now = time.monotonic()
        if node.resume_at is not None and now >= node.resume_at:
            self._go_on(node)
        if node.pid is not None and node.exited_at is None and not node.running():
            self._ended(node)
            said = last_line(self._settings.run_dir / f"{node.id}.log")
            self._report("exited", node.id, f"node {node.id} ended by itself, exit code {node.exit_code}: {said}")
            if node.wanted == "up" and self._settings.restart_crashed:
                ran = time.time() - (node.started_at or 0.0)
                node.restarts_in_a_row = 0 if ran > STABLE_AFTER_S else node.restarts_in_a_row + 1
                pause = RESTART_PAUSE_S * 2 ** max(0, node.restarts_in_a_row - 1)
                node.restart_at = now + min(pause, LONGEST_RESTART_PAUSE_S)
        if node.restart_at is not None and now >= node.restart_at:
            self._start(node)

    def _ended(self, node: NodeProcess) -> None:
        if node.child is not None:
            node.exit_code = node.child.poll()
            node.child = None
        node.exited_at, node.resume_at = time.time(), None
        self._save()

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


def _plain(node: NodeProcess) -> dict[str, Any]:
    return {key: getattr(node, key) for key in _STORED}
