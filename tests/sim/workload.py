"""Clients of the simulated cluster. Each knows what its rows must be, and looks at every chance."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np

import ecstore
from ecstore import aio
from ecstore.errors import DataLossError, EcstoreError, TimeoutError
from tests.sim.cluster import SimCluster
from tests.sim.model import F32, U64, OwnedRows, SharedSums
from tests.sim.process import Process
from tests.sim.watch import Watch

OWNED, SUMS = "owned", "sums"
DIM = 4

OPTIMIZERS = (
    ecstore.Adagrad(lr=0.05), ecstore.RowWiseAdagrad(lr=0.05), ecstore.Adam(lr=0.01), ecstore.SGD(lr=0.5),
)  # fmt: skip


async def create_tables(cluster: SimCluster, process: Process, rng: random.Random) -> None:
    """Both tables, before anything goes wrong."""
    addresses = ",".join(f"{host.name}:{host.port}" for host in cluster.hosts.values())
    async with await aio.connect(addresses, timeout=60.0) as store:
        code = cluster.settings.code
        optimizer = rng.choice(OPTIMIZERS)
        await store.create_table(OWNED, dim=DIM, optimizer=optimizer, code=code, seed=cluster.settings.seed)
        await store.create_table(SUMS, dim=2, optimizer=ecstore.SGD(lr=1.0), code=code, init=ecstore.Zeros())


class Client:
    """One client process. `run` works until `stopping` is set, then ends in order."""

    def __init__(self, number: int, cluster: SimCluster, sums: SharedSums, watch: Watch) -> None:
        self.number = number
        self._cluster, self._watch, self._sums = cluster, watch, sums
        self._settings = cluster.settings
        self._rng = random.Random(f"client {number} {cluster.settings.seed}")
        self._np = np.random.default_rng([cluster.settings.seed, number])
        self.stopping = False
        self.pushes = self.pulls = self.doubts = self.refusals = 0
        self.waiting_for = ""
        self._hurries = 150
        self.model: OwnedRows
        self.store: aio.Store
        self.process = Process(cluster.loop, f"client{number}", f"client{number}")
        self.task = self.process.spawn(self._run(), "client")

    async def _run(self) -> None:
        addresses = ",".join(f"{host.name}:{host.port}" for host in self._cluster.hosts.values())
        self.store = await aio.connect(addresses, timeout=self._settings.timeout_s)
        async with self.store:
            self._owned, self._shared = await self.store.table(OWNED), await self.store.table(SUMS)
            self.model = OwnedRows(self._owned.spec)
            while not self.stopping:
                await self._step()
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Short while something is going on, as long as the budget lasts: that is when order matters."""
        now = self._cluster.loop.time()
        if self._cluster.hurry_until < now < self._cluster.lull_until:
            return 0.5
        if self._hurries > 0 and self._cluster.unsettled():
            self._hurries -= 1
            return self._rng.choice((0.0, 0.0, 0.001, 0.005))
        return self._rng.choice((0.005, 0.03, 0.1, 0.2))

    async def _step(self) -> None:
        name, step = self._rng.choices(
            (
                ("push", self._push_owned), ("sum", self._push_sums), ("both", self._push_both),
                ("burst", self._burst), ("pull", self._pull_owned), ("look", self._pull_sums),
                ("delete", self._delete), ("load", self._load),
            ),
            (20, 20, 10, 8, 20, 10, 6, 4),
        )[0]  # fmt: skip
        self.waiting_for = f"{name} since {self._cluster.loop.time():.3f}"
        await step()
        self.waiting_for = ""

    # -- keys

    def _own_keys(self, most: int) -> U64:
        """Keys of this client, each once: a random part of a third of the universe, or of the few hot ones."""
        count = self._rng.randint(1, most)
        universe = self._settings.keys * 3 if self._rng.random() < 0.5 else 30
        own = np.arange(self.number, universe, 3, dtype=np.uint64)
        return np.sort(self._np.choice(own, min(count, own.size), replace=False))

    def _shared_keys(self) -> U64:
        return np.unique(self._np.integers(0, self._sums.keys, self._rng.randint(1, 40))).astype(np.uint64)

    def _grads(self, keys: U64) -> F32:
        return self._np.standard_normal((keys.size, DIM)).astype(np.float32)

    def _numbers(self, keys: U64) -> np.ndarray[Any, np.dtype[np.int64]]:
        numbers = np.ones((keys.size, 2), np.int64)
        numbers[:, 1] = self._np.integers(1, 500, keys.size)
        return numbers

    # -- changes

    async def _settled(self, work: Any) -> bool | None:
        """True: acknowledged. False: may be in or not. None: refused, surely not in."""
        self.pushes += 1
        try:
            await work
        except (TimeoutError, DataLossError) as error:
            self.doubts += 1
            self._watch.mark("a push is in doubt")
            self._judge(error)
            return False
        except EcstoreError as error:
            self.refusals += 1
            self._watch.fail("pull", f"client {self.number}: a push ended with {error!r}")
            return False
        return True

    def _judge(self, error: EcstoreError) -> None:
        """Is this error one that the promises allow now?"""
        if isinstance(error, DataLossError):
            lost = {group.gid for group in self._cluster.map.groups if group.lost}
            named = set(error.details.get("groups", ()))
            if not named <= lost:
                self._watch.fail(
                    "dataloss", f"client {self.number} was told that {named - lost} are lost; they are not"
                )
            return
        if self._settings.timeout_s > 100:
            self._watch.fail("liveness", f"client {self.number}: {error}")

    async def _push_owned(self) -> None:
        keys = self._own_keys(30)
        grads = self._grads(keys)
        sure = await self._settled(self._owned.push(keys, grads))
        self.model.push(keys, grads, sure=bool(sure))

    async def _push_sums(self) -> None:
        keys = self._shared_keys()
        numbers = self._numbers(keys)
        self._sums.begin(keys, numbers)
        sure = await self._settled(self._shared.push(keys, -numbers.astype(np.float32)))
        self._sums.end(keys, numbers, sure=bool(sure))

    async def _push_both(self) -> None:
        keys, shared = self._own_keys(20), self._shared_keys()
        grads, numbers = self._grads(keys), self._numbers(shared)
        self._sums.begin(shared, numbers)
        sure = await self._settled(
            self.store.push_many({self._owned: (keys, grads), self._shared: (shared, -numbers.astype(np.float32))})
        )
        self.model.push(keys, grads, sure=bool(sure))
        self._sums.end(shared, numbers, sure=bool(sure))

    async def _burst(self) -> None:
        """Some pushes in flight at once."""
        sent = []
        for _ in range(self._rng.randint(2, 6)):
            keys = self._own_keys(10)
            grads = self._grads(keys)
            try:
                sent.append((keys, grads, await self._owned.push_async(keys, grads)))
            except DataLossError as error:  # found out before anything was sent
                self._judge(error)
        for keys, grads, future in sent:
            sure = await self._settled(future)
            self.model.push(keys, grads, sure=bool(sure))
        try:
            await self.store.flush()
        except EcstoreError as error:
            self._judge(error)

    async def _delete(self) -> None:
        keys = self._own_keys(8)
        sure = await self._settled(self._owned.delete(keys))
        self.model.delete(keys, sure=bool(sure))

    async def _load(self) -> None:
        keys = self._own_keys(8)
        weights = self._grads(keys)
        sure = await self._settled(self._owned.load(keys, weights))
        self.model.load(keys, weights, sure=bool(sure))

    # -- looks

    async def _pull(self, table: aio.Table, keys: U64) -> F32 | None:
        self.pulls += 1
        try:
            return await table.pull(keys)
        except (TimeoutError, DataLossError) as error:
            self._judge(error)
        except EcstoreError as error:
            self._watch.fail("pull", f"client {self.number}: a pull ended with {error!r}")
        return None

    async def _pull_owned(self) -> None:
        keys = self._own_keys(40)
        rows = await self._pull(self._owned, keys)
        if rows is not None:
            self.check_owned(keys, rows)

    def check_owned(self, keys: U64, rows: F32) -> None:
        """Every row is, bit for bit, one that the model allows."""
        for key, row in zip(keys, rows, strict=True):
            if not self.model.weights_allowed(int(key), row):
                self._watch.fail(
                    "model", f"client {self.number} pulled {row.tolist()} for key {key}: not what it pushed"
                )
                return

    async def _pull_sums(self) -> None:
        keys = self._shared_keys()
        at = keys.astype(np.int64)
        lowest = self._sums.acked[at, 0].copy()
        rows = await self._pull(self._shared, keys)
        if rows is None:
            return
        counts, highest = rows[:, 0].astype(np.int64), self._sums.issued[at, 0]
        if (counts < lowest).any():
            self._watch.fail(
                "lost", f"client {self.number}: key {keys[counts < lowest][0]} has lost acknowledged pushes"
            )
        if (counts > highest).any():
            self._watch.fail(
                "doubled", f"client {self.number}: key {keys[counts > highest][0]} has more than was pushed"
            )


