"""The faults of one process: rules that begin and end by themselves, and the lines on which they happen."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from ecstore.faults.line import Line
from ecstore.faults.rules import Rule, RuleTable, rule_from_wire
from ecstore.transport import Connection


class Faults:
    """Made in the event loop of a node that allows faults; outlives the node's lives."""

    def __init__(self, own: str, rng: random.Random | None = None) -> None:
        """`own`: name of the node. `rng` draws jitter and cuts."""
        self._loop = asyncio.get_running_loop()
        self._rules = RuleTable(own)
        self._rng = rng if rng is not None else random.Random()
        self._lines: set[Line] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._blocking: dict[str, asyncio.TimerHandle] = {}  # `slow` rules
        self._changed = asyncio.Event()

    def tap(self, peer: str | None) -> _Tap:
        """For `connect` and `Server`; `peer`: whom it is connected to, None where only its hello will tell."""
        return _Tap(self, peer)

    def check(self, meta: Mapping[str, Any]) -> Rule:
        """The rule of a `fault.set` message, not in force yet. Raises ConfigError."""
        return rule_from_wire(meta, self._loop.time())

    def add(self, rule: Rule) -> None:
        """Put a rule in force until its time has passed. Raises CapacityError at the bound."""
        self._stop_blocking([rule])
        self._rules.add(rule)
        if rule.kind == "slow":
            self._blocking[rule.id] = self._loop.call_later(0.0, self._block, rule)
        self._apply()

    def clear(self, rule_id: str | None) -> int:
        """End one fault, or all with None; how many there were."""
        gone = self._rules.remove(rule_id)
        self._stop_blocking(gone)
        self._apply()
        return len(gone)

    def to_wire(self) -> list[dict[str, Any]]:
        """The faults in force, for people."""
        now = self._loop.time()
        return [rule.to_wire(now) for rule in self._rules.rules()]

    # ---- inside

    def line(self, conn: Connection, peer: str | None) -> Line:
        return Line(conn, peer, self._rules, self._rng.random, self._lines.add, self._lines.discard)

    async def passable(self, peer: str | None) -> None:
        """Wait until bytes get through to a peer and back."""
        while any(self._rules.verdict(peer, direction).blocked for direction in ("out", "in")):
            await self._changed.wait()

    def _apply(self) -> None:
        """The rules have changed."""
        self._changed.set()
        self._changed = asyncio.Event()
        if self._expiry is not None:
            self._expiry.cancel()
        end = self._rules.next_end()
        self._expiry = None if end is None else self._loop.call_at(end, self._expire)
        for line in tuple(self._lines):
            line.apply()

    def _expire(self) -> None:
        self._stop_blocking(self._rules.expire(self._loop.time()))
        self._apply()

    def _block(self, rule: Rule) -> None:
        """Do nothing for a while, as a loop does that is held up, and come again."""
        time.sleep(rule.block_s)
        self._blocking[rule.id] = self._loop.call_later(max(0.0, rule.every_s - rule.block_s), self._block, rule)

    def _stop_blocking(self, rules: list[Rule]) -> None:
        for rule in rules:
            timer = self._blocking.pop(rule.id, None)
            if timer is not None:
                timer.cancel()


class _Tap:
    """`ecstore.transport.Tap` of one peer."""

    def __init__(self, faults: Faults, peer: str | None) -> None:
        self._faults = faults
        self._peer = peer

    def protocol(self, conn: Connection) -> asyncio.BaseProtocol:
        return self._faults.line(conn, self._peer)

    async def passable(self) -> None:
        await self._faults.passable(self._peer)
