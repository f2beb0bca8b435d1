"""What every request passes before anything looks at it, and every answer on its way out.

Refused are: on loopback, other names and pages of other origins; wrong or missing tokens; too large bodies. Every
request has an id, and every answer has the headers that keep browsers from doing more with it than show it.
"""

from __future__ import annotations

import logging
import re
import secrets
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ecstore_admin.access import COOKIE, Role, Tokens, needed
from ecstore_admin.problems import problem

logger = logging.getLogger(__name__)

#: Longest body. The largest that anybody means is a fault between all nodes, some 20 KiB.
MAX_BODY: Final = 256 << 10
TOO_LARGE: Final = f"the body of a request has at most {MAX_BODY} bytes"

#: Asked for without a token: the page that takes one.
LOGIN: Final = "/login"

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # with none, a form of our own pages would come from the origin "null"
    "Cache-Control": "no-store",
}


class Guard:
    """The outermost layer, around everything that the application serves, WebSockets and static files included.

    `scope["state"]` gets `request_id` and `role`. Beyond loopback a page in a browser could reach the service under a
    name of its own or send it a POST; so the origin is looked at everywhere, and the host on loopback, where alone
    it is known what it must be.
    """

    def __init__(self, app: ASGIApp, *, tokens: Tokens, loopback: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state: dict[str, Any] = scope.setdefault("state", {})
        asked = headers.get("x-request-id", "")
        state["request_id"] = asked if _SANE_ID.fullmatch(asked) else secrets.token_hex(8)
        state["role"] = self._role(headers)
        refusal = self._refusal(headers, scope)
        if scope["type"] == "websocket":
            await self._websocket(refusal, scope, receive, send)
        else:
            await self._http(refusal, headers, scope, receive, send)

    async def _websocket(self, refusal: JSONResponse | None, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal is None:
            await self._app(scope, receive, send)
            return
        await receive()  # the wish to connect; a close before it is accepted is a 403
        await send({"type": "websocket.close", "code": 1008})

    async def _http(
        self, refusal: JSONResponse | None, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                sent = MutableHeaders(scope=message)
                sent["X-Request-ID"] = scope["state"]["request_id"]
                for name, value in _HEADERS.items():
                    sent.setdefault(name, value)
            await send(message)

        try:
            await (self._app if refusal is None else refusal)(scope, _limited(receive), answer)
        except Exception:
            method, path, number = scope["method"], scope["path"], scope["state"]["request_id"]
            logger.exception("request %s failed: %s %r", number, method, path)
            if begun:
                raise
            detail = f"the service met an error it did not expect; its log tells more under request {number}"
            await problem(500, detail, scope)(scope, receive, answer)

    def _role(self, headers: Headers) -> Role | None:
        """Of whoever asks; everybody operates where no token is asked for."""
        if not self._tokens.required:
            return "operate"
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme:
            return self._tokens.role(given.strip()) if scheme.lower() == "bearer" else None
        return self._tokens.role(_cookie(headers))

    def _refusal(self, headers: Headers, scope: Scope) -> JSONResponse | None:
        host, origin, path = headers.get("host", ""), headers.get("origin"), scope["path"]
        if self._loopback and not _is_local(host):
            return problem(421, f"this service answers on loopback only, not as {host!r}; use 127.0.0.1", scope)
        if origin is not None and _split(origin).netloc != host:
            return problem(403, f"requests from pages of {origin} are not accepted; open /docs of this service", scope)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > MAX_BODY:
            return problem(413, TOO_LARGE, scope)
        if path == LOGIN:
            return None
        role = scope["state"]["role"]
        if role is None:
            if "text/html" in headers.get("accept", "") and scope.get("method") == "GET":
                return problem(401, f"open {LOGIN} to give a token", scope, {"Refresh": f"0; url={LOGIN}"})
            detail = "this service asks for a token: send the header 'Authorization: Bearer TOKEN'"
            return problem(401, detail, scope, {"WWW-Authenticate": "Bearer"})
        if role == "view" and scope["type"] == "http" and needed(scope["method"]) == "operate":
            return problem(403, "this token may view, not operate: ask with the other one", scope)
        return None


def _cookie(headers: Headers) -> str:
    """Ours, whatever other services of this host have set: one cookie that does not parse hides no other."""
    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def _limited(receive: Receive) -> Receive:
    """The same, until more has come than a body may have: who announces no length is counted."""
    got = 0

    async def counted() -> Message:
        nonlocal got
        message = await receive()
        got += len(message.get("body", b""))
        if got > MAX_BODY:
            raise HTTPException(413, TOO_LARGE)
        return message

    return counted


def _split(address: str) -> SplitResult:
    """Of what somebody sends; empty for what is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _is_local(host: str) -> bool:
    name = _split(f"//{host}").hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
