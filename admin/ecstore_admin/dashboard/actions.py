"""What the page can do: ask again, then do it over the REST interface, and say what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from nicegui import ui

from ecstore_admin.dashboard.rest import Refused, Rest

_NOT_ALLOWED: Final = "You may view, not operate: sign in with the token for operating."


@dataclass(frozen=True, slots=True)
class Question:
    """One action, as it is asked about before it is done."""

    title: str
    text: str
    do: str  #: on the button
    path: str
    dangerous: bool = False


class Actions:
    def __init__(self, rest: Rest, *, may_operate: bool) -> None:
        self._rest = rest
        self.may_operate = may_operate
        self.busy = False
        self.profile: str | None = None  #: in force, as far as is known
        self._question: Question | None = None

    def build(self) -> None:
        """The dialog; once per page, inside of it."""
        self._dialog = ui.dialog().props('aria-labelledby="question" role="alertdialog"')
        with self._dialog, ui.element("div").classes("card dialog"):
            self._title = ui.html("", sanitize=False, tag="h2").props('id="question"')
            self._text = ui.label()
            with ui.element("div").classes("buttons"):
                ui.button("Cancel", on_click=self._dialog.close).props("no-caps outline autofocus")
                self._do = ui.button("", on_click=self._confirmed).props('no-caps unelevated id="confirm"')

    def ask(self, question: Question) -> None:
        """Show the dialog; nothing happens before its button is pressed."""
        self._question = question
        self._title.set_content(escape(question.title))
        self._text.set_text(question.text)
        self._text.classes(replace="warning" if question.dangerous else "")
        self._do.set_text(question.do)
        self._dialog.open()

    async def _confirmed(self) -> None:
        self._dialog.close()
        question, self._question = self._question, None
        if question is not None:
            await self._change("POST", question.path)

    async def set_profile(self, profile: str) -> None:
        if profile == self.profile:
            return  # the page shows what somebody else has chosen
        if await self._change("PUT", "/throttle", {"profile": profile}):
            self.profile = profile

    async def _change(self, method: str, path: str, body: dict[str, str] | None = None) -> bool:
        if not self.may_operate:
            ui.notify(_NOT_ALLOWED, type="warning")
            return False
        self.busy = True
        try:
            said = await self._rest.change(method, path, body)
        except Refused as refusal:
            ui.notify(str(refusal), type="negative", timeout=10_000, close_button="Close")
            return False
        finally:
            self.busy = False
        ui.notify(said, type="positive")
        return True
