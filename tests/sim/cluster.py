"""The simulated cluster: one coordination service and some nodes, each a `Process` that runs the real code."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecstore.cluster.map import ClusterMap, parse_code
from ecstore.coordination import CoordinationService, EmbeddedCoordination
from ecstore.node.config import NodeConfig
from ecstore.node.runtime import Runtime
from ecstore.node.service import Node
from tests.sim.loop import VirtualLoop
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.settings import Settings
from tests.sim.watch import Watch

COORDINATION = "coord:7000"


@dataclass(slots=True)
class Host:
    """A machine with at most one node process. `port` changes when a restart shall look like another process."""

    name: str
    process: Process
    task: asyncio.Task[Any]
    port: int = 7001
    node: Node | None = None

    @property
    def runtime(self) -> Runtime | None:
        return self.process.runtime if self.process.state != "dead" else None


class SimCluster:
    def __init__(
        self, loop: VirtualLoop, network: Network, settings: Settings, watch: Watch, rng: random.Random, folder: Path
    ) -> None:
        self.loop, self.network, self.settings, self.watch = loop, network, settings, watch
        self._rng = rng
        self._state_file = folder / "map"
        self.hosts: dict[str, Host] = {}
        self.coordinator: Process | None = None
        self.service: CoordinationService
        self.lives = 0
        self.hurry_until = 0.0  # virtual time until which clients should not take their time
        self.lull_until = 0.0  # virtual time until which they should, after that

    # -- coordination service

    async def start_coordinator(self) -> None:
        self.network.back("coord")
        process = self.coordinator = Process(self.loop, "coord", "coord")
        await process.spawn(self._serve_coordination(), "coordination service")

    async def _serve_coordination(self) -> None:
        host, _, port = COORDINATION.partition(":")
        self.service = CoordinationService("sim", self.settings.seed, self._state_file, host, int(port))
        await self.service.start()

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        self.watch.say("kill the coordination service")
        self.watch.mark("the coordination service was down")
        self.coordinator.kill()
        self.network.died(self.coordinator, vanish=False)

    @property
    def map(self) -> ClusterMap:
        """The newest map that is in force."""
        return self.service.current

    # -- nodes

    def start_node(self, name: str, *, port: int | None = None) -> Host:
        """A new, empty life of node `name`."""
        former = self.hosts.get(name)
        assert former is None or former.process.state == "dead"
        self.lives += 1
        self.network.back(name)
        process = Process(self.loop, f"{name}#{self.lives}", name)
        listen = port or (former.port if former is not None else 7001)
        seed = self._rng.getrandbits(32)

        async def coordination(hello: Any) -> EmbeddedCoordination:
            made = EmbeddedCoordination(
                COORDINATION, hello, rng=random.Random(seed), heartbeat_s=self.settings.heartbeat_s
            )
            await made.start()
            return made

        config = NodeConfig(
            name=name, listen=f"{name}:{listen}", coordination=COORDINATION, cluster="sim",
            heartbeat_s=self.settings.heartbeat_s, suspect_after_s=self.settings.suspect_after_s,
            lease_s=self.settings.suspect_after_s, decode_bytes_per_s=self.settings.decode_bytes_per_s,
            lag_interval_s=1.0,
        )  # fmt: skip
        host = Host(name, process, process.spawn(self._run_node(process, config, coordination), "node"), listen)
        self.hosts[name] = host
        self.watch.say(f"start {process.name}")
        return host

    async def _run_node(self, process: Process, config: NodeConfig, coordination: Any) -> None:
        node = Node(config, coordination)
        try:
            await node.run()
        except BaseException as error:
            reasons = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
            self.watch.fail("exception", f"{process.name} ended: {', '.join(map(repr, reasons))}")
            raise

    def kill(self, name: str, *, vanish: bool = False) -> None:
        host = self.hosts[name]
        self.watch.say(f"kill {host.process.name}{' with its machine' if vanish else ''}")
        host.process.kill()
        self.network.died(host.process, vanish=vanish)

    async def until_up(self, names: list[str]) -> None:
        while not all(name in self.map.nodes and self.map.nodes[name].alive for name in names):
            await asyncio.sleep(0.05)

    def alive(self) -> list[str]:
        return [name for name, host in self.hosts.items() if host.process.state != "dead"]

    def runtimes(self) -> dict[str, Runtime]:
        """Those of nodes that are up in the map and run."""
        return {
            name: host.runtime
            for name, host in self.hosts.items()
            if host.process.running and host.runtime is not None and self.map.is_alive(name, host.runtime.incarnation)
        }

    def unsettled(self) -> bool:
        """Whether shards are being recovered or moved, or something is about to happen."""
        shards = (shard for group in self.map.groups if not group.lost for shard in group.shards)
        return self.loop.time() < self.hurry_until or any(s.state != "active" or s.joining is not None for s in shards)

    # -- what may be lost

    def could_lose(self, victims: set[str], suspects: set[str]) -> bool:
        """Whether every group survives when `victims` go, given that `suspects` may be gone any moment."""
        gone = victims | suspects | {name for name, host in self.hosts.items() if host.process.state == "dead"}
        for group in self.map.groups:
            if group.lost:
                continue
            code = parse_code(group.code)
            bad = 0
            for shard in group.shards:
                host = self.hosts.get(shard.owner)
                runtime = host.runtime if host is not None else None
                stale = runtime is None or runtime.incarnation != shard.incarnation
                bad += stale or shard.owner in gone or shard.state != "active"
            if bad > code.m:
                return False
        return True

    def missing(self) -> list[str]:
        """What the cluster still lacks to be clean; empty when it is."""
        found = []
        if self.coordinator is None or not self.coordinator.running:
            return ["the coordination service is down"]
        current = self.map
        for name, host in self.hosts.items():
            if host.process.state != "running":
                found.append(f"{name} is {host.process.state}")
            elif host.runtime is None or not current.is_alive(name, host.runtime.incarnation):
                found.append(f"{name} has not joined")
            elif host.runtime.map.epoch != current.epoch:
                found.append(f"{name} is at epoch {host.runtime.map.epoch}, not {current.epoch}")
        for group in current.groups:
            for shard in group.shards if not group.lost else ():
                if shard.state != "active":
                    found.append(f"group {group.gid} shard {shard.index} is {shard.state} on {shard.owner}")
                if shard.joining is not None:
                    found.append(f"group {group.gid} shard {shard.index} is moving to {shard.joining}")
        return found
