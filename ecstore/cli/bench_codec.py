"""`ecstore bench codec`: encode, decode and deltas beside ISA-L, zfec, galois and NumPy."""

from __future__ import annotations

import argparse

from ecstore.cli import benchmarking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Encode, decode one lost shard and all that a code allows, and follow deltas, beside ISA-L, zfec, galois and "
        "NumPy on the same buffers, on one core. Throughputs are of source bytes. Repetitions of all sides alternate; "
        "the table shows ratios first."
    )
    parser.add_argument(
        "--codes", default="rs(2,1),rs(4,1),rs(4,2),rs(8,3),rs(10,4)", metavar="CODE,...", help="default %(default)s"
    )
    parser.add_argument(
        "--sizes", default=None, metavar="KIB,...", help="KiB of one shard (default 64,1024,16384; --quick 64,1024)"
    )
    parser.add_argument("--repetitions", type=int, default=None, metavar="N", help="default 15; --quick 3")
    benchmarking.add_common_arguments(parser, "less than a minute: fewer sizes and repetitions")


def run(options: argparse.Namespace) -> int:
    from ecstore.bench.codec import KIB, CodecOptions
    from ecstore.bench.codec import run as run_codec
    from ecstore.bench.plot_codec import plot

    out = benchmarking.begin(options)
    sizes = options.sizes or ("64,1024" if options.quick else "64,1024,16384")
    repetitions = options.repetitions
    if repetitions is None:
        repetitions = 3 if options.quick else 15
    chosen = CodecOptions(
        codes=benchmarking.codes(options.codes),
        shard_bytes=tuple(size * KIB for size in benchmarking.numbers("--sizes", sizes, int, "64,1024 (KiB)")),
        repetitions=repetitions,
    )
    report = run_codec(chosen, out.line)
    return benchmarking.finish(out, report, options.plot, lambda folder: plot(report.records, folder))
