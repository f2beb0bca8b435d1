"""What a node answers to clients: pull, push, load, delete, scan.

A request holds one section per data shard and table. Sections succeed or fail one by one; the reply names those that
failed, and the client asks for these again. The fast path runs to the end within one call of the loop; only sections
that must wait (for a decode, for room in a log, for their turn after such a one) take a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecstore import buffers, limits
from ecstore.cluster.map import Table, parse_code
from ecstore.errors import (
    CapacityError,
    CodeError,
    EcstoreError,
    FencedError,
    FrameError,
    FrameTooLargeError,
    KeyRangeError,
    NonFiniteError,
    NotOwnerError,
    NotReadyError,
    RequestGapError,
    ShapeError,
    UnknownTableError,
)
from ecstore.hashing import strays
from ecstore.node.dedupe import Verdict
from ecstore.node.messages import MAX_CLIENT_BYTES, integer
from ecstore.node.rowstore import RowStore
from ecstore.node.runtime import OwnedData, Runtime
from ecstore.routing import all_finite
from ecstore.transport import Connection
from ecstore.wire import Frame

#: A request that waits for a decode or for room gives up after this time; the client asks again within its deadline.
WAIT_S = 10.0

#: Failed sections of one reply that are told with a message; of more, the code alone must do.
MAX_MESSAGES = 512

#: Slots that one scan reply covers at most.
MAX_SCAN_SLOTS = 1 << 16

#: Memory of one section that waits, beside its arrays: it waits in a task of its own.
SECTION_BYTES = 4096

U64 = NDArray[np.uint64]


@dataclass(slots=True)
class _Section:
    """Part of a request that concerns one table in one data shard."""

    gid: int
    index: int
    table_id: int
    keys: U64
    request_no: int = 0
    previous: int = 0
    payload: NDArray[Any] | None = None  # gradients float32 (n, dim), or whole rows uint8 (n, row_bytes)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + (self.payload.nbytes if self.payload is not None else 0)

    def detach(self) -> None:
        """Own the arrays, which are views of the whole request: it may be large, and this part may wait long."""
        self.keys = self.keys.copy()
        if self.payload is not None:
            self.payload = self.payload.copy()


_TurnKey = tuple[bytes, int, int]  # client, group, shard


class _Turn:
    """The queue of one client's pushes to one shard that could not be applied at once. First come, first served."""

    __slots__ = ("lock", "queued")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.queued = 0


