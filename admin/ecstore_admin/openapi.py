"""What the OpenAPI document says besides the routes: errors are problem documents, and who may ask."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from ecstore_admin import models
from ecstore_admin.problems import MEDIA_TYPE

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, text in (
        (400, "the body does not parse"),
        (401, "no token, or a wrong one"),
        (403, "a web page of another origin asks, the token may only view, or faults are not allowed"),
        (404, "unknown node, table or fault"),
        (409, "not possible as things are; the detail says what is"),
        (413, "too large a body"),
        (421, "on loopback: another host name"),
        (422, "wrong parameters"),
        (429, "a bound was reached"),
        (503, "the cluster cannot be reached"),
    )
}

_SCHEMES: Final = {
    "token": {
        "type": "http", "scheme": "bearer",
        "description": "asked for where the service was started with one; GET needs `view`, everything else `operate`",
    }
}  # fmt: skip


def describe(app: FastAPI, *, secured: bool) -> None:
    """Make the document of the application say so."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        document = plain()
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas["Problem"] = models.Problem.model_json_schema()
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        if secured:
            components["securitySchemes"] = _SCHEMES
            document["security"] = [{"token": []}]
        return document

    app.openapi = described  # type: ignore[method-assign]
