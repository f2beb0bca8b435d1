"""Parts of the page as HTML. Pure: everything that comes from a cluster is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ecstore_admin.dashboard.charts import Chart, chart_html
from ecstore_admin.dashboard.health import SIGNS, Health
from ecstore_admin.dashboard.recoveries import ICONS, Burst
from ecstore_admin.dashboard.view import EventView, NodeView, TrainerView, View
from ecstore_admin.dashboard.words import count


def health_html(health: Health) -> str:
    icon, word = SIGNS[health.level]
    return (
        f'<div class="health {health.level}" data-level="{health.level}"><span class="sign"><span aria-hidden="true">'
        f"{icon}</span> {escape(word)}</span><div><strong>{escape(health.title)}</strong>"
        f"<p>{escape(health.reason)} <b>{escape(health.next_step)}</b></p></div></div>"
    )


def legend_html() -> str:
    """What the pieces of the ring mean; each differs in more than its colour."""
    box = '<rect class="cell {}" x="2" y="2" width="14" height="14"/>'
    pieces = (
        (box.format("data"), "data shard (outer)"), (box.format("parity"), "parity shard (inner)"),
        (box.format("data recovering"), "being decoded"), ('<path class="flow" d="M1 9H17"/>', "taken over"),
    )  # fmt: skip
    items = (f'<li><svg viewBox="0 0 18 18" aria-hidden="true">{shape}</svg>{text}</li>' for shape, text in pieces)
    return f'<ul class="legend">{"".join(items)}</ul>'


def node_html(node: NodeView) -> str:
    """The address is long and needs no label: it stands below the name."""
    figures = dict(node.figures)
    address = figures.pop("address", "")
    listed = "".join(f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in figures.items())
    state = f'<span class="state"><span aria-hidden="true">{node.icon}</span> {escape(node.word)}</span>'
    return f"<h3>{escape(node.id)} {state}</h3><p>{escape(address)}</p><dl>{listed}</dl>"


def bursts_heading(bursts: Sequence[Burst]) -> str:
    if not bursts:
        return '<p class="quiet">Nothing has been lost yet. Kill a node below, and see its rows come back.</p>'
    running = sum(burst.finished_at is None for burst in bursts)
    now = f"{count(running, 'recovery', 'recoveries')} under way" if running else "Everything is repaired"
    return f'<p class="quiet">{now}. Newest first; open one to see its shards.</p>'


def burst_html(burst: Burst) -> str:
    icon = ICONS.get(burst.state, "?")
    return (
        f'<span class="burst-title"><span>{escape(burst.title)}</span><span class="state {escape(burst.state)}">'
        f'<span aria-hidden="true">{icon}</span> {escape(burst.state)} · {burst.percent} %</span></span>'
        f"{_bar(burst.percent, burst.state, burst.title)}"
        f'<span class="quiet">{escape(burst.figures())}</span>'
    )


def shards_html(burst: Burst) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{escape(shard.name)}</th><td>{escape(shard.owner)}</td>"
        f"<td>{_bar(shard.percent, shard.state, shard.name)}</td><td>{shard.decoded:,} / {shard.total:,}"
        f"{f' ({shard.on_demand:,} on demand)' if shard.on_demand else ''}</td>"
        f"<td>{ICONS.get(shard.state, '?')} {escape(shard.state)}</td></tr>"
        for shard in burst.shards
    )
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Shard</th><th scope="col">New owner</th>'
        '<th scope="col">Progress</th><th scope="col">Rows</th><th scope="col">State</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def trainers_html(view: View) -> str:
    if not view.trainers:
        return (
            '<p class="quiet">No trainer is reporting. Start one:</p>'
            f'<pre class="command">ecstore train --connect {escape(view.connect)}</pre>'
        )
    return "".join(_trainer(trainer) for trainer in view.trainers)


def _trainer(trainer: TrainerView) -> str:
    bar = "" if trainer.done is None else _bar(trainer.done, "running", "batches")
    charts = "".join(_chart(chart) for chart in trainer.charts)
    return f'<div class="trainer"><h3>{escape(trainer.title)}</h3>{bar}{charts}</div>'


def _chart(chart: Chart) -> str:
    drawn = chart_html(chart) or '<p class="quiet">not reported yet</p>'
    latest = f" <strong>{escape(chart.latest)}</strong>" if chart.points else ""
    return f"<figure><figcaption>{escape(chart.title)}{latest}</figcaption>{drawn}</figure>"


def events_html(events: Sequence[EventView]) -> str:
    if not events:
        return '<p class="quiet">Nothing has happened yet.</p>'
    items = "".join(
        f'<li><time>{event.clock}</time><span class="sign" aria-hidden="true">{event.icon}</span>'
        f"<span>{escape(event.message)}</span></li>"
        for event in events
    )
    return f"<ol>{items}</ol>"


def _bar(percent: int, state: str, name: str) -> str:
    return (
        f'<span class="bar {escape(state)}" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent}" aria-label="{escape(name)}"><span style="width:{percent}%"></span></span>'
    )