class ClientApi:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: Pushes that wait, by client and shard: later ones queue behind them.
        self._turns: dict[_TurnKey, _Turn] = {}
        self._waiting_bytes = 0
        self.immediate: dict[str, Callable[[Connection, Frame], None]] = {
            "pull": self._pull,
            "push": self._push,
        }
        self.waiting: dict[str, Callable[[Connection, Frame], Coroutine[Any, Any, None]]] = {
            "scan": self._scan,
            "row.read": self._row_read,
        }

    # -- common ---------------------------------------------------------------------------------------

    def _fence(self) -> None:
        if not self._runtime.peers.may_serve():
            self._runtime.count("requests_fenced")
            raise FencedError(
                f"node {self._runtime.name} has not been confirmed as alive lately; fetch the map and ask again",
                epoch=self._runtime.map.epoch,
            )

    def _owned(self, section: _Section) -> OwnedData:
        """The live shard of a section, or the error that tells the client what to do."""
        self._runtime.group(section.gid)
        owned = self._runtime.data.get((section.gid, section.index))
        if owned is None:
            raise NotOwnerError(
                f"node {self._runtime.name} does not own shard {section.index} of group {section.gid}",
                epoch=self._runtime.map.epoch,
            )
        if owned.shard is None:
            raise NotReadyError(
                f"shard {section.index} of group {section.gid} is being taken over",
                epoch=self._runtime.map.epoch,
            )
        return owned

    def _table(self, table_id: int) -> Table:
        table = self._runtime.tables.get(table_id)
        if table is None:
            if table_id >= self._runtime.map.next_table_id:
                raise NotReadyError(f"table {table_id} is newer than the map of node {self._runtime.name}")
            raise UnknownTableError(f"table {table_id} was dropped; open or create the table again")
        return table

    def _store(self, owned: OwnedData, table_id: int) -> RowStore:
        assert owned.shard is not None
        store = owned.shard.tables.get(table_id)
        if store is None:
            table = self._table(table_id)
            store = owned.shard.open_table(table_id, table.spec)
        return store

    def _check_places(self, sections: list[_Section]) -> None:
        """Raise, for the whole request, when a section's table is of another code than its group, or keys of it belong
        to another data shard: rows that went there no other client would find. What the map here does not know yet
        is judged with its section.
        """
        for section in sections:
            table, number = self._runtime.tables.get(section.table_id), self._runtime.numbers.get(section.gid)
            if table is None or number is None or not 0 <= section.index < number.per_group:
                continue
            code = self._runtime.map.groups[section.gid].code
            if parse_code(table.spec.code).name != code:
                raise CodeError(
                    f"table {table.spec.name!r} has code {table.spec.code}, group {section.gid} is of {code}: "
                    "route by the map"
                )
            astray = strays(section.keys, self._runtime.map.seed, number.shards, number.first + section.index)
            if astray:
                raise KeyRangeError(
                    f"{astray} of {section.keys.size} keys do not belong to shard {section.index} of group "
                    f"{section.gid}: route by the rule of docs/PROTOCOL.md, section 4"
                )

    # -- pull -----------------------------------------------------------------------------------------

    def _pull(self, connection: Connection, frame: Frame) -> None:
        began = self._runtime.clock()
        sections = _pull_sections(frame)
        self._fence()
        self._check_places(sections)
        if not any(self._must_wait(section) for section in sections):
            self._answer_pull(connection, frame.rid, sections, {})
            self._runtime.durations.pull.observe(self._runtime.clock() - began)
            return
        for section in sections:
            section.detach()
        kept = sum(section.nbytes + SECTION_BYTES for section in sections)
        self._runtime.spawn_request(self._pull_later(connection, frame.rid, sections), "pull", nbytes=kept)

    def _must_wait(self, section: _Section) -> bool:
        """Whether a section can be answered only later: its shard is being taken over, or lost rows are asked for."""
        owned = self._runtime.data.get((section.gid, section.index))
        return owned is not None and (owned.shard is None or self._needs_decode(section))

    def _needs_decode(self, section: _Section) -> bool:
        owned = self._runtime.data.get((section.gid, section.index))
        if owned is None or owned.shard is None or section.table_id not in owned.shard.undecoded:
            return False
        slots = owned.shard.tables[section.table_id].find(section.keys)
        return bool(owned.shard.lost_slots(section.table_id, slots).size)

    async def _pull_later(self, connection: Connection, rid: int, sections: list[_Section]) -> None:
        """Wait for takeovers and decode what the sections need, side by side, then answer."""
        began = self._runtime.clock()
        errors: dict[int, EcstoreError] = {}

        async def prepare(number: int, section: _Section) -> None:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._taken_over(section)
                    await self._decode_for(section)
            except EcstoreError as error:
                errors[number] = error
            except TimeoutError:
                errors[number] = NotReadyError(f"decoding for group {section.gid} took over {WAIT_S} s; ask again")

        async with asyncio.TaskGroup() as group:
            for number, section in enumerate(sections):
                group.create_task(prepare(number, section))
        if connection.closed:
            return
        for number, section in enumerate(sections):
            # A shard that was still being taken over when its section was looked at may serve by now.
            if number not in errors and self._needs_decode(section):
                errors[number] = NotReadyError(
                    f"shard {section.index} of group {section.gid} has just begun; ask again"
                )
        try:
            self._fence()
            self._answer_pull(connection, rid, sections, errors)
            self._runtime.durations.pull.observe(self._runtime.clock() - began)
        except EcstoreError as error:
            connection.reply_error(rid, error)

    async def _taken_over(self, section: _Section) -> None:
        """Return when the section's shard serves, or belongs to somebody else; it is a matter of milliseconds."""
        while (owned := self._runtime.data.get((section.gid, section.index))) is not None and owned.shard is None:
            self._runtime.group(section.gid)
            await self._runtime.map_change(WAIT_S)

    async def _decode_for(self, section: _Section) -> None:
        while self._needs_decode(section):
            owned = self._owned(section)
            assert owned.shard is not None
            if owned.decoder is None:
                raise NotReadyError(f"shard {section.index} of group {section.gid} can't decode yet")
            slots = owned.shard.tables[section.table_id].find(section.keys)
            await owned.decoder.ensure(section.table_id, slots)

    def _answer_pull(
        self, connection: Connection, rid: int, sections: list[_Section], errors: dict[int, EcstoreError]
    ) -> None:
        stores: list[tuple[_Section, RowStore] | None] = []
        total = 0
        for number, section in enumerate(sections):
            if number not in errors:
                try:
                    store = self._store(self._owned(section), section.table_id)
                    stores.append((section, store))
                    total += section.keys.size * store.dim
                    continue
                except EcstoreError as error:
                    errors[number] = error
            stores.append(None)
        if 4 * total > limits.MAX_REPLY_BYTES:
            raise FrameError(f"the reply would have {4 * total} bytes; pull in several requests")
        out = buffers.empty(total, np.float32)
        at = 0
        for entry in stores:
            if entry is not None:
                section, store = entry
                size = section.keys.size * store.dim
                store.pull(section.keys, out[at : at + size].reshape(section.keys.size, store.dim))
                at += size
        self._runtime.count("rows_pulled", sum(entry[0].keys.size for entry in stores if entry is not None))
        connection.reply(rid, _meta(self._runtime, errors), [out])

    # -- push, load, delete -----------------------------------------------------------------------------

    def _push(self, connection: Connection, frame: Frame) -> None:
        client, op = frame.meta.get("client"), frame.meta.get("op")
        if not isinstance(client, bytes) or not 1 <= len(client) <= MAX_CLIENT_BYTES:
            raise FrameError(f"a push carries the client's id: 1 to {MAX_CLIENT_BYTES} bytes")
        if op not in ("push", "load", "delete"):
            raise FrameError("the operation of a push is push, load or delete")
        sections = _push_sections(frame, op)
        self._fence()
        self._check_places(sections)
        answer = _PushAnswer(self._runtime, connection, frame, len(sections))
        wait_for_sinks = frame.meta.get("ack") != "local"
        for number, section in enumerate(sections):
            self._push_section(answer, number, section, client, op, wait_for_sinks)
        self._runtime.count("rows_pushed", sum(section.keys.size for section in sections))

    def _push_section(
        self, answer: _PushAnswer, number: int, section: _Section, client: bytes, op: str, wait: bool
    ) -> None:
        key = (client, section.gid, section.index)
        try:
            if key not in self._turns and self._ready(section):
                self._apply(answer, number, section, client, op, wait)
                return
            turn = self._enter(key, section)
            try:
                self._runtime.spawn_request(self._push_later(turn, answer, number, section, client, op, wait), "push")
            except EcstoreError:
                self._leave(key, turn, section)
                raise
        except EcstoreError as error:
            answer.done(number, error)

    def _enter(self, key: _TurnKey, section: _Section) -> _Turn:
        """Queue a push, if the bound of what waits here allows; the first is let in whatever its size."""
        if self._waiting_bytes and self._waiting_bytes + section.nbytes > limits.MAX_WAITING_BYTES:
            raise CapacityError(f"pushes of {self._waiting_bytes} bytes wait on node {self._runtime.name}; push again")
        section.detach()
        self._waiting_bytes += section.nbytes
        turn = self._turns.setdefault(key, _Turn())
        turn.queued += 1
        return turn

    def _leave(self, key: _TurnKey, turn: _Turn, section: _Section) -> None:
        self._waiting_bytes -= section.nbytes
        turn.queued -= 1
        if not turn.queued:
            del self._turns[key]

    def _ready(self, section: _Section) -> bool:
        owned = self._owned(section)
        assert owned.shard is not None
        return not owned.shard.congested and not self._needs_decode(section)

    async def _push_later(
        self,
        turn: _Turn,
        answer: _PushAnswer,
        number: int,
        section: _Section,
        client: bytes,
        op: str,
        wait: bool,
    ) -> None:
        """Wait for a decode or for room, in turn: pushes of one client to one shard keep their order."""
        try:
            async with asyncio.timeout(WAIT_S), turn.lock:
                while not self._ready(section):
                    await self._decode_for(section)
                    owned = self._owned(section)
                    assert owned.shard is not None
                    if owned.shard.congested:
                        await self._room(owned)
                self._fence()
                self._apply(answer, number, section, client, op, wait)
        except EcstoreError as error:
            answer.done(number, error)
        except TimeoutError:
            answer.done(number, NotReadyError(f"group {section.gid} was not ready in {WAIT_S} s; push again"))
        finally:
            self._leave((client, section.gid, section.index), turn, section)

    async def _room(self, owned: OwnedData) -> None:
        assert owned.shard is not None
        roomy: asyncio.Future[None] = self._runtime.loop.create_future()

        def settle(_error: EcstoreError | None) -> None:
            if not roomy.done():
                roomy.set_result(None)

        owned.shard.when_acked(settle)
        await roomy

    def _apply(self, answer: _PushAnswer, number: int, section: _Section, client: bytes, op: str, wait: bool) -> None:
        owned = self._owned(section)
        shard = owned.shard
        assert shard is not None
        table = self._table(section.table_id)
        verdict = shard.requests.judge(client, section.request_no, section.previous, shard.seq)
        if verdict is Verdict.GAP:
            raise RequestGapError(
                f"request {section.previous} of this client to shard {section.index} of group {section.gid} "
                "has not arrived; send it first",
                last=shard.requests.last(client),
            )
        if verdict is Verdict.FULL:
            raise CapacityError(
                f"shard {section.index} of group {section.gid} remembers {limits.MAX_CLIENTS_PER_SHARD} clients, its "
                "bound; reuse a store rather than connect for every push"
            )
        if verdict is Verdict.NEW:
            store = self._store(owned, section.table_id)
            payload = _checked_payload(section, op, table, store)
            shard.check_room(section.table_id, section.keys, growing=op != "delete")
            if op == "delete":
                shard.delete(section.table_id, section.keys, client, section.request_no)
            elif op == "push":
                shard.push(section.table_id, section.keys, payload, client, section.request_no)
            else:
                shard.put(section.table_id, section.keys, payload, client, section.request_no)
            self._runtime.streams.applied(shard)
        else:
            self._runtime.count("duplicate_pushes")
        if wait:
            shard.when_acked(lambda error: answer.done(number, error))
        else:
            answer.done(number, None)

    # -- scan, rows -----------------------------------------------------------------------------------

    async def _scan(self, connection: Connection, frame: Frame) -> None:
        """Keys and whole rows of a run of slots: export. The client goes on from `next` until it is -1."""
        gid, index, table_id = (integer(frame.meta, name) for name in ("group", "shard", "table"))
        start, count = integer(frame.meta, "start"), integer(frame.meta, "count")
        if not 0 <= start <= limits.MAX_ROWS_PER_SHARD or not 1 <= count <= MAX_SCAN_SLOTS:
            raise FrameError(f"a scan starts at slot 0 or later and covers 1 to {MAX_SCAN_SLOTS} slots")
        section = _Section(gid, index, table_id, np.empty(0, np.uint64))
        self._fence()
        owned = self._owned(section)
        store = self._store(owned, table_id)
        slots = np.arange(start, min(start + count, store.used), dtype=np.int64)
        if owned.decoder is not None:
            try:
                async with asyncio.timeout(WAIT_S):
                    await owned.decoder.ensure(table_id, slots)
            except TimeoutError:
                raise NotReadyError(f"decoding for group {gid} took over {WAIT_S} s; scan again") from None
            self._fence()
            if self._owned(section) is not owned:
                raise NotReadyError(f"shard {index} of group {gid} moved; scan again")
            if self._store(owned, table_id) is not store:  # dropped: its rows are gone
                raise NotReadyError(f"table {table_id} changed; scan again")
        live = slots[store.keylist.allocated[slots].astype(np.bool_)]
        following = start + count if start + count < store.used else -1
        meta = {"epoch": self._runtime.map.epoch, "next": following, "row_bytes": store.row_bytes}
        connection.reply(frame.rid, meta, [store.keylist.keys[live], store.read(live)])

    async def _row_read(self, connection: Connection, frame: Frame) -> None:
        """Whole rows of some keys, with their slots and the seq of that instant. Makes no row and opens no table."""
        gid, index, table_id = (integer(frame.meta, name) for name in ("group", "shard", "table"))
        keys = frame.bin(0, np.uint64)
        if not 1 <= keys.size <= limits.MAX_KEYS_PER_LOOK:
            raise FrameError(f"1 to {limits.MAX_KEYS_PER_LOOK} keys may be looked at in one request, not {keys.size}")
        section = _Section(gid, index, table_id, keys.copy())
        self._fence()
        self._check_places([section])
        try:
            async with asyncio.timeout(WAIT_S):
                await self._taken_over(section)
                decoded = self._needs_decode(section)
                await self._decode_for(section)
        except TimeoutError:
            raise NotReadyError(f"shard {index} of group {gid} was not ready in {WAIT_S} s; ask again") from None
        self._fence()
        owned, row_bytes = self._owned(section), self._table(table_id).spec.row_bytes
        if self._needs_decode(section):  # another owner came between
            raise NotReadyError(f"shard {index} of group {gid} has just begun; ask again")
        assert owned.shard is not None
        if section.keys.size * row_bytes > limits.MAX_REPLY_BYTES:
            raise FrameError(f"{section.keys.size} rows of {row_bytes} bytes exceed one reply; ask for fewer")
        store = owned.shard.tables.get(table_id)
        slots, rows = np.full(section.keys.size, -1, np.int64), np.empty((0, row_bytes), np.uint8)
        if store is not None:
            slots = store.find(section.keys)
            rows = store.read(slots[slots >= 0])
        meta = {"epoch": self._runtime.map.epoch, "seq": owned.shard.seq, "row_bytes": row_bytes, "decoded": decoded}
        connection.reply(frame.rid, meta, [slots, rows])


