"""The ring: nodes on a circle, each with its data shards (outer band) and parity shards (inner band). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal

from ecstore.cluster.map import ClusterMap
from ecstore_admin.dashboard.words import count

SIZE: Final = 440.0  #: side of the square that the ring is drawn in
_CENTRE: Final = SIZE / 2
_BANDS: Final[Mapping[str, tuple[float, float]]] = {"data": (172.0, 212.0), "parity": (128.0, 166.0)}
_BADGE_AT: Final = 92.0  # distance of a node's badge from the centre
_BADGE_RADIUS: Final = 25.0
_GAP: Final = 0.06  # share of a node's sector that separates it from the next
#: A cell is at most this wide, so that three shards do not look like a full node.
_MAX_CELL: Final = math.radians(9)

Role = Literal["data", "parity"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One shard, as a piece of a band."""

    path: str
    role: Role
    recovering: bool
    text: str


@dataclass(frozen=True, slots=True)
class Seat:
    """One node and what it holds."""

    node: str
    state: str
    icon: str
    x: float
    y: float
    outline: tuple[str, ...]  #: its two bands, drawn below the cells
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Shards on their way: a curve from the node that had them to the one that gets them."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Ring:
    seats: tuple[Seat, ...]
    flows: tuple[Flow, ...]
    badge_radius: float
    middle: tuple[str, str]


def ring_of(
    current: ClusterMap | None, states: Mapping[str, tuple[str, str]], recoveries: Sequence[Mapping[str, Any]]
) -> Ring:
    """`states`: node -> its state and icon, in the order in which nodes sit on the circle."""
    shards = _shards(current)
    most = max((sum(role == wanted for role, _, _ in held) for held in shards.values() for wanted in _BANDS), default=1)
    sector = 2 * math.pi / max(1, len(states))
    cell = min(sector * (1 - _GAP) / max(1, most), _MAX_CELL)
    seats, places = [], {}
    for number, (node, (state, icon)) in enumerate(states.items()):
        middle = number * sector - math.pi / 2
        places[node] = middle
        width = sector * (1 - _GAP)
        seats.append(
            Seat(
                node, state, icon, *_at(_BADGE_AT, middle),
                tuple(_wedge(*_BANDS[role], middle - width / 2, middle + width / 2) for role in _BANDS),
                tuple(_cells(shards.get(node, []), middle, cell)),
            )
        )  # fmt: skip
    radius = min(_BADGE_RADIUS, 0.85 * _BADGE_AT * math.sin(min(sector, math.pi) / 2))
    up = sum(state in ("up", "draining") for state, _ in states.values())
    groups = len(current.groups) if current is not None else 0
    words = (f"{up} of {count(len(states), 'node')} up", count(groups, "group") if groups else "no groups yet")
    return Ring(tuple(seats), tuple(_flows(recoveries, places)), radius, words)


def _shards(current: ClusterMap | None) -> dict[str, list[tuple[Role, bool, str]]]:
    held: dict[str, list[tuple[Role, bool, str]]] = {}
    for group in current.groups if current is not None else ():
        if group.lost or current is None:
            continue
        k = current.code(group).k
        for shard in group.shards:
            if current.is_alive(shard.owner, shard.incarnation):
                role: Role = "data" if shard.index < k else "parity"
                what = f"group {group.gid} {group.code}, {role} shard {shard.index}"
                held.setdefault(shard.owner, []).append((role, shard.state == "recovering", what))
    return held


def _cells(held: list[tuple[Role, bool, str]], middle: float, width: float) -> list[Cell]:
    cells = []
    for role, band in _BANDS.items():
        mine = [entry for entry in held if entry[0] == role]
        start = middle - len(mine) * width / 2
        for number, (kept, recovering, what) in enumerate(mine):
            left = start + number * width
            path = _wedge(*band, left + width * 0.06, left + width * 0.94)
            cells.append(Cell(path, kept, recovering, what + (", recovering" if recovering else "")))
    return cells


