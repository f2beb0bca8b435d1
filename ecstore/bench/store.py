"""The store beside Redis and beside a plain copy: the same bytes, in the same run, from the same client process.

One request is `rows` rows. Pull is compared with MGET of values as long as a row, push (row-wise Adagrad, acknowledged
by all parity shards) with MSET of such values. Every favour goes to Redis: its key names and its dictionaries are made
beforehand, and its answers stay a list of bytes objects, while the store gives an array and checks, routes and
optimizes inside of the measured time. Each repetition takes other rows of a larger table, the same on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ecstore
from ecstore.bench.loopback_peer import Loopback, loopback
from ecstore.bench.redis_peer import redis_server
from ecstore.bench.report import Record, Report, interleaved, machine, throughput, throughput_beside
from ecstore.cluster.map import parse_code
from ecstore.errors import ConfigError, EcstoreError
from ecstore.launcher import local_cluster

#: Rows of the table, in requests: rows of one request are spread over memory that no cache holds whole.
TABLE_REQUESTS: Final = 4
_SEED: Final = 20_230


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What to measure. Raises ConfigError for what cannot be."""

    rows: int = 20_000  #: of one request
    row_bytes: tuple[int, ...] = (64, 256, 1024)  #: of one row as it is pulled: float32 weights
    repetitions: int = 25
    #: Each on as many nodes as it has shards.
    codes: tuple[str, ...] = ("none", "rs(4,1)", "rs(4,2)", "replicate(2)", "replicate(3)")
    redis: bool = True
    loopback: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= 1 << 20:
            raise ConfigError(f"--rows is 1 to {1 << 20}, not {self.rows}")
        for size in self.row_bytes:
            if not 4 <= size <= 1 << 14 or size % 4:
                raise ConfigError(f"--row-bytes are multiples of 4 from 4 to {1 << 14}, not {size}")
        if not self.row_bytes or len(set(self.row_bytes)) < len(self.row_bytes):
            raise ConfigError("--row-bytes names each size once")
        if self.repetitions < 1:
            raise ConfigError(f"--repetitions is at least 1, not {self.repetitions}")
        for code in self.codes:
            parse_code(code)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What both sides are given: keys of the table, weights to begin with, and gradients."""

    row_bytes: int
    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]
    requests: list[NDArray[np.int64]]  #: places in `keys`, one array for each repetition and warm-up
    grads: NDArray[np.float32]

    @classmethod
    def make(cls, options: StoreOptions, row_bytes: int, requests: int) -> _Traffic:
        rng = np.random.default_rng(_SEED)
        total = TABLE_REQUESTS * options.rows
        keys = np.unique(rng.integers(0, 2**63, 2 * total, dtype=np.uint64))
        keys = rng.permutation(keys)[:total]
        dim = row_bytes // 4
        return cls(
            row_bytes=row_bytes,
            keys=keys,
            weights=rng.normal(size=(total, dim)).astype(np.float32),
            requests=[rng.choice(total, options.rows, replace=False) for _ in range(requests)],
            grads=rng.normal(size=(options.rows, dim)).astype(np.float32),
        )


_WARM_UP: Final = 2


def run(options: StoreOptions, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Measure every code and size, one cluster after the other; raises EcstoreError when bytes differ."""
    report = Report(machine())
    requests = options.repetitions + _WARM_UP
    traffic = [_Traffic.make(options, size, requests) for size in options.row_bytes]
    with ExitStack() as stack:
        clients = stack.enter_context(redis_server(len(traffic))) if options.redis else []
        peers: list[_Redis | None] = [None] * len(traffic)
        if clients:
            peers = [_Redis(client, given) for client, given in zip(clients, traffic, strict=True)]
        copier = (
            stack.enter_context(loopback(options.rows * (8 + max(options.row_bytes)))) if options.loopback else None
        )
        if clients:
            report.machine["redis_server"] = clients[0].info("server")["redis_version"]
        for name in options.codes:
            code = parse_code(name)
            progress(f"{code.name}: starting {code.width} node{'s' * (code.width > 1)}")
            with local_cluster(code.width) as cluster, ecstore.connect(cluster.address) as store:
                for given, redis in zip(traffic, peers, strict=True):
                    progress(
                        f"{code.name}: {options.repetitions} times {options.rows:,} rows of {given.row_bytes} bytes"
                    )
                    table = store.create_table(
                        f"bench{given.row_bytes}", dim=given.row_bytes // 4,
                        optimizer=ecstore.RowWiseAdagrad(lr=0.01), code=code.name,
                    )  # fmt: skip
                    report.records += _measure(options, code.name, table, given, redis, copier)
                    store.drop_table(table.name)
    return report


