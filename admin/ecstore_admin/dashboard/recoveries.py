"""Recoveries as people think of them: one loss of a node, with all the shards that it takes to repair it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ecstore_admin.dashboard.words import count, duration, listed

#: A burst shows the first of these states that one of its shards is in.
_ORDER: Final = ("stuck", "running", "throttled", "waiting", "lost", "done", "cancelled")
#: Icon of each state, beside its word.
ICONS: Final[Mapping[str, str]] = {
    "stuck": "⚠", "running": "↻", "throttled": "◔", "waiting": "…", "lost": "✕", "done": "✓", "cancelled": "–",
}  # fmt: skip
MAX_BURSTS: Final = 12
_PAUSE_OF_LOSSES_S: Final = 1.0
_PAUSE_OF_MOVES_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """One recovery: of one shard, by one new owner."""

    name: str
    owner: str
    state: str
    total: int
    decoded: int
    on_demand: int
    failed: int
    rate: float
    eta_s: float | None

    @property
    def percent(self) -> int:
        return _percent(self.decoded, self.total, self.state)


@dataclass(frozen=True, slots=True)
class Burst:
    """All recoveries that one loss (or one rebalancing) caused, with their sum."""

    key: str
    title: str
    state: str
    total: int
    decoded: int
    on_demand: int
    failed: int
    rate: float
    eta_s: float | None
    started_at: float
    finished_at: float | None
    shards: tuple[ShardProgress, ...]

    @property
    def percent(self) -> int:
        return _percent(self.decoded, self.total, self.state)

    def figures(self) -> str:
        """The line below the bar."""
        if self.state == "lost" and not self.total:
            return "too few shards are left to decode them"
        parts = [f"{self.decoded:,} of {count(self.total, 'row')}"]
        parts += [f"{self.on_demand:,} of them on demand"] if self.on_demand else []
        parts += [f"{self.failed:,} failed"] if self.failed else []
        if self.finished_at is None:
            parts += [f"{self.rate:,.0f} rows/s"] if self.rate else []
            parts += [f"{duration(self.eta_s)} to go"] if self.eta_s is not None else []
        elif self.state == "done":
            parts.append(f"took {self.finished_at - self.started_at:.1f} s")
        return ", ".join(parts)


def bursts_of(recoveries: Sequence[Mapping[str, Any]]) -> tuple[Burst, ...]:
    """Newest first, at most `MAX_BURSTS`.

    Recoveries with the same lost node belong together until all of them have ended: what starts later is another loss.
    Moves go on one after the other between many nodes: they are one rebalancing until there is a pause.
    """
    open_: dict[str, list[Mapping[str, Any]]] = {}
    found: list[list[Mapping[str, Any]]] = []
    for recovery in sorted(recoveries, key=lambda entry: float(entry["started_at"])):
        move = recovery["kind"] == "move"
        given_up = not recovery["new_owner"]  # of a lost group: whoever had the shard may well be alive
        key = "moves" if move else "given up" if given_up else f"loss of {recovery['lost_node']}"
        members = open_.get(key)
        begin = recovery["started_at"] - (_PAUSE_OF_MOVES_S if move or given_up else _PAUSE_OF_LOSSES_S)
        if members is None or all(_ended_before(member, begin) for member in members):
            members = open_[key] = []
            found.append(members)
        members.append(recovery)
    bursts = [_burst(members) for members in found]
    bursts.sort(key=lambda burst: (burst.finished_at is None, burst.started_at), reverse=True)
    return tuple(bursts[:MAX_BURSTS])


def _ended_before(recovery: Mapping[str, Any], at: float) -> bool:
    return recovery["finished_at"] is not None and recovery["finished_at"] < at


def _burst(members: list[Mapping[str, Any]]) -> Burst:
    first = members[0]
    counted = [member for member in members if member["state"] != "cancelled"] or members
    node, move = first["lost_node"], first["kind"] == "move"
    ends = [member["finished_at"] for member in members]
    etas = [member["eta_s"] for member in counted if member["finished_at"] is None and member["eta_s"] is not None]
    ended, shards = None not in ends, count(len(counted), "shard")
    if move:
        targets = listed(sorted({str(member["new_owner"]) for member in counted}), 3)
        title = f"Rebalancing: {shards} {'moved' if ended else 'moving'} to {targets}"
    elif not first["new_owner"]:
        groups = sorted({int(member["group"]) for member in members})
        title = f"Given up: {shards} of lost {'group' if len(groups) == 1 else 'groups'} {listed(groups, 6)}"
    else:
        title = f"{node} was lost: {shards}{'' if ended else ' to repair'}"
    return Burst(
        key=f"{'move' if move else f'loss-{node}' if first['new_owner'] else 'lost'}-{first['started_at']:.3f}",
        title=title,
        state=min((str(member["state"]) for member in counted), key=_rank),
        total=sum(member["rows_total"] for member in counted),
        decoded=sum(member["rows_decoded"] for member in counted),
        on_demand=sum(member["rows_on_demand"] for member in counted),
        failed=sum(member.get("rows_failed") or 0 for member in counted),
        rate=sum(member["rate_rows_per_s"] for member in counted if member["finished_at"] is None),
        eta_s=max(etas, default=None),
        started_at=first["started_at"],
        finished_at=None if None in ends else max(ends),
        shards=tuple(_shard(member) for member in members),
    )


def _shard(recovery: Mapping[str, Any]) -> ShardProgress:
    return ShardProgress(
        name=f"group {recovery['group']}, {recovery['kind']} shard {recovery['shard']}",
        owner=str(recovery["new_owner"]) or "nobody",
        state=str(recovery["state"]),
        total=recovery["rows_total"],
        decoded=recovery["rows_decoded"],
        on_demand=recovery["rows_on_demand"],
        failed=recovery.get("rows_failed") or 0,
        rate=recovery["rate_rows_per_s"],
        eta_s=recovery["eta_s"],
    )


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else 0


def _percent(decoded: int, total: int, state: str) -> int:
    if not total:
        return 100 if state == "done" else 0
    whole = 100 * decoded // total
    return min(100, whole) if state == "done" else min(99, whole)
