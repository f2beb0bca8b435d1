"""The parity equation, from outside: read every shard of every group, encode the data again, compare every byte."""

from __future__ import annotations

import asyncio
import time

import numpy as np

import ecstore.aio
from ecstore.cluster.map import Group, parse_code
from ecstore.codec import encode
from ecstore.errors import EcstoreError

TIMEOUT_S = 30.0


def rows_with_wrong_parity(address: str, code: str) -> tuple[int, int]:
    """(parity rows that differ, parity rows compared) over all groups of a code that are not lost. At quiescence."""

    async def run() -> tuple[int, int]:
        async with await ecstore.aio.connect(address) as store:
            await store.tables()
            found = [await _check_now(store, g.gid) for g in store.cluster_map.groups_of(code) if not g.lost]
            return sum(bad for bad, _ in found), sum(compared for _, compared in found)

    return asyncio.run(run())


async def _check_now(store: ecstore.aio.Store, gid: int) -> tuple[int, int]:
    """Check one group; again when a shard of it has moved meanwhile."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await _check(store, store.cluster_map.groups[gid])
        except EcstoreError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)
        await store.tables()


async def _check(store: ecstore.aio.Store, group: Group) -> tuple[int, int]:
    code = parse_code(group.code)
    tables: dict[int, tuple[int, int]] = {}
    for index in range(code.k):
        info = await _ask(store, group, index, "shard.info", {})
        for table_id, used, row_bytes, _rows in info.meta["tables"]:
            tables[table_id] = (max(used, tables.get(table_id, (0, 0))[0]), row_bytes)
    bad = compared = 0
    for table_id, (used, row_bytes) in tables.items():
        slots = np.arange(used, dtype=np.uint32)
        answers = [await _ask(store, group, i, "shard.read", {"table": table_id}, slots) for i in range(code.k)]
        assert not any(answer.meta["erased"] for answer in answers), "rows are still lost"
        data = [np.ascontiguousarray(answer.bin(0, np.uint8, (used, row_bytes))) for answer in answers]
        more = {"table": table_id, "row_bytes": row_bytes, "cut": [answer.meta["seq"] for answer in answers]}
        for number, wanted in enumerate(encode(code, data)):
            answer = await _ask(store, group, code.k + number, "parity.read", more, slots)
            bad += int((answer.bin(0, np.uint8, (used, row_bytes)) != wanted).any(axis=1).sum())
            compared += used
    return bad, compared


async def _ask(store, group, index, kind, more, slots=None):  # type: ignore[no-untyped-def]
    meta = {"group": group.gid, "shard": index, "group_epoch": group.epoch} | more
    bins = [] if slots is None else [slots]
    return await store._session.ask(group.shards[index].owner, kind, meta, bins, timeout=TIMEOUT_S)
