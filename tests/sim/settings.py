"""What a seed decides before a run begins: sizes, bounds, speeds. Tiny ones, so that every bound is met."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ecstore import limits
from ecstore.cluster import placement
from ecstore.node import builder, client_api
from ecstore.node.data_shard import DataShard
from ecstore.node.sink_shard import SinkShard

CODES = ("rs(3,2)", "rs(2,1)", "rs(4,2)", "rs(2,2)", "replicate(2)", "replicate(3)", "rs(2,3)", "rs(3,1)")

MAX_ROWS = 2048

#: Virtual seconds that a request waits for a decode or for room, before it is refused and sent again.
WAIT_S = 4.0


@dataclass(frozen=True, slots=True)
class Settings:
    seed: int
    code: str
    nodes: int
    shards_per_node: int
    keys: int
    clients: int
    seconds: float  #: of the first phase, in which things go wrong
    heartbeat_s: float
    suspect_after_s: float
    decode_bytes_per_s: float
    #: Deadline of each call of a client. Short ones are missed: then a push may be in or not.
    timeout_s: float
    #: More than m nodes of a group may be lost.
    beyond: bool
    bounds: dict[str, int]
    window_bytes: int
    delay_s: tuple[float, float]  #: of one message, least and most
    trainer: bool  #: a DLRM is trained meanwhile
    patience_s: float  #: of a node that builds a sink: less than a message may take, it asks again in vain

    @property
    def clean_within_s(self) -> float:
        """Virtual seconds after the healing within which the cluster must be clean and all clients done: two minutes,
        and the time to copy some 60 kB, all rows several times over, at the rate that recovery may have."""
        return 120.0 + 60_000.0 / self.decode_bytes_per_s

    def describe(self) -> str:
        bounds = ", ".join(f"{name} {value}" for name, value in self.bounds.items())
        return (
            f"{self.code} on {self.nodes} nodes, {self.keys} keys, {self.clients} clients, "
            f"time-out {self.timeout_s:g} s{', more than m may be lost' if self.beyond else ''}"
            f"{', with a trainer' if self.trainer else ''}; {bounds}"
        )


def settings_of(seed: int) -> Settings:
    rng = random.Random(f"settings {seed}")
    code = rng.choice(CODES)
    trainer = rng.random() < 0.1
    return Settings(
        seed=seed,
        code=code,
        nodes=_width(code) + rng.choice((0, 1, 1, 1, 2)),
        shards_per_node=rng.choice((2, 3, 4, 6)),
        keys=rng.choice((60, 150, 300)),
        clients=rng.choice((1, 2, 2, 3)),
        seconds=rng.choice((3.0, 5.0, 8.0)),
        heartbeat_s=0.5,
        suspect_after_s=1.0,
        decode_bytes_per_s=1e5 if trainer else rng.choice((400.0, 1500.0, 5000.0, 1e6)),  # its rows are wide
        timeout_s=rng.choice((300.0, 300.0, 300.0, 1.5)),
        beyond=rng.random() < 0.1,
        bounds=_bounds(rng),
        window_bytes=rng.choice((1 << 12, 1 << 18)),
        delay_s=rng.choice(((0.0001, 0.002), (0.0001, 0.002), (0.001, 0.03))),
        trainer=trainer,
        patience_s=rng.choice((0.002, 0.02, 0.5)),
    )


def _width(code: str) -> int:
    from ecstore.cluster.map import parse_code

    return parse_code(code).width


def _bounds(rng: random.Random) -> dict[str, int]:
    """Bounds of `ecstore.limits` for this run."""
    chosen = {
        "BLOCK_SLOTS": rng.choice((8, 8, 16, 1024)),
        "MAX_BLOCK_FRAME_BYTES": rng.choice((0, 512, 1 << 20)),
        "DECODE_BLOCK_BYTES": 0,  # blocks of BLOCK_SLOTS: rows are so small that one block would be everything
        "MAX_UNACKED_BYTES": rng.choice((2_000, 20_000, limits.MAX_UNACKED_BYTES)),
        "MAX_RECENT_BYTES": rng.choice((1_000, 20_000, limits.MAX_RECENT_BYTES)),
        "MAX_LOG_FRAMES": rng.choice((4, 32, limits.MAX_LOG_FRAMES)),
        "MAX_FRAMES_PER_MESSAGE": rng.choice((1, 3, 60)),
        "MAX_MESSAGE_BYTES": rng.choice((1_000, limits.MAX_MESSAGE_BYTES)),
        "STREAM_HIGH_WATER_BYTES": rng.choice((4_000, limits.STREAM_HIGH_WATER_BYTES)),
        "MAX_BLOCKS_IN_FLIGHT": rng.choice((1, 4)),
        "MAX_DECODE_BYTES": rng.choice((256, limits.MAX_DECODE_BYTES)),
        "MAX_WAITING_BYTES": rng.choice((2_000, limits.MAX_WAITING_BYTES)),
    }
    chosen["ADOPT_SLOTS"] = 4 if chosen["BLOCK_SLOTS"] == 8 else limits.ADOPT_SLOTS
    return chosen


@contextlib.contextmanager
def in_force(settings: Settings) -> Iterator[None]:
    """The bounds of these settings, until the end of the block."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.bounds.items():
            stack.enter_context(patch.object(limits, name, value))
        stack.enter_context(patch.object(client_api, "WAIT_S", WAIT_S))
        stack.enter_context(patch.object(builder, "PATIENCE_S", settings.patience_s))
        stack.enter_context(patch.object(placement, "SHARDS_PER_NODE", settings.shards_per_node))
        for made in (DataShard, SinkShard):  # their default was taken when the class was made
            defaults: dict[str, Any] = dict(made.__init__.__kwdefaults__ or {}) | {"max_rows": MAX_ROWS}
            stack.enter_context(patch.object(made.__init__, "__kwdefaults__", defaults))
        yield
