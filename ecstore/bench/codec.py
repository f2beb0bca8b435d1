"""The codec beside ISA-L, zfec, galois and NumPy: the same buffers, in the same run, on one core.

A throughput is that of source bytes: the k shards that encoding and decoding read, the rows of the delta once for each
parity shard they go to. Every side writes the same output buffers, and each repetition begins with another side.
Before anything is measured, ISA-L and galois must make the very bytes that the store's codec makes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from ecstore import codec
from ecstore.bench.codec_peers import Bytes, Galois, IsaL, Work, Zfec, decode_sources
from ecstore.bench.report import Record, Report, interleaved, machine, spread, throughput_beside
from ecstore.codec import Code
from ecstore.errors import ConfigError, EcstoreError

KIB: Final = 1 << 10
MIB: Final = 1 << 20

#: Bytes of a row in the buffers: shards are rows, and any multiple of 8 would do.
_ROW_BYTES: Final = 256

#: Work of one repetition is repeated until this many source bytes are done, so that calling is not what is timed.
_LEAST_BYTES: Final = 16 * MIB

#: Bytes of a shard that galois is given, and how often: a tenth of a GB/s needs no more. Not beside larger shards
#: than the second figure.
_GALOIS_BYTES, _GALOIS_REPETITIONS, _GALOIS_UP_TO = 64 * KIB, 3, MIB

#: The delta: rows, bytes of a row, slots of the parity shards they are spread over.
_DELTA_ROWS, _DELTA_BYTES, _DELTA_SLOTS = 11_000, 264, 44_000

#: Repetitions go round so many copies of the shards, for all sides alike: how well the buffers of one copy share the
#: ways of a cache is chance, and is worth more than what is measured here.
_PLACES: Final = 3

_WARM_UP: Final = 3
_METRIC, _UNIT = "throughput", "GB/s"
_SEED: Final = 20_231

#: For each side what it does, at each place in memory.
Sides = dict[str, Sequence[Work]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOptions:
    """What to measure. Raises ConfigError for what cannot be."""

    codes: tuple[str, ...] = ("rs(2,1)", "rs(4,1)", "rs(4,2)", "rs(8,3)", "rs(10,4)")
    shard_bytes: tuple[int, ...] = (64 * KIB, MIB, 16 * MIB)
    repetitions: int = 15

    def __post_init__(self) -> None:
        for name in self.codes:
            code = Code.parse(name)
            if not 1 <= code.m <= code.k:
                raise ConfigError(f"{name} has {code.m} parity shards; this measures codes of 1 to k of them")
        for size in self.shard_bytes:
            if not KIB <= size <= 64 * MIB or size % KIB:
                raise ConfigError(f"shards are whole KiB, 1 to {64 * KIB}, not {size} bytes")
        if self.repetitions < 1:
            raise ConfigError(f"--repetitions is at least 1, not {self.repetitions}")


@dataclass(frozen=True, slots=True)
class _Peers:
    """Those that are here."""

    isa_l: IsaL | None
    zfec: Zfec | None
    galois: Galois

    @classmethod
    def found(cls, progress: Callable[[str], None]) -> _Peers:
        def look_for(kind: Callable[[], Any]) -> Any:
            try:
                return kind()
            except ImportError as error:
                progress(f"{error}: left out")
                return None

        return cls(look_for(IsaL), look_for(Zfec), Galois())

    def versions(self) -> dict[str, str | None]:
        return {
            "isa_l": None if self.isa_l is None else self.isa_l.version,
            "zfec": None if self.zfec is None else self.zfec.version,
            "galois": self.galois.version,
        }


def run(options: CodecOptions, progress: Callable[[str], None] = lambda line: None) -> Report:
    """Measure every code at every size, then deltas and threads; raises EcstoreError when bytes differ."""
    codec.warm_up()
    peers = _Peers.found(progress)
    report = Report(machine() | peers.versions())
    for name in options.codes:
        code = Code.parse(name)
        for size in options.shard_bytes:
            progress(f"{name}, {size_name(size)} a shard")
            report.records += _Measurement(code, size, options.repetitions, peers).records()
    progress("deltas")
    report.records += _delta(options.repetitions)
    progress("two threads")
    report.records += _threads(options.repetitions)
    return report


def size_name(size: int) -> str:
    """64KiB, 1MiB."""
    return f"{size // MIB}MiB" if size % MIB == 0 else f"{size // KIB}KiB"


@dataclass(frozen=True, slots=True)
class _Place:
    """Shards at one place in memory: data (k), parity (m), and m that are written."""

    data: list[Bytes]
    parity: list[Bytes]
    out: list[Bytes]

    @classmethod
    def of(cls, code: Code, size: int) -> _Place:
        rng = np.random.default_rng(_SEED)
        shape = (size // _ROW_BYTES, _ROW_BYTES)
        data = [_aligned(shape) for _ in range(code.k)]
        for rows in data:
            rows[:] = rng.integers(0, 256, shape, dtype=np.uint8)
        parity, out = ([_aligned(shape) for _ in range(code.m)] for _ in range(2))
        return cls(data, parity, out)


class _Measurement:
    """One code at one size of its shards, at several places in memory."""

    def __init__(self, code: Code, size: int, repetitions: int, peers: _Peers) -> None:
        self._code, self._size, self._repetitions, self._peers = code, size, repetitions, peers
        self._places = [_Place.of(code, size) for _ in range(min(_PLACES, repetitions))]

    def records(self) -> list[Record]:
        """Encoding, decoding of one lost data shard, and of m."""
        code, places = self._code, self._places
        case = f"encode/{code.name}/{size_name(self._size)}"
        sides: Sides = {"ecstore": [partial(codec.encode, code, place.data, out=place.parity) for place in places]}
        if self._peers.zfec is not None:
            sides["zfec"] = [self._peers.zfec.encode(code, place.data) for place in places]
        buffers = [(place.data, place.parity) for place in places]
        found = self._beside(case, sides, code.coefficients, buffers)
        for work in sides["ecstore"]:
            work()
        found += self._decode("decode1", [0])
        return found + (self._decode("decodem", list(range(code.m))) if code.m > 1 else [])

    def _decode(self, what: str, lost: Sequence[int]) -> list[Record]:
        code, places = self._code, self._places
        matrix, left = decode_sources(code, lost)
        shards = [place.data + place.parity for place in places]
        buffers = [
            ([all_[index] for index in left], place.out[: len(lost)])
            for all_, place in zip(shards, places, strict=True)
        ]
        into = [dict(zip(lost, outputs, strict=True)) for _sources, outputs in buffers]
        sides: Sides = {
            "ecstore": [
                partial(codec.decode, code, lost, dict(zip(left, sources, strict=True)), out=made)
                for (sources, _outputs), made in zip(buffers, into, strict=True)
            ]
        }
        if self._peers.zfec is not None:
            sides["zfec"] = [self._peers.zfec.decode(code, lost, place.data) for place in places]
        case = f"{what}/{code.name}/{size_name(self._size)}"
        found = self._beside(case, sides, matrix, buffers)
        for work, made, all_ in zip(sides["ecstore"], into, shards, strict=True):
            work()
            if any(not np.array_equal(rows, all_[index]) for index, rows in made.items()):
                raise EcstoreError(f"{case}: decoded rows are not the lost ones; its figures would mean nothing")
        return found

    def _beside(
        self, case: str, sides: Sides, matrix: Bytes, buffers: Sequence[tuple[Sequence[Bytes], Sequence[Bytes]]]
    ) -> list[Record]:
        """Records beside every peer; `sides` has what has no matrix from us, the others are added here.

        `buffers`: at each place, the sources and the outputs.
        """
        amount = len(buffers[0][0]) * self._size
        if self._peers.isa_l is not None:
            isa_l = self._peers.isa_l
            sides = {"isa-l": [isa_l.matrix(matrix, sources, outputs) for sources, outputs in buffers], **sides}
            for (_sources, outputs), ours, theirs in zip(buffers, sides["ecstore"], sides["isa-l"], strict=True):
                _same(case, outputs, ours, theirs)
        times = max(1, _LEAST_BYTES // amount)
        seconds = _rotating(sides, self._repetitions, times)
        ours_s = seconds.pop("ecstore")
        done = times * amount / 1e9
        found = [throughput_beside(case, done, _UNIT, _METRIC, ours_s, peer, s) for peer, s in seconds.items()]
        if self._size <= _GALOIS_UP_TO:
            found.append(self._beside_galois(case, matrix, *buffers[0], done / statistics.median(ours_s)))
        return found

    def _beside_galois(
        self, case: str, matrix: Bytes, sources: Sequence[Bytes], outputs: Sequence[Bytes], value: float
    ) -> Record:
        """galois on a part of each shard, which it takes as long for, byte by byte."""
        some = min(self._size, _GALOIS_BYTES)
        work = self._peers.galois.matrix(matrix, [rows.reshape(-1)[:some] for rows in sources])
        made: Any = work()
        if any(made[i].tobytes() != rows.reshape(-1)[:some].tobytes() for i, rows in enumerate(outputs)):
            raise EcstoreError(f"{case}: galois computes other bytes; the figures would mean nothing")
        seconds = interleaved({"galois": lambda _number: work()}, _GALOIS_REPETITIONS, warm_up=0)["galois"]
        theirs = len(sources) * some / 1e9 / statistics.median(seconds)
        return Record(case, _METRIC, value, _UNIT, "galois", theirs, value / theirs, spread(seconds))


def _delta(repetitions: int) -> list[Record]:
    """Both parity shards of rs(4,2) follow the change of data shard 3. NumPy can only XOR, and is let do so."""
    code, rng = Code.parse("rs(4,2)"), np.random.default_rng(_SEED)
    parity = [_aligned((_DELTA_SLOTS, _DELTA_BYTES)) for _ in range(2)]
    delta = rng.integers(0, 256, (_DELTA_ROWS, _DELTA_BYTES), dtype=np.uint8)
    slots = rng.permutation(_DELTA_SLOTS)[:_DELTA_ROWS].astype(np.uint32)
    coefficients = [int(c) for c in code.coefficients[:, 3]]

    def ours() -> None:
        for rows, coefficient in zip(parity, coefficients, strict=True):
            codec.apply_delta(rows, slots, delta, coefficient)

    def numpy() -> None:
        for rows in parity:
            rows[slots] ^= delta

    times = 4
    seconds = _rotating({"ecstore": [ours], "numpy": [numpy]}, repetitions, times)
    case, done = f"delta/{code.name}/{_DELTA_ROWS}x{_DELTA_BYTES}B", times * len(parity) * delta.nbytes / 1e9
    return [throughput_beside(case, done, _UNIT, _METRIC, seconds["ecstore"], "numpy", seconds["numpy"])]


def _threads(repetitions: int) -> list[Record]:
    """Encoding on two threads, each half of the rows, beside one thread: kernels let go of the interpreter."""
    code, size = Code.parse("rs(4,2)"), 4 * MIB
    rng = np.random.default_rng(_SEED)
    shape = (size // _ROW_BYTES, _ROW_BYTES)
    data = [rng.integers(0, 256, shape, dtype=np.uint8) for _ in range(code.k)]
    parity = [_aligned(shape) for _ in range(code.m)]
    middle = shape[0] // 2
    halves = [
        ([rows[part] for rows in data], [rows[part] for rows in parity])
        for part in (slice(None, middle), slice(middle, None))
    ]
    with ThreadPoolExecutor(2) as pool:
        sides: Sides = {
            "ecstore": [lambda: list(pool.map(lambda half: codec.encode(code, half[0], out=half[1]), halves))],
            "one thread": [lambda: codec.encode(code, data, out=parity)],
        }
        seconds = _rotating(sides, repetitions, 2)
    done = 2 * code.k * size / 1e9
    case = f"threads/{code.name}/{size_name(size)}"
    return [throughput_beside(case, done, _UNIT, _METRIC, seconds["ecstore"], "one thread", seconds["one thread"])]


def _rotating(sides: Sides, repetitions: int, times: int) -> dict[str, list[float]]:
    """Seconds of each side in each repetition, at the place whose turn it is.

    Each repetition begins with another side: none always has the better cache.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}

    def repeated(work: Work) -> Callable[[int], None]:
        def run(_number: int) -> None:
            for _ in range(times):
                work()

        return run

    for repetition in range(-_WARM_UP, repetitions):
        start = repetition % len(names)
        for name in names[start:] + names[:start]:
            works = sides[name]
            place = repetition // len(names) % len(works)  # every side begins at every place
            taken = interleaved({name: repeated(works[place])}, 1, warm_up=0)[name]
            if repetition >= 0:
                seconds[name] += taken
    return seconds


def _same(case: str, outputs: Sequence[Bytes], ours: Work, theirs: Work) -> None:
    """Both sides write the same bytes to the outputs."""
    made = []
    for work in (theirs, ours):
        for rows in outputs:
            rows[:] = 0
        work()
        made.append([rows.tobytes() for rows in outputs])
    if made[0] != made[1]:
        raise EcstoreError(f"{case}: isa-l computes other bytes; the figures would mean nothing")


def _aligned(shape: tuple[int, int]) -> Bytes:
    """Zeros from the start of a page on, as a node's slabs are, touched once."""
    page = 4096
    buffer = np.zeros(shape[0] * shape[1] + page, np.uint8)
    start = -buffer.ctypes.data % page
    rows = buffer[start : start + shape[0] * shape[1]].reshape(shape)
    rows.fill(0)
    return rows
