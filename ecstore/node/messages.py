"""How deltas, key lists and request numbers look inside frames. Pure; docs/PROTOCOL.md is the normative text.

`pack_*` gives (meta, bins) for `wire.encode`; `unpack_*` reads a received frame and raises FrameError when the
parts do not fit together, so that nothing behind this door has to check sizes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ecstore.errors import FrameError
from ecstore.node.deltalog import DeltaFrame
from ecstore.node.sink_shard import TableSnapshot
from ecstore.wire import Frame

Meta = dict[str, Any]
Bins = list[NDArray[Any]]

#: Types of the head of one delta, as `pack_deltas` writes it.
_DELTA_HEAD = [int] * 11 + [bytes, int]


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
        if min(gid, src, dst, n, new, freed) < 0 or row_bytes <= 0 or row_bytes % 8:
            raise FrameError("a delta's sizes must not be negative, and row_bytes is a positive multiple of 8")
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
    try:
        sizes = [(int(head[0]), int(head[1]), int(head[2])) for head in heads]
    except (TypeError, ValueError, IndexError) as error:
        raise FrameError(f"malformed table heads: {error}") from None
    total = sum(used for _table, _bytes, used in sizes)
    keys = message.bin(first_bin, np.uint64, (total,))
    flags = message.bin(first_bin + 1, np.uint8, (total,))
    tables, at = [], 0
    for table_id, row_bytes, used in sizes:
        tables.append(TableSnapshot(table_id, row_bytes, keys[at : at + used].copy(), flags[at : at + used].copy()))
        at += used
    return tables


def pack_requests(entries: Iterable[tuple[bytes, int, int]]) -> list[list[Any]]:
    return [[client, request_no, seq] for client, request_no, seq in entries]


def unpack_requests(entries: Any) -> list[tuple[bytes, int, int]]:
    try:
        return [(bytes(client), int(request_no), int(seq)) for client, request_no, seq in entries]
    except (TypeError, ValueError) as error:
        raise FrameError(f"malformed request numbers: {error}") from None


def integer(meta: Meta, name: str) -> int:
    """An integer field of a message."""
    value = meta.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FrameError(f"field {name!r} must be an integer, got {value!r}")
    return value
