"""`ecstore bench`: measure beside a peer, in one run."""

from __future__ import annotations

import argparse
import re

from ecstore.cli import bench_recovery, bench_training
from ecstore.cli.output import Output, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    store = benchmarks.add_parser(
        "store",
        help="pull and push beside Redis MGET and MSET of the same bytes",
        description="Pull and push (row-wise Adagrad) beside MGET and MSET of the same bytes on a Redis server that is "
        "started for it. Repetitions of both sides alternate; the table shows ratios first.",
    )
    store.add_argument("--rows", type=int, default=20_000, metavar="N", help="of one request (default %(default)s)")
    store.add_argument("--row-bytes", type=int, default=256, metavar="B", help="of one row (default %(default)s)")
    store.add_argument("--repetitions", type=int, default=15, metavar="N", help="default %(default)s")
    store.add_argument(
        "--codes", default="none", metavar="CODE,...", help="such as 'none,rs(4,2)' (default %(default)s)"
    )
    store.add_argument("--no-redis", action="store_true", help="without a peer")
    store.add_argument("--loopback", action="store_true", help="beside plain copies over the loopback interface, too")
    add_json_argument(store)
    bench_training.add_arguments(benchmarks.add_parser("training", help="what each code costs training"))
    bench_recovery.add_arguments(
        benchmarks.add_parser("recovery", help="kill nodes while training, beside checkpoints")
    )


def run(options: argparse.Namespace) -> int:
    if options.benchmark == "training":
        return bench_training.run(options)
    if options.benchmark == "recovery":
        return bench_recovery.run(options)
    from ecstore.bench.store import StoreOptions
    from ecstore.bench.store import run as run_store

    out = Output(options.json)
    chosen = StoreOptions(
        rows=options.rows,
        row_bytes=options.row_bytes,
        repetitions=options.repetitions,
        codes=tuple(re.findall(r"[^,()]+(?:\([^)]*\))?", options.codes)),
        redis=not options.no_redis,
        loopback=options.loopback,
    )
    report = run_store(chosen, out.line)
    for line in report.lines():
        out.line(line)
    out.report(report.to_json())
    return 0
