"""The parity equation, checked on a running cluster: encoding every group's data again must give its parity.

For every table and group, blocks of slots are read from the k data shards, each with the seq it stood at, and from
the m parity shards exactly at that cut. So the check may run while others push; only a shard that is being recovered
is waited for. It needs every shard of a group, so it finds wrong parity, but does not say which shard is wrong:
that, and repair, is what a scrub by the nodes themselves is for (`ecstore scrub`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ecstore import codec
from ecstore.client.session import Session
from ecstore.cluster.map import Group, Table
from ecstore.errors import EcstoreError, TimeoutError

#: Bytes of one shard that are read at a time.
BLOCK_BYTES: Final = 1 << 18
ASK_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.05
#: Mismatches that are named in a report; the others are counted.
MAX_NAMED: Final = 20

U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Stripes of one table in one group whose parity is not that of their data."""

    group: int
    table: str
    stripes: int
    first_slot: int


@dataclass(slots=True)
class VerifyReport:
    """What was checked. `ok`: everything could be, and every stripe's parity is right."""

    groups: int = 0
    stripes: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    wrong_stripes: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    lost_groups: list[int] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)  #: groups that could not be read in time, and why

    @property
    def ok(self) -> bool:
        return not (self.wrong_stripes or self.lost_groups or self.unchecked)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok, "groups": self.groups, "stripes": self.stripes, "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3), "wrong_stripes": self.wrong_stripes, "lost_groups": self.lost_groups,
            "mismatches": [
                {"group": m.group, "table": m.table, "stripes": m.stripes, "first_slot": m.first_slot}
                for m in self.mismatches
            ],
            "unchecked": self.unchecked,
        }  # fmt: skip

    def describe(self) -> str:
        """One sentence for a person."""
        if self.ok:
            size = self.bytes_read / (1 << 20)
            return f"parity of all {self.groups} groups is right: {self.stripes:,} stripes, {size:.1f} MiB re-encoded"
        said = []
        if self.wrong_stripes:
            first = self.mismatches[0]
            said.append(
                f"{self.wrong_stripes} stripes have wrong parity, first in group {first.group}, table {first.table!r}"
            )
        if self.lost_groups:
            said.append(f"groups {', '.join(map(str, self.lost_groups))} are lost")
        if not self.wrong_stripes and not self.unchecked:
            said.append(f"parity of the other {self.groups} groups is right: {self.stripes:,} stripes")
        if self.unchecked:
            said.append(f"{len(self.unchecked)} groups could not be read ({self.unchecked[0]})")
        return "; ".join(said)


def verify(
    address: str,
    *,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerifyReport:
    """Check every group of the cluster behind `address` ("host:port", or several, separated by commas).

    `timeout`: seconds for everything; groups that are not readable by then are named in the report. `progress` is
    told how many groups of how many are done. Raises UnavailableError when no node answers.
    """
    from ecstore.transport import run

    return run(verify_async(address, timeout=timeout, progress=progress))


async def verify_async(
    address: str,
    *,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerifyReport:
    """`verify` for asyncio programs."""
    session = Session([part.strip() for part in address.split(",")], cluster=None)
    await session.start(min(timeout, 10.0))
    began = time.monotonic()
    report = VerifyReport()
    try:
        total = len(session.map.groups)
        for gid in range(total):
            await _check_group(session, gid, began + timeout, report)
            progress(gid + 1, total)
    finally:
        await session.close()
        report.seconds = time.monotonic() - began
    return report


async def _check_group(session: Session, gid: int, deadline: float, report: VerifyReport) -> None:
    """Check one group, from the start again whenever its owners change or a shard is not ready yet."""
    while True:
        group = session.map.groups[gid]
        if group.lost:
            report.lost_groups.append(gid)
            return
        attempt = VerifyReport()
        try:
            for table in list(session.map.tables.values()):
                if table.spec.code == group.code:
                    await _check_table(session, group, table, attempt)
        except EcstoreError as error:
            if not error.retryable or time.monotonic() > deadline:
                report.unchecked.append(f"group {gid}: {error}")
                return
            await session.map_change(RETRY_S)
            await session.refresh()
            continue
        report.groups += 1
        report.stripes += attempt.stripes
        report.bytes_read += attempt.bytes_read
        report.wrong_stripes += attempt.wrong_stripes
        report.mismatches += attempt.mismatches[: MAX_NAMED - len(report.mismatches)]
        return


async def _check_table(session: Session, group: Group, table: Table, report: VerifyReport) -> None:
    k = session.map.code(group).k
    infos = await asyncio.gather(
        *(_ask(session, group, index, "shard.info", {"group": group.gid, "shard": index}) for index in range(k))
    )
    used = max((int(u) for info in infos for number, u, *_ in info.meta["tables"] if number == table.id), default=0)
    row_bytes = table.spec.row_bytes
    step = max(1, BLOCK_BYTES // row_bytes)
    wrong: list[int] = []
    for start in range(0, used, step):
        slots = np.arange(start, min(start + step, used), dtype=np.uint32)
        shards = await _read_stripes(session, group, table, slots)
        wrong += (codec.mismatched_stripes(session.map.code(group), shards) + start).tolist()
        report.stripes += len(slots)
        report.bytes_read += sum(shard.nbytes for shard in shards)
    if wrong:
        report.wrong_stripes += len(wrong)
        report.mismatches.append(Mismatch(group.gid, table.spec.name, len(wrong), wrong[0]))


async def _read_stripes(session: Session, group: Group, table: Table, slots: NDArray[np.uint32]) -> list[U8]:
    """The rows of every shard at these slots, all at one cut: uint8[n, row_bytes] each, in index order."""
    code = session.map.code(group)
    row_bytes = table.spec.row_bytes
    where = {"group": group.gid, "table": table.id, "group_epoch": group.epoch}
    answers = await asyncio.gather(
        *(_ask(session, group, index, "shard.read", where | {"shard": index}, slots) for index in range(code.k))
    )
    if any(answer.meta["erased"] for answer in answers):
        raise TimeoutError(f"group {group.gid} is still being decoded; check again later")
    cut = {"cut": [int(answer.meta["seq"]) for answer in answers], "row_bytes": row_bytes}
    answers += await asyncio.gather(
        *(
            _ask(session, group, index, "parity.read", where | cut | {"shard": index}, slots)
            for index in range(code.k, code.width)
        )
    )
    return [np.ascontiguousarray(answer.bin(0, np.uint8, (len(slots), row_bytes))) for answer in answers]


async def _ask(
    session: Session, group: Group, index: int, kind: str, meta: dict[str, Any], slots: NDArray[np.uint32] | None = None
) -> Any:
    bins = [] if slots is None else [slots]
    return await session.ask(group.shards[index].owner, kind, meta, bins, timeout=ASK_TIMEOUT_S)
