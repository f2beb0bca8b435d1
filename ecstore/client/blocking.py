"""The blocking client: the asyncio one on a background loop. Safe to use from several threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ecstore.client import store as aio
from ecstore.client.insight import RowLook
from ecstore.client.scrub import ScrubOptions, ScrubReport
from ecstore.client.store import TIMEOUT_S, Ack
from ecstore.cluster.map import ClusterMap
from ecstore.optim import Optimizer
from ecstore.routing import Ids
from ecstore.tables import Initializer, TableSpec
from ecstore.transport import new_event_loop

T = TypeVar("T")
F32 = NDArray[np.float32]


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ecstore client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Table:
    """One table. Ids: int64 or uint64 (n,); rows and gradients: float32 (n, dim). See `ecstore.aio` for details."""

    def __init__(self, store: Store, table: aio.Table) -> None:
        self._store = store
        self._table = table

    def __repr__(self) -> str:
        return repr(self._table)

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def spec(self) -> TableSpec:
        return self._table.spec

    @property
    def dim(self) -> int:
        return self._table.dim

    def __len__(self) -> int:
        """Number of stored rows."""
        return self._store._run(self._table.count())

    def pull(self, ids: Ids, *, timeout: float | None = None) -> F32:
        """Rows of `ids`: float32 (n, dim). A key that was never pushed has its initial value."""
        return self._store._run(self._table.pull(ids, timeout=timeout))

    def push(self, ids: Ids, grads: ArrayLike, *, ack: Ack = "parity", timeout: float | None = None) -> None:
        """Apply gradients; returns when acknowledged. Duplicate ids are summed in input order."""
        self._store._run(self._table.push(ids, grads, ack=ack, timeout=timeout))

    def push_async(
        self, ids: Ids, grads: ArrayLike, *, ack: Ack = "parity", timeout: float | None = None
    ) -> concurrent.futures.Future[None]:
        """Like `push` without waiting for the acknowledgement: the future, or `Store.flush`, tells the outcome.

        The arrays must not be changed before that.
        """
        return self._store.push_many_async({self: (ids, grads)}, ack=ack, timeout=timeout)

    def load(self, keys: Ids, rows: ArrayLike, *, timeout: float | None = None) -> None:
        """Set rows: float32 (n, dim) weights, or uint8 (n, row_bytes) whole rows from `export(state=True)`."""
        self._store._run(self._table.load(keys, rows, timeout=timeout))

    def delete(self, ids: Ids, *, timeout: float | None = None) -> None:
        """Forget rows: their keys have the initial value again."""
        self._store._run(self._table.delete(ids, timeout=timeout))

    def look(self, key: int, *, timeout: float | None = None) -> RowLook | None:
        """One row as it lies on its node, with the optimizer's state; None when it was never made. Makes no row."""
        return self._store._run(self._table.look(key, timeout=timeout))

    def export(self, *, state: bool = False, timeout: float | None = None) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """All stored rows by rising key: uint64 (n,), and float32 (n, dim), or with `state` uint8 (n, row_bytes)."""
        return self._store._run(self._table.export(state=state, timeout=timeout))


