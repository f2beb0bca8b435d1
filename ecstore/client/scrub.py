"""A scrub seen from outside: the order to the nodes that carry it out, and what they report.

Each group is scrubbed by the owner of its first parity shard. Whoever orders a scrub keeps the list of groups: when a
node dies, or a group gets another owner, the group is ordered again from the new one. What has been repaired stays
repaired, and stays in the report as far as it was heard of.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

from ecstore.client.session import Session
from ecstore.cluster.map import Group
from ecstore.errors import EcstoreError, InputError, UnknownTableError

ASK_TIMEOUT_S: Final = 5.0

#: Between two questions how far the nodes are.
POLL_S: Final = 0.2

#: Without any progress for so long, what is left is given up and named in the report.
PATIENCE_S: Final = 60.0

#: Findings that a report names; the others are counted.
MAX_FINDINGS: Final = 2000

_COUNTS: Final = (
    "stripes", "bytes_read", "corrupt", "repaired", "unrepaired", "not_attributable", "key_blocks", "key_mismatches",
)  # fmt: skip

Progress = Callable[["ScrubReport"], None]


@dataclass(slots=True)
class ScrubReport:
    """What a scrub has seen so far. Every corrupt stripe is one of repaired, unrepaired and not_attributable."""

    run: str
    groups_total: int = 0
    groups_done: int = 0
    stripes_total: int = 0  #: of the groups that have begun
    stripes: int = 0  #: k + m rows each
    bytes_read: int = 0
    corrupt: int = 0  #: stripes whose parity is not that of their data
    repaired: int = 0  #: of these; read again and found right
    unrepaired: int = 0  #: a shard explains the error, and it was not to be repaired, or changed too fast
    not_attributable: int = 0  #: no single shard explains the error: nothing was overwritten
    key_blocks: int = 0  #: blocks of key lists whose copies were compared
    key_mismatches: int = 0
    #: {group, table, slot, shard | None, node, outcome, bits, at, message}, as the nodes tell them
    findings: list[dict[str, Any]] = field(default_factory=list)
    findings_omitted: int = 0
    lost_groups: list[int] = field(default_factory=list)
    without_parity: list[int] = field(default_factory=list)  #: groups of code none: there is nothing to compare with
    unchecked: list[str] = field(default_factory=list)  #: groups that could not be scrubbed to the end, and why
    waiting_for: list[str] = field(default_factory=list)  #: what holds the scrub up at the moment
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Every stripe and key list was checked and is right, or has been put right."""
        wrong = self.unrepaired or self.not_attributable or self.key_mismatches
        return not (wrong or self.lost_groups or self.unchecked)

    def to_json(self) -> dict[str, Any]:
        named = (
            "run", "groups_total", "groups_done", "stripes_total", *_COUNTS, "findings_omitted", "lost_groups",
            "without_parity", "unchecked", "waiting_for",
        )  # fmt: skip
        plain = {name: getattr(self, name) for name in named}
        return {"ok": self.ok} | plain | {"seconds": round(self.seconds, 3), "findings": list(self.findings)}

    def describe(self) -> str:
        """One sentence for a person."""
        size = self.bytes_read / (1 << 20)
        said = [f"{self.groups_done} of {self.groups_total} groups, {self.stripes:,} stripes, {size:.1f} MiB read"]
        if self.corrupt:
            were = "1 stripe was" if self.corrupt == 1 else f"{self.corrupt} stripes were"
            said.append(f"{were} corrupt, {self.repaired} repaired")
        else:
            said.append("no corrupt stripe")
        if self.not_attributable:
            said.append(f"{self.not_attributable} NOT ATTRIBUTABLE to one shard, nothing overwritten")
        if self.unrepaired:
            said.append(f"{self.unrepaired} NOT REPAIRED")
        if self.key_mismatches:
            said.append(f"{self.key_mismatches} blocks of key lists DIFFER between shards")
        if self.lost_groups:
            said.append(f"groups {', '.join(map(str, self.lost_groups))} are lost")
        if self.without_parity:
            said.append(f"{len(self.without_parity)} groups have no parity")
        if self.unchecked:
            said.append(f"{len(self.unchecked)} groups could not be checked ({self.unchecked[0]})")
        return "; ".join(said)


class ScrubOptions(TypedDict, total=False):
    """What `Store.scrub` takes. It raises UnknownTableError and InputError for what is not in the map."""

    table: str | None  #: only this table; None, the default: all
    groups: Iterable[int] | None  #: only these groups; None, the default: all
    rate_mib_s: float | None  #: MiB that each node reads a second at most, from all shards; None: its default, 32
    repair: bool  #: default True; False: only report
    progress: Progress  #: told some times a second how far it is; the report is the same object each time
    patience_s: float  #: what does not move for so long is given up and named in the report; default 60


