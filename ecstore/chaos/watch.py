"""What the cluster looks like meanwhile: the newest map, every recovery and its progress. A thread with its own loop.

Each node is asked by itself, so that a paused or cut-off one holds up nothing but its own answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import ecstore.aio
from ecstore.cluster.map import ClusterMap
from ecstore.errors import EcstoreError
from ecstore.transport import new_event_loop

Phase = Literal["failover", "recovery", "otherwise"]

PAUSE_S: Final = 0.4
ASK_TIMEOUT_S: Final = 1.0


@dataclass(slots=True)
class Seen:
    """One recovery, as last seen."""

    kind: str
    state: str = "waiting"
    rows: int = 0
    started_at: float = 0.0
    finished_at: float | None = None
    serving: bool = False
    idle_s: float = 0.0  #: longest time without progress while rows were missing


class Watch:
    """Start with `start`, end with `stop`. Answers are those of the last look."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = dict(addresses)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="watch the cluster", daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._store: ecstore.aio.Store
        self.recoveries: dict[tuple[Any, ...], Seen] = {}
        self.rss: dict[str, tuple[int, int]] = {}  #: node -> (process number, bytes)
        self.problem: BaseException | None = None

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self.problem is not None:
            raise self.problem

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # -- answers ----------------------------------------------------------------------------------------

    @property
    def map(self) -> ClusterMap:
        return self._store.cluster_map

    def recovering(self) -> bool:
        """Whether a shard that was lost is not whole yet."""
        return any(s.state == "recovering" for group in self.map.groups if not group.lost for s in group.shards)

    def phase(self) -> Phase:
        """Whether a lost data shard has no owner that serves yet; otherwise, whether anything is being brought back."""
        if not self.recovering():
            return "otherwise"
        current = self.map
        serving = {key[:3] for key, seen in tuple(self.recoveries.items()) if seen.serving and seen.finished_at is None}
        for group in current.groups:
            for shard in group.shards[: current.code(group).k]:
                waiting = shard.state == "recovering" and (group.gid, shard.index, shard.owner) not in serving
                if waiting and not group.lost:
                    return "failover"
        return "recovery"

    def tolerated(self) -> int:
        """Nodes that may be lost now, whichever they are."""
        return self.map.health()["losses_tolerated"] or 0

    def missing(self, lives: Mapping[str, int]) -> list[str]:
        """What keeps the cluster from being clean, in words; nothing when it is. `lives`: incarnations waited for."""
        current = self.map
        said = [
            f"node {name} is {current.nodes[name].state if name in current.nodes else 'unknown'}"
            for name in self._addresses
            if name not in current.nodes or current.nodes[name].state != "up"
        ]
        said += [
            f"node {name} has not begun life {life}"
            for name, life in lives.items()
            if name in current.nodes and current.nodes[name].incarnation < life
        ]
        for group in current.groups:
            state = current.group_state(group)
            waiting = [
                f"shard {shard.index} on {shard.owner} is {shard.state}"
                + (f" and moves to {shard.joining}" if shard.joining is not None else "")
                for shard in group.shards
                if shard.state != "active" or shard.joining is not None
            ]
            if state != "ok" or waiting:
                said.append(
                    f"group {group.gid} ({group.code}) is {state}: {', '.join(waiting) or 'two shards on a node'}"
                )
        return said

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._watch())
        except BaseException as error:
            self.problem = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _watch(self) -> None:
        async with await ecstore.aio.connect(",".join(self._addresses.values())) as self._store:
            self._ready.set()
            async with asyncio.TaskGroup() as tasks:
                looking = [tasks.create_task(self._look_at(node)) for node in self._addresses]
                await self._stop.wait()
                for task in looking:
                    task.cancel()

    async def _look_at(self, node: str) -> None:
        while True:
            try:
                status = await self._store.ask_node(self._addresses[node], "status", {}, timeout=ASK_TIMEOUT_S)
            except EcstoreError:
                status = None  # it is down, or does not hear us; the next look tells
            if status is not None:
                self.rss[node] = (int(status["pid"]), int(status["rss_bytes"]))
                for recovery in status["recoveries"]:
                    self._take(recovery, time.time())
            await asyncio.sleep(PAUSE_S)

    def _take(self, told: dict[str, Any], now: float) -> None:
        key = (told["group"], told["shard"], told["new_owner"], told["epoch"], told["started_at"])
        seen = self.recoveries.get(key)
        if seen is None:
            seen = self.recoveries[key] = Seen(kind=str(told["kind"]), started_at=float(told["started_at"]))
        elif seen.finished_at is not None:
            return
        seen.state, seen.rows, seen.finished_at = str(told["state"]), int(told["rows_decoded"]), told["finished_at"]
        seen.serving = told["serving_at"] is not None
        if seen.finished_at is None and told["rows_decoded"] < told["rows_total"]:
            since = told["last_progress_at"] or told["serving_at"] or told["started_at"]
            seen.idle_s = max(seen.idle_s, now - float(since))
