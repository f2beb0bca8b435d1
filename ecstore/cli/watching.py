"""`ecstore status --watch`: what the page of the admin service shows, in a terminal, from the nodes themselves."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, TextIO

from ecstore_admin.dashboard.health import SIGNS
from ecstore_admin.dashboard.recoveries import Burst
from ecstore_admin.dashboard.snapshot import Snapshot
from ecstore_admin.dashboard.training import Figures
from ecstore_admin.dashboard.view import TrainerView, View, view_of
from ecstore_admin.silence import Silence
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import ecstore.aio
from ecstore.cluster.map import ClusterMap
from ecstore.errors import EcstoreError

PAUSE_S: Final = 0.5
#: Where lines are plain, a line is written when something has changed, or after this time.
PLAIN_EVERY_S: Final = 10.0
_KEY: Final = ("group", "shard", "kind", "lost_node", "new_owner", "epoch", "started_at")
_RECOVERIES: Final = 2_000
_EVENTS: Final = 500
_SHOWN_EVENTS: Final = 8
_SHOWN_BURSTS: Final = 5
_STYLES: Final = {
    "safe": "green", "repairing": "cyan", "at_risk": "yellow", "lost": "bold red", "up": "green", "down": "red",
    "done": "green", "running": "cyan", "stuck": "red",
}  # fmt: skip


def watch(connect: str, stream: TextIO, seconds: float | None = None) -> int:
    """Show the cluster until Ctrl-C, or for `seconds`. 1 when a group is lost at the end."""
    try:
        return asyncio.run(_watch(connect, stream, seconds))
    except KeyboardInterrupt:
        return 0


async def _watch(connect: str, stream: TextIO, seconds: float | None) -> int:

    until = None if seconds is None else time.monotonic() + seconds
    async with await ecstore.aio.connect(connect, timeout=5.0) as store:
        seen = Seen(connect)
        if stream.isatty():
            view = await _look(store, seen)
            with Live(screen_of(view), console=Console(file=stream), auto_refresh=False) as live:
                while until is None or time.monotonic() < until:
                    await asyncio.sleep(PAUSE_S)
                    view = await _look(store, seen)
                    live.update(screen_of(view), refresh=True)
        else:
            view = await _plainly(store, seen, stream, until)
    return int(view.health.level == "lost")


async def _plainly(store: ecstore.aio.Store, seen: Seen, stream: TextIO, until: float | None) -> View:
    """A block of lines when the first of them has changed, or some time after the last; events as they come."""
    said: list[str] = []
    due, told = 0.0, 0
    while True:
        view = await _look(store, seen)
        lines = list(lines_of(view))
        for event in reversed(view.events):
            if said and event.id > told:  # what happened before is not news
                stream.write(f"{event.clock} {event.message}\n")
        told = max((event.id for event in view.events), default=told)
        if lines != said and (lines[0] != (said or [""])[0] or time.monotonic() >= due):
            stream.writelines(f"{line}\n" for line in lines)
            said, due = lines, time.monotonic() + PLAIN_EVERY_S
        stream.flush()
        if until is not None and time.monotonic() >= until:
            return view
        await asyncio.sleep(PAUSE_S)


async def _look(store: ecstore.aio.Store, seen: Seen) -> View:
    problem = ""
    try:
        seen.take(await store.status(timeout=2.0), store.cluster_map)
    except EcstoreError as error:
        problem = str(error)
    return seen.view(store.cluster_map, problem, time.time())


class Seen:
    """What the nodes said about themselves, kept when they die. Bounded like their own memory of it."""

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._said: dict[str, dict[str, Any]] = {}
        self._recoveries: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._newest: dict[str, float] = {}
        self._number = 0
        self._figures = Figures()
        self.silence = Silence()

    def take(self, status: dict[str, Any], current: ClusterMap) -> None:
        self.silence.take(status["nodes"], current, time.monotonic())
        for name, node in status["nodes"].items():
            said = node["statistics"]
            if not said or "error" in said:
                continue
            self._said[name] = said
            for entry in said["recoveries"]:
                self._recoveries[tuple(entry[part] for part in _KEY)] = entry | {"_life": said["incarnation"]}
            for event in said["events"]:
                if event["at"] > self._newest.get(name, 0.0):
                    self._number += 1
                    self._events.append({"details": {}} | event | {"id": self._number})
            self._newest[name] = max((event["at"] for event in said["events"]), default=self._newest.get(name, 0.0))
        while len(self._recoveries) > _RECOVERIES:
            del self._recoveries[next(iter(self._recoveries))]
        for entry in self._recoveries.values():
            if entry["finished_at"] is None and not current.is_alive(entry["new_owner"], entry["_life"]):
                entry.update(state="cancelled", finished_at=time.time(), eta_s=None)
        self._figures.take(self._trainers())

    def view(self, current: ClusterMap, problem: str, now: float) -> View:
        return view_of(
            Snapshot(
                at=now, utc_offset_s=float(time.localtime(now).tm_gmtoff), map=current,
                problem=problem or self.silence.problem, silent=self.silence.silent(time.monotonic()),
                frozen=self.silence.frozen,
                nodes=[_record(current, self._said.get(node, {}), node) for node in _ordered(current.nodes)],
                recoveries=list(self._recoveries.values()), events=sorted(self._events, key=lambda e: e["at"]),
                trainers=self._trainers(), figures=self._figures.points(), connect=self._connect,
            )
        )  # fmt: skip

    def _trainers(self) -> list[dict[str, Any]]:
        """Every node has the reports of every trainer that talks to it: the newest of each."""
        newest: dict[str, dict[str, Any]] = {}
        for said in self._said.values():
            for report in said.get("trainers", ()):
                if report["id"] not in newest or newest[report["id"]]["at"] < report["at"]:
                    newest[report["id"]] = report
        return list(newest.values())


def _ordered(nodes: Iterable[str]) -> list[str]:
    """n2 before n10."""
    return sorted(nodes, key=lambda name: (len(name), name))


def _record(current: ClusterMap, said: dict[str, Any], node: str) -> dict[str, Any]:
    """One node as GET /nodes has it, without what only its admin service knows."""
    entry, load = current.nodes[node], current.load().get(node)
    fresh = entry.alive and said.get("incarnation") == entry.incarnation
    return {
        "id": node, "address": entry.address, "state": entry.state, "down_reason": entry.down_reason,
        "incarnation": entry.incarnation, "managed": False, "process": "unknown",
        "data_shards": load.data if load else 0, "parity_shards": load.parity if load else 0,
        "rows": said.get("rows") if fresh else None, "rss_bytes": said.get("rss_bytes") if fresh else None,
        "loop_lag_ms": said.get("loop_lag", {}).get("recent_own_max_ms") if fresh else None,
    }  # fmt: skip


def lines_of(view: View) -> Iterable[str]:
    """Plain lines: the state of all, then of what is not as it should be."""

    health = view.health
    yield f"{SIGNS[health.level][1]}: {health.title}. {health.reason} {health.next_step}"
    for node in view.nodes:
        if node.state != "up":
            yield f"  {node.id} {node.word}"
    for burst in view.bursts[:_SHOWN_BURSTS]:
        if burst.finished_at is None:
            yield f"  {burst.title}: {burst.state}, {burst.percent} %, {burst.figures()}"
    for trainer in view.trainers:
        yield f"  {trainer.title}; {trainer_figures(trainer)}"


def trainer_figures(trainer: TrainerView) -> str:
    return ", ".join(f"{chart.title} {chart.latest}" for chart in trainer.charts if chart.points)


def screen_of(view: View) -> RenderableType:
    """The same as a screen: health, nodes, recoveries, events."""

    health = view.health
    icon, word = SIGNS[health.level]
    style = _STYLES.get(health.level, "white")
    text = Text.assemble((health.title, "bold"), f"\n{health.reason} ", (health.next_step, "bold"))
    events = Text("\n").join(
        Text(f"{event.clock} {event.icon} {event.message}", no_wrap=True, overflow="ellipsis")
        for event in view.events[:_SHOWN_EVENTS]
    )
    return Group(
        Panel(text, title=Text(f"{icon} {word}", style), title_align="left", border_style=style,
              subtitle=Text(view.cluster), subtitle_align="right"),
        _nodes(view), _bursts(view.bursts[:_SHOWN_BURSTS]), _trainers(view),
        Panel(events, title="Events, newest first", title_align="left"),
        Text("Ctrl-C ends this view, not the cluster", "dim"),
    )  # fmt: skip


def _nodes(view: View) -> RenderableType:

    table = Table(expand=True)
    table.add_column("node")
    table.add_column("state")
    for label, _ in view.nodes[0].figures if view.nodes else ():
        table.add_column(label, justify="right")
    for node in view.nodes:
        state = Text(f"{node.icon} {node.word}", _STYLES.get(node.state, "yellow"))
        table.add_row(node.id, state, *(value for _, value in node.figures))
    return table


def _trainers(view: View) -> RenderableType:
    if not view.trainers:
        return Text(f"No trainer is reporting; start one: ecstore train --connect {view.connect}", "dim")
    return Text("\n".join(f"{trainer.title}; {trainer_figures(trainer)}" for trainer in view.trainers))


def _bursts(bursts: Iterable[Burst]) -> RenderableType:

    table = Table.grid(padding=(0, 2), expand=True)
    for burst in bursts:
        state = Text(f"{burst.state} {burst.percent} %", _STYLES.get(burst.state, "yellow"))
        table.add_row(burst.title, ProgressBar(total=100, completed=burst.percent, width=24), state, burst.figures())
    return table if table.rows else Text("No recovery: nothing has been lost.", "dim")
