"""Carries a schedule out: orders each action over REST, waits for the cluster to be whole again after each round."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ecstore.chaos.plan import HARD, Action, Round
from ecstore.chaos.rest import Rest
from ecstore.chaos.watch import Watch

TICK_S: Final = 0.02
#: After a lethal action the cluster may take this many detector limits to begin to decode.
BEGIN_LIMITS: Final = 4.0
#: Longest wait until one more loss can be borne.
BEARABLE_S: Final = 10.0
#: The cluster must look whole for so many detector limits before it counts as whole.
QUIET_LIMITS: Final = 0.5
#: Longest wait for a drained node to be empty.
DRAIN_S: Final = 60.0

#: Action -> its name in the report.
COUNTED: Final = {
    "kill": "kills", "pause": "pauses", "isolate": "isolations", "partition": "partitions", "unplug": "unplugs",
    "drain": "drains", "delay": "delays", "cut": "cuts", "slow": "slowdowns",
}  # fmt: skip


class GivenUp(Exception):
    """The run is over: something is wrong that more chaos would only hide."""


@dataclass(slots=True)
class Driver:
    """`check` raises GivenUp when a process has ended that should not. `clean_within_s`: bound of each wait."""

    rest: Rest
    watch: Watch
    tell: Callable[[str], None]
    check: Callable[[], None]
    suspect_after_s: float
    clean_within_s: float
    m: int
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    _due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def run(self, schedule: Iterator[Round], until: float) -> int:
        """Do rounds until monotonic time `until`; how many. Raises GivenUp, UnavailableError (no admin service)."""
        done = 0
        for planned in schedule:
            if time.monotonic() >= until:
                break
            self._round(planned, until)
            done += 1
        return done

    def _round(self, planned: Round, until: float) -> None:
        lives = {name: node.incarnation for name, node in self.watch.map.nodes.items()}
        ends_at = time.monotonic()
        hit: set[str] = set()
        for action in planned.actions:
            self._wait_for(action)
            if time.monotonic() >= until:
                break
            if action.kind in HARD and not self._bearable(set(action.faulty), hit, lives):
                self.skipped.append(f"round {planned.number}: {action.describe()}")
                self._note(planned.number, f"left out, one more loss could not be borne: {action.describe()}")
                continue
            hit |= set(action.faulty)
            self._note(planned.number, action.describe(), action)
            self._do(action)
            self.counts[COUNTED[action.kind]] += 1
            ends_at = max(ends_at, time.monotonic() + action.duration_s)
        self._sleep_until(ends_at)
        while self._due:
            self._sleep(TICK_S)
        killed = {action.node for action in planned.actions if action.kind in ("kill", "drain")} & hit
        took = self.settle({name: lives.get(name, 0) + 1 for name in killed})
        self._note(planned.number, f"all is whole again after {took:.1f} s")

    def _wait_for(self, action: Action) -> None:
        if action.in_recovery:
            deadline = time.monotonic() + BEGIN_LIMITS * self.suspect_after_s
            while not self.watch.recovering() and time.monotonic() < deadline:
                self._sleep(TICK_S)
        self._sleep(action.after_s)

    def _bearable(self, more: set[str], hit: set[str], lives: dict[str, int]) -> bool:
        """Whether `more` nodes can be lost besides those that were hit and that the map does not miss yet."""
        deadline = time.monotonic() + BEARABLE_S
        while True:
            current = self.watch.map
            unplanned = {name for name, node in current.nodes.items() if not node.alive} - hit - more
            unnoticed = {name for name in hit | more if current.is_alive(name, lives.get(name, 0))}
            if len(unplanned | hit | more) <= self.m and self.watch.tolerated() >= len(unnoticed):
                return True
            if time.monotonic() > deadline:
                return False
            self._sleep(TICK_S)

    def _do(self, action: Action) -> None:
        node = action.node
        match action.kind:
            case "kill":
                self.rest.kill(node)
                self._later(action.duration_s, lambda: self.rest.recover(node))
            case "pause":
                self.rest.pause(node, action.duration_s)
            case "drain":
                self._drain(node)
            case _:
                self.rest.fault(action)

    def _drain(self, node: str) -> None:
        """Empty the node, then let it begin a new life."""
        self.rest.drain(node)
        deadline = time.monotonic() + DRAIN_S
        while self.watch.map.shards_on(node, self.watch.map.nodes[node].incarnation):
            if time.monotonic() > deadline:
                raise GivenUp(f"node {node} was not empty {DRAIN_S:g} s after it was told to drain")
            self._sleep(TICK_S)
        self.rest.kill(node)
        self._later(1.0, lambda: self.rest.recover(node))

    def settle(self, lives: Mapping[str, int] | None = None) -> float:
        """Wait until all nodes are up, of `lives` those or later ones, and every group is whole, for a while: what was
        done last may not have been noticed yet. The seconds it took; GivenUp past the bound.
        """
        began = quiet_since = time.monotonic()
        while time.monotonic() < quiet_since + QUIET_LIMITS * self.suspect_after_s:
            missing = self.watch.missing(lives or {})
            if missing:
                quiet_since = time.monotonic()
            if missing and time.monotonic() > began + self.clean_within_s:
                raise GivenUp(f"not clean {self.clean_within_s:g} s after the last fault: {'; '.join(missing[:12])}")
            self._sleep(TICK_S)
        return quiet_since - began

    def stop_faults(self) -> None:
        """End all faults, let every node go on, and start those that were killed."""
        self._due.clear()
        self.rest.end_faults()
        for name in self.rest.nodes():
            self.rest.resume(name)
            self.rest.recover(name)

    # -- time -------------------------------------------------------------------------------------------

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, do))

    def _sleep(self, seconds: float) -> None:
        self._sleep_until(time.monotonic() + seconds)

    def _sleep_until(self, at: float) -> None:
        """Wait; meanwhile do what is due, and look whether all is well."""
        while True:
            now = time.monotonic()
            for entry in [entry for entry in self._due if entry[0] <= now]:
                self._due.remove(entry)
                entry[1]()
            self.check()
            if now >= at:
                return
            time.sleep(min(TICK_S, at - now))

    def _note(self, number: int, text: str, action: Action | None = None) -> None:
        kind = action.kind if action is not None else "note"
        self.timeline.append({"at": time.time(), "round": number, "kind": kind, "text": text})
        self.tell(f"round {number}: {text}")
