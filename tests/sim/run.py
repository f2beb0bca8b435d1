"""One schedule, from a seed: safety (anything goes wrong), then liveness (all is healed and must become clean)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from ecstore.client import lanes
from ecstore.cluster.transitions import check_invariants
from ecstore.errors import EcstoreError
from tests.sim import settings as settings_module
from tests.sim.checks import Checks
from tests.sim.cluster import SimCluster
from tests.sim.faults import Faults
from tests.sim.loop import StandStill, VirtualLoop
from tests.sim.model import SharedSums
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.settings import Settings
from tests.sim.trainer import SimTrainer
from tests.sim.watch import Failure, Watch, watching
from tests.sim.workload import Client, Prober, create_tables

#: Virtual seconds of calm after that, in which everything that was left over must end.
CALM_S = 5.0
#: Callbacks after which a run is given up: something goes round and round.
MAX_CALLBACKS = 3_000_000


@dataclass(slots=True)
class Result:
    seed: int
    failures: list[Failure]
    markers: Counter[str]
    story: list[str]
    digest: str  # of everything that was sent, and of the story
    virtual_s: float
    callbacks: int
    pushes: int


def run_seed(seed: int, *, mutate: Callable[[], contextlib.AbstractContextManager[None]] | None = None) -> Result:
    """Run the schedule of a seed. `mutate`: breaks the code on purpose for the time of the run."""
    gc.disable()  # what it finds, and when, would differ from run to run
    try:
        return _run_in_folder(seed, mutate)
    finally:
        with _nobody_listens():  # coroutines of killed processes end here, whatever they say to it
            gc.collect()
        gc.enable()


def _run_in_folder(seed: int, mutate: Callable[[], contextlib.AbstractContextManager[None]] | None) -> Result:
    settings = settings_module.settings_of(seed)
    folder = Path(tempfile.mkdtemp(prefix="ecstore-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    loop = VirtualLoop()
    watch = Watch(loop)
    ids = random.Random(f"client ids {seed}")
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(settings_module.in_force(settings))
            stack.enter_context(watching(watch))
            stack.enter_context(patch.object(lanes, "new_client_id", lambda: ids.randbytes(16)))
            stack.enter_context(patch("ecstore.client.session.os.getpid", lambda: 1))  # it names the client
            stack.enter_context(patch("ecstore.coordination.mapfile.os.fsync", lambda _file: None))
            if mutate is not None:
                stack.enter_context(mutate())
            return _run(loop, settings, watch, folder)
    finally:
        watch.quiet = True
        with _nobody_listens():
            _take_apart(loop)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _nobody_listens() -> Iterator[None]:
    before, level = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda _unraisable: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that a killed process never began
            yield
    finally:
        sys.unraisablehook = before
        logging.disable(level)


def _run(loop: VirtualLoop, settings: Settings, watch: Watch, folder: Path) -> Result:
    rng = random.Random(f"run {settings.seed}")
    loop.network = Network(loop, random.Random(f"network {settings.seed}"))
    loop.network.window_bytes = settings.window_bytes
    loop.network.delay_s = settings.delay_s
    loop.set_exception_handler(watch.exception)
    watch.say(settings.describe())
    schedule = _Schedule(loop, settings, watch, rng, folder)
    main = loop.create_task(schedule.run(), name="schedule", context=Context())
    try:
        while not main.done():
            loop.run_until_complete(_slice(main))
            if loop.callbacks > MAX_CALLBACKS:
                watch.fail("liveness", f"{loop.callbacks} callbacks, and no end")
                break
        else:
            main.result()
    except StandStill as error:
        watch.fail("liveness", f"the simulation stands still: {error}")
    if loop.network.damaged:
        watch.mark("damaged bytes")
    digest = f"{loop.network.digest:08x}-{loop.callbacks}-{loop.time():.6f}"
    return Result(
        settings.seed, list(watch.failures), Counter(watch.markers), list(watch.story), digest, loop.time(),
        loop.callbacks, sum(client.pushes for client in schedule.clients),
    )  # fmt: skip


async def _slice(main: asyncio.Task[None]) -> None:
    """A stretch of the run, after which the outside may look."""
    await asyncio.wait([main], timeout=10.0)


class _Schedule:
    def __init__(self, loop: VirtualLoop, settings: Settings, watch: Watch, rng: random.Random, folder: Path) -> None:
        self._loop, self._settings, self._watch, self._rng = loop, settings, watch, rng
        self.cluster = SimCluster(loop, loop.network, settings, watch, rng, folder)
        self.faults = Faults(self.cluster, watch, rng)
        self.checks = Checks(self.cluster, watch)
        self.clients: list[Client] = []
        self.prober: Prober
        self.trainer: SimTrainer | None = None
        self._lives: dict[str, int] = {}  # process -> incarnation it was last seen with
        self.sums = SharedSums(settings.keys)

    async def run(self) -> None:
        await self._begin()
        looking = self._loop.create_task(self._look(), name="look")
        await self.faults.run(self._settings.seconds)
        self.faults.heal()
        await self._become_clean()
        if looking.done():
            looking.result()  # it has failed: nothing was looked at since
        looking.cancel()
        await self._finish()

    async def _begin(self) -> None:
        await self.cluster.start_coordinator()
        names = [f"n{number + 1}" for number in range(self._settings.nodes)]
        for name in names:
            self.cluster.start_node(name)
        await self.cluster.until_up(names)
        maker = Process(self._loop, "maker", "maker")
        await maker.spawn(create_tables(self.cluster, maker, self._rng), "create tables")
        self.clients = [
            Client(number, self.cluster, self.sums, self._watch) for number in range(self._settings.clients)
        ]
        self.prober = Prober(self.cluster, self.sums, self._watch)
        if self._settings.trainer and not self._settings.beyond:
            self.trainer = SimTrainer(self.cluster, self._watch)
        await asyncio.sleep(0.5)

    async def _look(self) -> None:
        """Checks at any moment, and the story of the map."""
        epoch, turn = 0, 0
        while True:
            await asyncio.sleep(0.1)
            turn += 1
            self.checks.bounds()
            self.checks.progress()
            if turn % 5 == 0:
                self.checks.parity()
            if self.cluster.map.epoch != epoch:
                epoch = self.cluster.map.epoch
                self._say_map()

    def _say_map(self) -> None:
        current = self.cluster.map
        try:
            check_invariants(current)
        except AssertionError as error:
            self._watch.fail("map", str(error))
        for node in current.nodes.values():
            host = self.cluster.hosts.get(node.id)
            if host is not None and host.runtime is not None:
                known = self._lives.setdefault(host.process.name, node.incarnation)
                if node.alive and node.incarnation > known and host.runtime.incarnation == node.incarnation:
                    self._watch.mark("a node was declared down and came back")
                    self._lives[host.process.name] = node.incarnation
        health = current.health()
        if health["lost"]:
            self._watch.mark("a group was lost")
        if health["lost"] and not self._settings.beyond:
            self._watch.fail("dataloss", f"groups {health['lost']} are lost, with no more than m losses")
        recovering = [g for g in current.groups if not g.lost and any(s.state != "active" for s in g.shards)]
        from ecstore.cluster.map import parse_code

        for group in recovering:
            k = parse_code(group.code).k
            data = sum(s.state != "active" for s in group.shards[:k])
            parity = sum(s.state != "active" for s in group.shards[k:])
            if data >= 2 and parity >= 1:
                self._watch.mark("two data shards and a parity shard lost together")
            elif data >= 1 and parity >= 1:
                self._watch.mark("a data shard and a parity shard lost together")
            elif data >= 2:
                self._watch.mark("two data shards lost together")
        up = ", ".join(f"{n.id}.{n.incarnation}" for n in current.nodes.values() if n.alive)
        self._watch.say(f"epoch {current.epoch}: {up} up, {len(recovering)} groups recovering")

    async def _become_clean(self) -> None:
        deadline = self._loop.time() + self._settings.clean_within_s
        for client in (*self.clients, self.prober):
            client.stopping = True
        while self._loop.time() < deadline:
            working = [*self.clients, self.prober, *([self.trainer] if self.trainer is not None else [])]
            if not self.cluster.missing() and all(worker.task.done() for worker in working):
                break
            await asyncio.sleep(0.1)
        for missing in self.cluster.missing():
            self._watch.fail("liveness", f"{self._settings.clean_within_s:g} s after the healing: {missing}")
        for worker in working:
            if not worker.task.done():
                self._watch.fail("liveness", f"{worker.process.name} waits for: {worker.waiting_for}")
            elif (error := worker.task.exception()) is not None:
                self._watch.fail("exception", f"{worker.process.name}: {error!r}")
        self._watch.say("clean" if not self._watch.failures else "not clean")

    async def _finish(self) -> None:
        await asyncio.sleep(CALM_S)
        self.checks.leftovers()
        self.checks.bounds()
        self.checks.progress()
        self.checks.parity(final=True)
        reader = Process(self._loop, "reader", "reader")
        await reader.spawn(self._read_back(), "read back")

    async def _read_back(self) -> None:
        """Every row, weights and optimizer state, against the model."""
        from tests.sim.readback import read_back

        try:
            await read_back(self.cluster, self.clients, self.sums, self._watch)
        except EcstoreError as error:
            self._watch.fail("liveness", f"reading back: {error!r}")


def _take_apart(loop: VirtualLoop) -> None:
    """Give back what the run held."""
    loop.set_exception_handler(lambda _loop, _context: None)
    for task in loop.tasks.values():
        task._log_destroy_pending = False
    loop.forget_all()
    gc.collect()  # closes coroutines, which may call the loop once more
    loop.forget_all()
    loop.close()


__all__ = ["Result", "run_seed"]
