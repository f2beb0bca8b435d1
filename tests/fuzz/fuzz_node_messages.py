"""Everything a node reads out of messages: `python -m tests.fuzz.fuzz_node_messages -runs=100000`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ecstore import wire
from ecstore.cluster.map import ClusterMap
from ecstore.coordination.mapfile import unpack_map
from ecstore.errors import EcstoreError
from ecstore.limits import MAX_IDS_PER_REQUEST
from ecstore.node.client_api import _pull_sections, _push_sections
from ecstore.node.messages import MAX_CLIENT_BYTES, integer, unpack_acks, unpack_deltas, unpack_requests, unpack_tables
from ecstore.tables import TableSpec
from ecstore.transport.errors import error_to_wire
from ecstore.wire import Frame
from tests.fuzz.targets import allowance, bounded, main


def _deltas(frame: Frame) -> None:
    for item in unpack_deltas(frame):
        assert item.frame.slots.size == item.frame.delta.shape[0]
        assert item.frame.new_slots.size == item.frame.new_keys.size
        assert len(item.frame.client) <= MAX_CLIENT_BYTES


def _tables(frame: Frame) -> None:
    for table in unpack_tables(frame.meta.get("tables"), frame):
        assert table.keys.size == table.allocated.size


def _sections(frame: Frame) -> None:
    sections = _push_sections(frame, "push") if frame.kind == "push" else _pull_sections(frame)
    assert sum(section.keys.size for section in sections) <= MAX_IDS_PER_REQUEST


READERS: tuple[Callable[[Frame], Any], ...] = (
    _deltas,
    _tables,
    _sections,
    unpack_acks,
    lambda frame: unpack_requests(frame.meta.get("requests")),
    lambda frame: integer(frame.meta, "epoch"),
    lambda frame: TableSpec.from_wire(frame.meta.get("spec")),
    lambda frame: ClusterMap.from_wire(frame.meta.get("map")),
    lambda frame: unpack_map(frame.bins[0].tobytes()) if frame.bins else None,
)


def target(data: bytes) -> None:
    """The bytes as a frame, and the frame as a message of every kind."""
    try:
        _length, head, body_checksum = wire.decode_prefix(data.ljust(wire.PREFIX_BYTES, b"\0"))
        frame = wire.decode(np.frombuffer(bytearray(data[wire.PREFIX_BYTES :]), np.uint8), head, body_checksum)
    except EcstoreError:
        return
    for reader in READERS:

        def read(reader: Callable[[Frame], Any] = reader) -> None:
            try:
                reader(frame)
            except RecursionError:
                pass  # told as a FrameError where a handler is called
            except EcstoreError as error:
                error_to_wire(error)
                raise

        bounded(read, allowance(data))


if __name__ == "__main__":
    main(target, sys.argv)
