"""One card for each node, with the buttons that end it, stop it and start it again."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from nicegui import ui

from ecstore_admin.dashboard.actions import Actions, Question
from ecstore_admin.dashboard.markup import node_html
from ecstore_admin.dashboard.view import NodeView


class NodeCards:
    """Cards stay where they are while what they show changes: whoever has a button in focus keeps it."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._cards: dict[str, _Card] = {}
        self._grid = ui.element("div").classes("nodes")

    def show(self, nodes: Sequence[NodeView]) -> None:
        for node in nodes:
            if node.id not in self._cards:
                with self._grid:
                    self._cards[node.id] = _Card(node, self._actions)
            self._cards[node.id].show(node)
        for gone in self._cards.keys() - {node.id for node in nodes}:
            self._cards.pop(gone).remove()


class _Card:
    def __init__(self, node: NodeView, actions: Actions) -> None:
        self._node = node
        self._actions = actions
        name = node.id
        self._box = ui.element("article").classes("node")
        self._box.props["aria-label"], self._box.props["data-node"] = f"Node {name}", name
        with self._box:
            self._text = ui.html("", sanitize=False)
            with ui.element("div").classes("buttons"):
                self._pause = ui.button("Pause", on_click=self._ask_pause)
                self._resume = ui.button("Resume", on_click=self._ask_resume)
                self._kill = ui.button("Kill", on_click=self._ask_kill)
                self._recover = ui.button("Recover", on_click=self._ask_recover)
        for button in (self._pause, self._resume, self._kill, self._recover):
            button.props("no-caps outline dense")
            button.props["aria-label"] = f"{button.text} {name}"
            button.set_enabled(actions.may_operate)

    def show(self, node: NodeView) -> None:
        self._node = node
        self._box.classes(replace=f"node {node.state}")
        self._text.set_content(node_html(node))
        for button, possible in (
            (self._pause, node.can_pause), (self._resume, node.can_resume), (self._kill, node.can_kill),
            (self._recover, node.can_recover),
        ):  # fmt: skip
            button.set_visibility(possible)

    def remove(self) -> None:
        self._box.delete()

    def _ask_kill(self) -> None:
        text = f"SIGKILL ends its process at once, as a crash would. {self._node.warning} It stays down until Recover."
        self._ask("Kill", "kill", text, dangerous=self._node.loses_rows)

    def _ask_pause(self) -> None:
        text = (
            "SIGSTOP holds its process, as a hang would. After about a second of silence the others declare it down "
            f"and take its shards over. {self._node.warning} It goes on with Resume, and then joins again, empty."
        )
        self._ask("Pause", "pause", text, dangerous=self._node.loses_rows)

    def _ask_resume(self) -> None:
        self._ask("Resume", "resume", "Its process goes on. If it was declared down meanwhile it joins again, empty.")

    def _ask_recover(self) -> None:
        text = (
            "Its process is started again, empty, as a new incarnation. Shards move back to it while training goes on."
        )
        self._ask("Recover", "recover", text)

    def _ask(self, verb: str, action: str, text: str, *, dangerous: bool = False) -> None:
        node = self._node.id
        self._actions.ask(
            Question(
                f"{verb} node {node}?", text, f"{verb} {node}", f"/nodes/{quote(node, safe='')}/{action}", dangerous
            )
        )
