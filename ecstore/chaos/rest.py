"""The REST calls of a chaos run. What was ordered may hold up the admin service itself: calls are tried again."""

from __future__ import annotations

import time
from typing import Any, Final

import httpx

from ecstore.chaos.plan import Action
from ecstore.errors import ConfigError, UnavailableError
from ecstore.launcher.cluster import admin_headers

#: A call is given up after so long.
PATIENCE_S: Final = 30.0


class Rest:
    """One admin service."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10.0, headers=admin_headers())

    def close(self) -> None:
        self._client.close()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """What GET /nodes says, by node."""
        return {node["id"]: node for node in self._call("GET", "/nodes")["nodes"]}

    def can_drain(self) -> bool:
        """Whether this admin service drains nodes."""
        return "/nodes/{node_id}/drain" in self._call("GET", "/openapi.json")["paths"]

    def kill(self, node: str) -> None:
        self._call("POST", f"/nodes/{node}/kill")

    def recover(self, node: str) -> None:
        self._call("POST", f"/nodes/{node}/recover")

    def drain(self, node: str) -> None:
        self._call("POST", f"/nodes/{node}/drain")

    def pause(self, node: str, duration_s: float) -> None:
        self._call("POST", f"/nodes/{node}/pause", {"duration_s": duration_s})

    def resume(self, node: str) -> None:
        self._call("POST", f"/nodes/{node}/resume")

    def fault(self, action: Action) -> None:
        """Order the fault of an action between nodes, or of a slow node."""
        body: dict[str, Any] = {"duration_s": action.duration_s}
        if action.kind == "slow":
            body |= {"kind": "slow", "nodes": [action.node], "block_ms": action.strength, "every_ms": 200.0}
        else:
            body |= {"from": [action.node], "to": list(action.peers), "both": action.both}
            body |= {
                "delay": {"kind": "delay", "delay_ms": action.strength, "jitter_ms": action.strength / 2},
                "cut": {"kind": "drop", "probability": action.strength},
            }.get(action.kind, {"kind": "partition"})
        self._call("POST", "/faults", body)

    def end_faults(self) -> None:
        """End every fault in force."""
        for fault in self._call("GET", "/faults")["faults"]:
            self._call("DELETE", f"/faults/{fault['id']}", missing_ok=True)

    def require_faults(self) -> None:
        """ConfigError unless this admin service and its nodes take faults."""
        if "/faults" not in self._call("GET", "/openapi.json")["paths"]:
            raise ConfigError("the admin service knows no faults; use one of this release")
        told = self._call("GET", "/faults")
        if not told["allowed"]:
            raise ConfigError("the admin service takes no faults; start the cluster with --allow-faults")
        silent = told["silent"]
        if silent:
            raise ConfigError(f"nodes {', '.join(silent)} take no faults; start the cluster with --allow-faults")

    def _call(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = self._client.request(method, path, json=body)
                if answer.status_code == 404 and missing_ok:
                    return None
                if answer.status_code < 400:
                    return answer.json()
                said = answer.json().get("detail", answer.text)
                again = answer.status_code == 503
            except (httpx.HTTPError, ValueError) as error:
                said, again = str(error) or type(error).__name__, True
            if not again or time.monotonic() > deadline:
                raise UnavailableError(f"{method} {path} of the admin service failed: {said}")
            time.sleep(0.3)
