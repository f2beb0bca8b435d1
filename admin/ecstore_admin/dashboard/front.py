"""Where the page is mounted: inside of the guard, beside the REST interface, and loaded when it is first asked for.

The UI library registers routes of its own and answers whatever it does not know with a page. Behind this front it gets
the paths that are its own, and nothing else: the REST interface, its errors and its OpenAPI document do not know of it.
It is imported in a thread at the first visit, which takes about a second: a cluster starts without waiting for it, and
a service that nobody looks at does without its memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ecstore_admin.dashboard.hub import Hub
from ecstore_admin.dashboard.plain import failed_page, starting_page
from ecstore_admin.dashboard.rest import Rest

if TYPE_CHECKING:
    from ecstore_admin.app import Service

logger = logging.getLogger(__name__)

_ASSETS: Final = ("/_nicegui/", "/_nicegui_ws/")

#: Nothing from elsewhere, and nothing sent elsewhere. The library compiles its templates in the browser (eval).
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


def is_of_the_page(path: str) -> bool:
    return path in ("/", "/favicon.ico") or path.startswith(_ASSETS)


class Front:
    """Middleware, to be added before the guard, so that the guard is around it."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app = app
        self._rest = Rest(app)
        self._hub = Hub(service)
        self._page: ASGIApp | None = None
        self._running: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, self._ending_first(receive), send)
        elif not is_of_the_page(scope["path"]):
            await self._app(scope, receive, send)
        elif self._page is not None:
            await self._page(scope, receive, _with_policy(send))
        elif scope["type"] == "websocket":
            self._starting()  # it is of a page that was open when a former service ended: it tries again
            await receive()
            await send({"type": "websocket.close", "code": 1013})
        else:
            await self._starting()(scope, receive, _with_policy(send))

    def _starting(self) -> HTMLResponse:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="dashboard library")
        if not self._running.done():
            return HTMLResponse(starting_page(), 200, {"Refresh": "1", "Cache-Control": "no-store"})
        problem = None if self._running.cancelled() else self._running.exception()
        return HTMLResponse(failed_page(str(problem or "the service is ending")), 503)

    async def _run(self) -> None:
        """Import the library and keep it running until the service ends."""
        try:
            page = await asyncio.to_thread(_import_page)
            host = page.create(self._hub, self._rest)
            async with host.router.lifespan_context(host):
                self._page = host
                await self._end.wait()
                self._page = None
        except Exception:
            logger.exception("the dashboard cannot be shown; the REST interface goes on without it")
            raise

    def _ending_first(self, receive: Receive) -> Receive:
        async def received() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._stop()
            return message

        return received

    async def _stop(self) -> None:
        self._end.set()
        await self._hub.stop()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)  # what went wrong has been logged
        await self._rest.close()


def _import_page() -> Any:
    from ecstore_admin.dashboard import page

    return page


def _with_policy(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = _POLICY
            headers["X-Content-Type-Options"] = "nosniff"
            headers["X-Frame-Options"] = "DENY"
            headers["Referrer-Policy"] = "no-referrer"
        await send(message)

    return answer
