"""What a node is told beside the data path, and tells again: how much recoveries may take, how trainers are doing."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

from ecstore.errors import InputError
from ecstore.node.pacing import Pacer
from ecstore.node.runtime import Runtime
from ecstore.node.trainers import Trainers
from ecstore.throttle import Throttle
from ecstore.training import checked_figures, checked_name
from ecstore.transport import Connection
from ecstore.wire import Frame

Waiting = Callable[[Connection, Frame], Coroutine[Any, Any, None]]

#: Latest moment that a report may carry, unix seconds.
MAX_AT = 1e11


class InsightApi:
    def __init__(self, runtime: Runtime, pacer: Pacer) -> None:
        self._runtime = runtime
        self._pacer = pacer
        self._throttle = Throttle()
        self._trainers = Trainers()
        #: From clients, the admin service and nodes.
        self.open: dict[str, Waiting] = {
            "throttle.set": self._throttle_set,
            "train.report": self._train_report,
        }

    def statistics(self) -> dict[str, Any]:
        rate = self._throttle.rate(self._runtime.config.decode_bytes_per_s)
        return {
            "throttle": self._throttle.to_wire() | {"in_force_bytes_per_s": rate},
            "trainers": self._trainers.to_wire(self._runtime.loop.time()),
        }

    # -- throttle -------------------------------------------------------------------------------------

    async def _throttle_set(self, connection: Connection, frame: Frame) -> None:
        told = Throttle.from_wire(frame.meta)
        if told.replaces(self._throttle):
            self._throttle = told
            rate = told.rate(self._runtime.config.decode_bytes_per_s)
            self._pacer.set_rate(rate, lets_requests_go_first=told.lets_requests_go_first)
            self._runtime.event("throttle", f"recoveries are {told.profile} now, {rate:.0f} bytes a second")
        connection.reply(frame.rid, self.statistics()["throttle"])

    # -- trainers -------------------------------------------------------------------------------------

    async def _train_report(self, connection: Connection, frame: Frame) -> None:
        name, at, figures = checked_name(frame.meta.get("name")), frame.meta.get("at"), frame.meta.get("figures")
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at) or not 0 <= at <= MAX_AT:
            raise InputError("a report carries the time of its trainer, unix seconds")
        if not isinstance(figures, dict):
            raise InputError("a report carries a map of figures")
        self._trainers.report(name, float(at), checked_figures(figures), self._runtime.loop.time())
        connection.reply(frame.rid, {})
