"""`/throttle`: how much of the cluster recoveries may take, switchable while one runs.

The setting lives in the nodes, with a revision; this service has none of its own. The newest among the nodes that are
up is the true one, and whenever a node lacks it (it has just joined, or was away) it is told. So a service that was
started again, and several at once, say the same. When the last node of a cluster has ended, the setting is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from ecstore.errors import EcstoreError, InputError, UnavailableError
from ecstore.throttle import MAX_RATE, MIN_RATE, Profile, Throttle
from ecstore_admin.observer import FRESH_S

if TYPE_CHECKING:
    from ecstore_admin.app import Service

logger = logging.getLogger(__name__)

#: Between two looks whether every node has the newest setting.
LOOK_S: Final = 0.25
ASK_TIMEOUT_S: Final = 2.0

Rate = Annotated[float, Field(ge=MIN_RATE, le=MAX_RATE, allow_inf_nan=False)]


class ThrottleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"profile": "balanced"}})

    profile: Profile = Field(
        description="training_first: the rate the nodes were started with, after requests; balanced: 4 times that; "
        "recovery_first: 16 times that, and requests do not go first"
    )
    rate_bytes_per_s: Rate | None = Field(
        default=None, description="row bytes a second of each node, instead of the profile's own rate"
    )


class NodeThrottle(BaseModel):
    id: str
    profile: Profile
    rate_bytes_per_s: float


_EXAMPLE: JsonDict = {
    "profile": "balanced",
    "rate_bytes_per_s": 41943040.0,
    "settled": True,
    "nodes": [{"id": "n1", "profile": "balanced", "rate_bytes_per_s": 41943040.0}],
}  # fmt: skip


class ThrottleStatus(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    profile: Profile
    rate_bytes_per_s: float = Field(
        description="row bytes a second that the background work of one node may reach; where nodes differ, the lowest"
    )
    settled: bool = Field(description="every node that answers has this setting")
    nodes: list[NodeThrottle] = Field(description="nodes that answer, and what is in force there")


class Throttling:
    """The newest setting that any node has, and its way to all others."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def newest(self) -> Throttle:
        """Of all nodes that answered last; the first setting when none did."""
        newest = Throttle()
        for setting in self._settings().values():
            if setting.replaces(newest):
                newest = setting
        return newest

    def _settings(self) -> dict[str, Throttle]:
        observer = self._service.observer
        settings = {}
        for node in sorted(observer.answered):
            told = (observer.statistics(node) or {}).get("throttle")
            if isinstance(told, dict):
                with contextlib.suppress(InputError):  # of another release: not ours to pass on
                    settings[node] = Throttle.from_wire(told)
        return settings

    def status(self) -> ThrottleStatus:
        settings, newest = self._settings(), self.newest()
        nodes = [
            NodeThrottle(
                id=node,
                profile=setting.profile,
                rate_bytes_per_s=(self._service.observer.statistics(node) or {})["throttle"]["in_force_bytes_per_s"],
            )
            for node, setting in settings.items()
        ]
        rates = [node.rate_bytes_per_s for node in nodes if settings[node.id] == newest]
        if not rates:
            raise UnavailableError("no node answers at the moment; ask again")
        settled = all(setting == newest for setting in settings.values())
        return ThrottleStatus(profile=newest.profile, rate_bytes_per_s=min(rates), settled=settled, nodes=nodes)

    async def set(self, request: ThrottleRequest) -> ThrottleStatus:
        """Tell all nodes; those that can't be told now are told by `watch`. UnavailableError when none was."""
        before = self.newest()
        wanted = Throttle(request.profile, request.rate_bytes_per_s, before.revision + 1)
        if (before.profile, before.rate_bytes_per_s) != (wanted.profile, wanted.rate_bytes_per_s):
            took = await self._tell(wanted, self._service.observer.answered)
            self._service.observer.event(
                "throttle", "", f"recoveries are {wanted.profile} from now on", profile=wanted.profile
            )
            await self._shown(wanted, took)
        return self.status()

    async def _shown(self, setting: Throttle, nodes: frozenset[str]) -> None:
        """Return when the observer has seen the setting at `nodes`, or they are gone: the answer must show it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_TIMEOUT_S
        while loop.time() < deadline:
            settings = self._settings()
            if not any(setting.replaces(settings[node]) for node in nodes if node in settings):
                return
            await asyncio.sleep(FRESH_S)
            await self._service.observer.refresh()

    async def _tell(self, setting: Throttle, nodes: frozenset[str]) -> frozenset[str]:
        """The nodes that took it; UnavailableError when none did."""
        current, store = self._service.observer.map, self._service.observer.store()
        assert current is not None, "who has answered is in the map"

        async def tell(node: str) -> tuple[str, EcstoreError | None]:
            try:
                await store.ask_node(
                    current.nodes[node].address, "throttle.set", setting.to_wire(), timeout=ASK_TIMEOUT_S
                )
            except EcstoreError as error:
                return node, error
            return node, None

        outcomes = await asyncio.gather(*(tell(node) for node in sorted(nodes) if node in current.nodes))
        took = frozenset(node for node, error in outcomes if error is None)
        if not took:
            why = outcomes[0][1] if outcomes else "no node answers"
            raise UnavailableError(f"no node has taken the new setting ({why}); try again")
        return took

    async def watch(self) -> None:
        """Bring nodes that join, or were away, to the newest setting. Runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            newest = self.newest()
            behind = frozenset(node for node, setting in self._settings().items() if newest.replaces(setting))
            if behind:
                try:
                    await self._tell(newest, behind)
                except EcstoreError as error:
                    logger.warning("nodes %s can't be told the throttle yet: %s", ", ".join(sorted(behind)), error)


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.get("/throttle", summary="How much of the cluster recoveries may take")
    async def show() -> ThrottleStatus:
        await service.map()
        return service.throttling.status()

    @routes.put("/throttle", summary="Change it, also while a recovery runs")
    async def change(request: ThrottleRequest) -> ThrottleStatus:
        current = await service.map()
        if not current.up_nodes():
            raise HTTPException(503, "no node of the cluster is up; start one first")
        return await service.throttling.set(request)

    return routes
