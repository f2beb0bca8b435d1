"""The page acts through the REST interface itself, inside of the process: one way to do a thing, one set of checks, one
set of messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S: Final = 30.0


class Refused(Exception):
    """The interface refused; the text says why."""


class Rest:
    def __init__(self, app: ASGIApp) -> None:
        """`app` is what is behind the guard: callers check the role of whoever asks."""
        self._app = app
        self._made: httpx.AsyncClient | None = None

    @property
    def _client(self) -> httpx.AsyncClient:
        if self._made is None:
            import httpx  # here, since a service that nobody looks at starts faster without it

            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            self._made = httpx.AsyncClient(transport=transport, base_url="http://dashboard", timeout=_TIMEOUT_S)
        return self._made

    async def change(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        """Do it; what it says. Raises Refused with the sentence of the problem document."""
        answer = await self._client.request(method, path, json=body)
        said = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        if answer.status_code >= 400:
            raise Refused(str(said.get("detail") or f"{method} {path} answered {answer.status_code}"))
        return str(said.get("message") or "done")

    async def close(self) -> None:
        if self._made is not None:
            await self._made.aclose()