class _PushAnswer:
    """Collects the outcome of every section and replies when the last one is known."""

    __slots__ = ("_began", "_connection", "_errors", "_left", "_rid", "_runtime")

    def __init__(self, runtime: Runtime, connection: Connection, frame: Frame, sections: int) -> None:
        self._runtime = runtime
        self._began = runtime.clock()
        self._connection = connection
        self._rid = frame.rid
        self._left = sections
        self._errors: dict[int, EcstoreError] = {}
        if not sections:
            self._left = 1
            self.done(0, None)

    def done(self, number: int, error: EcstoreError | None) -> None:
        if error is not None:
            self._errors[number] = error
        self._left -= 1
        if self._left or self._connection.closed:
            return
        if not self._runtime.peers.may_serve():  # a fenced node acknowledges nothing (G6)
            self._connection.reply_error(
                self._rid,
                FencedError(f"node {self._runtime.name} has lost its lease; fetch the map and push again"),
            )
            return
        self._runtime.durations.push.observe(self._runtime.clock() - self._began)
        try:
            self._connection.reply(self._rid, _meta(self._runtime, self._errors))
        except FrameTooLargeError:  # we may be in the middle of a shard's acknowledgements: nothing may come out here
            refusal = CapacityError(
                "more sections failed than a frame to you can tell; push again, in smaller requests"
            )
            self._connection.reply_error(self._rid, refusal)


