"""The bundled trainer in the simulation: `train`, unchanged, against the simulated cluster.

`train` is synchronous. It runs in a thread that takes turns with the loop: while it computes, virtual time stands
still; when it calls the store, it waits until the loop has the answer. So there is no race, and every run is equal.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

import ecstore
from ecstore import aio
from ecstore.trainer.local import LocalStore, compare_stores
from ecstore.trainer.model import ModelConfig
from ecstore.trainer.synthetic import SyntheticConfig, SyntheticLog
from ecstore.trainer.train import TrainConfig, train
from tests.sim.cluster import SimCluster
from tests.sim.process import Process
from tests.sim.watch import Watch

_Ask = Callable[[], Awaitable[Any]]


class Turns:
    """A synchronous function and the loop, one at a time."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[_Ask | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._outcome: Any = None

    def ask(self, make: _Ask) -> Any:
        """Of the function: have something awaited by the loop."""
        self._asked.put(make)
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return answer

    async def run(self, function: Callable[[], Any]) -> Any:
        """Of the loop: run the function to its end; its result."""
        thread = threading.Thread(target=self._work, args=(function,), name="trainer", daemon=True)
        thread.start()
        ended: BaseException = RuntimeError("the simulation is over")
        try:
            while (make := self._asked.get()) is not None:
                try:
                    answer = await make()
                except Exception as error:
                    self._answers.put((None, error))
                else:
                    self._answers.put((answer, None))
        finally:
            self._answers.put((None, ended))
            thread.join()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _work(self, function: Callable[[], Any]) -> None:
        try:
            self._outcome = function()
        except BaseException as error:
            self._outcome = error
        self._asked.put(None)


class SyncTable:
    """A table as the trainer wants it."""

    def __init__(self, turns: Turns, table: aio.Table) -> None:
        self._turns, self.real = turns, table

    @property
    def name(self) -> str:
        return self.real.name

    @property
    def dim(self) -> int:
        return self.real.dim

    def __len__(self) -> int:
        return int(self._turns.ask(self.real.count))

    def pull(self, ids: Any, /) -> Any:
        return self._turns.ask(lambda: self.real.pull(ids))

    def push(self, ids: Any, grads: Any, /) -> None:
        self._turns.ask(lambda: self.real.push(ids, grads))

    def load(self, keys: Any, rows: Any, /) -> None:
        self._turns.ask(lambda: self.real.load(keys, rows))

    def export(self, *, state: bool = False) -> Any:
        return self._turns.ask(lambda: self.real.export(state=state))


class SyncStore:
    """A store as the trainer wants it."""

    def __init__(self, turns: Turns, store: aio.Store) -> None:
        self._turns, self._store = turns, store
        self._tables: dict[str, SyncTable] = {}

    def _known(self, table: aio.Table) -> SyncTable:
        return self._tables.setdefault(table.name, SyncTable(self._turns, table))

    def create_table(self, name: str, **options: Any) -> SyncTable:
        return self._known(self._turns.ask(lambda: self._store.create_table(name, **options)))

    def table(self, name: str, /) -> SyncTable:
        return self._known(self._turns.ask(lambda: self._store.table(name)))

    def pull_many(self, requests: Mapping[SyncTable, Any], /) -> dict[SyncTable, Any]:
        real = {table.real: ids for table, ids in requests.items()}
        answer = self._turns.ask(lambda: self._store.pull_many(real))
        return {table: answer[table.real] for table in requests}

    def push_many(self, updates: Mapping[SyncTable, Any], /) -> None:
        self._turns.ask(lambda: self._store.push_many({table.real: what for table, what in updates.items()}))

    def flush(self) -> None:
        self._turns.ask(self._store.flush)


class SimTrainer:
    """A trainer process. Its task is done when training has ended and was compared with an undisturbed run."""

    def __init__(self, cluster: SimCluster, watch: Watch) -> None:
        self._cluster, self._watch = cluster, watch
        self.waiting_for = "the end of training"
        seed = cluster.settings.seed
        self._data = SyntheticLog(SyntheticConfig(samples=280, seed=seed, categories=40))
        self._config = TrainConfig(
            batch_size=24, max_batches=8, code=cluster.settings.code, seed=seed, embedding_table="embedding",
            model=ModelConfig(dim=4, bottom_hidden=(8,), top_hidden=(8,), chunk=64),
            dense_optimizer=ecstore.Adagrad(lr=0.02),
        )  # fmt: skip
        self.process = Process(cluster.loop, "trainer", "trainer")
        self.task = self.process.spawn(self._run(), "trainer")

    async def _run(self) -> None:
        addresses = ",".join(f"{host.name}:{host.port}" for host in self._cluster.hosts.values())
        turns = Turns()
        async with await aio.connect(addresses, timeout=300.0) as store:
            facade = SyncStore(turns, store)
            await turns.run(lambda: self._train(facade))

    def _train(self, store: SyncStore) -> None:
        report = train(store, self._data, self._config, clock=self._cluster.loop.time)
        undisturbed = LocalStore()
        wanted = train(undisturbed, self._data, self._config, clock=self._cluster.loop.time)
        found = compare_stores(store, undisturbed, self._config.tables)
        different = [(table.table, table.different, table.only_first, table.only_second) for table in found.tables]
        if any(sum(counts) for _name, *counts in different):
            self._watch.fail("model", f"training ended with other bits than without faults: {different}")
        if not np.array_equal([report.loss_first, report.loss_last, report.auc], [
            wanted.loss_first, wanted.loss_last, wanted.auc
        ], equal_nan=True):  # fmt: skip
            self._watch.fail("model", f"the loss or AUC differs: {report} and {wanted}")
        self._watch.mark("a model was trained through it")
