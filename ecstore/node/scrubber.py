"""Scrubbing: the owner of a group's first parity shard checks the group's stripes in the background, and repairs them.

A block of slots is read from the k data shards, each with its seq at that instant, and from the m parity shards
exactly at that cut, so pushes go on meanwhile. Where parity is not that of the data and one shard explains it, the
owner of that shard is asked to take the error out of its row, if the row still is what was judged; then the stripe is
read again. docs/ARCHITECTURE.md, "Scrubbing", says what that guarantees, and what it can't.

Groups whose shards are not all whole, or of which one is moving, are left alone until they are: a row under repair must
not be the source of a decode or of a copy at the same time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecstore import codec, limits
from ecstore.cluster.map import Group, Table
from ecstore.codec import WrongStripes
from ecstore.errors import CapacityError, DataLossError, EcstoreError, NotOwnerError, NotReadyError
from ecstore.node.data_shard import Repair
from ecstore.node.messages import integer
from ecstore.node.pacing import Pacer
from ecstore.node.runtime import Runtime
from ecstore.node.scrubbing import Finding, GroupScrub, Outcome, ScrubCounts, ScrubJob, Suspect, outvoted
from ecstore.wire import Frame

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

ASK_TIMEOUT_S = 2.0

#: Between two looks at a group that can't be read now, or at a stripe that is being repaired.
RETRY_S = 0.05

#: A group that could not be read for so long, while its turn came again and again, is given up.
PATIENCE_S = 30.0

#: Findings of one scrub that become events of the node: the others must not push everything else out of the list.
MAX_EVENTS = 100


@dataclass(frozen=True, slots=True, eq=False)
class _Stripes:
    """Rows of all k+m shards at the same slots, at one cut (one seq for each data shard)."""

    slots: I64
    cut: list[int]
    shards: list[U8]


def settled(group: Group) -> bool:
    """Whether every shard is whole and none is on its way to another node."""
    return all(shard.state == "active" and shard.joining is None for shard in group.shards)


class Scrubber:
    """At most one job at a time, one block at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.job: ScrubJob | None = None
        self.totals = ScrubCounts()  # of this life of the node
        self.finished_at: float | None = None  # of the latest job that came to its end
        self._pacer: Pacer | None = None
        self._task: asyncio.Task[None] | None = None
        self._events = 0

    # -- what was asked -------------------------------------------------------------------------------

    def start(self, run: str, gids: list[int], table_id: int | None, rate_mib_s: float, repair: bool) -> ScrubJob:
        """Scrub these groups, in addition to what `run` has asked before (table, rate and repair stay as it asked
        first). CapacityError while another run goes on.
        """
        job = self.job
        if job is not None and job.run != run and job.finished_at is None:
            raise CapacityError(
                f"node {self._runtime.name} is busy with scrub {job.run!r}; wait for its end, or stop it", run=job.run
            )
        if job is None or job.run != run:
            job = self.job = ScrubJob(run, table_id, rate_mib_s, repair, self._runtime.wall())
            self._pacer = Pacer(rate_mib_s * limits.MIB)
            self._events = 0
        for gid in gids:
            job.want(gid)
        job.finished_at = None
        if self._task is None or self._task.done():
            self._task = self._runtime.spawn(self._work(job), f"scrub {run}")
        return job

    def stop(self, run: str) -> None:
        """Give up what `run` still wants; nothing when it is not what goes on here."""
        job = self.job
        if job is None or job.run != run or job.finished_at is not None:
            return
        while job.queue:
            job.end(job.queue[0], "stopped", "stopped on request")
        job.finished_at = self._runtime.wall()
        if self._task is not None:  # it may be far from its next look at the queue, at a low rate
            self._task.cancel()
            self._task = None

    def statistics(self) -> dict[str, Any]:
        running = self.job is not None and self.job.finished_at is None
        return self.totals.to_wire() | {"running": running, "finished_at": self.finished_at}

    # -- the job --------------------------------------------------------------------------------------

    async def _work(self, job: ScrubJob) -> None:
        while job.queue:
            part = job.queue[0]
            try:
                done = await self._step(job, part)
            except EcstoreError as error:
                await self._failed(job, part, error)
                continue
            part.failing_since = None
            if done and job.queue and job.queue[0] is part:
                job.end(part, "done")
        job.finished_at = self.finished_at = self._runtime.wall()
        counts = self.totals
        self._runtime.event(
            "scrub_finished", f"scrub {job.run} is over on node {self._runtime.name}", run=job.run,
            corrupt=counts.corrupt, repaired=counts.repaired,
        )  # fmt: skip

    async def _failed(self, job: ScrubJob, part: GroupScrub, error: EcstoreError) -> None:
        """Decide what a failure means for its group; another group goes on meanwhile, if there is one."""
        if not job.queue or job.queue[0] is not part:
            return
        now = self._runtime.loop.time()
        part.failing_since = part.failing_since if part.failing_since is not None else now
        part.message = str(error)
        if isinstance(error, DataLossError):
            job.end(part, "lost", str(error))
        elif isinstance(error, NotOwnerError):
            job.end(part, "moved", str(error))
        elif not error.retryable or now - part.failing_since > PATIENCE_S:
            job.end(part, "failed", str(error))
        else:
            self._runtime.count("scrub_retries")
            job.queue.rotate(-1)
            await self._runtime.map_change(RETRY_S)

    async def _step(self, job: ScrubJob, part: GroupScrub) -> bool:
        """One look at one block; True at the end of the group."""
        group = self._group(part.gid)
        if not part.begun:
            width = self._runtime.map.code(group).width  # a block is a second's worth at most: it shows that we move
            part.begin(await self._slots_in_use(group, job.table_id), int(job.rate_mib_s * limits.MIB / width))
        table = self._next_table(part)
        if table is None:
            return True
        if not part.rows_done:
            await self._check_rows(job, part, group, table)
            return False
        block = part.block(table.spec.row_bytes)
        await self._compare_keys(job, part, group, table, block)
        self._count(part, stripes=block.size)
        part.advance(block)
        return part.table is None

    async def _check_rows(self, job: ScrubJob, part: GroupScrub, group: Group, table: Table) -> None:
        """Look at the block, or at its suspects; have them repaired, or say what is left of them."""
        slots = part.to_look_at(table.spec.row_bytes)
        stripes = await self._read(group, table, slots, part)
        code = self._runtime.map.code(group)
        wrong = codec.locate(code, codec.syndromes(code, stripes.shards))
        for slot, suspect in part.judge(slots, wrong).items():
            self._count(part, corrupt=1, repaired=1)
            self._note(job, group, table, slot, suspect, "repaired")
        if not part.settled(repair=job.repair):
            await self._repair(part, group, table, stripes, wrong)
            return
        for slot, suspect in part.suspects.items():
            outcome = part.outcome(suspect, repair=job.repair)
            unknown = int(outcome == "not_attributable")
            self._count(part, corrupt=1, unrepaired=1 - unknown, not_attributable=unknown)
            self._note(job, group, table, slot, suspect, outcome)
        part.rows_done = True

    def _group(self, gid: int) -> Group:
        """The group, when this node is to scrub it and it can be scrubbed now."""
        runtime = self._runtime
        group = runtime.group(gid)
        code = runtime.map.code(group)
        if not code.m:
            raise NotOwnerError(f"group {gid} has code {code.name}: no parity to compare with")
        first = group.shards[code.k]
        if not runtime.owns(first.owner, first.incarnation):
            raise NotOwnerError(f"group {gid} is scrubbed by node {first.owner}, which owns its first parity shard")
        if not settled(group):
            raise NotReadyError(f"group {gid} is being recovered, or a shard of it moves; it is scrubbed after that")
        return group

    def _next_table(self, part: GroupScrub) -> Table | None:
        while part.table is not None:
            table = self._runtime.tables.get(part.table)
            if table is not None:
                return table
            part.skip_table()
        return None

    # -- reading --------------------------------------------------------------------------------------

    async def _ask(self, group: Group, index: int, kind: str, meta: dict[str, Any], bins: list[Any]) -> Frame:
        owner = self._runtime.peers.get(group.shards[index].owner)
        address = {"group": group.gid, "shard": index, "group_epoch": group.epoch}
        return await owner.request(kind, address | meta, bins, timeout=ASK_TIMEOUT_S)

    async def _slots_in_use(self, group: Group, only: int | None) -> dict[int, int]:
        """Slots in use of each table of the group's code, or of one of them."""
        k = self._runtime.map.code(group).k
        answers = await asyncio.gather(*(self._ask(group, index, "shard.info", {}, []) for index in range(k)))
        used: dict[int, int] = {}
        for answer in answers:
            for table_id, slots, *_ in answer.meta["tables"]:
                if only is None or table_id == only:
                    used[table_id] = max(int(slots), used.get(table_id, 0))
        return used

    async def _read(self, group: Group, table: Table, slots: I64, part: GroupScrub) -> _Stripes:
        code, row_bytes = self._runtime.map.code(group), table.spec.row_bytes
        size = slots.size * row_bytes * code.width
        if self._pacer is not None:
            await self._pacer.take(size)
        packed, meta = slots.astype(np.uint32), {"table": table.id}
        answers = await asyncio.gather(
            *(self._ask(group, index, "shard.read", meta, [packed]) for index in range(code.k))
        )
        if any(answer.meta.get("erased") for answer in answers):
            raise NotReadyError(f"group {group.gid} is still being decoded")
        cut = [integer(answer.meta, "seq") for answer in answers]
        more = meta | {"cut": cut, "row_bytes": row_bytes}
        answers += await asyncio.gather(
            *(self._ask(group, index, "parity.read", more, [packed]) for index in range(code.k, code.width))
        )
        self._count(part, bytes_read=size)
        rows = [np.ascontiguousarray(answer.bin(0, np.uint8, (slots.size, row_bytes))) for answer in answers]
        return _Stripes(slots, cut, rows)

    # -- repair ---------------------------------------------------------------------------------------

    async def _repair(
        self, part: GroupScrub, group: Group, table: Table, stripes: _Stripes, wrong: WrongStripes
    ) -> None:
        """Ask the owner of each wrong row to put it right. Whether it is right is for the next look to say."""
        k = self._runtime.map.code(group).k
        for index in np.unique(wrong.shards).tolist():
            at = np.flatnonzero(wrong.shards == index)
            slots = stripes.slots[wrong.positions[at]]
            wanted = np.array([part.suspects[slot].attributable for slot in slots.tolist()], np.bool_)
            at, slots = at[wanted], slots[wanted]
            if not at.size:
                continue
            errors = np.ascontiguousarray(wrong.errors[at])
            if index >= k:
                await self._repair_parity(group, table, stripes, index, wrong.positions[at], errors)
                continue
            outcome = await self._repair_data(group, table, stripes, index, wrong.positions[at], errors)
            for slot in slots[outcome == Repair.NEVER_USED].tolist():
                part.suspects[slot].refuted = True
            free = np.flatnonzero(outcome == Repair.FREE)
            if free.size:
                await self._forget_rests(group, table, stripes, index, wrong.positions[at[free]], errors[free])

    async def _repair_data(
        self, group: Group, table: Table, stripes: _Stripes, index: int, positions: I64, errors: U8
    ) -> U8:
        rows = np.ascontiguousarray(stripes.shards[index][positions])
        meta = {"table": table.id, "row_bytes": table.spec.row_bytes}
        packed = stripes.slots[positions].astype(np.uint32)
        answer = await self._ask(group, index, "shard.repair", meta, [packed, rows, errors])
        return np.asarray(answer.bin(0, np.uint8, (positions.size,)))

    async def _repair_parity(
        self, group: Group, table: Table, stripes: _Stripes, index: int, positions: I64, errors: U8
    ) -> None:
        rows = np.ascontiguousarray(stripes.shards[index][positions])
        meta = {"table": table.id, "row_bytes": table.spec.row_bytes, "cut": stripes.cut}
        packed = stripes.slots[positions].astype(np.uint32)
        await self._ask(group, index, "parity.repair", meta, [packed, rows, errors])

    async def _forget_rests(
        self, group: Group, table: Table, stripes: _Stripes, source: int, positions: I64, errors: U8
    ) -> None:
        """Every parity row still holds `errors` of a row of data shard `source` that was deleted after a flip."""
        code = self._runtime.map.code(group)
        for number in range(code.m):
            scaled = np.zeros_like(errors)
            codec.scale_add(scaled, errors, int(code.coefficients[number, source]))
            await self._repair_parity(group, table, stripes, code.k + number, positions, scaled)

    # -- key lists ------------------------------------------------------------------------------------

    async def _compare_keys(self, job: ScrubJob, part: GroupScrub, group: Group, table: Table, block: I64) -> None:
        """Each parity shard keeps the key list of each data shard: compare this block of them, at one cut."""
        code = self._runtime.map.code(group)
        where = {"table": table.id, "start": int(block[0]), "count": int(block.size)}
        owners = await asyncio.gather(*(self._ask(group, index, "shard.keys", where, []) for index in range(code.k)))
        cut = {"cut": [integer(answer.meta, "seq") for answer in owners]}
        copies = await asyncio.gather(
            *(self._ask(group, index, "parity.keys", where | cut, []) for index in range(code.k, code.width))
        )
        self._count(part, key_blocks=code.k)
        for source in range(code.k):
            votes = {source: bytes(owners[source].meta["digest"])}
            votes |= {code.k + number: bytes(copy.meta["digests"][source]) for number, copy in enumerate(copies)}
            wrong = outvoted(votes)
            if wrong == []:
                continue
            self._count(part, key_mismatches=1)
            self._note_keys(job, group, table, int(block[0]), source, wrong)

    # -- what was found -------------------------------------------------------------------------------

    def _count(self, part: GroupScrub, **more: int) -> None:
        part.counts.add(**more)
        self.totals.add(**more)

    def _note(self, job: ScrubJob, group: Group, table: Table, slot: int, suspect: Suspect, outcome: Outcome) -> None:
        shard = suspect.shard if suspect.attributable else None
        k = self._runtime.map.code(group).k
        if shard is None:
            where, node = "a shard that can't be told", ""
        else:
            node = group.shards[shard].owner
            count = "1 wrong bit" if suspect.bits == 1 else f"{suspect.bits} wrong bits"
            where = f"{count} in {'data' if shard < k else 'parity'} shard {shard} on node {node}"
        self._report(job, Finding(
            group.gid, table.spec.name, slot, shard, node, outcome, suspect.bits if shard is not None else 0,
            self._runtime.wall(),
            f"group {group.gid}, table {table.spec.name!r}, slot {slot}: {where}, {outcome.replace('_', ' ')}",
        ))  # fmt: skip

    def _note_keys(
        self, job: ScrubJob, group: Group, table: Table, slot: int, source: int, wrong: list[int] | None
    ) -> None:
        named = wrong[0] if wrong is not None and len(wrong) == 1 else None
        node = "" if named is None else group.shards[named].owner
        said = "no majority says whose is wrong" if wrong is None else f"wrong in shards {wrong}"
        advice = f"; restart node {node}: its shards are built again" if named is not None else ""
        self._report(job, Finding(
            group.gid, table.spec.name, slot, named, node, "keys_differ", 0, self._runtime.wall(),
            f"group {group.gid}, table {table.spec.name!r}, slots from {slot} on: copies of the key list of data "
            f"shard {source} differ, {said}{advice}",
        ))  # fmt: skip

    def _report(self, job: ScrubJob, finding: Finding) -> None:
        job.note(finding)
        self._events += 1
        if self._events <= MAX_EVENTS:
            self._runtime.event(
                f"scrub_{finding.outcome}", finding.message, group=finding.group, table=finding.table,
                slot=finding.slot, shard=finding.shard,
            )  # fmt: skip
