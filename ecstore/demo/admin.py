"""The REST calls of the demonstration."""

from __future__ import annotations

from typing import Any

import httpx

from ecstore.errors import UnavailableError
from ecstore.launcher.cluster import admin_headers


class Admin:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10.0, headers=admin_headers())

    def close(self) -> None:
        self._client.close()

    def kill(self, node: str) -> None:
        self._answer("POST", f"/nodes/{node}/kill")

    def recover(self, node: str) -> None:
        self._answer("POST", f"/nodes/{node}/recover")

    def recoveries(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._answer("GET", "/decoding")["recoveries"]
        return found

    def _answer(self, method: str, path: str) -> Any:
        try:
            answer = self._client.request(method, path)
            answer.raise_for_status()
            return answer.json()
        except httpx.HTTPError as error:
            raise UnavailableError(f"{method} {path} of the admin service failed: {error}") from error
