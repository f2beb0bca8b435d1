"""A cluster of real processes for tests: started, killed, paused and started again one by one, without a supervisor.

What a test does to a process is then all that happens to it: nobody starts a node again behind its back.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ecstore
from ecstore.cluster.map import ClusterMap, parse_code
from ecstore.errors import EcstoreError
from ecstore.hashing import shard_of
from ecstore.launcher.nodes import NodeSettings, node_command
from ecstore.launcher.ports import free_ports
from ecstore.launcher.processes import spawn
from ecstore.warmup import warm_up_machine

#: Hang guard of every wait: far beyond what a slow machine needs.
PATIENCE_S = 60.0


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `condition`; AssertionError when there is none within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(0.02)


class NodeProcesses:
    """`count` nodes n1, n2, ... and a coordination service, in a folder for their logs. Use it as a context manager."""

    def __init__(self, folder: Path, count: int, settings: NodeSettings | None = None, *, seed: int = 7) -> None:
        self.cluster = f"test-{secrets.token_hex(4)}"
        self.folder = folder
        self._settings = settings if settings is not None else NodeSettings()
        self._seed = seed
        coordination_port, *ports = free_ports(count + 1)
        self.coordination = f"127.0.0.1:{coordination_port}"
        self.addresses = {f"n{number + 1}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def running(self) -> list[str]:
        """Nodes whose process runs; a paused one does."""
        return sorted(name for name in self.addresses if name in self._children and self.pid(name))

    def pid(self, name: str) -> int | None:
        """Process number of a node; None when it has ended."""
        child = self._children[name]
        return child.pid if child.poll() is None else None

    def __enter__(self) -> NodeProcesses:
        warm_up_machine()
        me = os.getpid()
        try:
            self._children["coordination"] = spawn(
                [
                    sys.executable, "-m", "ecstore.coordination", f"--listen={self.coordination}",
                    f"--cluster={self.cluster}", f"--seed={self._seed}", f"--exit-with={me}",
                ],
                self.folder / "coordination.log",
            )  # fmt: skip
            self.start(*self.addresses)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()

    def start(self, *names: str) -> None:
        """Start nodes and return when the map has them all up, as lives it has not had before."""
        for name in names:
            command = node_command(
                name,
                self.addresses[name],
                self.coordination,
                self._settings,
                cluster=self.cluster,
                exit_with=os.getpid(),
            )
            self._children[name] = spawn(command, self.folder / f"{name}.log")
        until(lambda: self._answering(names), f"nodes {names} to join (logs in {self.folder})")

    def _answering(self, names: tuple[str, ...]) -> bool:
        for name in names:
            assert self.pid(name), f"node {name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        try:
            with ecstore.connect(self.address, timeout=5.0) as store:
                nodes = store.status()["nodes"]
        except EcstoreError:
            return False
        told = [(nodes[name]["statistics"] or {}).get("pid") if name in nodes else None for name in names]
        return told == [self.pid(name) for name in names]

    def kill(self, *names: str) -> None:
        """SIGKILL, all within a moment; returns when the processes are gone."""
        for name in names:
            self._children[name].kill()
        for name in names:
            self._children[name].wait()

    def pause(self, name: str) -> None:
        os.kill(self._children[name].pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self._children[name].pid, signal.SIGCONT)

    def rss_bytes(self, name: str) -> int:
        """Resident memory of a node, also of a paused one."""
        shown = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.pid(name))], capture_output=True, text=True, check=True
        ).stdout
        return 1024 * int(shown)


def newest_map(store: ecstore.Store) -> ClusterMap:
    """The map as a node knows it now, not as this client last heard of it."""
    store.tables()
    return store.cluster_map


def tolerated(cluster_map: ClusterMap, code: str) -> int:
    """How many nodes may be lost at once without a loss in any group of a code."""
    return min(cluster_map.losses_tolerated(group) for group in cluster_map.groups_of(code))


def until_active(store: ecstore.Store, code: str) -> None:
    """Wait until every shard of a code is whole; two of a group may be on one node where there are too few nodes."""

    def active() -> bool:
        groups = newest_map(store).groups_of(code)
        return all(shard.state == "active" for group in groups for shard in group.shards)

    until(active, f"all shards of {code} to be active")


def until_settled(store: ecstore.Store, code: str) -> None:
    """Wait until every group of a code has all its shards on distinct nodes, and none is moving."""

    def settled() -> bool:
        current = newest_map(store)
        groups = current.groups_of(code)
        moving = any(shard.joining is not None for group in groups for shard in group.shards)
        return not moving and all(current.group_state(group) == "ok" for group in groups)

    until(settled, f"all groups of {code} to have all their shards in place")


def places(cluster_map: ClusterMap, code: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group id and data shard index of each key (uint64 (n,)), by the documented routing rule."""
    groups, k = cluster_map.groups_of(code), parse_code(code).k
    number = shard_of(np.asarray(keys, np.uint64), cluster_map.seed, len(groups) * k).astype(np.int64)
    return np.array([group.gid for group in groups])[number // k], number % k


def keys_owned_by(cluster_map: ClusterMap, code: str, node: str, keys: np.ndarray) -> np.ndarray:
    """Those of `keys` whose data shard is on `node`."""
    gids, indexes = places(cluster_map, code, keys)
    owners = [
        cluster_map.groups[gid].shards[index].owner == node
        for gid, index in zip(gids.tolist(), indexes.tolist(), strict=True)
    ]
    return np.asarray(keys, np.uint64)[np.array(owners, np.bool_)]
