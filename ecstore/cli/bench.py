"""`ecstore bench`: measure beside a peer, in one run. One module for each benchmark."""

from __future__ import annotations

import argparse
from typing import Any, Final

from ecstore.cli import bench_codec, bench_recovery, bench_scale, bench_store, bench_training

#: Benchmark -> its module (`add_arguments(parser)`, `run(options)`), and what it does, in one line.
BENCHMARKS: Final[dict[str, tuple[Any, str]]] = {
    "codec": (bench_codec, "encode, decode and deltas beside ISA-L, zfec, galois and NumPy"),
    "store": (bench_store, "pull and push beside Redis MGET and MSET and a plain copy of the same bytes"),
    "training": (bench_training, "what each code costs training, beside none and checkpoints"),
    "recovery": (bench_recovery, "kill nodes while training, beside checkpoints"),
    "scale": (bench_scale, "cost and memory of a row in tables of 10^5 to 10^7 rows"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, (module, summary) in BENCHMARKS.items():
        module.add_arguments(benchmarks.add_parser(name, help=summary))


def run(options: argparse.Namespace) -> int:
    code: int = BENCHMARKS[options.benchmark][0].run(options)
    return code
