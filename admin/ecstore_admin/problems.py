"""Errors of the service: RFC 9457 problem documents with a sentence that says what to do."""

from __future__ import annotations

import http

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from ecstore.errors import EcstoreError, InputError, UnknownTableError
from ecstore_admin.models import Problem

MEDIA_TYPE = "application/problem+json"


def problem(status: int, detail: str, scope: Scope, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem document as an answer to the request of `scope`."""
    title, number = http.HTTPStatus(status).phrase, scope.get("state", {}).get("request_id", "")
    body = Problem(title=title, status=status, detail=detail, instance=scope["path"], request_id=number)
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
        return problem(error.status_code, detail, request.scope, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        return problem(422, f"{said}; /docs shows what is expected", request.scope)

    @app.exception_handler(EcstoreError)
    async def _store(request: Request, error: EcstoreError) -> JSONResponse:
        if isinstance(error, UnknownTableError):
            return problem(404, str(error), request.scope)
        if isinstance(error, InputError):
            return problem(422, str(error), request.scope)
        return problem(503 if error.retryable else 500, str(error), request.scope, {"Retry-After": "1"})