def _flows(recoveries: Sequence[Mapping[str, Any]], places: Mapping[str, float]) -> list[Flow]:
    pairs: dict[tuple[str, str], int] = {}
    for entry in recoveries:
        pair = (entry["lost_node"], entry["new_owner"])
        if entry["finished_at"] is None and pair[0] != pair[1] and pair[0] in places and pair[1] in places:
            pairs[pair] = pairs.get(pair, 0) + 1
    flows = []
    for (source, target), number in sorted(pairs.items()):
        (x1, y1), (x2, y2) = (_at(_BADGE_AT - _BADGE_RADIUS - 5, places[node]) for node in (source, target))
        path = f"M{x1:.1f} {y1:.1f}Q{_CENTRE:.1f} {_CENTRE:.1f} {x2:.1f} {y2:.1f}"
        flows.append(Flow(path, f"{count(number, 'shard')} of {source} now on {target}"))
    return flows


def _at(distance: float, angle: float) -> tuple[float, float]:
    return _CENTRE + distance * math.cos(angle), _CENTRE + distance * math.sin(angle)


def _wedge(inner: float, outer: float, left: float, right: float) -> str:
    (ax, ay), (bx, by) = _at(outer, left), _at(outer, right)
    (cx, cy), (dx, dy) = _at(inner, right), _at(inner, left)
    large = int(right - left > math.pi)
    return (
        f"M{ax:.1f} {ay:.1f}A{outer:g} {outer:g} 0 {large} 1 {bx:.1f} {by:.1f}"
        f"L{cx:.1f} {cy:.1f}A{inner:g} {inner:g} 0 {large} 0 {dx:.1f} {dy:.1f}Z"
    )


def ring_svg(ring: Ring) -> str:
    """The drawing; colours and patterns are classes of the style sheet."""
    text = f"Ring of {count(len(ring.seats), 'node')}: " + "; ".join(_spoken(seat) for seat in ring.seats)
    parts = [
        f'<svg class="ring" viewBox="0 0 {SIZE:g} {SIZE:g}" role="img" aria-label="{escape(text)}">'
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="hatch-ground" width="6" height="6"/><rect class="hatch-line" width="2.4" height="6"/></pattern>'
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        '<path class="arrow" d="M0 0L8 4L0 8Z"/></marker></defs>'
    ]
    for seat in ring.seats:
        parts += [f'<path class="band {seat.state}" d="{outline}"/>' for outline in seat.outline]
        parts += [
            f'<path class="cell {cell.role}{" recovering" if cell.recovering else ""}" d="{cell.path}">'
            f"<title>{escape(cell.text)}</title></path>"
            for cell in seat.cells
        ]
    parts += [
        f'<path class="flow" d="{flow.path}" marker-end="url(#arrow)"><title>{escape(flow.text)}</title></path>'
        for flow in ring.flows
    ]
    parts += [_badge(seat, ring.badge_radius) for seat in ring.seats]
    parts.append(
        f'<text class="middle" x="{_CENTRE:g}" y="{_CENTRE - 4:g}">{escape(ring.middle[0])}</text>'
        f'<text class="middle small" x="{_CENTRE:g}" y="{_CENTRE + 14:g}">{escape(ring.middle[1])}</text></svg>'
    )
    return "".join(parts)


def _badge(seat: Seat, radius: float) -> str:
    font = radius * 0.56
    return (
        f'<g class="seat {seat.state}" data-node="{escape(seat.node)}"><title>{escape(_spoken(seat))}</title>'
        f'<circle cx="{seat.x:.1f}" cy="{seat.y:.1f}" r="{radius:.1f}"/>'
        f'<text x="{seat.x:.1f}" y="{seat.y - radius * 0.12:.1f}" font-size="{font:.1f}">{escape(seat.node)}</text>'
        f'<text x="{seat.x:.1f}" y="{seat.y + radius * 0.58:.1f}" font-size="{font:.1f}">{escape(seat.icon)}</text></g>'
    )


def _spoken(seat: Seat) -> str:
    data = sum(cell.role == "data" for cell in seat.cells)
    recovering = sum(cell.recovering for cell in seat.cells)
    said = f"{seat.node} {seat.state}, {data} data and {len(seat.cells) - data} parity shards"
    return said + (f", {recovering} recovering" if recovering else "")
