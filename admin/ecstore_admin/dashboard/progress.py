"""Recoveries: one bar for each loss, which opens to show its shards."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui
from nicegui.events import GenericEventArguments

from ecstore_admin.dashboard.markup import burst_html, shards_html
from ecstore_admin.dashboard.recoveries import Burst


class BurstList:
    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._box = ui.element("div").classes("bursts")

    def show(self, bursts: Sequence[Burst]) -> None:
        for burst in bursts:
            if burst.key not in self._rows:
                with self._box:
                    self._rows[burst.key] = _Row(burst)
            self._rows[burst.key].show(burst)
        for gone in self._rows.keys() - {burst.key for burst in bursts}:
            self._rows.pop(gone).remove()
        for place, burst in enumerate(bursts):
            self._rows[burst.key].move_to(self._box, place)


class _Row:
    """What is inside is made only while it is open: a cluster can have thousands of shards."""

    def __init__(self, burst: Burst) -> None:
        self._burst = burst
        self._open = False
        self._element = ui.element("details").classes("burst")
        with self._element:
            with ui.element("summary"):
                self._summary = ui.html("", sanitize=False)
            self._shards = ui.html("", sanitize=False)
        self._element.on("toggle", self._toggled, js_handler="(event) => emit(event.target.open)")

    def _toggled(self, event: GenericEventArguments) -> None:
        self._open = bool(event.args)
        self.show(self._burst)

    def show(self, burst: Burst) -> None:
        self._burst = burst
        self._summary.set_content(burst_html(burst))
        self._shards.set_content(shards_html(burst) if self._open else "")

    def move_to(self, box: ui.element, place: int) -> None:
        children = box.default_slot.children
        if children.index(self._element) != place:
            self._element.move(box, place)

    def remove(self) -> None:
        self._element.delete()
