"""What a coordination backend does for a node: one versioned value (the cluster map) and proofs of life.

A backend decides nothing. It holds the newest map, replaces it by compare-and-swap, tells everybody about
the new one, and remembers when it last heard from each node. What the next map is,
`ecstore.cluster.transitions.next_map` says.

While the backend cannot be reached, membership is frozen: `available` is False, `compare_and_swap`, `get`
and `propose` raise `UnavailableError`, and the newest map seen stays in force. Nothing here raises out of
background work into the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ecstore.cluster.map import ClusterMap
from ecstore.cluster.transitions import Event

#: Compare-and-swap rounds of one `propose`. Every lost round means that somebody else's event went in, so
#: losing this often takes more simultaneous proposers than a cluster has nodes to lose at once.
MAX_PROPOSE_ROUNDS = 64


class Coordination(Protocol):
    """One process's access to the backend. Used from one event loop only."""

    @property
    def available(self) -> bool:
        """Whether the backend answered on the present connection."""

    @property
    def newest(self) -> ClusterMap | None:
        """The newest map seen; None before the first. Its epoch never goes back."""

    @property
    def last_renewal(self) -> float:
        """Loop time at which the last *answered* session heartbeat was sent; -inf before the first.

        A node's lease counts from it: the answer may have taken its time, the sending is what the others saw.
        A heartbeat refused because this life of the node was declared down does not count.
        """

    @property
    def fenced(self) -> bool:
        """Whether the backend said that the session's life of the node has been declared down."""

    async def get(self) -> ClusterMap:
        """The newest map, asked for now. `UnavailableError` while the backend cannot be reached; the error of the
        backend when it refuses us (`WrongClusterError`, `VersionMismatchError`, `AuthError`).
        """

    async def compare_and_swap(self, old_epoch: int, new: ClusterMap) -> bool:
        """Replace the map if its epoch is `old_epoch`; whether it was. Durable when it returns True.

        `UnavailableError` or `TimeoutError`: unknown whether it was; look at the next map.
        """

    def subscribe(self, callback: Callable[[ClusterMap], None]) -> Callable[[], None]:
        """Call `callback` for every newer map seen from now on, in order of epochs, in the loop; at once
        for the newest one where there is one. Epochs may be skipped, never repeated. Returns what ends the
        subscription. An exception of a callback is logged and does not reach the other subscribers.
        """

    async def session(self, node_id: str, incarnation: int) -> None:
        """Keep telling the backend that this life of the node is there, until `close` or the next `session`.

        Returns when the first heartbeat was answered, or after one heartbeat's deadline.
        """

    async def sessions(self) -> dict[str, float]:
        """Seconds since the backend last heard from each node, by node id."""

    async def propose(self, event: Event) -> ClusterMap:
        """Make the event happen: `next_map`, compare-and-swap, again on the newer map where another was
        faster.

        Returns a map in which the event has happened (or changes nothing). Raises what `next_map` raises,
        `UnavailableError` while the backend cannot be reached, `CapacityError` after `MAX_PROPOSE_ROUNDS`.
        """

    async def close(self) -> None:
        """End the session, the subscriptions and the connection. Idempotent."""
