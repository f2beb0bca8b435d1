"""One look at the cluster for all open pages: twice a second while something happens, else once. Without an open page
nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ecstore_admin import training
from ecstore_admin.dashboard.snapshot import Snapshot
from ecstore_admin.dashboard.training import Figures
from ecstore_admin.dashboard.view import View, view_of

if TYPE_CHECKING:
    from ecstore_admin.app import Service

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5
CALM_PAUSE_S: Final = 1.0
#: Recoveries and events that a page can show at most; older ones are in GET /decoding and GET /events.
MAX_RECOVERIES: Final = 2_000
MAX_EVENTS: Final = 1_000

Show = Callable[[View], None]


class Hub:
    """Pages come and go with `open` and `close`. The task is this object's: `stop` awaits it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pages: dict[object, Show] = {}
        self._figures = Figures()
        service.observer.on_look.append(self._remember)
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it looks at the cluster."""
        return self._task is not None and not self._task.done()

    def open(self, page: object, show: Show) -> None:
        """From now on `show` gets every new view."""
        self._pages[page] = show
        if not self.busy:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dashboard")

    def close(self, page: object) -> None:
        self._pages.pop(page, None)

    async def stop(self) -> None:
        self._pages.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> View:
        return view_of(await self._snapshot())

    def _remember(self) -> None:
        """Also without an open page: whoever opens one after a failure wants to see what was before."""
        self._figures.take(training.trainers(self._service))

    async def _run(self) -> None:
        while self._pages:
            try:
                view = await self.look()
            except Exception:  # a page that stands still for ever would be taken for the truth
                logger.exception("the dashboard could not be brought up to date; trying again")
            else:
                self._show(view)
            await asyncio.sleep(CALM_PAUSE_S if self._service.observer.calm else PAUSE_S)

    def _show(self, view: View) -> None:
        for page, show in list(self._pages.items()):
            try:
                show(view)
            except Exception:  # of one page: the others must not stand still with it
                logger.exception("an open page could not be brought up to date and is given up")
                self.close(page)

    async def _snapshot(self) -> Snapshot:
        service, observer = self._service, self._service.observer
        await observer.refresh()
        trainers = training.trainers(service)
        now = time.time()
        return Snapshot(
            at=now, utc_offset_s=float(time.localtime(now).tm_gmtoff), map=observer.map, problem=observer.problem,
            silent=observer.silent(), frozen=observer.frozen,
            nodes=[service.node(node_id) for node_id in service.node_ids()],
            recoveries=observer.recoveries()[-MAX_RECOVERIES:], events=observer.events()[-MAX_EVENTS:],
            trainers=trainers, figures=self._figures.points(), profile=service.throttling.newest().profile,
            connect=next(iter(service.settings.nodes.values()), "HOST:PORT"),
        )  # fmt: skip
