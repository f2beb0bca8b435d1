"""Coordination: where the cluster map lives, and who was heard from.

`base` says what a backend does; `service` and `embedded` are the two ends of the bundled one;
`python -m ecstore.coordination` runs its service.
"""

from __future__ import annotations

from ecstore.coordination.base import Coordination
from ecstore.coordination.embedded import EmbeddedCoordination
from ecstore.coordination.service import CoordinationService

__all__ = ["Coordination", "CoordinationService", "EmbeddedCoordination"]
