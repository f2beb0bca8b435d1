"""The load of a chaos run, one process for each role: counter, reader, trainer. Each ends when its standard input does.

    python -m ecstore.chaos.clients '{"role": "counter", ...}'

It writes one JSON object to standard output when it ends, and exits with 1 if it has seen something wrong.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import ecstore
from ecstore.chaos.ledger import IntArray, Ledger, total
from ecstore.optim import SGD, Adagrad
from ecstore.tables import Uniform, Zeros
from ecstore.trainer import BatchReport, LocalStore, SyntheticConfig, SyntheticLog, TrainConfig, compare_stores, train

SUMS, ROWS = "chaos sums", "chaos rows"
SUMS_DIM, ROWS_DIM = 4, 8
#: Keys of `SUMS` that all counters push to, and those of one counter alone, in both tables.
SHARED, PRIVATE = 4000, 1500
#: Ids of one push: shared and private ones of `SUMS`, and those of `ROWS`.
PER_PUSH: Final = (120, 40, 60)
#: Pushes on their way at once, and pushes between two checks of everything that is private.
WINDOW, CHECK_EVERY = 3, 24
#: Deadline of a call: far beyond a failover, so that what times out is a finding.
CALL_TIMEOUT_S = 120.0

TRAINER_SAMPLES = 3000
TRAINER_PAUSE_S = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """`ledgers`: files of the counters. `number`: which of them is this client's. `progress`: file of the others."""

    role: str
    address: str
    code: str
    seed: int
    number: int = 0
    ledgers: list[str]
    progress: str = ""
    rate: float = 30.0  #: pushes or pulls a second, at most

    def arguments(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", "ecstore.chaos.clients", json.dumps(asdict(self))]


class Wrong(Exception):
    """Something was seen that a guarantee forbids."""


def open_ledger(path: str, counters: int, *, create: bool = False) -> Ledger:
    return Ledger(Path(path), keys_of(counters), SUMS_DIM, create=create)


def open_progress(path: str, *, create: bool = False) -> Ledger:
    """Counts of a client that keeps no ledger."""
    return Ledger(Path(path), 1, 1, create=create)


def keys_of(counters: int) -> int:
    """Keys of the table `SUMS`."""
    return SHARED + counters * PRIVATE


def create_tables(store: ecstore.Store, code: str) -> None:
    """Both tables of the counters, new."""
    for name in store.tables():
        if name in (SUMS, ROWS, *trainer_config(code, 1).tables):
            store.drop_table(name)
    store.create_table(SUMS, dim=SUMS_DIM, optimizer=SGD(lr=1.0), code=code, init=Zeros())
    store.create_table(ROWS, dim=ROWS_DIM, code=code, **_ROWS)


_ROWS: Final[dict[str, Any]] = {"optimizer": Adagrad(lr=0.05), "init": Uniform(-1.0, 1.0), "seed": 5}


class _Pace:
    """At most so many turns a second; 0 is no limit."""

    def __init__(self, rate: float) -> None:
        self._pause = 1.0 / rate if rate > 0 else 0.0
        self._next = time.monotonic()

    def wait(self) -> None:
        now = time.monotonic()
        if self._pause and now < self._next:
            time.sleep(self._next - now)
        self._next = max(self._next, now) + self._pause


class Counter:
    """Pushes increments to shared and private keys, and gradients to rows that nobody else touches."""

    def __init__(self, options: ClientOptions, store: ecstore.Store) -> None:
        self._store = store
        self._pace = _Pace(options.rate)
        self._rng = np.random.default_rng([options.seed, options.number])
        counters = len(options.ledgers)
        self.ledger = open_ledger(options.ledgers[options.number], counters)
        self._sums, self._rows = store.table(SUMS), store.table(ROWS)
        self._model = LocalStore().create_table(ROWS, dim=ROWS_DIM, code=options.code, **_ROWS)
        self._mine = np.arange(PRIVATE) + options.number * PRIVATE  # keys in `ROWS`; in `SUMS` they follow the shared
        self._unsure = np.zeros(keys_of(counters), np.bool_)
        self._unsure_rows = np.zeros(counters * PRIVATE, np.bool_)
        self._in_flight: deque[tuple[Future[None], Any, Any, Any]] = deque()

    def touch_all(self) -> None:
        """Every key has a row from here on: the working set does not change any more."""
        everything = np.concatenate([np.arange(SHARED), SHARED + self._mine])
        self._sums.push(everything, np.zeros((everything.size, SUMS_DIM), np.float32))
        self._push_rows_now(self._mine, self._rng.normal(size=(PRIVATE, ROWS_DIM)).astype(np.float32))

    def _push_rows_now(self, ids: Any, grads: Any) -> None:
        self._rows.push(ids, grads)
        self._model.push(ids, grads)

    def run(self, stop: threading.Event) -> None:
        self.touch_all()
        turn = 0
        while not stop.is_set():
            self._push()
            turn += 1
            if turn % CHECK_EVERY == 0:
                self._check()
            self._pace.wait()
        self._check()

    def _push(self) -> None:
        rng = self._rng
        shared, private, rows = PER_PUSH
        ids = np.concatenate([rng.integers(0, SHARED, shared), SHARED + rng.choice(self._mine, private)])
        increments = rng.integers(0, 4, (ids.size, SUMS_DIM))
        row_ids = rng.choice(self._mine, rows)
        grads = rng.normal(size=(rows, ROWS_DIM)).astype(np.float32)
        np.add.at(self.ledger.attempted, ids, increments)
        self._model.push(row_ids, grads)
        future = self._store.push_many_async(
            {self._sums: (ids, -increments.astype(np.float32)), self._rows: (row_ids, grads)}
        )
        self._in_flight.append((future, ids, increments, row_ids))
        if len(self._in_flight) >= WINDOW:
            self._settle()

    def _settle(self) -> None:
        """Wait for the oldest push."""
        future, ids, increments, row_ids = self._in_flight.popleft()
        try:
            future.result()
        except ecstore.TimeoutError:
            self.ledger.count("in_doubt")
            self._unsure[ids] = True
            self._unsure_rows[row_ids] = True
            return
        np.add.at(self.ledger.acknowledged, ids, increments)
        self.ledger.count("pushes")

    def _check(self) -> None:
        """Nothing is in flight: what nobody else touches must be exact."""
        while self._in_flight:
            self._settle()
        keys = SHARED + self._mine
        keys = keys[~self._unsure[keys]]
        rows = self._mine[~self._unsure_rows[self._mine]]
        found = self._store.pull_many({self._sums: keys, self._rows: rows})
        self.ledger.count("pulls")
        wrong = np.flatnonzero((found[self._sums] != self.ledger.acknowledged[keys]).any(axis=1))
        if wrong.size:
            key = int(keys[wrong[0]])
            seen, wanted = found[self._sums][wrong[0]].tolist(), self.ledger.acknowledged[key].tolist()
            raise Wrong(f"{wrong.size} private sums are wrong, first key {key}: {seen} instead of {wanted}")
        model = self._model.pull(rows.astype(np.uint64))
        wrong = np.flatnonzero((found[self._rows].view(np.uint32) != model.view(np.uint32)).any(axis=1))
        if wrong.size:
            raise Wrong(f"{wrong.size} rows have other bits than the model, first key {int(rows[wrong[0]])}")

    def result(self) -> dict[str, Any]:
        """Rows of this client, weights and optimizer state, compared with the model bit for bit."""
        keys, rows = self._rows.export(state=True)
        own = np.isin(keys, self._mine[~self._unsure_rows[self._mine]].astype(np.uint64))
        model_keys, model_rows = self._model.export(state=True)
        sure = ~self._unsure_rows[model_keys.astype(np.int64)]
        order, model_order = np.argsort(keys[own]), np.argsort(model_keys[sure])
        if not np.array_equal(keys[own][order], model_keys[sure][model_order]):
            return {"rows": int(own.sum()), "different": int(own.sum()) or 1}
        different = (rows[own][order] != model_rows[sure][model_order]).any(axis=1)
        return {"rows": int(own.sum()), "different": int(different.sum())}


class Reader:
    """Pulls shared keys; each value must be between what was acknowledged before and what was attempted after."""

    def __init__(self, options: ClientOptions, store: ecstore.Store) -> None:
        self._pace = _Pace(options.rate)
        self._rng = np.random.default_rng([options.seed, 0x5EED])
        self._ledgers = [open_ledger(path, len(options.ledgers)) for path in options.ledgers]
        self._sums = store.table(SUMS)
        self._progress = open_progress(options.progress)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            keys = np.unique(self._rng.integers(0, SHARED, 200))
            least = self._sum("acknowledged", keys)
            found = self._sums.pull(keys)
            most = self._sum("attempted", keys)
            self._progress.count("pulls")
            stale, beyond = (found < least).any(axis=1), (found > most).any(axis=1)
            if stale.any() or beyond.any():
                at = int(np.flatnonzero(stale | beyond)[0])
                raise Wrong(
                    f"{int(stale.sum())} stale values, {int(beyond.sum())} beyond what was pushed; first key "
                    f"{int(keys[at])}: {found[at].tolist()} not within {least[at].tolist()} .. {most[at].tolist()}"
                )
            self._pace.wait()

    def _sum(self, name: str, keys: Any) -> IntArray:
        return total([getattr(ledger, name)[keys] for ledger in self._ledgers])

    def result(self) -> dict[str, Any]:
        return {"pulls": self._progress.get("pulls")}


def trainer_config(code: str, seed: int, batches: int | None = None) -> TrainConfig:
    return TrainConfig(
        code=code, seed=seed, epochs=10**9, max_batches=batches,
        embedding_table="chaos embedding", dense_table="chaos dense",
    )  # fmt: skip


class Trainer:
    """Trains until told to stop; then trains as many batches without a cluster and compares every bit."""

    def __init__(self, options: ClientOptions, store: ecstore.Store) -> None:
        self._options = options
        self._store = store
        self._dataset = SyntheticLog(SyntheticConfig(samples=TRAINER_SAMPLES, seed=options.seed, categories=2000))
        self._progress = open_progress(options.progress)
        self.batches = 0

    def run(self, stop: threading.Event) -> None:
        def on_batch(report: BatchReport) -> None:
            self.batches = report.batch
            self._progress.count("pushes")
            self._progress.count("pulls")
            if stop.wait(TRAINER_PAUSE_S):
                raise _Stopped

        try:
            train(self._store, self._dataset, trainer_config(self._options.code, self._options.seed), on_batch=on_batch)
        except _Stopped:
            return

    def result(self) -> dict[str, Any]:
        local = LocalStore()
        config = trainer_config(self._options.code, self._options.seed, self.batches)
        train(local, self._dataset, config)
        comparison = compare_stores(self._store, local, config.tables)
        return {
            "batches": self.batches, "equal": comparison.equal, "rows": comparison.rows,
            "says": comparison.describe(),
        }  # fmt: skip


class _Stopped(Exception):
    """The trainer was told to stop."""


ROLES: Final[dict[str, Callable[[ClientOptions, ecstore.Store], Counter | Reader | Trainer]]] = {
    "counter": Counter, "reader": Reader, "trainer": Trainer,
}  # fmt: skip


def main(text: str) -> int:
    options = ClientOptions(**json.loads(text))
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, name="told to end", daemon=True).start()
    said: dict[str, Any]
    with ecstore.connect(options.address, timeout=CALL_TIMEOUT_S) as store:
        client = ROLES[options.role](options, store)
        try:
            client.run(stop)
            said = client.result()
        except (Wrong, ecstore.EcstoreError) as error:
            said = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(said) + "\n")
    return 1 if "error" in said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
