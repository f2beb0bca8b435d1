"""A cluster on this machine: a coordination service, an admin service, and the nodes that the admin starts.

    with local_cluster(nodes=6) as cluster:
        store = ecstore.connect(cluster.address)
        httpx.post(f"{cluster.admin_url}/nodes/n1/kill")

The process that starts it owns it: when it ends, even by SIGKILL, every process of the cluster ends, too. The
admin service supervises the nodes, and the launcher supervises the admin and the coordination service.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ecstore.errors import ConfigError, EcstoreError, UnavailableError
from ecstore.launcher.nodes import NICE_BESIDE_OTHERS, NodeSettings, node_addresses
from ecstore.launcher.ports import check_free, free_ports
from ecstore.launcher.processes import (
    WATCH_PAUSE_S,
    ProcessId,
    end,
    identify,
    is_running,
    last_line,
    send_signal,
    spawn,
)
from ecstore.transport import parse_address
from ecstore.warmup import warm_up_machine

logger = logging.getLogger(__name__)

#: Where the parts of a cluster keep their files inside of its run directory.
NODES_FILE: Final = "nodes.json"  #: written by the admin service
HISTORY_FILE: Final = "history.jsonl"  #: written by the admin service
STOPPING_FILE: Final = "stopping"  #: its presence tells the admin to end the nodes when it ends
OWNER_FILE: Final = "owner.json"  #: process that owns the cluster
MAP_FILE: Final = "map.json"  #: written by the coordination service

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What to start, and where. Raises ConfigError for what cannot be."""

    nodes: int = 6
    host: str = "127.0.0.1"
    #: Nodes listen on port_base, port_base + 1, ...; the coordination service on port_base - 1. None: free ports.
    port_base: int | None = None
    admin_port: int | None = None  #: None: a free port
    run_dir: Path | None = None  #: state and logs; None: a temporary folder that is removed at the end
    cluster: str | None = None  #: its name; None: "local-" and a random number
    seed: int | None = None  #: of the placement; None: at random
    settings: NodeSettings = field(default_factory=NodeSettings)
    restart_crashed: bool = True  #: start a node again that ended by itself (never one that was killed over REST)

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= 64:
            raise ConfigError(f"a one-machine cluster has 1 to 64 nodes, not {self.nodes}")
        if self.port_base is not None and not 1 < self.port_base <= 65_535 - self.nodes:
            raise ConfigError(f"--port-base {self.port_base} leaves no room for {self.nodes} nodes below port 65536")


