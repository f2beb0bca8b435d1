"""The view model: everything that the page and the terminal show, made of one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ecstore_admin.dashboard.charts import Chart, Mark
from ecstore_admin.dashboard.health import Health, consequence_of_losing, health_of, survives
from ecstore_admin.dashboard.recoveries import Burst, bursts_of
from ecstore_admin.dashboard.ring import Ring, ring_of
from ecstore_admin.dashboard.snapshot import Record, Snapshot
from ecstore_admin.dashboard.words import clock, count, listed, size

#: Icon of each state of a node, beside its word.
NODE_ICONS: Final[Mapping[str, str]] = {
    "up": "✓", "draining": "→", "starting": "…", "paused": "‖", "down": "✕", "left": "–",
}  # fmt: skip
MAX_EVENTS: Final = 60
_LOOKED_AT: Final = 1_000
_ONE_MOMENT_S: Final = 1.0
CHART_S: Final = 180.0  #: span of the charts

_PROCESS_EVENTS: Final = frozenset({"paused", "resumed", "killed", "started", "exited"})
#: Events that charts mark, and the word beside the mark.
_MARKED: Final[Mapping[str, str]] = {"killed": "killed", "exited": "ended", "paused": "paused", "node_up": "back"}
_BAD: Final = frozenset({"killed", "exited", "node_down", "group_lost", "group_at_risk", "paused"})
_GOOD: Final = frozenset({"started", "node_up", "group_ok", "resumed", "recovered"})


@dataclass(frozen=True, slots=True)
class NodeView:
    id: str
    state: str
    icon: str
    word: str  #: state and, of a node that is down, why
    figures: tuple[tuple[str, str], ...]  #: label and value
    warning: str  #: what its loss would mean
    loses_rows: bool
    can_kill: bool
    can_pause: bool
    can_resume: bool
    can_recover: bool


@dataclass(frozen=True, slots=True)
class EventView:
    id: int
    clock: str
    icon: str
    node: str
    message: str


@dataclass(frozen=True, slots=True)
class TrainerView:
    title: str
    done: int | None  #: per cent of its batches; None: nobody knows how many
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class View:
    health: Health
    ring: Ring
    nodes: tuple[NodeView, ...]
    bursts: tuple[Burst, ...]
    trainers: tuple[TrainerView, ...]
    events: tuple[EventView, ...]  #: newest first
    profile: str | None
    cluster: str  #: name and epoch
    connect: str


def view_of(seen: Snapshot) -> View:
    paused = paused_nodes(seen.events)
    nodes = tuple(_node(record, seen, paused) for record in seen.nodes)
    states = {node.id: (node.state, node.icon) for node in nodes if node.state != "left"}
    return View(
        health=health_of(seen.map, seen.problem, seen.recoveries, silent=seen.silent, frozen=seen.frozen),
        ring=ring_of(seen.map, states, seen.recoveries),
        nodes=nodes,
        bursts=bursts_of(seen.recoveries),
        trainers=tuple(_trainer(record, seen) for record in _newest(seen.trainers)),
        events=_events(seen),
        profile=seen.profile,
        cluster="" if seen.map is None else f"{seen.map.cluster} · epoch {seen.map.epoch}",
        connect=seen.connect,
    )


def paused_nodes(events: Sequence[Record]) -> frozenset[str]:
    """Nodes whose process was told to stop and not yet to go on."""
    last = {event["node"]: event["kind"] for event in events if event["kind"] in _PROCESS_EVENTS and event["node"]}
    return frozenset(node for node, kind in last.items() if kind == "paused")


def _node(record: Record, seen: Snapshot, paused: frozenset[str]) -> NodeView:
    node, state, why = str(record["id"]), str(record["state"]), str(record["down_reason"])
    running = record["process"] in ("running", "paused")
    word = state
    if state == "down" and why == "left":
        state = word = "left"
    elif record["process"] == "paused" or (running and node in paused):
        word = "paused" if state != "down" else "paused, declared down"
        state = "paused"
    elif why:
        word = f"{state} ({why})"
    warning, loses = "", False
    if seen.map is not None and seen.map.groups and state not in ("down", "left"):
        warning, loses = _warning(seen, node)
    managed = bool(record["managed"])
    return NodeView(
        id=node, state=state, icon=NODE_ICONS.get(state, "?"), word=word, figures=_figures(record), warning=warning,
        loses_rows=loses, can_kill=managed and running, can_pause=managed and running and state != "paused",
        can_resume=managed and running and state == "paused", can_recover=managed and not running,
    )  # fmt: skip


def _figures(record: Record) -> tuple[tuple[str, str], ...]:
    def known(value: Any, text: str) -> str:
        return "–" if value is None else text

    rows, memory, lag = record["rows"], record["rss_bytes"], record["loop_lag_ms"]
    return (
        ("rows", known(rows, f"{rows or 0:,}")),
        ("memory", known(memory, size(memory or 0))),
        ("loop lag", known(lag, f"{lag or 0:.0f} ms")),
        ("data shards", str(record["data_shards"])),
        ("parity shards", str(record["parity_shards"])),
        ("incarnation", f"{record['incarnation']}"),
        ("address", str(record["address"])),
    )


def _warning(seen: Snapshot, node: str) -> tuple[str, bool]:
    assert seen.map is not None
    then = consequence_of_losing(seen.map, node)
    if then.lost_groups:
        name = "group" if len(then.lost_groups) == 1 else "groups"
        return f"Rows would be lost for ever: {name} {listed(then.lost_groups)} would have too few shards left.", True
    if not then.shards:
        return "It holds no shards: no row is touched.", False
    after = "" if then.tolerated is None else f" Until then every row {survives(then.tolerated)}."
    return f"No row is lost: {count(then.shards, 'shard')} of it are decoded on other nodes.{after}", False


def _events(seen: Snapshot) -> tuple[EventView, ...]:
    """Newest first. What happens to many groups in one moment is one line."""
    lines: list[list[Record]] = []
    newest_first = sorted(seen.events[-_LOOKED_AT:], key=lambda record: (record["at"], record["id"]), reverse=True)
    for record in newest_first:
        same = lines and str(record["kind"]).startswith("group_") and lines[-1][0]["kind"] == record["kind"]
        if same and abs(lines[-1][0]["at"] - record["at"]) < _ONE_MOMENT_S:
            lines[-1].append(record)
        else:
            lines.append([record])
    return tuple(_event(records, seen.utc_offset_s) for records in lines[:MAX_EVENTS])


def _event(records: Sequence[Record], utc_offset_s: float) -> EventView:
    newest = records[0]
    kind, message = str(newest["kind"]), str(newest["message"])
    if len(records) > 1:
        groups = sorted({int(record["details"]["group"]) for record in records if "group" in record["details"]})
        state = kind.removeprefix("group_").replace("_", " ")
        message = f"{count(len(records), 'group')} are {state}: {listed(groups, 6)}"
    icon = "⚠" if kind == "group_at_risk" else "✕" if kind in _BAD else "✓" if kind in _GOOD else "·"
    return EventView(int(newest["id"]), clock(newest["at"], utc_offset_s), icon, str(newest["node"] or ""), message)


def _newest(trainers: Sequence[Record]) -> list[Record]:
    """Those that run, the newest first: more than three are too many to look at. None runs: the one that ended last."""
    newest = sorted(trainers, key=lambda record: record["at"], reverse=True)
    return [record for record in newest if record["state"] == "running"][:3] or newest[:1]


def _trainer(record: Record, seen: Snapshot) -> TrainerView:
    name, batch, total = str(record["id"]), record["batch"], record["batches_total"]
    running = record["state"] == "running"
    points = seen.figures.get(name, ())
    until = seen.at if running else float(record["at"])
    since = max(until - CHART_S, min((point[0] for point in points), default=until) - 1.0)
    since = min(since, until - 10.0)
    marks = tuple(
        Mark(event["at"], event["node"], _MARKED[event["kind"]], event["kind"] != "node_up")
        for event in seen.events
        if event["kind"] in _MARKED and event["node"] and since <= event["at"] <= until
    )
    charts = []
    for title, unit, place in (("Throughput", "samples/s", 1), ("Loss", "", 2), ("AUC", "", 3)):
        values = tuple((point[0], float(point[place] or 0.0)) for point in points if point[place] is not None)
        charts.append(Chart(title, unit, values, marks, since, until))
    of = f" of {total:,}" if total else ""
    title = f"{name}: {'batch' if running else 'finished after batch'} {batch:,}{of}, {record['samples']:,} samples"
    return TrainerView(title, min(100, 100 * batch // total) if total else None, tuple(charts))
