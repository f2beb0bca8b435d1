"""What is known at one moment: the only input of the page and of the terminal view. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ecstore.cluster.map import ClusterMap

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Records are as the REST interface answers them."""

    at: float  #: unix seconds
    utc_offset_s: float = 0.0
    map: ClusterMap | None = None
    problem: str = ""  #: why nothing is known of the present; the map is that of the past then
    silent: Sequence[str] = ()  #: nodes that the map calls alive and that have not answered for long
    frozen: bool = False  #: membership can't change: all that answer have lost the coordination service
    nodes: Sequence[Record] = ()  #: as in GET /nodes
    recoveries: Sequence[Record] = ()  #: as in GET /decoding
    events: Sequence[Record] = ()  #: as in GET /events, oldest first
    trainers: Sequence[Record] = ()  #: as in GET /training
    figures: Mapping[str, Sequence[tuple[float, float, float | None, float | None]]] = field(default_factory=dict)
    """Trainer -> what it reported lately: time, samples a second, loss, AUC."""
    profile: str | None = None  #: of GET /throttle; None: there is none
    connect: str = ""  #: a node's address, for commands that are proposed