_Life = tuple[str, int]  # node, incarnation


@dataclass(slots=True)
class _Order:
    """One group at the node that scrubs it, and what that node said of it last."""

    life: _Life
    told: dict[str, Any] = field(default_factory=dict)


class Scrub:
    """One scrub from its order to its report. Used once; `report` is up to date while it runs."""

    def __init__(self, session: Session, **options: Unpack[ScrubOptions]) -> None:
        """Raises UnknownTableError and InputError for what is not in the map."""
        self._session = session
        self._table_id, self._wanted = _chosen(session, options.get("table"), options.get("groups"))
        self._rate_mib_s = options.get("rate_mib_s")
        if self._rate_mib_s is not None and not 1e-3 <= self._rate_mib_s <= 1e6:
            raise InputError(f"rate_mib_s is 0.001 to 1,000,000 MiB a second, not {self._rate_mib_s}")
        self._repair = options.get("repair", True)
        self._patience_s = options.get("patience_s", PATIENCE_S)
        self._progress = options.get("progress", _quiet)
        self._pending: dict[int, _Order | None] = {}
        self._ended: list[dict[str, Any]] = []  # what was said last of groups that are over
        self._heard: dict[_Life, int] = {}  # findings heard of each node
        self._findings: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._omitted: dict[_Life, int] = {}
        self.report = ScrubReport(run=secrets.token_hex(8), groups_total=len(self._wanted))

    async def run(self) -> ScrubReport:
        """Carry it out. When this is cancelled, the nodes are told to stop."""
        loop = asyncio.get_running_loop()
        began = moved_at = loop.time()
        self._sort()
        seen: tuple[int, ...] = ()
        given_up = False
        try:
            while self._pending and not given_up:
                self.report.waiting_for.clear()
                await self._order()
                await self._poll()
                self._settle_lost()
                self._sum()
                self.report.seconds = loop.time() - began
                self._progress(self.report)
                now = (self.report.groups_done, self.report.stripes, self.report.bytes_read)
                seen, moved_at = (seen, moved_at) if now == seen else (now, loop.time())
                given_up = loop.time() - moved_at > self._patience_s
                if self._pending and not given_up:
                    await self._session.map_change(POLL_S)
        finally:
            await self._stop()
        self._name_unchecked()
        self.report.waiting_for.clear()
        self.report.seconds = loop.time() - began
        return self.report

    def _sort(self) -> None:
        for gid in self._wanted:
            if self._session.map.code(self._session.map.groups[gid]).m:
                self._pending[gid] = None
            else:
                self.report.without_parity.append(gid)
                self.report.groups_done += 1

    # -- orders ---------------------------------------------------------------------------------------

    def _scrubber(self, group: Group) -> _Life:
        first = group.shards[self._session.map.code(group).k]
        return first.owner, first.incarnation

    async def _order(self) -> None:
        """Order every group that nobody works on from the node that should."""
        asked: dict[_Life, list[int]] = {}
        for gid, order in self._pending.items():
            life = self._scrubber(self._session.map.groups[gid])
            if order is not None and order.life != life:
                self._withdraw(gid)
                order = None
            if order is None:
                asked.setdefault(life, []).append(gid)
        await asyncio.gather(*(self._order_from(life, gids) for life, gids in asked.items()))

    async def _order_from(self, life: _Life, gids: list[int]) -> None:
        meta = {
            "run": self.report.run, "groups": gids, "table": self._table_id, "rate_mib_s": self._rate_mib_s,
            "repair": self._repair, "epoch": self._session.map.epoch,
        }  # fmt: skip
        try:
            await self._session.ask(life[0], "scrub.start", meta, timeout=ASK_TIMEOUT_S)
        except EcstoreError as error:
            if not error.retryable:
                raise
            self.report.waiting_for.append(str(error))
            self._session.refresh_soon()
            return
        for gid in gids:
            self._pending[gid] = _Order(life)

    def _withdraw(self, gid: int) -> None:
        """The group is to be ordered anew. What its former scrubber has repaired counts; the rest is found again."""
        order = self._pending[gid]
        if order is not None and order.told:
            kept = {"repaired": order.told["repaired"], "corrupt": order.told["repaired"]}
            self._ended.append(dict.fromkeys(_COUNTS, 0) | {"bytes_read": order.told["bytes_read"]} | kept)
        self._pending[gid] = None

    # -- answers --------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        lives = {order.life for order in self._pending.values() if order is not None}
        await asyncio.gather(*(self._poll_node(life) for life in lives))

    async def _poll_node(self, life: _Life) -> None:
        try:
            answer = await self._session.ask(
                life[0], "scrub.status", {"after": self._heard.get(life, 0)}, timeout=ASK_TIMEOUT_S
            )
        except EcstoreError as error:
            if not error.retryable:
                raise
            self.report.waiting_for.append(str(error))
            self._session.refresh_soon()
            return
        ours = [gid for gid, order in self._pending.items() if order is not None and order.life == life]
        if answer.meta.get("run") != self.report.run:  # a new life of the node, or it was stopped: order again
            for gid in ours:
                self._withdraw(gid)
            return
        self._take_findings(life, answer.meta)
        told = {part["group"]: part for part in answer.meta["groups"]}
        for gid in ours:
            if gid in told:
                self._take(gid, told[gid])

    def _take(self, gid: int, told: dict[str, Any]) -> None:
        order = self._pending[gid]
        assert order is not None
        order.told = told
        state, message = told["state"], str(told["message"])
        if state in ("moved", "stopped"):
            self._withdraw(gid)
            self._session.refresh_soon()
        elif state in ("done", "failed", "lost"):
            del self._pending[gid]
            self._ended.append(told)
            if state == "lost":
                self.report.lost_groups.append(gid)
            elif state == "failed":
                self.report.unchecked.append(f"group {gid}: {message}")
            else:
                self.report.groups_done += 1
        elif message:
            self.report.waiting_for.append(message)

    def _take_findings(self, life: _Life, meta: dict[str, Any]) -> None:
        """A stripe that two nodes in turn found wrong is one finding: the later one says what became of it."""
        self._heard[life] = self._heard.get(life, 0) + len(meta["findings"])
        self._omitted[life] = int(meta["findings_omitted"])
        for finding in meta["findings"]:
            keys = finding["shard"] if finding["outcome"] == "keys_differ" else "row"
            self._findings[finding["group"], finding["table"], finding["slot"], keys] = finding

    def _settle_lost(self) -> None:
        for gid in [gid for gid in self._pending if self._session.map.groups[gid].lost]:
            self._withdraw(gid)
            del self._pending[gid]
            self.report.lost_groups.append(gid)

    def _sum(self) -> None:
        """Bring the report's counts up to date."""
        told = [order.told for order in self._pending.values() if order is not None and order.told] + self._ended
        for name in (*_COUNTS, "stripes_total"):
            setattr(self.report, name, sum(int(part.get(name, 0)) for part in told))
        findings = list(self._findings.values())
        self.report.findings = findings[:MAX_FINDINGS]
        self.report.findings_omitted = sum(self._omitted.values()) + max(0, len(findings) - MAX_FINDINGS)

    def _name_unchecked(self) -> None:
        why = f" ({self.report.waiting_for[0]})" if self.report.waiting_for else ""
        for gid in self._pending:
            self.report.unchecked.append(f"group {gid}: nothing has moved for {self._patience_s:g} s{why}")

    async def _stop(self) -> None:
        """Tell nodes that still work for us that nobody waits for it any more."""
        lives = {order.life for order in self._pending.values() if order is not None}
        meta = {"run": self.report.run}
        asked = [self._session.ask(node, "scrub.stop", meta, timeout=1.0) for node, _incarnation in lives]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EcstoreError):
                raise outcome


def _quiet(_report: ScrubReport) -> None:
    """Nobody wants to know how far it is."""


def _chosen(session: Session, table: str | None, groups: Iterable[int] | None) -> tuple[int | None, list[int]]:
    """Number of the table, and the groups to be scrubbed: those of its code, or all, or of these the given ones."""
    current = session.map
    table_id, wanted = None, list(range(len(current.groups)))
    if table is not None:
        entry = current.tables.get(table)
        if entry is None:
            known = ", ".join(sorted(current.tables)) or "none"
            raise UnknownTableError(f"no table {table!r} (there are: {known}); name one of them")
        table_id, wanted = entry.id, [group.gid for group in current.groups_of(entry.spec.code)]
    if groups is not None:
        given = sorted({int(gid) for gid in groups})
        strange = [gid for gid in given if gid not in wanted]
        if strange:
            raise InputError(f"there are no groups {strange} here; there are {wanted[0] if wanted else 'none'}"
                             + (f" to {wanted[-1]}" if wanted else ""))  # fmt: skip
        wanted = given
    return table_id, wanted
