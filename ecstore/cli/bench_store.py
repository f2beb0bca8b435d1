"""`ecstore bench store`."""

from __future__ import annotations

import argparse

from ecstore.cli import benchmarking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Pull and push (row-wise Adagrad, acknowledged by all parity shards) beside MGET and MSET of the same bytes on "
        "a Redis server that is started for it, and beside a plain copy over the loopback interface. Repetitions of "
        "all sides alternate; the table shows ratios first. About four minutes."
    )
    parser.add_argument("--rows", type=int, metavar="N", help="of one request (default 20000; quick: 2000)")
    parser.add_argument("--row-bytes", metavar="B,...", default="64,256,1024", help="of one row (default %(default)s)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 25; quick: 3")
    parser.add_argument(
        "--codes", default="none,rs(4,1),rs(4,2),replicate(2),replicate(3)", metavar="CODE,...",
        help="each on as many nodes as it has shards (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-redis", action="store_true", help="without Redis")
    parser.add_argument("--no-loopback", action="store_true", help="without the plain copy")
    benchmarking.add_common_arguments(parser, "small requests, few repetitions: under a minute")


def run(options: argparse.Namespace) -> int:
    from ecstore.bench.plot_store import plot
    from ecstore.bench.store import StoreOptions
    from ecstore.bench.store import run as run_store

    out = benchmarking.begin(options)
    chosen = StoreOptions(
        rows=options.rows if options.rows is not None else 2_000 if options.quick else 20_000,
        row_bytes=benchmarking.numbers("--row-bytes", options.row_bytes, int, "64,256"),
        repetitions=options.repetitions if options.repetitions is not None else 3 if options.quick else 25,
        codes=benchmarking.codes(options.codes),
        redis=not options.no_redis,
        loopback=not options.no_loopback,
    )
    report = run_store(chosen, out.line)
    return benchmarking.finish(out, report, options.plot, lambda folder: plot(report.records, folder))
