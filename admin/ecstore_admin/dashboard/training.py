"""What trainers reported in the last minutes, for charts. Pure; bounded in trainers and in points."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: A report a second for three minutes and more.
MAX_POINTS: Final = 400
MAX_TRAINERS: Final = 8

Point = tuple[float, float, float | None, float | None]


class Figures:
    """Give it every answer of GET /training; it keeps what is new."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}

    def take(self, trainers: Sequence[Mapping[str, Any]]) -> None:
        for trainer in trainers:
            points = self._points.setdefault(str(trainer["id"]), deque(maxlen=MAX_POINTS))
            at = float(trainer["at"])
            if not points or at > points[-1][0]:
                points.append((at, float(trainer["samples_per_s"]), _number(trainer["loss"]), _number(trainer["auc"])))
        while len(self._points) > MAX_TRAINERS:
            oldest = min(self._points, key=lambda name: self._points[name][-1][0] if self._points[name] else 0.0)
            del self._points[oldest]

    def points(self) -> dict[str, tuple[Point, ...]]:
        return {name: tuple(points) for name, points in self._points.items()}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
