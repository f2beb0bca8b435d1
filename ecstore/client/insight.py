"""What a client asks and says beside its data: one row as it lies on its node, and how a trainer is doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ecstore.client.session import Session
from ecstore.errors import EcstoreError, UnavailableError
from ecstore.optim import named_state
from ecstore.tables import TableSpec
from ecstore.training import checked_figures, checked_name
from ecstore.wire import Frame

#: A report that has not arrived by then is out of date.
REPORT_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class RowLook:
    """One stored row as it was at one instant."""

    key: int
    weights: NDArray[np.float32]  #: (dim,)
    #: Of the optimizer, by name: numbers, and arrays of one number for each column. Empty for SGD.
    state: dict[str, Any]
    group: int
    shard: int  #: index of its data shard in the group
    slot: int
    owner: str  #: the node that answered
    seq: int  #: of the shard's latest delta at that instant
    #: The row had been lost, and was decoded in order to show it.
    decoded: bool


def row_look(frame: Frame, spec: TableSpec, key: int, group: int, shard: int, owner: str) -> RowLook | None:
    """From the answer to a `row.read` of one key; None when it has no row."""
    slot = int(frame.bin(0, np.int64, (1,))[0])
    if slot < 0:
        return None
    row = frame.bin(1, np.uint8, (1, spec.row_bytes))[0]
    numbers = np.ascontiguousarray(row).view(np.float32)
    return RowLook(
        key=key, weights=numbers[: spec.dim].copy(), state=named_state(spec.optimizer, spec.dim, numbers),
        group=group, shard=shard, slot=slot, owner=owner, seq=int(frame.meta["seq"]),
        decoded=bool(frame.meta.get("decoded")),
    )  # fmt: skip


async def report(session: Session, name: str, figures: Mapping[str, Any]) -> None:
    """Tell all nodes that are up; UnavailableError when none has taken it."""
    meta = {"name": checked_name(name), "at": time.time(), "figures": checked_figures(figures)}

    async def tell(node_id: str) -> EcstoreError | None:
        try:
            await session.ask(node_id, "train.report", meta, timeout=REPORT_TIMEOUT_S)
        except EcstoreError as error:
            return error
        return None

    outcomes = await asyncio.gather(*(tell(node_id) for node_id in session.map.up_nodes()))
    if not outcomes or all(outcome is not None for outcome in outcomes):
        why = outcomes[0] if outcomes else "no node is up"
        raise UnavailableError(f"no node has taken the report of {name!r} ({why}); report again later")


async def status(session: Session, timeout: float) -> dict[str, Any]:
    """The cluster as seen now; a node that does not answer within `timeout` has an `error` instead of statistics."""
    await session.refresh()
    current = session.map

    async def one(node_id: str) -> tuple[str, dict[str, Any]]:
        try:
            frame = await session.ask(node_id, "status", {}, timeout=timeout)
            return node_id, frame.meta
        except EcstoreError as error:
            return node_id, {"error": str(error)}

    alive = [node.id for node in current.nodes.values() if node.alive]
    statistics = dict(await asyncio.gather(*(one(node_id) for node_id in alive)))
    return {
        "cluster": current.cluster,
        "epoch": current.epoch,
        "health": current.health(),
        "nodes": {
            node.id: {
                "address": node.address, "state": node.state, "incarnation": node.incarnation,
                "down_reason": node.down_reason, "statistics": statistics.get(node.id),
            }
            for node in current.nodes.values()
        },
        "tables": {name: entry.spec.to_wire() for name, entry in current.tables.items()},
    }  # fmt: skip
