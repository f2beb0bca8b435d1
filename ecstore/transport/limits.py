"""Bounds and pacing of connections, with the reason of each default."""

from __future__ import annotations

from dataclasses import dataclass

from ecstore.errors import ConfigError
from ecstore.wire import MAX_FRAME_BYTES

MIB = 1 << 20

#: Body of a hello frame. Nothing larger is accepted, and no memory is taken, before the peer has said who it
#: is.
MAX_HELLO_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Settings of a connection; sizes in bytes, times in seconds. Checked on creation (`ConfigError`)."""

    #: Largest body accepted and sent. Peers tell each other theirs; the smaller one binds the sender.
    max_frame_bytes: int = MAX_FRAME_BYTES
    #: Requests sent and not yet answered: far more than hide a round trip; further ones wait in `request()`.
    max_in_flight: int = 1024
    #: Unsent bytes above which `request()` and `drain()` wait, and an accepted connection is not read from:
    #: more than one full batch of rows (5 MiB), so that the next is ready while the first goes out.
    write_high_bytes: int = 8 * MIB
    #: Unsent bytes at which they go on.
    write_low_bytes: int = 2 * MIB
    #: Unsent bytes at which the connection is given up: the peer does not read. Two frames of the largest
    #: size.
    max_write_bytes: int = 2 * MAX_FRAME_BYTES
    #: Large frames that all connections of a server are receiving at once: two of the largest, or a hundred batches.
    #: Further ones wait. As much again for peers that the server trusts (nodes).
    max_receiving_bytes: int = 2 * MAX_FRAME_BYTES
    #: Unsent bytes of all connections of a server, those of trusted peers aside. Beyond it who reads least is cut off.
    max_unsent_bytes: int = 4 * MAX_FRAME_BYTES
    #: Time for the hello of a peer that has connected.
    hello_timeout: float = 5.0
    #: Time that unsent bytes are given to reach the peer after `close()`.
    linger: float = 1.0

    def __post_init__(self) -> None:
        if not 1024 <= self.max_frame_bytes < 1 << 32:
            raise ConfigError("max_frame_bytes must be in [1024, 2**32)")
        if self.max_in_flight < 1:
            raise ConfigError("max_in_flight must be at least 1")
        if not 0 <= self.write_low_bytes <= self.write_high_bytes <= self.max_write_bytes:
            raise ConfigError("write_low_bytes <= write_high_bytes <= max_write_bytes is required")
        if not (self.hello_timeout > 0 and self.linger >= 0):
            raise ConfigError("hello_timeout must be positive and linger not negative")


DEFAULT_LIMITS = ConnectionLimits()
