"""The asyncio client: `Store` and `Table`.

Routing is vectorised: ids are sorted by data shard in one pass, and each node gets one message for all tables of a
batch. A part that fails because routing was stale is asked again until the deadline; everything else is raised.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ecstore import buffers, optim
from ecstore.client.directory import Directory
from ecstore.client.insight import RowLook, report, row_look, status
from ecstore.client.lanes import Batch, Item, Pusher
from ecstore.client.pieces import MAX_MESSAGE_BYTES, pieces, section_rows
from ecstore.client.scrub import Scrub, ScrubOptions, ScrubReport
from ecstore.client.session import Session
from ecstore.cluster.map import ClusterMap, Group, parse_code
from ecstore.cluster.map import Table as TableEntry
from ecstore.errors import (
    ConfigError,
    DataLossError,
    DtypeError,
    EcstoreError,
    InputError,
    NonFiniteError,
    ShapeError,
    TimeoutError,
    UnknownTableError,
    from_wire,
)
from ecstore.routing import Ids, all_finite, as_keys, gather, joined, place, route, unique_sum
from ecstore.tables import Initializer, TableSpec, Uniform
from ecstore.transport import parse_address
from ecstore.wire import Frame

Ack = Literal["parity", "local"]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

#: Default deadline of every call, seconds.
TIMEOUT_S = 30.0

#: Batches of push_async that may be unacknowledged at once; the next call waits.
WINDOW_BATCHES = 64

#: One attempt of a pull; after a failure the part is asked again elsewhere. Longer than a node lets a part wait (10 s):
#: what it says then, and the rows of all other parts, must still find us here.
PULL_ATTEMPT_S = 12.0

#: Longest pause between two attempts.
MAX_PAUSE_S = 0.25


@dataclass(slots=True)
class _Part:
    """Ids of one table in one data shard: `where` are their places in the caller's order."""

    table: TableEntry
    out: F32
    gid: int
    index: int
    keys: U64
    where: NDArray[np.int64]


