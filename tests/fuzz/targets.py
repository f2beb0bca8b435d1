"""What a fuzzer runs, whichever one: one function of bytes, and the frames to start from.

A target asserts that nothing but `EcstoreError` comes out, and that memory stays within what the input may cost.
"""

from __future__ import annotations

import os
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from ecstore.errors import EcstoreError
from ecstore.wire import OBJECT_FACTOR, PREFIX_BYTES, PROTOCOL_VERSION, encode, pack_prefix

Target = Callable[[bytes], None]

#: Modules that take messages apart.
READING = frozenset({"wire", "hello", "receiver", "messages", "map", "mapfile", "tables", "optim", "client_api"})

#: Kinds of frames, as nodes, clients and the coordination service send them; the beginning of every corpus.
_DELTA = [0, 1, 2, 0, 40, 41, 3, 2, 24, 1, 0, b"client", 7]
REAL: tuple[tuple[str, int, dict[str, Any], list[Any]], ...] = (
    ("hello", 0, {"version": PROTOCOL_VERSION, "role": "client", "cluster": "c", "name": "n", "incarnation": 0,
                  "token": None, "max_frame_bytes": 1 << 28}, []),
    ("bye", 0, {"code": "frame", "reason": "why", "details": {"size": 3}}, []),
    ("pull", 1, {"epoch": 5, "sections": [[0, 1, 3, 2]]}, [np.arange(2, dtype=np.uint64)]),
    ("push", 2, {"client": b"client", "op": "push", "ack": "parity", "sections": [[0, 1, 3, 2, 16, 1, 0]]},
     [np.arange(2, dtype=np.uint64), np.ones((2, 4), np.float32)]),
    ("push", 3, {"client": b"c", "op": "delete", "ack": "local", "sections": [[0, 1, 3, 1, 0, 2, 1]]},
     [np.arange(1, dtype=np.uint64), b""]),
    ("deltas", 0, {"frames": [_DELTA]},
     [np.arange(3, dtype=np.uint32), np.arange(1, dtype=np.uint64), np.ones((2, 24), np.uint8)]),
    ("acks", 0, {"acks": [[0, 1, 2, 0, 41, "ok"]], "epoch": 5}, []),
    ("snapshot", 0, {"group": 0, "src": 1, "dst": 2, "subscription": 4, "seq": 9, "tables": [[3, 24, 2]],
                     "requests": [[b"client", 7, 9]]}, [np.arange(2, dtype=np.uint64), np.ones(2, np.uint8)]),
    ("takeover.state", 4, {"applied": 9, "tables": [[3, 24, 2]], "requests": [[b"client", 7, 9]]},
     [np.arange(2, dtype=np.uint64), np.ones(2, np.uint8)]),
    ("error", 5, {"code": "data_loss", "message": "gone", "details": {"groups": [1, 2]}}, []),
)  # fmt: skip


def corpus() -> list[bytes]:
    """Real frames, prefix included."""
    return [b"".join(bytes(chunk) for chunk in encode(kind, rid, meta, bins)) for kind, rid, meta, bins in REAL]


def bounded(work: Callable[[], None], most: int) -> None:
    """Run `work`, which may raise an EcstoreError and nothing else, and may take `most` bytes while it does."""
    tracemalloc.start()
    try:
        work()
    except EcstoreError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes were taken, {most} may be"


def allowance(data: bytes) -> int:
    """Bytes that `data` may cost when it is parsed: Python objects, and what msgpack takes for the length that each
    of 1,024 nested arrays claims (never more items than there are bytes)."""
    return (1 << 20) + (2 * OBJECT_FACTOR + 1024 * 8) * len(data)


#: Whole msgpack values of one byte: nil, booleans, small numbers, empty containers and texts.
SMALL = (0xC0, 0xC2, 0xC3, 0x00, 0x7F, 0xFF, 0xE0, 0x80, 0x90, 0xA0)


def mutants(seed: int) -> Iterator[bytes]:
    """Endlessly: real frames with a few bytes changed, cut out, repeated or crossed with another; and noise."""
    rng = random.Random(seed)
    frames = corpus()
    while True:
        data = bytearray(rng.choice(frames))
        head = int.from_bytes(data[4:8], "little")
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3, 6))):
            at = rng.randrange(min(len(data), rng.choice((32, 200))) + 1)
            end = at + rng.choice((0, 1, 1, 1, 2, 4, 8))
            new: bytes = rng.choice(
                (rng.randbytes(end - at), rng.choice(SMALL).to_bytes(), rng.choice(SMALL).to_bytes(),
                 rng.randbytes(rng.randint(0, 9)), bytes(data[at:end]) * 3,
                 rng.choice((b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x01\x00\x00", b"\xc6\xff\xff\xff\xff", b"\x91" * 60,
                             b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xc7\x01\x05a", b"\xc0", b"\xa1\xff")))
            )  # fmt: skip
            head += len(new) - len(data[at:end]) if PREFIX_BYTES <= at < PREFIX_BYTES + head else 0
            data[at:end] = new
        if rng.random() < 0.7 and len(data) >= PREFIX_BYTES:  # one that fits, or little of the rest would be looked at
            body = data[PREFIX_BYTES:]
            data[:PREFIX_BYTES] = pack_prefix(len(body), max(0, head), zlib.crc32(body))
        if rng.random() < 0.1:
            other = rng.choice(frames)
            data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]
        yield rng.randbytes(rng.randint(0, 200)) if rng.random() < 0.05 else bytes(data)


def write_corpus(folder: Path) -> None:
    """One file for each real frame, for a fuzzer that starts from a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus()):
        (folder / f"{REAL[number][0]}-{number}").write_bytes(data)


def _functions() -> Iterator[FunctionType]:
    """Functions of ours whose branches guide the fuzzer: those that read what came."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("ecstore.") and name.rpartition(".")[2] in READING:
            owners = [module, *(item for item in vars(module).values() if isinstance(item, type))]
            for owner in owners:
                for item in vars(owner).values():
                    function = item.__func__ if isinstance(item, staticmethod | classmethod) else item
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        yield function


def main(target: Target, arguments: list[str]) -> None:
    """`-runs=N` and what else libFuzzer takes, where atheris is installed; else N mutants of a seed, `-seed=N`."""
    try:
        import atheris
    except ImportError:
        options = dict(argument.lstrip("-").split("=", 1) for argument in arguments[1:] if "=" in argument)
        runs, seed = int(options.get("runs", 10_000)), int(options.get("seed", 1))
        for _, data in zip(range(runs), mutants(seed), strict=False):
            target(data)
        sys.stdout.write(f"{runs} mutants of seed {seed}: nothing found (atheris is not installed)\n")
        return
    folder = Path(os.environ.get("ECSTORE_CORPUS", ".fuzz-corpus")) / Path(arguments[0]).stem
    write_corpus(folder)
    for function in _functions():
        atheris.instrument_func(function)
    atheris.Setup([*arguments, str(folder)], target)
    atheris.Fuzz()
