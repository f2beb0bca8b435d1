"""Pages that need no library: shown while it is loaded, or when it cannot be."""

from __future__ import annotations

from html import escape


def starting_page() -> str:
    """Comes again every second until the dashboard is there."""
    return _page("Starting", "<p role='status'>The dashboard is starting. This page reloads by itself.</p>")


def failed_page(problem: str) -> str:
    return _page(
        "Not available",
        f"<p role='alert'>The dashboard could not be loaded: {escape(problem)}</p>"
        "<p>The cluster and the REST interface go on: <a href='/docs'>/docs</a>, <a href='/cluster'>/cluster</a>.</p>",
    )


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><meta name='color-scheme' "
        f"content='light dark'><title>{escape(title)} · ecstore</title><style>body{{font:16px/1.5 system-ui,sans-serif;"
        f"max-width:40rem;margin:15vh auto;padding:0 1rem}}</style></head><body><h1>ecstore</h1>{body}</body></html>"
    )
