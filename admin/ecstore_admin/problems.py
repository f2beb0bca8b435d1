"""Errors of the service: RFC 9457 problem documents with a sentence that says what to do; and who may ask at all."""

from __future__ import annotations

import hmac
import http
import ipaddress
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from ecstore.errors import EcstoreError
from ecstore_admin.models import Problem

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, instance: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem document as an answer."""
    title = http.HTTPStatus(status).phrase
    body = Problem(title=title, status=status, detail=detail, instance=instance)
    return JSONResponse(body.model_dump(), status, media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Turn every error of the application into a problem document."""

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        detail = str(error.detail)
        if error.status_code == 404 and detail == "Not Found":
            detail = f"there is nothing at {request.url.path}; /docs lists what there is"
        elif error.status_code == 405:
            detail = f"{request.method} is not possible at {request.url.path}; /docs lists what is"
        return problem(error.status_code, detail, request.url.path, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        return problem(422, f"{said}; /docs shows what is expected", request.url.path)

    @app.exception_handler(EcstoreError)
    async def _store(request: Request, error: EcstoreError) -> JSONResponse:
        return problem(503 if error.retryable else 500, str(error), request.url.path, {"Retry-After": "1"})


class Guard:
    """Refuses who must not ask: without the token where one is set, and, on loopback, web pages of other origins.

    A page in a browser on this machine could otherwise send a POST to 127.0.0.1, or reach it under a name of its own.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, loopback: bool) -> None:
        self._app = app
        self._token = token
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refused := self._refusal(Headers(scope=scope), scope)) is not None:
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, scope: Scope) -> JSONResponse | None:
        host, origin, path = headers.get("host", ""), headers.get("origin"), scope["path"]
        if self._loopback and not _is_local(host):
            return problem(421, f"this service answers on loopback only, not as {host!r}; use 127.0.0.1", path)
        if origin is not None and urlsplit(origin).netloc != host:
            return problem(403, f"requests from pages of {origin} are not accepted; open /docs of this service", path)
        if self._token is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        detail = "this service asks for a token: send the header 'Authorization: Bearer TOKEN'"
        return problem(401, detail, path, {"WWW-Authenticate": "Bearer"})


def _is_local(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