class Store:
    """A connection to a cluster. Make one with `ecstore.connect`; close it, or use it as a context manager."""

    def __init__(self, loop: _Loop, store: aio.Store) -> None:
        self._loop = loop
        self._store = store
        self._closed = False

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections. Unacknowledged pushes are given up; call `flush` first to wait for them."""
        if not self._closed:
            self._closed = True
            self._run(self._store.close())
            self._loop.close()

    @property
    def cluster_map(self) -> ClusterMap:
        """The newest cluster map this client has seen."""
        return self._store.cluster_map

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        optimizer: Optimizer,
        code: str,
        init: Initializer | None = None,
        seed: int = 0,
        dtype: str = "float32",
        timeout: float | None = None,
    ) -> Table:
        """Create a table, or open it when it exists with the same options (TableExistsError with others)."""
        made = self._run(
            self._store.create_table(
                name,
                dim=dim,
                optimizer=optimizer,
                code=code,
                init=init,
                seed=seed,
                dtype=dtype,
                timeout=timeout,
            )
        )
        return Table(self, made)

    def drop_table(self, name: str, *, timeout: float | None = None) -> None:
        """Forget a table and all its rows."""
        self._run(self._store.drop_table(name, timeout=timeout))

    def table(self, name: str) -> Table:
        """Open an existing table; UnknownTableError when there is none."""
        return Table(self, self._run(self._store.table(name)))

    def tables(self) -> dict[str, TableSpec]:
        """All tables by name."""
        return self._run(self._store.tables())

    def pull_many(self, requests: Mapping[Table, Ids], *, timeout: float | None = None) -> dict[Table, F32]:
        """Rows of several tables, one message per node: {table: ids (n,)} -> {table: float32 (n, dim)}."""
        rows = self._run(self._store.pull_many({table._table: ids for table, ids in requests.items()}, timeout=timeout))
        return {table: rows[table._table] for table in requests}

    def push_many(
        self,
        updates: Mapping[Table, tuple[Ids, ArrayLike]],
        *,
        ack: Ack = "parity",
        timeout: float | None = None,
    ) -> None:
        """Apply gradients to several tables: {table: (ids (n,), grads (n, dim))}; returns when acknowledged."""
        plain = {table._table: update for table, update in updates.items()}
        self._run(self._store.push_many(plain, ack=ack, timeout=timeout))

    def push_many_async(
        self,
        updates: Mapping[Table, tuple[Ids, ArrayLike]],
        *,
        ack: Ack = "parity",
        timeout: float | None = None,
    ) -> concurrent.futures.Future[None]:
        """Like `push_many` without waiting for the acknowledgement; input errors are in the future, too."""
        plain = {table._table: update for table, update in updates.items()}

        async def work() -> None:
            await (await self._store.push_many_async(plain, ack=ack, timeout=timeout))

        return self._loop.submit(work())

    def flush(self) -> None:
        """Wait until every push_async so far is acknowledged; raises the first error among them, once."""
        self._run(self._store.flush())

    def scrub(self, **options: Unpack[ScrubOptions]) -> ScrubReport:
        """Let the nodes compare parity with data, online, and repair what can be told: see `ScrubOptions`. Returns
        when they are done; `progress` is called on the thread of the client's loop and must not call the store.
        """
        return self._run(self._store.scrub(**options))

    def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Tell the nodes how the trainer `name` is doing: see `ecstore.aio.Store.report` for the figures."""
        self._run(self._store.report(name, figures))

    def report_async(self, name: str, figures: Mapping[str, Any]) -> concurrent.futures.Future[None]:
        """Like `report`, without waiting; errors are in the future. Training must not wait for its own figures."""
        return self._loop.submit(self._store.report(name, dict(figures)))

    def ask_node(self, address: str, kind: str, meta: dict[str, Any], *, timeout: float = 5.0) -> dict[str, Any]:
        """Ask the node at "host:port" for something of its own; the meta of its answer. See `ecstore.aio`."""
        return self._run(self._store.ask_node(address, kind, meta, timeout=timeout))

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The cluster as seen now: epoch, health, nodes, each node's own statistics."""
        return self._run(self._store.status(timeout=timeout))


def connect(address: str, *, timeout: float = TIMEOUT_S, cluster: str | None = None) -> Store:
    """Connect to a cluster through any of its nodes: "host:port", or several, separated by commas.

    `timeout`: default deadline of every call, seconds. Raises UnavailableError when nobody answers.
    """
    loop = _Loop()
    try:
        return Store(loop, loop.run(aio.connect(address, timeout=timeout, cluster=cluster)))
    except BaseException:
        loop.close()
        raise