def _meta(runtime: Runtime, errors: dict[int, EcstoreError]) -> dict[str, Any]:
    """Meta of a reply, with the errors of its sections."""
    meta: dict[str, Any] = {"epoch": runtime.map.epoch}
    if errors:
        told = [(number, error.to_wire()) for number, error in sorted(errors.items())]
        for _number, wire in told[MAX_MESSAGES:]:
            wire["message"] = ""
        meta["errors"] = told
    return meta


def _heads(frame: Frame, width: int) -> list[list[int]]:
    heads = frame.meta.get("sections")
    if not isinstance(heads, list):
        raise FrameError("a request carries a list of sections")
    for head in heads:
        if not isinstance(head, list) or len(head) != width or not all(type(field) is int for field in head):
            raise FrameError(f"a section head is a list of {width} integers")
    if sum(head[3] for head in heads) > limits.MAX_IDS_PER_REQUEST or any(head[3] < 0 for head in heads):
        raise FrameError(f"a request holds 0 to {limits.MAX_IDS_PER_REQUEST} ids; cut it in parts")
    return heads


def _pull_sections(frame: Frame) -> list[_Section]:
    heads = _heads(frame, 4)
    keys = frame.bin(0, np.uint64, (sum(head[3] for head in heads),))
    sections, at = [], 0
    for gid, index, table_id, count in heads:
        sections.append(_Section(gid, index, table_id, keys[at : at + count]))
        at += count
    return sections


