"""Pages for browsers: /docs, which works without the internet, and /login, where a browser gives its token."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from ecstore_admin.access import COOKIE, Tokens
from ecstore_admin.guard import LOGIN

#: FastAPI's own /docs loads Swagger UI from a public server. Clusters often have no way out, and a page that may kill
#: nodes should run no script from elsewhere. This package carries the three files; nothing else of it is used.
ASSETS: Final = Path(fastapi_offline.__file__).parent / "static"
_ASSETS_AT: Final = "/docs/assets"

_FORM: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ecstore: token</title>
<style>
 :root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }}
 form {{ max-width: 24rem; margin: 20vh auto; padding: 0 1rem; display: grid; gap: .75rem; }}
 input, button {{ font: inherit; padding: .5rem; }}
</style></head><body><form method="post" action="{action}">
<label for="token">{text}</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Go on</button>
</form></body></html>
"""
_ASK: Final = "This ecstore service asks for a token. The file or the variable that it was started with has it."
_WRONG: Final = "That is none of this service's tokens. Try again."


def install(app: FastAPI, tokens: Tokens) -> None:
    """Add the pages. They are no part of the OpenAPI document."""
    app.mount(_ASSETS_AT, StaticFiles(directory=ASSETS), name="docs assets")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=f"{app.title}: REST",
            swagger_js_url=f"{_ASSETS_AT}/swagger-ui-bundle.js",
            swagger_css_url=f"{_ASSETS_AT}/swagger-ui.css",
            swagger_favicon_url=f"{_ASSETS_AT}/favicon.png",
        )

    @app.get(LOGIN, include_in_schema=False)
    async def form() -> HTMLResponse:
        return HTMLResponse(_FORM.format(action=LOGIN, text=_ASK))

    @app.post(LOGIN, include_in_schema=False)
    async def login(request: Request) -> Response:
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0].strip()
        if tokens.required and tokens.role(given) is None:
            return HTMLResponse(_FORM.format(action=LOGIN, text=_WRONG), 401)
        answer = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        if tokens.required:
            answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", secure=secure)
        return answer