class LocalCluster:
    """Use `local_cluster`, or `start` and, whatever happens, `stop`."""

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options if options is not None else ClusterOptions()
        self.addresses: dict[str, str] = {}  #: node -> "host:port"
        self.coordination = ""  #: "host:port" of the coordination service
        self.admin_url = ""
        self.run_dir = Path()
        self._temporary = False
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._stopping = threading.Event()
        self._supervisor: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Every node's address, for `ecstore.connect`."""
        return ",".join(self.addresses.values())

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers of "coordination" and "admin"."""
        return {name: child.pid for name, child in self._children.items()}

    # -- starting ---------------------------------------------------------------------------------------

    def start(self, progress: Callable[[str], None] = lambda line: None) -> None:
        """Start everything and return when every node is up. `progress` is told what is being waited for.

        Raises ConfigError (ports in use, a run directory in use), UnavailableError (a process did not start).
        """
        admin_address = self._choose_addresses()
        warm_up_machine(lambda: progress("compiling the kernels for this machine, once (some 30 s)"))
        self._make_run_dir()
        progress(f"starting {self.options.nodes} nodes, coordination and admin service")
        mine = str(os.getpid())
        cluster = self.options.cluster or f"local-{secrets.token_hex(4)}"
        self._commands["coordination"] = [
            sys.executable, "-m", "ecstore.coordination", f"--listen={self.coordination}",
            f"--state={self.run_dir / MAP_FILE}", f"--exit-with={mine}", f"--cluster={cluster}",
            *([] if self.options.seed is None else [f"--seed={self.options.seed}"]),
        ]  # fmt: skip
        self._commands["admin"] = [
            sys.executable, "-m", "ecstore", "admin", f"--listen={admin_address}", f"--run-dir={self.run_dir}",
            f"--coordination={self.coordination}", f"--exit-with={mine}", f"--cluster={cluster}",
            *self._node_settings().arguments(),
            *(f"--node={name}={address}" for name, address in self.addresses.items()),
            *([] if self.options.restart_crashed else ["--no-restart"]),
            *(["--remove-run-dir"] if self._temporary else []),
        ]  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        self._spawn("coordination")
        self._spawn("admin")  # at once: it loads for a second before it needs the other
        self._wait_for(lambda: _answers(self.coordination), deadline, "the coordination service", "coordination")
        self._wait_for(self._nodes_up, deadline, "the nodes", "admin")
        self._supervisor = threading.Thread(target=self._supervise, name="ecstore launcher", daemon=True)
        self._supervisor.start()

    def _node_settings(self) -> NodeSettings:
        chosen = self.options.settings
        return chosen if chosen.nice is not None else replace(chosen, nice=NICE_BESIDE_OTHERS)

    def _choose_addresses(self) -> str:
        """Ports of everything, checked; the address of the admin service."""
        options = self.options
        count = options.nodes
        if options.port_base is None:
            *ports, coordination_port, free = free_ports(count + 2, options.host)
        else:
            ports, coordination_port = [options.port_base + n for n in range(count)], options.port_base - 1
            free = free_ports(1, options.host)[0]
        self.addresses = node_addresses(count, options.host, ports)
        self.coordination = f"{options.host}:{coordination_port}"
        admin_address = f"{options.host}:{free if options.admin_port is None else options.admin_port}"
        check_free([*self.addresses.values(), self.coordination, admin_address])
        self.admin_url = f"http://{admin_address}"
        return admin_address

    def _make_run_dir(self) -> None:
        if self.options.run_dir is None:
            self.run_dir, self._temporary = Path(tempfile.mkdtemp(prefix="ecstore-")), True
        else:
            self.run_dir = self.options.run_dir.resolve()
            try:
                self.run_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cannot use {self.run_dir} as run directory: {error.strerror}") from error
        owner = _read_owner(self.run_dir)
        if owner is not None and is_running(owner):
            raise ConfigError(f"{self.run_dir} belongs to a running cluster (process {owner.pid}); choose another one")
        for name in (
            NODES_FILE,
            HISTORY_FILE,
            STOPPING_FILE,
            MAP_FILE,
        ):  # rows live in memory: a former cluster's map is of no use
            (self.run_dir / name).unlink(missing_ok=True)
        me = identify(os.getpid())
        assert me is not None
        (self.run_dir / OWNER_FILE).write_text(json.dumps({"pid": me.pid, "started": me.started}))

    def _spawn(self, name: str) -> None:
        self._children[name] = spawn(self._commands[name], self.log(name))

    def log(self, process: str) -> Path:
        """Log file of "coordination", "admin" or a node."""
        return self.run_dir / f"{process}.log"

    def _wait_for(self, ready: Callable[[], bool], deadline: float, what: str, process: str) -> None:
        while not ready():
            code = self._children[process].poll()
            if code is not None:
                problem = ConfigError if code == 2 else UnavailableError
                raise problem(last_line(self.log(process)) or f"the {process} service ended with exit code {code}")
            if time.monotonic() > deadline:
                logs = {file.stem: last_line(file) for file in sorted(self.run_dir.glob("*.log"))}
                said = "; ".join(f"{name}: {line}" for name, line in logs.items() if line)
                raise UnavailableError(
                    f"{what} did not start within {START_TIMEOUT_S:g} s. Last lines of the logs: {said}"
                )
            time.sleep(0.05)

    def _nodes_up(self) -> bool:
        """True when the map has every node up. Raises the error of a node that could not start."""
        answer = get_json(f"{self.admin_url}/nodes", timeout=2.0)
        if answer is None:
            return False
        for node in answer["nodes"]:
            if node["process"] == "exited" and node["exit_code"] is not None:
                problem = ConfigError if node["exit_code"] == 2 else UnavailableError
                said = last_line(self.log(node["id"])) or f"exit code {node['exit_code']}"
                raise problem(f"node {node['id']} could not start: {said}")
        return len([node for node in answer["nodes"] if node["state"] == "up"]) >= self.options.nodes

    # -- while it runs ----------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Start the admin or the coordination service again when it has ended; they go on where they were."""
        pause = WATCH_PAUSE_S
        while not self._stopping.wait(pause):
            for name, child in list(self._children.items()):
                if child.poll() is not None and not self._stopping.is_set():
                    logger.warning("the %s service ended with exit code %s; starting it again", name, child.returncode)
                    pause = min(2 * pause, 5.0)
                    self._spawn(name)

    # -- ending -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every process and remove the temporary folder. Returns within some 3 s; may be called twice."""
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
        if self.run_dir == Path():
            return
        if self.run_dir.is_dir():
            (self.run_dir / STOPPING_FILE).touch()
        for child in self._children.values():
            found = identify(child.pid) if child.poll() is None else None
            if found is not None:
                send_signal(found, signal.SIGTERM)
        for child in reversed(self._children.values()):  # the admin, which ends the nodes, before the coordination
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()
        end(node_processes(self.run_dir), grace_s=0.0)  # none, unless the admin was gone
        if self._temporary:
            shutil.rmtree(self.run_dir, ignore_errors=True)
        else:
            (self.run_dir / OWNER_FILE).unlink(missing_ok=True)
        self.run_dir = Path()


@contextmanager
def local_cluster(
    nodes: int = 6,
    *,
    options: ClusterOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[LocalCluster]:
    """A running cluster of `nodes` node processes (or of `options`), ended with the block."""
    cluster = LocalCluster(options if options is not None else ClusterOptions(nodes=nodes))
    try:
        cluster.start(progress)
        yield cluster
    finally:
        cluster.stop()


def node_processes(run_dir: Path) -> Sequence[ProcessId]:
    """The node processes that the admin service of this run directory has started, ended ones included."""
    try:
        state = json.loads((run_dir / NODES_FILE).read_text())
        return [ProcessId(node["pid"], node["started"]) for node in state["nodes"] if node["pid"] is not None]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def get_json(url: str, *, timeout: float) -> Any | None:
    """The answer to a GET of the admin service; None when there is none (yet)."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=admin_headers()), timeout=timeout) as answer:
            return json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None


def admin_headers() -> dict[str, str]:
    """What the admin service asks for: the token of the environment, from which it has its own, too."""
    token = os.environ.get("ECSTORE_ADMIN_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _answers(address: str) -> bool:
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def _read_owner(run_dir: Path) -> ProcessId | None:
    try:
        owner = json.loads((run_dir / OWNER_FILE).read_text())
        return ProcessId(int(owner["pid"]), str(owner["started"]))
    except (OSError, ValueError, KeyError, TypeError, EcstoreError):
        return None