class Prober:
    """A client that reads single keys, with little patience: it may know only one node, and an old map."""

    def __init__(self, cluster: SimCluster, sums: SharedSums, watch: Watch) -> None:
        self._cluster, self._sums, self._watch = cluster, sums, watch
        self._rng = random.Random(f"prober {cluster.settings.seed}")
        self._left = 150  # pulls in all
        self.stopping = False
        self.waiting_for = "its last pull"
        self.process = Process(cluster.loop, "prober", "prober")
        self.task = self.process.spawn(self._run(), "prober")

    async def _run(self) -> None:
        addresses = ",".join(f"{host.name}:{host.port}" for host in self._cluster.hosts.values())
        async with await aio.connect(addresses, timeout=0.4) as store:
            table = await store.table(SUMS)
            while not self.stopping:
                if self._left > 0 and self._cluster.unsettled():
                    self._left -= 1
                    await self._probe(table)
                await asyncio.sleep(self._rng.choice((0.005, 0.02, 0.05)))

    async def _probe(self, table: aio.Table) -> None:
        key = self._rng.randrange(self._sums.keys)
        lowest = int(self._sums.acked[key, 0])
        try:
            row = (await table.pull([key]))[0]
        except EcstoreError as error:
            if not isinstance(error, TimeoutError | DataLossError):
                self._watch.fail("pull", f"the prober's pull ended with {error!r}")
            return
        if not lowest <= int(row[0]) <= int(self._sums.issued[key, 0]):
            self._watch.fail("lost", f"the prober read {row[0]:g} for key {key}, {lowest} pushes were acknowledged")
