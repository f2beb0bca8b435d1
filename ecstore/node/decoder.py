"""Decoding the lost rows of one data shard: on demand, and in a background sweep.

One decode of some slots: ask every other data shard of the group for the same slots (each answers with its rows and
its seq at that instant), take these seqs and our own as the cut, ask as many parity shards as there are erased data
shards for the slots exactly at that cut, and solve. If the owners of the group change meanwhile, start again.
docs/ARCHITECTURE.md, "Decoding at a cut", says why each step is needed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecstore import limits
from ecstore.cluster.map import Group
from ecstore.errors import (
    DataLossError,
    EcstoreError,
    NotReadyError,
)
from ecstore.node.data_shard import DataShard
from ecstore.node.decoding import DataAnswer, Pattern, combine, parities_needed, patterns
from ecstore.node.messages import integer
from ecstore.node.pacing import Pacer
from ecstore.node.recovery import Recovery
from ecstore.node.runtime import Runtime
from ecstore.wire import Frame

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

#: Between two attempts of a decode that met a change of owners or an unreachable peer; doubled each time, up to the
#: longest: a cut that the logs no longer reach back to is read again at once, but not for ever at full speed.
RETRY_S = 0.02
LONGEST_RETRY_S = 0.32

#: One attempt asks each peer this long at most; a peer that does not answer is declared down meanwhile.
ATTEMPT_TIMEOUT_S = 2.0


@dataclass(slots=True, eq=False)
class _Job:
    """Slots of one table being decoded; whoever needs one of them waits for `done`."""

    table_id: int
    slots: I64  # sorted, each once
    done: asyncio.Future[None]


class Decoder:
    """Decodes rows of one data shard that this node has taken over."""

    def __init__(self, runtime: Runtime, shard: DataShard, recovery: Recovery, pacer: Pacer) -> None:
        self._runtime = runtime
        self._shard = shard
        self._recovery = recovery
        self._pacer = pacer
        self._jobs: list[_Job] = []
        self._closed: EcstoreError | None = None
        self._restored = asyncio.Event()  # set, and replaced, when rows have come back

    def close(self, error: EcstoreError) -> None:
        """The shard left this node: waiters get `error`."""
        self._closed = error
        self._tell_restored()
        for job in self._jobs:
            if not job.done.done():
                job.done.set_exception(error)
                job.done.exception()  # seen here: there may be no waiter

    async def ensure(self, table_id: int, slots: NDArray[np.integer], *, on_demand: bool = True) -> None:
        """Return when no row among `slots` is lost any more; DataLossError when it can't be decoded."""
        while True:
            if self._closed is not None:
                raise self._closed
            lost = self._shard.lost_slots(table_id, slots)
            if not lost.size:
                return
            if on_demand and self._runtime.config.decode_only == "sweep":
                await self._restored.wait()
                continue
            running = [job for job in self._jobs if job.table_id == table_id]
            uncovered = lost
            waiting: list[_Job] = []
            for job in running:
                covered = np.isin(uncovered, job.slots, assume_unique=True)
                if covered.any():
                    waiting.append(job)
                    uncovered = uncovered[~covered]
            if uncovered.size:  # no more at once than a frame takes: the loop decodes the rest
                most = max(1, limits.MAX_DECODE_BYTES // self._shard.tables[table_id].row_bytes)
                if on_demand:
                    with self._pacer.waited_for():
                        await self._run(table_id, uncovered[:most], on_demand)
                else:
                    await self._run(table_id, uncovered[:most], on_demand)
            for job in waiting:
                try:
                    await asyncio.shield(job.done)
                except DataLossError:
                    raise
                except EcstoreError:
                    continue  # whoever ran that job has given it up, or the shard left: the loop looks again

    async def sweep(self) -> None:
        """Decode everything that is still lost, lowest slots first, at the node's decode rate."""
        config = self._runtime.config
        while (table_id := self._shard.undecoded_table()) is not None:
            if config.decode_only == "on-demand":
                with self._recovery.held(self._runtime.wall):
                    await self._restored.wait()
                continue
            block = config.decode_block_rows or max(
                limits.BLOCK_SLOTS, limits.DECODE_BLOCK_BYTES // self._shard.tables[table_id].row_bytes
            )
            slots = self._shard.next_undecoded(table_id, block)
            with self._recovery.held(self._runtime.wall):
                await self._pacer.take(slots.size * self._shard.tables[table_id].row_bytes)
            await self.ensure(table_id, slots, on_demand=False)

    def _tell_restored(self) -> None:
        self._restored.set()
        self._restored = asyncio.Event()

    async def _run(self, table_id: int, slots: I64, on_demand: bool) -> None:
        job = _Job(table_id, slots, self._runtime.loop.create_future())
        self._jobs.append(job)
        try:
            await self._decode_until_done(table_id, slots, on_demand)
        except BaseException as error:
            if not job.done.done():
                job.done.set_exception(
                    error if isinstance(error, EcstoreError) else NotReadyError("the decode was given up; ask again")
                )
                job.done.exception()
            raise
        finally:
            self._jobs.remove(job)
            if not job.done.done():
                job.done.set_result(None)

    async def _decode_until_done(self, table_id: int, slots: I64, on_demand: bool) -> None:
        pause, began = RETRY_S, self._runtime.clock()
        while True:
            if self._closed is not None:
                raise self._closed
            if table_id not in self._shard.undecoded:
                return
            try:
                group = self._runtime.group(self._shard.gid)
                rows = await self._attempt(group, table_id, slots)
                self._runtime.same_group_epoch(group.gid, group.epoch)
            except DataLossError:
                raise
            except EcstoreError:
                self._runtime.count("decode_retries")
                self._recovery.failed()
                await self._runtime.map_change(pause)
                pause = min(2 * pause, LONGEST_RETRY_S)
                continue
            restored = self._shard.restore(table_id, slots, rows)
            self._tell_restored()
            self._recovery.progress(restored, restored * rows.shape[1], self._runtime.wall(), on_demand=on_demand)
            durations = self._runtime.durations
            histogram = durations.decode_on_demand if on_demand else durations.decode_sweep
            histogram.observe(self._runtime.clock() - began)
            return

    async def _attempt(self, group: Group, table_id: int, slots: I64) -> U8:
        shard, code = self._shard, self._runtime.map.code(group)
        row_bytes = shard.tables[table_id].row_bytes
        others = [index for index in range(code.k) if index != shard.index]
        frames = await asyncio.gather(*(self._read_data(group, index, table_id, slots) for index in others))
        answers = {
            index: _data_answer(frame, slots.size, row_bytes) for index, frame in zip(others, frames, strict=True)
        }
        split = patterns(shard.index, slots.size, answers)
        cut = {index: answer.seq for index, answer in answers.items()} | {shard.index: shard.seq}
        parity = await self._read_parity(group, split, table_id, slots, row_bytes, cut)
        return combine(code, shard.index, split, answers, parity)

    async def _read_data(self, group: Group, index: int, table_id: int, slots: I64) -> Frame:
        owner = self._runtime.peers.get(group.shards[index].owner)
        meta = {"group": group.gid, "shard": index, "table": table_id, "group_epoch": group.epoch}
        return await owner.request("shard.read", meta, [slots.astype(np.uint32)], timeout=ATTEMPT_TIMEOUT_S)

    async def _read_parity(
        self,
        group: Group,
        split: list[Pattern],
        table_id: int,
        slots: I64,
        row_bytes: int,
        cut: dict[int, int],
    ) -> dict[int, U8]:
        code = self._runtime.map.code(group)
        usable = [index for index in range(code.k, code.width) if group.shards[index].state == "active"]
        needed = parities_needed(split)
        if len(usable) < needed:
            raise NotReadyError(f"group {group.gid}: {needed} parity shards are needed, {len(usable)} are whole")
        seqs = [cut[index] for index in range(code.k)]
        meta = {
            "group": group.gid, "table": table_id, "group_epoch": group.epoch, "cut": seqs, "row_bytes": row_bytes,
        }  # fmt: skip
        packed = slots.astype(np.uint32)
        frames = await asyncio.gather(
            *(
                self._runtime.peers.get(group.shards[index].owner).request(
                    "parity.read", meta | {"shard": index}, [packed], timeout=ATTEMPT_TIMEOUT_S
                )
                for index in usable[:needed]
            )
        )
        return {
            index: frame.bin(0, np.uint8, (slots.size, row_bytes)) for index, frame in zip(usable, frames, strict=False)
        }


def _data_answer(frame: Frame, count: int, row_bytes: int) -> DataAnswer:
    erased = frame.bin(1, np.uint8, (count,)).astype(np.bool_) if frame.meta.get("erased") else None
    return DataAnswer(integer(frame.meta, "seq"), frame.bin(0, np.uint8, (count, row_bytes)), erased)
