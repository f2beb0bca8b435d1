"""How deltas, key lists and request numbers look inside frames. Pure; docs/PROTOCOL.md is the normative text.

`pack_*` gives (meta, bins) for `wire.encode`; `unpack_*` reads a received frame and raises FrameError when the
parts do not fit together, so that nothing behind this door has to check sizes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecstore.cluster.map import MAX_TABLES
from ecstore.errors import FrameError
from ecstore.limits import MAX_CLIENTS_PER_SHARD
from ecstore.node.deltalog import DeltaFrame
from ecstore.node.sink_shard import TableSnapshot
from ecstore.wire import Frame

Meta = dict[str, Any]
Bins = list[NDArray[Any]]

#: Types of the head of one delta, as `pack_deltas` writes it.
_DELTA_HEAD = [int] * 11 + [bytes, int]

#: Types of one acknowledgement: group, source, sink, subscription, applied, verdict.
_ACK = [int] * 5 + [str]

#: Bytes of a client's id. A delta or a snapshot may carry an empty one: no client asked for it.
MAX_CLIENT_BYTES = 32

#: Bytes of a row: 16,384 weights with the state of Adam, with room to spare.
MAX_ROW_BYTES = 1 << 20


class Addressed(NamedTuple):
    """A delta frame on its way from data shard `src` of a group to sink `dst` (shard indexes)."""

    gid: int
    src: int
    dst: int
    subscription: int
    acked_by_all: int
    frame: DeltaFrame


def pack_deltas(items: Sequence[Addressed]) -> tuple[Meta, Bins]:
    """One message for several delta frames: small arrays joined, delta bytes uncopied, one bin each."""
    heads = []
    small: list[NDArray[np.uint32]] = []
    keys: list[NDArray[np.uint64]] = []
    deltas: Bins = []
    for item in items:
        frame = item.frame
        heads.append(
            [
                item.gid, item.src, item.dst, item.subscription, item.acked_by_all, frame.seq, frame.table_id,
                frame.slots.size, frame.delta.shape[1], frame.new_slots.size, frame.freed_slots.size,
                frame.client, frame.request_no,
            ]
        )  # fmt: skip
        small += [frame.slots, frame.new_slots, frame.freed_slots]
        keys.append(frame.new_keys)
        deltas.append(frame.delta)
    return {"frames": heads}, [np.concatenate(small), np.concatenate(keys), *deltas]


def unpack_deltas(message: Frame) -> list[Addressed]:
    """The frames of one `deltas` message; arrays are views of the received body."""
    heads = message.meta.get("frames")
    if not isinstance(heads, list) or len(message.bins) != len(heads) + 2:
        raise FrameError("a deltas message needs one head and one bin per frame, and two bins of slots and keys")
    for head in heads:
        if not isinstance(head, list) or [type(field) for field in head] != _DELTA_HEAD:
            raise FrameError("a delta's head is a list of 11 integers, the client's id in bytes and an integer")
    small = message.bin(0, np.uint32, (sum(head[7] + head[9] + head[10] for head in heads),))
    keys = message.bin(1, np.uint64, (sum(head[9] for head in heads),))
    result = []
    at = key_at = 0
    for number, head in enumerate(heads):
        gid, src, dst, subscription, acked, seq, table_id, n, row_bytes, new, freed, client, request_no = head
        if min(gid, src, dst, n, new, freed) < 0:
            raise FrameError("a delta's places and sizes must not be negative")
        check_row_bytes(row_bytes)
        _check_client(client)
        slots, new_slots, freed_slots = (
            small[at : at + n],
            small[at + n :][:new],
            small[at + n + new :][:freed],
        )
        delta = message.bin(number + 2, np.uint8, (n, row_bytes))
        frame = DeltaFrame(
            seq,
            table_id,
            slots,
            delta,
            new_slots,
            keys[key_at : key_at + new],
            freed_slots,
            client,
            request_no,
        )
        result.append(Addressed(gid, src, dst, subscription, acked, frame))
        at += n + new + freed
        key_at += new
    return result


def pack_tables(tables: Sequence[TableSnapshot]) -> tuple[list[list[int]], Bins]:
    """Key lists of a data shard: heads [table_id, row_bytes, used], bins keys (uint64) and allocated (uint8)."""
    heads = [[table.table_id, table.row_bytes, int(table.keys.size)] for table in tables]
    keys = [table.keys for table in tables] or [np.empty(0, np.uint64)]
    flags = [table.allocated for table in tables] or [np.empty(0, np.uint8)]
    return heads, [np.concatenate(keys), np.concatenate(flags)]


def unpack_tables(heads: Any, message: Frame, first_bin: int = 0) -> list[TableSnapshot]:
    """Arrays are views of the received body."""
    try:
        sizes = [(int(head[0]), int(head[1]), int(head[2])) for head in heads]
    except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise FrameError(f"malformed table heads: {error}") from None
    if len(sizes) > MAX_TABLES or any(table_id < 0 or used < 0 for table_id, _bytes, used in sizes):
        raise FrameError(f"a key list has at most {MAX_TABLES} tables, and neither ids nor sizes below 0")
    for _table, row_bytes, _used in sizes:
        check_row_bytes(row_bytes, may_be_unknown=True)
    total = sum(used for _table, _bytes, used in sizes)
    keys = message.bin(first_bin, np.uint64, (total,))
    flags = message.bin(first_bin + 1, np.uint8, (total,))
    tables, at = [], 0
    for table_id, row_bytes, used in sizes:
        tables.append(TableSnapshot(table_id, row_bytes, keys[at : at + used], flags[at : at + used]))
        at += used
    return tables


def pack_requests(entries: Iterable[tuple[bytes, int, int]]) -> list[list[Any]]:
    return [[client, request_no, seq] for client, request_no, seq in entries]


def unpack_requests(entries: Any) -> list[tuple[bytes, int, int]]:
    if not isinstance(entries, list) or len(entries) > MAX_CLIENTS_PER_SHARD:
        raise FrameError(f"request numbers come as a list of at most {MAX_CLIENTS_PER_SHARD}, one for each client")
    for entry in entries:
        if not isinstance(entry, list) or [type(field) for field in entry] != [bytes, int, int]:
            raise FrameError("a request number is a list of the client's id in bytes and two integers")
        _check_client(entry[0])
    return [(client, request_no, seq) for client, request_no, seq in entries]


def unpack_acks(message: Frame) -> tuple[list[tuple[int, int, int, int, int, str]], int]:
    """The acknowledgements of one `acks` message, and its sender's epoch."""
    acks = message.meta.get("acks")
    if not isinstance(acks, list):
        raise FrameError("an acks message carries a list")
    for ack in acks:
        if not isinstance(ack, list) or [type(field) for field in ack] != _ACK:
            raise FrameError("an acknowledgement is a list of 5 integers and a verdict")
    return [(gid, src, dst, number, applied, verdict) for gid, src, dst, number, applied, verdict in acks], integer(
        message.meta, "epoch"
    )


def check_row_bytes(row_bytes: int, *, may_be_unknown: bool = False) -> None:
    """FrameError unless rows may have this width. `may_be_unknown`: 0 says that the sender does not know it."""
    if not (may_be_unknown and row_bytes == 0) and (not 0 < row_bytes <= MAX_ROW_BYTES or row_bytes % 8):
        raise FrameError(f"row_bytes is a multiple of 8 from 8 to {MAX_ROW_BYTES}")


def _check_client(client: bytes) -> None:
    if len(client) > MAX_CLIENT_BYTES:
        raise FrameError(f"a client's id has at most {MAX_CLIENT_BYTES} bytes")


def integer(meta: Meta, name: str) -> int:
    """An integer field of a message."""
    value = meta.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FrameError(f"field {name!r} must be an integer, not {type(value).__name__}")
    return value