def _push_sections(frame: Frame, op: str) -> list[_Section]:
    """Section heads: group, shard, table, ids, bytes a row of the payload, request number, previous request number."""
    heads = _heads(frame, 7)
    keys = frame.bin(0, np.uint64, (sum(head[3] for head in heads),))
    if any(head[4] < 0 or head[4] % 4 for head in heads):
        raise FrameError("payload bytes a row are a multiple of 4, not negative")
    payload = frame.bin(1, np.uint8, (sum(head[3] * head[4] for head in heads),))
    sections, at, byte_at = [], 0, 0
    for gid, index, table_id, count, width, request_no, previous in heads:
        if not 0 <= previous < request_no:
            raise FrameError("request numbers start at 1 and rise")
        rows = payload[byte_at : byte_at + count * width].reshape(count, width)
        sections.append(_Section(gid, index, table_id, keys[at : at + count], request_no, previous, rows))
        at += count
        byte_at += count * width
    return sections


def _checked_payload(section: _Section, op: str, table: Table, store: RowStore) -> NDArray[Any]:
    """Gradients float32 (n, dim) for a push, rows uint8 (n, row_bytes) for a load; typed errors otherwise."""
    payload = section.payload
    assert payload is not None
    if op == "delete":
        return payload
    wanted = 4 * store.dim if op == "push" else store.row_bytes
    if payload.shape[1] != wanted:
        raise ShapeError(
            f"table {table.spec.name!r} takes {wanted} bytes a row for {op} (dim {store.dim}), got {payload.shape[1]}"
        )
    if op == "load":
        return _aligned(payload, np.uint8)
    grads = _aligned(payload, np.float32).reshape(section.keys.size, store.dim)
    if not all_finite(grads):
        raise NonFiniteError(f"gradients for table {table.spec.name!r} hold NaN or infinity; nothing was applied")
    return grads


def _aligned(payload: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """The payload as `dtype`. Sections of unequal widths may leave rows at odd addresses: those are copied."""
    if payload.size and payload.ctypes.data % 8:
        payload = payload.copy()
    return payload.view(dtype)
