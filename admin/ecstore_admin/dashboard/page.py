"""The page as widgets. Everything that is shown is decided in `view`; this module only places it and takes clicks."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI, Request
from nicegui import Client, ui

from ecstore_admin.dashboard.actions import Actions
from ecstore_admin.dashboard.hub import Hub
from ecstore_admin.dashboard.markup import bursts_heading, events_html, health_html, legend_html, trainers_html
from ecstore_admin.dashboard.nodes import NodeCards
from ecstore_admin.dashboard.progress import BurstList
from ecstore_admin.dashboard.rest import Rest
from ecstore_admin.dashboard.ring import ring_svg
from ecstore_admin.dashboard.view import View

_STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
#: Messages that are kept for a browser whose connection was lost for a moment; after more it loads the page again.
_HISTORY: Final = 30
_RECONNECT_S: Final = 5.0
_THEMES: Final[dict[str, bool | None]] = {"System": None, "Light": False, "Dark": True}
_KEPT: Final = "ecstore-colours"  # where the browser keeps the choice
_PROFILES: Final = {
    "training_first": "training first", "balanced": "balanced", "recovery_first": "recovery first",
}  # fmt: skip


def create(hub: Hub, rest: Rest) -> FastAPI:
    """The application of the page. The library has one per process: what was created last is served."""

    @ui.page("/", title="ecstore", dark=None, language="en-US")
    async def dashboard(client: Client, request: Request) -> None:
        # The guard has let whoever asks in and said what he may do; without roles, who is in may operate.
        role = getattr(request.state, "role", "view")
        page = Page(Actions(rest, may_operate=role == "operate"))
        page.show(await hub.look())
        client.on_connect(lambda: hub.open(page, page.show))
        client.on_connect(page.remember_colours)
        client.on_disconnect(lambda: hub.close(page))
        client.on_delete(lambda: hub.close(page))

    host = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        host, title="ecstore", dark=None, language="en-US", tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, message_history_length=_HISTORY, reconnect_timeout=_RECONNECT_S,
    )  # fmt: skip
    return host


class Page:
    """One open page."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        ui.add_head_html(f"<style>{_STYLE}</style>")
        ui.colors(primary="#0072b2", positive="#007a5a", negative="#b34700", warning="#8a5f00")
        actions.build()
        with ui.element("div").classes("page"):
            self._header()
            self._health = ui.html("", sanitize=False).props('role="status" aria-live="polite" id="health"')
            with ui.element("main").classes("grid"):
                with ui.element("div").classes("side"):
                    with _card("Ring", "ring-card"):
                        self._ring = ui.html("", sanitize=False).classes("ring-box")
                        ui.html(legend_html(), sanitize=False)
                    with _card("Nodes", "nodes-card"):
                        self._nodes = NodeCards(actions)
                with ui.element("div").classes("side"):
                    with _card("Recoveries", "recoveries-card"):
                        self._profile()
                        self._bursts_heading = ui.html("", sanitize=False)
                        self._bursts = BurstList()
                    with _card("Training", "training-card"):
                        self._training = ui.html("", sanitize=False)
                with _card("Events", "events-card"):
                    self._events = ui.html("", sanitize=False).classes("events").props(
                        'role="log" aria-label="Events, newest first" tabindex="0"'
                    )  # fmt: skip

    def show(self, view: View) -> None:
        """Bring every widget up to date; what has not changed is not sent."""
        self._cluster.set_content(escape(view.cluster))
        self._health.set_content(health_html(view.health))
        self._ring.set_content(ring_svg(view.ring))
        self._training.set_content(trainers_html(view))
        self._nodes.show(view.nodes)
        self._bursts_heading.set_content(bursts_heading(view.bursts))
        self._bursts.show(view.bursts)
        self._events.set_content(events_html(view.events))
        self._show_profile(view.profile)

    def _header(self) -> None:
        with ui.element("header"):
            ui.html("ecstore", sanitize=False, tag="h1")
            self._cluster = ui.html("", sanitize=False).classes("quiet")
            ui.element("div").classes("spring")
            if not self._actions.may_operate:
                ui.html("view only", sanitize=False).classes("tag")
            ui.html('<a href="/docs">API</a>', sanitize=False)
            self._dark = ui.dark_mode(None)
            self._colours = _choice("Colours", {name: name for name in _THEMES}, "System", self._choose_colours)

    def _choose_colours(self, name: str) -> None:
        self._dark.set_value(_THEMES[name])
        ui.run_javascript(f"localStorage.setItem({_KEPT!r}, {name!r})")

    async def remember_colours(self) -> None:
        """Ask the browser what was chosen in it before."""
        name = await ui.run_javascript(f"localStorage.getItem({_KEPT!r})")
        if name in _THEMES:
            self._colours.set_value(name)

    def _profile(self) -> None:
        self._profile_box = ui.element("div").classes("profile")
        with self._profile_box:
            self._profile_choice = _choice(
                "Decoding profile", _PROFILES, "training_first", self._actions.set_profile,
            )  # fmt: skip
            self._profile_choice.set_enabled(self._actions.may_operate)

    def _show_profile(self, profile: str | None) -> None:
        self._profile_box.set_visibility(profile in _PROFILES)
        if profile in _PROFILES and not self._actions.busy:
            self._actions.profile = profile
            self._profile_choice.set_value(profile)


def _card(title: str, name: str) -> ui.element:
    card = ui.element("section").classes(f"card {name}").props(f'aria-label="{title}"')
    with card:
        ui.html(title, sanitize=False, tag="h2")
    return card


def _choice(label: str, options: dict[str, str], value: str, act: Callable[[str], Any]) -> ui.select:
    made = ui.select(options, value=value, label=label, on_change=lambda change: act(change.value))
    return made.props("dense outlined options-dense").classes("choice")
