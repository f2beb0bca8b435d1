"""What goes wrong: a random sequence of faults, bounded by what the code must survive."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from ecstore.cluster.transitions import Drain
from ecstore.errors import ConfigError
from tests.sim.cluster import SimCluster
from tests.sim.network import Network
from tests.sim.watch import Watch

#: A node that was cut off, paused or slow may still be declared down so long after it is well again.
AFTERMATH_S = 4.0


class Faults:
    """`run` injects faults until `seconds` have passed; `heal` ends all of them."""

    def __init__(self, cluster: SimCluster, watch: Watch, rng: random.Random) -> None:
        self._cluster, self._watch, self._rng = cluster, watch, rng
        self._network: Network = cluster.network
        self._loop = cluster.loop
        #: Nodes that may be declared down: name -> loop time until which.
        self._suspect_until: dict[str, float] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._drained: set[str] = set()

    async def run(self, seconds: float) -> None:
        end = self._loop.time() + seconds
        actions: list[tuple[int, Callable[[], Awaitable[None] | None]]] = [
            (14, self._kill), (5, self._kill_behind_slow_links), (5, self._kill_together),
            (8, self._kill_recovering), (10, self._restart), (7, self._pause), (4, self._block), (3, self._slow_node),
            (10, self._partition), (4, self._quarrel), (5, self._isolate), (4, self._mute), (6, self._delay),
            (8, self._cut), (4, self._lossy), (4, self._damage), (3, self._kill_coordinator),
            (3, self._cut_off_from_coordinator), (3, self._drain), (3, self._add_node),
        ]  # fmt: skip
        weights = [weight * self._rng.choice((0, 1, 1, 2)) for weight, _action in actions]
        if not any(weights):
            weights = [weight for weight, _action in actions]
        while self._loop.time() < end:
            await asyncio.sleep(self._rng.choice((0.02, 0.1, 0.3, 1.0)) * self._rng.random() * 2)
            action = self._rng.choices([action for _weight, action in actions], weights)[0]
            outcome = action()
            if outcome is not None:
                await outcome

    # -- book-keeping

    @property
    def suspects(self) -> set[str]:
        now = self._loop.time()
        return {name for name, until in self._suspect_until.items() if until > now}

    def _suspect(self, names: list[str], seconds: float) -> None:
        for name in names:
            until = self._loop.time() + seconds + AFTERMATH_S
            self._suspect_until[name] = max(until, self._suspect_until.get(name, 0.0))

    def _may_lose(self, *victims: str) -> bool:
        return self._cluster.settings.beyond or self._cluster.could_lose(set(victims), self.suspects)

    def _well(self) -> list[str]:
        """Nodes to which nothing is being done."""
        return [n for n, host in self._cluster.hosts.items() if host.process.running and n not in self.suspects]

    def _pick(self) -> str | None:
        well = self._well()
        return self._rng.choice(well) if well else None

    def _for_a_while(self, seconds: float, end: Callable[[], None]) -> None:
        self._number += 1
        number = self._number
        self._ends[number] = end

        def over() -> None:
            if self._ends.pop(number, None) is not None:
                end()

        self._loop.call_later(seconds, over)

    def heal(self) -> None:
        """End all faults, start what is dead."""
        self._watch.say("heal everything")
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end()
        for name, host in self._cluster.hosts.items():
            if host.process.state == "dead":
                self._cluster.start_node(name)
            host.process.callback_s = 0.0

    # -- processes

    def _kill(self) -> None:
        victim = self._pick()
        struck = [n for n, host in self._cluster.hosts.items() if host.process.state != "dead" and n in self.suspects]
        if struck and self._rng.random() < 0.5:  # what it has not sent for a partition is lost with it
            victim = self._rng.choice(struck)
        if victim is not None and self._may_lose(victim):
            self._cluster.kill(victim, vanish=self._rng.random() < 0.5)

    async def _kill_behind_slow_links(self) -> None:
        """What a node has sent to its peers comes late; then its machine is gone, and with it what was on its way."""
        victim = self._pick()
        if victim is None or not self._may_lose(victim):
            return
        ways = [(victim, other) for other in self._cluster.hosts if other != victim and self._rng.random() < 0.7]
        for way in ways:
            self._network.slow[way] = self._rng.choice((0.05, 0.15))
        self._for_a_while(1.0, lambda: [self._network.slow.pop(way, None) for way in ways] and None)
        self._cluster.hurry_until = self._loop.time() + 0.5
        await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        if self._cluster.hosts[victim].process.running and self._may_lose(victim):
            self._cluster.kill(victim, vanish=True)

    def _kill_together(self) -> None:
        well = self._well()
        self._rng.shuffle(well)
        victims = well[: self._rng.choice((2, 2, 3))]
        if len(victims) > 1 and self._may_lose(*victims):
            for victim in victims:
                self._cluster.kill(victim, vanish=self._rng.random() < 0.25)

    def _kill_recovering(self) -> None:
        """Whoever is rebuilding a shard at this moment, or is asked for it."""
        busy = sorted(
            {s.owner for g in self._cluster.map.groups if not g.lost for s in g.shards if s.state != "active"}
            | {s.joining for g in self._cluster.map.groups if not g.lost for s in g.shards if s.joining is not None}
        )
        well = [name for name in busy if name in self._well()]
        if well:
            victim = self._rng.choice(well)
            if self._may_lose(victim):
                self._watch.mark("killed while it recovered a shard")
                self._cluster.kill(victim)

    def _restart(self) -> None:
        dead = [n for n, host in self._cluster.hosts.items() if host.process.state == "dead"]
        if dead:
            name = self._rng.choice(dead)
            port = self._cluster.hosts[name].port + (1 if self._rng.random() < 0.3 else 0)
            self._cluster.start_node(name, port=port)

    def _pause(self) -> None:
        name = self._pick()
        if name is None or not self._may_lose(name):
            return
        seconds = self._rng.choice((0.3, 0.9, 1.2, 3.5, 6.0))
        process = self._cluster.hosts[name].process
        self._watch.say(f"pause {process.name} for {seconds} s")
        self._suspect([name], seconds)
        process.pause()
        self._for_a_while(seconds, process.resume)

    def _block(self) -> None:
        name = self._pick()
        if name is not None and self._may_lose(name):
            seconds = self._rng.choice((0.2, 0.8, 1.5))
            self._watch.say(f"block the loop of {name} for {seconds} s")
            self._suspect([name], seconds)
            self._cluster.hosts[name].process.block(seconds)

    def _slow_node(self) -> None:
        name = self._pick()
        if name is not None and self._may_lose(name):
            process, seconds = self._cluster.hosts[name].process, self._rng.choice((1.0, 3.0))
            self._watch.say(f"slow down {name} for {seconds} s")
            self._suspect([name], seconds)
            process.callback_s = self._rng.choice((0.0005, 0.003))
            self._for_a_while(seconds, lambda: setattr(process, "callback_s", 0.0))

    # -- network

    def _partition(self) -> None:
        """Two nodes, one way or both."""
        well = self._well()
        if len(well) < 2:
            return
        one, other = self._rng.sample(well, 2)
        if not (self._may_lose(one) and self._may_lose(other)):
            return
        ways = self._rng.choice(([(one, other)], [(one, other), (other, one)]))
        if self._rng.random() < 0.7:  # two witnesses lose it; the others hear it, and keep its lease alive
            ways = [*ways, (one, "coord"), ("coord", one)]
            # The prober learns from nobody else.
            ways += [(name, "prober") for name in self._cluster.hosts if name != one]
            self._cluster.hurry_until = self._loop.time() + 2.5
        seconds = self._rng.choice((0.5, 2.0, 5.0))
        self._watch.say(f"partition {' and '.join(f'{a} to {b}' for a, b in ways)} for {seconds} s")
        self._suspect([one, other], seconds)
        self._block_ways(ways, seconds)

    async def _quarrel(self) -> None:
        """Two nodes don't hear each other for so long that each must think of having the other one declared down,
        everybody else hears both, and what the map says reaches the two late. Only one of them may go."""
        well = self._well()
        if len(well) < 2:
            return
        one, other = self._rng.sample(well, 2)
        if not (self._may_lose(one) and self._may_lose(other)):
            return
        seconds = 4.5
        self._watch.say(f"quarrel of {one} and {other} for {seconds} s")
        self._suspect([one, other], seconds)
        self._block_ways([(one, other), (other, one)], seconds)
        news = [("coord", one), ("coord", other)]
        for way in news:
            self._network.slow[way] = 0.3
        self._for_a_while(seconds, lambda: [self._network.slow.pop(way, None) for way in news] and None)
        await asyncio.sleep(seconds)

    def _isolate(self) -> None:
        """One node from all others, with or without the coordination service and the clients; one way or both."""
        name = self._pick()
        if name is None or not self._may_lose(name):
            return
        others = [other for other in self._cluster.hosts if other != name]
        if self._rng.random() < 0.6:
            others.append("coord")
        if self._rng.random() < 0.5:
            others += [f"client{number}" for number in range(self._cluster.settings.clients)]
        out, into = [(name, other) for other in others], [(other, name) for other in others]
        ways = self._rng.choice((out, into, out + into, out + into))
        seconds = self._rng.choice((0.5, 2.0, 5.0))
        self._watch.say(f"isolate {name} from {len(others)} others ({len(ways)} ways) for {seconds} s")
        self._suspect([name], seconds)
        self._block_ways(ways, seconds)

    def _mute(self) -> None:
        """A node hears everybody, its clients too, but nobody of the cluster hears it: it is replaced while it still
        works, and what it has written comes out afterwards."""
        name = self._pick()
        if name is None or not self._may_lose(name):
            return
        seconds = self._rng.choice((1.5, 2.4, 2.8, 3.5))
        self._watch.say(f"mute {name} for {seconds} s")
        self._suspect([name], seconds)
        self._cluster.hurry_until = self._loop.time() + 1.0
        self._cluster.lull_until = self._loop.time() + seconds + 1.0  # its successor gets little to do
        self._block_ways([(name, other) for other in [*self._cluster.hosts, "coord"] if other != name], seconds)

    def _block_ways(self, ways: list[tuple[str, str]], seconds: float) -> None:
        fresh = [way for way in ways if way not in self._network.blocked]
        for way in fresh:
            self._network.block(*way)
        self._for_a_while(seconds, lambda: [self._network.unblock(*way) for way in fresh] and None)

    def _delay(self) -> None:
        hosts = [*self._cluster.hosts, "coord", *(f"client{n}" for n in range(self._cluster.settings.clients))]
        ways = [tuple(self._rng.sample(hosts, 2)) for _ in range(self._rng.choice((1, 3, 10)))]
        for source, target in ways:
            self._network.slow[source, target] = self._rng.choice((0.01, 0.05, 0.12))
        self._for_a_while(
            self._rng.choice((0.5, 3.0)), lambda: [self._network.slow.pop(way, None) for way in ways] and None
        )

    def _cut(self) -> None:
        """Connections break, and their ends learn of it at different times."""
        for _ in range(self._rng.choice((1, 1, 4))):
            found = [t for t in self._network.connections() if not t.gone]
            if found:
                transport = self._rng.choice(found)
                self._watch.say(f"cut {transport.process.name} - {transport.other.process.name}")
                self._network.cut(transport, late_s=self._rng.choice((0.0, 0.05, 0.3)))

    def _lossy(self) -> None:
        """Messages vanish from the middle of connections, which break a moment later: worse than TCP."""
        source, target = self._rng.sample([*self._cluster.hosts, "client0"], 2)
        seconds = self._rng.choice((0.2, 1.0))
        cut_off = [name for name in (source, target) if (name, "coord") in self._network.blocked]
        if cut_off:  # the peer is a second witness against it: it may be declared down
            if not self._may_lose(*cut_off):
                return
            self._suspect(cut_off, seconds)
        self._watch.say(f"lose messages from {source} to {target}")
        self._network.losing[source, target] = 0.3
        self._cluster.hurry_until = self._loop.time() + 1.0

        def over() -> None:
            self._network.losing.pop((source, target), None)
            for transport in self._network.connections():
                if not transport.gone and {transport.process.host, transport.other.process.host} == {source, target}:
                    self._network.cut(transport, late_s=0.0)

        self._for_a_while(seconds, over)

    def _damage(self) -> None:
        hosts = list(self._cluster.hosts)
        source, target = self._rng.sample([*hosts, "client0"], 2)
        self._watch.say(f"damage bytes from {source} to {target}")
        self._network.damaging[source, target] = 0.2
        self._for_a_while(0.5, lambda: self._network.damaging.pop((source, target), None) and None)

    # -- membership

    def _kill_coordinator(self) -> None:
        coordinator = self._cluster.coordinator
        if coordinator is None or not coordinator.running:
            return
        self._cluster.kill_coordinator()

        def again() -> None:
            self._watch.say("start the coordination service again")
            self._loop.create_task(self._cluster.start_coordinator(), name="restart coordinator")

        self._for_a_while(self._rng.choice((0.1, 1.0, 3.0)), again)

    def _cut_off_from_coordinator(self) -> None:
        name = self._pick()
        if name is not None:
            seconds = self._rng.choice((0.5, 3.0))
            if any(name in way for way in self._network.losing):  # a peer that does not hear it is a second witness
                if not self._may_lose(name):
                    return
                self._suspect([name], seconds)
            self._watch.say(f"cut {name} off from the coordination service for {seconds} s")
            self._block_ways([(name, "coord"), ("coord", name)], seconds)

    async def _drain(self) -> None:
        """A node is to be emptied, through another node."""
        runtimes = self._cluster.runtimes()
        well = [name for name in self._well() if name in runtimes and name not in self._drained]
        if len(well) <= self._cluster.settings.nodes - 1 or len(self._drained) >= 1:
            return
        name = self._rng.choice(well)
        helper = self._cluster.hosts[self._rng.choice(well)].process
        runtime = helper.runtime

        async def ask() -> None:
            try:
                await runtime.coordination.propose(Drain(name))
                self._watch.mark("drained a node under load")
                self._drained.add(name)
            except ConfigError as error:
                self._watch.say(f"drain of {name} refused: {error}")
            except Exception as error:  # the helper or the service is cut off just now
                self._watch.say(f"drain of {name} failed: {error}")

        self._watch.say(f"drain {name}")
        helper.spawn(ask(), "drain")

    def _add_node(self) -> None:
        if len(self._cluster.hosts) < self._cluster.settings.nodes + 2:
            name = f"n{len(self._cluster.hosts) + 1}"
            self._watch.mark("a node joined under load")
            self._cluster.start_node(name)
