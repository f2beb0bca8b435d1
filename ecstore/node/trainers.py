"""What trainers have said about themselves lately: one report each, bounded in number and age. Pure.

Every node that a trainer talks to has the same; the newest of all, by the trainer's own clock, is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Trainers that a node remembers. Of more, the one that has been silent longest is forgotten.
MAX_TRAINERS: Final = 64

#: A trainer that runs reports once a second: one that is silent for so long has ended without a word.
FORGET_RUNNING_S: Final = 60.0

#: What came of a run is shown for so long.
FORGET_FINISHED_S: Final = 3600.0


@dataclass(slots=True)
class _Report:
    at: float  #: unix seconds, by the trainer's clock
    heard_at: float  #: by the clock of the node's loop
    figures: dict[str, Any]

    def is_old(self, now: float) -> bool:
        keep_s = FORGET_FINISHED_S if self.figures["state"] == "finished" else FORGET_RUNNING_S
        return now - self.heard_at > keep_s


class Trainers:
    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}  # by name, the longest silent first

    def report(self, name: str, at: float, figures: Mapping[str, Any], now: float) -> None:
        """`figures` have been checked. A report that was overtaken by a later one changes nothing."""
        known = self._reports.get(name)
        if known is not None and known.at > at:
            return
        self._reports.pop(name, None)
        self._reports[name] = _Report(at, now, dict(figures))
        self._forget(now)
        while len(self._reports) > MAX_TRAINERS:
            del self._reports[next(iter(self._reports))]

    def _forget(self, now: float) -> None:
        for name in [name for name, report in self._reports.items() if report.is_old(now)]:
            del self._reports[name]

    def to_wire(self, now: float) -> list[dict[str, Any]]:
        self._forget(now)
        return [{"id": name, "at": report.at} | report.figures for name, report in self._reports.items()]