class Table:
    """One table, through its store. Ids are int64 or uint64 arrays of shape (n,), or sequences of ints."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    def __repr__(self) -> str:
        return f"<ecstore table {self.name!r}>"

    @property
    def spec(self) -> TableSpec:
        return self._store._entry(self.name).spec

    @property
    def dim(self) -> int:
        return self.spec.dim

    async def pull(self, ids: Ids, *, timeout: float | None = None) -> F32:
        """Rows of `ids`: float32 (n, dim). A key that was never pushed has its initial value."""
        return (await self._store.pull_many({self: ids}, timeout=timeout))[self]

    async def push(self, ids: Ids, grads: ArrayLike, *, ack: Ack = "parity", timeout: float | None = None) -> None:
        """Apply gradients, float32 (n, dim); returns when acknowledged. Duplicate ids are summed in input order."""
        await self._store.push_many({self: (ids, grads)}, ack=ack, timeout=timeout)

    async def push_async(
        self, ids: Ids, grads: ArrayLike, *, ack: Ack = "parity", timeout: float | None = None
    ) -> asyncio.Future[None]:
        """Like `push`, but returns once the batch is on its way; the future (or `Store.flush`) tells the outcome."""
        return await self._store.push_many_async({self: (ids, grads)}, ack=ack, timeout=timeout)

    async def load(self, keys: Ids, rows: ArrayLike, *, timeout: float | None = None) -> None:
        """Set rows: float32 (n, dim) weights (the optimizer's state begins anew), or uint8 (n, row_bytes) whole rows
        as `export(state=True)` gave them. Of duplicate keys the last one stays.
        """
        await self._store._load(self.name, keys, rows, timeout)

    async def delete(self, ids: Ids, *, timeout: float | None = None) -> None:
        """Forget rows: their keys have the initial value again. Unknown ids are ignored."""
        await self._store._delete(self.name, ids, timeout)

    async def look(self, key: int, *, timeout: float | None = None) -> RowLook | None:
        """One row as it lies on its node, with the optimizer's state; None when it was never made. Makes no row."""
        return await self._store._look(self.name, key, timeout)

    async def export(self, *, state: bool = False, timeout: float | None = None) -> tuple[U64, NDArray[Any]]:
        """All stored rows, by rising key: uint64 (n,), and float32 (n, dim) weights, or with `state` uint8
        (n, row_bytes) whole rows (weights, then the optimizer's state, padded). Complete only while nobody pushes.
        """
        return await self._store._export(self.name, state, timeout)

    async def count(self) -> int:
        """Number of stored rows (keys that were pushed or loaded, and not deleted)."""
        return await self._store._count(self.name)


class Store:
    """A connection to a cluster. Make one with `ecstore.aio.connect`; close it, or use it as a context manager."""

    def __init__(self, session: Session, *, timeout: float) -> None:
        self._session = session
        self._pusher = Pusher(session)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._window: set[asyncio.Future[None]] = set()
        self._failed: EcstoreError | None = None
        self._directories: dict[str, Directory] = {}

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections. Unacknowledged pushes are given up; call `flush` first to wait for them."""
        await self._pusher.close()
        await self._session.close()

    @property
    def cluster_map(self) -> ClusterMap:
        """The newest cluster map this client has seen."""
        return self._session.map

    # -- tables ---------------------------------------------------------------------------------------

    async def create_table(
        self,
        name: str,
        *,
        dim: int,
        optimizer: optim.Optimizer,
        code: str,
        init: Initializer | None = None,
        seed: int = 0,
        dtype: str = "float32",
        timeout: float | None = None,
    ) -> Table:
        """Create a table, or open it when it exists with the same options (TableExistsError with others).

        `code`: "rs(k,m)", "replicate(r)" or "none". CodeError when it needs more nodes than are up.
        """
        spec = TableSpec(
            name=name, dim=dim, optimizer=optimizer, init=init if init is not None else Uniform(-0.01, 0.01),
            seed=seed, code=parse_code(code).name, dtype=dtype,
        )  # fmt: skip
        spec.validate()
        answer = await self._session.ask_any("table.create", {"spec": spec.to_wire()}, timeout=self._limit(timeout))
        self._session._adopt(ClusterMap.from_wire(answer.meta.get("map")))
        return Table(self, name)

    async def drop_table(self, name: str, *, timeout: float | None = None) -> None:
        """Forget a table and all its rows."""
        self._entry(name)
        answer = await self._session.ask_any("table.drop", {"name": name}, timeout=self._limit(timeout))
        self._session._adopt(ClusterMap.from_wire(answer.meta.get("map")))

    async def table(self, name: str) -> Table:
        """Open an existing table; UnknownTableError when there is none."""
        if name not in self._session.map.tables:
            await self._session.refresh()
        self._entry(name)
        return Table(self, name)

    async def tables(self) -> dict[str, TableSpec]:
        """All tables by name."""
        await self._session.refresh()
        return {name: entry.spec for name, entry in self._session.map.tables.items()}

    def _entry(self, table: str | Table) -> TableEntry:
        name = table.name if isinstance(table, Table) else table
        entry = self._session.map.tables.get(name)
        if entry is None:
            known = ", ".join(sorted(self._session.map.tables)) or "none"
            raise UnknownTableError(f"no table {name!r} (there are: {known}); create it with create_table")
        return entry

    def _directory(self, code: str) -> Directory:
        """Data shards of a code by the newest map; made once for each epoch."""
        found = self._directories.get(code)
        if found is None or found.epoch != self._session.map.epoch:
            found = self._directories[code] = Directory.of(self._session.map, code)
        return found

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    # -- pull -----------------------------------------------------------------------------------------

    async def pull_many(self, requests: Mapping[Table, Ids], *, timeout: float | None = None) -> dict[Table, F32]:
        """Rows of several tables, one message per node: {table: ids (n,)} -> {table: float32 (n, dim)}.

        Raises DataLossError naming the groups that are lost, TimeoutError at the deadline.
        """
        limit = self._limit(timeout)
        deadline = self._loop.time() + limit
        result: dict[Table, F32] = {}
        parts: list[_Part] = []
        for table, ids in requests.items():
            entry, keys = self._entry(table), as_keys(ids)
            out = result[table] = buffers.empty((keys.size, entry.spec.dim), np.float32)
            parts += self._parts(entry, keys, out)
        pause = 0.01
        while parts:
            left, last = await self._pull_round(parts, deadline)
            if not left:
                break
            if self._loop.time() >= deadline:
                groups = sorted({part.gid for part in left})
                raise TimeoutError(
                    f"rows of groups {groups} could not be pulled within {limit:g} s ({last}); pull again",
                    groups=groups,
                )
            self._session.refresh_soon()
            await self._session.map_change(min(pause, max(0.0, deadline - self._loop.time())))
            pause = pause if len(left) < len(parts) else min(2 * pause, MAX_PAUSE_S)
            parts = left
        return result

    def _parts(self, entry: TableEntry, keys: U64, out: F32) -> list[_Part]:
        directory = self._directory(entry.spec.code)
        ordered, order, offsets = route(keys, self._session.map.seed, directory.places)
        return [
            _Part(entry, out, group.gid, index, ordered[start:stop], order[start:stop])
            for group, index, start, stop in _runs(directory, offsets, 4 * entry.spec.dim)
        ]

    async def _pull_round(self, parts: list[_Part], deadline: float) -> tuple[list[_Part], EcstoreError | None]:
        """Ask each owner once; the parts to ask again, and why."""
        groups = self._session.map.groups
        lost = {part.gid for part in parts if groups[part.gid].lost}
        if lost:
            raise DataLossError(groups=lost)
        timeout = min(PULL_ATTEMPT_S, max(0.05, deadline - self._loop.time()))

        def owner_of(part: _Part) -> str:
            return groups[part.gid].shards[part.index].owner

        asked = [
            self._pull_from(owner, chunk, timeout)
            for owner, run in itertools.groupby(sorted(parts, key=owner_of), key=owner_of)
            for chunk in pieces(list(run), _nbytes)
        ]
        outcomes = await asyncio.gather(*asked)
        left = [part for again, _error in outcomes for part in again]
        return left, next((error for _again, error in outcomes if error is not None), None)

    async def _pull_from(
        self, owner: str, parts: list[_Part], timeout: float
    ) -> tuple[list[_Part], EcstoreError | None]:
        meta = {
            "epoch": self._session.map.epoch,
            "sections": [[part.gid, part.index, part.table.id, part.keys.size] for part in parts],
        }
        keys = joined([part.keys for part in parts])
        try:
            frame = await self._session.ask(owner, "pull", meta, [keys], timeout=timeout)
        except EcstoreError as error:
            if not error.retryable:
                raise
            return parts, error
        errors = {number: from_wire(error) for number, error in frame.meta.get("errors", [])}
        rows = frame.bin(0, np.float32)
        at = 0
        for number, part in enumerate(parts):
            if number in errors:
                continue
            size = part.keys.size * part.out.shape[1]
            place(rows[at : at + size].reshape(part.keys.size, part.out.shape[1]), part.where, part.out)
            at += size
        fatal = [error for error in errors.values() if not error.retryable]
        if fatal:
            raise _merged(fatal)
        return [parts[number] for number in sorted(errors)], next(iter(errors.values()), None)

    # -- push -----------------------------------------------------------------------------------------

    async def push_many(
        self,
        updates: Mapping[Table, tuple[Ids, ArrayLike]],
        *,
        ack: Ack = "parity",
        timeout: float | None = None,
    ) -> None:
        """Apply gradients to several tables: {table: (ids (n,), grads float32 (n, dim))}; returns when acknowledged.

        Input errors are raised before anything is sent. After a TimeoutError a part may be in or not, once.
        """
        await self._submit(self._push_items(updates), "push", ack, timeout)

    async def push_many_async(
        self,
        updates: Mapping[Table, tuple[Ids, ArrayLike]],
        *,
        ack: Ack = "parity",
        timeout: float | None = None,
    ) -> asyncio.Future[None]:
        """Like `push_many`, without waiting for the acknowledgement. Waits while WINDOW_BATCHES are unacknowledged."""
        items = self._push_items(updates)
        while len(self._window) >= WINDOW_BATCHES:
            await asyncio.wait(self._window, return_when=asyncio.FIRST_COMPLETED)
        future = self._submit(items, "push", ack, timeout)
        self._window.add(future)
        future.add_done_callback(self._leave_window)
        return future

    def _leave_window(self, future: asyncio.Future[None]) -> None:
        self._window.discard(future)
        error = future.exception() if not future.cancelled() else None
        if isinstance(error, EcstoreError) and self._failed is None:
            self._failed = error

    async def flush(self) -> None:
        """Wait until every push_async so far is acknowledged; raises the first error among them, once."""
        while self._window:
            await asyncio.wait(self._window)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _push_items(self, updates: Mapping[Table, tuple[Ids, ArrayLike]]) -> list[tuple[TableEntry, U64, NDArray[Any]]]:
        """Check shapes and types, sum duplicates."""
        items: list[tuple[TableEntry, U64, NDArray[Any]]] = []
        for table, (ids, grads) in updates.items():
            entry = self._entry(table)
            keys, values = as_keys(ids), _rows(grads, entry.spec)
            if keys.size != values.shape[0]:
                raise ShapeError(f"{keys.size} ids came with {values.shape[0]} gradients; give one row for each id")
            keys, values = unique_sum(keys, values)
            items.append((entry, keys, values))
        return items

    def _submit(
        self,
        updates: Sequence[tuple[TableEntry, U64, NDArray[Any]]],
        op: str,
        ack: Ack,
        timeout: float | None,
    ) -> asyncio.Future[None]:
        """Route rows (any dtype, (n, width)) to their lanes; the future of the batch.

        Nothing has been sent when this raises. Gradients are looked at while they are brought into order.
        """
        if ack not in ("parity", "local"):
            raise InputError(f'ack is "parity" or "local", not {ack!r}')
        batch = Batch(self._loop, ack, op, self._loop.time() + self._limit(timeout))
        for entry, keys, values in updates:
            if not keys.size:
                continue
            directory = self._directory(entry.spec.code)
            ordered, order, offsets = route(keys, self._session.map.seed, directory.places)
            payload, finite = gather(values, order)
            if op == "push" and not finite:
                raise NonFiniteError(
                    f"gradients for table {entry.spec.name!r} hold NaN or infinity, or those of a repeated id overflow "
                    "when they are summed; nothing was applied. Skip the batch or clip the gradients"
                )
            payload = payload.view(np.uint8)
            # A delete carries no payload, but its delta carries the rows: it is cut by their size.
            width = max(payload.shape[1], entry.spec.row_bytes if op == "delete" else 0)
            for group, index, start, stop in _runs(directory, offsets, width):
                if group.lost:
                    raise DataLossError(groups=[group.gid for group, _index in directory.runs if group.lost])
                lane = self._pusher.lane(group.gid, index)
                batch.add(Item(batch, lane, entry.id, ordered[start:stop], payload[start:stop]))
        self._pusher.submit(batch)
        return batch.future

    # -- load, delete, export ---------------------------------------------------------------------------

    async def _load(self, name: str, ids: Ids, rows: ArrayLike, timeout: float | None) -> None:
        entry, keys = self._entry(name), as_keys(ids)
        values = np.asarray(rows)
        if values.dtype == np.uint8:
            if values.shape != (keys.size, entry.spec.row_bytes):
                raise ShapeError(
                    f"whole rows of table {name!r} are uint8 ({keys.size}, {entry.spec.row_bytes}), got {values.shape}"
                )
            whole = np.ascontiguousarray(values)
        else:
            weights = _rows(rows, entry.spec)
            if weights.shape[0] != keys.size:
                raise ShapeError(f"{keys.size} keys came with {weights.shape[0]} rows; give one row for each key")
            if not all_finite(weights):
                raise NonFiniteError(f"rows for table {name!r} hold NaN or infinity; nothing was loaded")
            whole = optim.new_rows(entry.spec.optimizer, weights)
        await self._submit([(entry, keys, whole)], "load", "parity", timeout)

    async def _delete(self, name: str, ids: Ids, timeout: float | None) -> None:
        entry, keys = self._entry(name), as_keys(ids)
        await self._submit([(entry, keys, np.empty((keys.size, 0), np.uint8))], "delete", "parity", timeout)

    async def _export(self, name: str, state: bool, timeout: float | None) -> tuple[U64, NDArray[Any]]:
        entry = self._entry(name)
        groups = self._session.map.groups_of(entry.spec.code)
        k = parse_code(entry.spec.code).k
        lost = [group.gid for group in groups if group.lost]
        if lost:
            raise DataLossError(groups=lost)
        deadline = self._loop.time() + self._limit(timeout)
        keys: list[U64] = []
        rows: list[U8] = []
        for group in groups:
            for index in range(k):
                await self._scan(entry, group.gid, index, deadline, keys, rows)
        all_keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        all_rows = np.concatenate(rows) if rows else np.empty((0, entry.spec.row_bytes), np.uint8)
        order = np.argsort(all_keys, kind="stable")
        whole = all_rows[order]
        if state:
            return all_keys[order], whole
        weights = np.ascontiguousarray(whole[:, : 4 * entry.spec.dim]).view(np.float32)
        return all_keys[order], weights.reshape(order.size, entry.spec.dim)

    async def _scan(
        self, entry: TableEntry, gid: int, index: int, deadline: float, keys: list[U64], rows: list[U8]
    ) -> None:
        count = max(1, min(1 << 16, MAX_MESSAGE_BYTES // entry.spec.row_bytes))
        start = 0
        while start >= 0:
            meta = {"group": gid, "shard": index, "table": entry.id, "start": start, "count": count}
            _owner, frame = await self._ask_owner(gid, index, "scan", meta, deadline)
            part = frame.bin(0, np.uint64)
            keys.append(part)
            rows.append(frame.bin(1, np.uint8, (part.size, entry.spec.row_bytes)))
            start = int(frame.meta["next"])

    async def _look(self, name: str, key: int, timeout: float | None) -> RowLook | None:
        entry, keys = self._entry(name), as_keys([key])
        (part,) = self._parts(entry, keys, np.empty((1, entry.spec.dim), np.float32))
        meta = {"group": part.gid, "shard": part.index, "table": entry.id}
        deadline = self._loop.time() + self._limit(timeout)
        owner, frame = await self._ask_owner(part.gid, part.index, "row.read", meta, deadline, [keys])
        return row_look(frame, entry.spec, int(keys[0]), part.gid, part.index, owner)

    async def _ask_owner(
        self, gid: int, index: int, kind: str, meta: dict[str, Any], deadline: float, bins: Sequence[Any] = ()
    ) -> tuple[str, Frame]:
        """Ask the owner of a data shard, again after changes of the map, until the deadline."""
        while True:
            group = self._session.map.groups[gid]
            if group.lost:
                raise DataLossError(groups=[gid])
            try:
                left, owner = max(0.05, deadline - self._loop.time()), group.shards[index].owner
                return owner, await self._session.ask(owner, kind, meta, bins, timeout=min(left, 10.0))
            except EcstoreError as error:
                if not error.retryable:
                    raise
                if self._loop.time() >= deadline:
                    raise TimeoutError(f"{kind} of group {gid} was not answered in time: {error}") from error
            self._session.refresh_soon()
            await self._session.map_change(0.02)

    async def _count(self, name: str) -> int:
        entry = self._entry(name)
        groups = self._session.map.groups_of(entry.spec.code)
        k = parse_code(entry.spec.code).k
        deadline = self._loop.time() + self._timeout
        asked = [
            self._ask_owner(group.gid, index, "shard.info", {"group": group.gid, "shard": index}, deadline)
            for group in groups
            for index in range(k)
        ]
        answers = await asyncio.gather(*asked)
        return sum(table[3] for _owner, answer in answers for table in answer.meta["tables"] if table[0] == entry.id)

    # -- scrub ------------------------------------------------------------------------------------------

    async def scrub(self, **options: Unpack[ScrubOptions]) -> ScrubReport:
        """Let the nodes compare parity with data, online, and repair what can be told: see `ScrubOptions`."""
        await self._session.refresh()
        return await Scrub(self._session, **options).run()

    # -- status -----------------------------------------------------------------------------------------

    async def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Tell the nodes how the trainer `name` is doing, some times a minute to once a second, for `GET /training`.

        Figures: state ("running", "finished"), batch, batches_total, samples, samples_per_s, loss, auc; each may be
        left out. InputError for others; UnavailableError when no node has taken it: go on training, report later.
        """
        await report(self._session, name, figures)

    async def ask_node(self, address: str, kind: str, meta: dict[str, Any], *, timeout: float = 5.0) -> dict[str, Any]:
        """Ask the node at "host:port" for something of its own, such as `fault.set`; also one that is declared down.

        Returns the meta of its answer. Raises what it answered; UnavailableError, TimeoutError when it is not reached.
        """
        return (await self._session.ask_address(address, kind, meta, timeout=timeout)).meta

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The cluster as seen now: epoch, health of the groups, nodes of the map, and each node's own statistics."""
        return await status(self._session, min(2.0, self._limit(timeout)))


def _rows(values: ArrayLike, spec: TableSpec) -> F32:
    """float32 (n, dim), C-contiguous; typed errors otherwise. float64 is refused: rounding is the caller's choice."""
    array = np.asarray(values)
    if array.dtype != np.float32 and not (array.size == 0 and array.dtype == np.float64):
        raise DtypeError(f"table {spec.name!r} takes float32, got {array.dtype}; convert with .astype(np.float32)")
    if array.size == 0 and array.ndim <= 2 and (array.ndim < 2 or array.shape[0] == 0):
        array = array.reshape(0, spec.dim) if array.ndim < 2 or array.shape[1] in (0, spec.dim) else array
    if array.ndim != 2 or array.shape[1] != spec.dim:
        raise ShapeError(f"table {spec.name!r} takes shape (n, {spec.dim}), got {array.shape}")
    return np.ascontiguousarray(array, np.float32)


def _runs(directory: Directory, offsets: NDArray[np.int64], width: int) -> Iterator[tuple[Group, int, int, int]]:
    """(group, index, start, stop) of every run that is not empty, cut into sections."""
    bounds = offsets.tolist()
    for (group, index), start, stop in zip(directory.runs, bounds, bounds[1:], strict=False):
        step = section_rows(stop - start, width + 8)
        for at in range(start, stop, step):
            yield group, index, at, min(at + step, stop)


def _nbytes(part: _Part) -> int:
    """Of the request for a part and its reply."""
    return int(part.keys.nbytes + part.keys.size * part.out.shape[1] * 4)


def _merged(errors: Sequence[EcstoreError]) -> EcstoreError:
    """One error for all: losses of several groups are named together."""
    lost = [group for error in errors if isinstance(error, DataLossError) for group in error.groups]
    return DataLossError(groups=lost) if lost else errors[0]


async def connect(address: str, *, timeout: float = TIMEOUT_S, cluster: str | None = None) -> Store:
    """Connect to a cluster through any of its nodes: "host:port", or several, separated by commas.

    `timeout`: default deadline of every call, seconds. `cluster`: refuse a cluster with another id.
    Raises ConfigError for what is no address, UnavailableError when nobody answers, WrongClusterError,
    VersionMismatchError.
    """
    if timeout <= 0:
        raise InputError(f"timeout must be positive seconds, got {timeout}")
    if "://" in address:
        raise ConfigError(f"{address.split('://')[0]}:// addresses are not supported by this version; use host:port")
    addresses = [part.strip() for part in address.split(",")]
    for part in addresses:
        parse_address(part)
    session = Session(addresses, cluster=cluster)
    try:
        await session.start(min(timeout, 10.0))
    except BaseException:
        await session.close()
        raise
    return Store(session, timeout=timeout)