class _Redis:
    """The peer, loaded with the rows of one table, in a database of its own."""

    def __init__(self, client: Any, traffic: _Traffic) -> None:
        self._client = client
        names = [b"%d" % key for key in traffic.keys.tolist()]
        client.mset(dict(zip(names, map(bytes, traffic.weights.view(np.uint8)), strict=True)))
        values = list(map(bytes, traffic.grads.view(np.uint8)))
        self._names = [[names[place] for place in places] for places in traffic.requests]
        self._sets = [dict(zip(asked, values, strict=True)) for asked in self._names]

    def mget(self, request: int) -> list[bytes]:
        answer: list[bytes] = self._client.mget(self._names[request])
        return answer

    def mset(self, request: int) -> None:
        self._client.mset(self._sets[request])

    def restore(self, traffic: _Traffic, request: int) -> None:
        """The rows of one request as they were at first."""
        rows = map(bytes, traffic.weights[traffic.requests[request]].view(np.uint8))
        self._client.mset(dict(zip(self._names[request], rows, strict=True)))


def _measure(
    options: StoreOptions,
    code: str,
    table: ecstore.Table,
    traffic: _Traffic,
    redis: _Redis | None,
    copier: Loopback | None,
) -> list[Record]:
    table.load(traffic.keys, traffic.weights)
    asked = [traffic.keys[places] for places in traffic.requests]
    records = [_same_bytes(options, code, table, traffic, redis)]
    # Numbers of warm-up rounds are negative: they take the last requests.
    sides: dict[str, Callable[[int], object]] = {"pull": lambda number: table.pull(asked[number])}
    if redis is not None:
        sides["mget"] = redis.mget
    if copier is not None:
        sides["copy back"] = lambda _number: copier.exchange(8 * options.rows, options.rows * traffic.row_bytes)
    sides["push"] = lambda number: table.push(asked[number], traffic.grads)
    if redis is not None:
        sides["mset"] = redis.mset
    if copier is not None:
        sides["copy out"] = lambda _number: copier.exchange(8 * options.rows + options.rows * traffic.row_bytes, 0)
    seconds = interleaved(sides, options.repetitions, warm_up=_WARM_UP)
    peers = {"pull": {"redis": "mget", "loopback": "copy back"}, "push": {"redis": "mset", "loopback": "copy out"}}
    for ours, theirs in peers.items():
        case = f"{ours}/{code}/{traffic.row_bytes}B"
        beside = [
            throughput_beside(case, options.rows, "rows/s", "rows_per_s", seconds[ours], peer, seconds[side])
            for peer, side in theirs.items()
            if side in seconds
        ]
        records += beside or [throughput(case, options.rows, "rows/s", "rows_per_s", seconds[ours])]
    return records


def _same_bytes(
    options: StoreOptions, code: str, table: ecstore.Table, traffic: _Traffic, redis: _Redis | None
) -> Record:
    """Both sides answer one request with the same bytes; how many. EcstoreError when they do not."""
    places = traffic.requests[0]
    pulled = table.pull(traffic.keys[places]).tobytes()
    theirs = None
    if redis is not None:
        redis.restore(traffic, 0)
        theirs = b"".join(redis.mget(0))
    if pulled != traffic.weights[places].tobytes() or theirs not in (None, pulled):
        raise EcstoreError("the two sides of the benchmark hold different rows; its figures would mean nothing")
    return Record(
        f"pull/{code}/{traffic.row_bytes}B", "bytes_per_request", float(len(pulled)), "B",
        None if theirs is None else "redis", None if theirs is None else float(len(theirs)),
        None if theirs is None else 1.0,
    )  # fmt: skip
