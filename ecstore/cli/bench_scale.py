"""`ecstore bench scale`."""

from __future__ import annotations

import argparse

from ecstore.cli import benchmarking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tables of 10^5, 10^6 and 10^7 rows in the same cluster: nanoseconds a row of pull and push beside the "
        "smallest one's; then each alone: resident memory beyond rows and parity, and the recovery of a lost node."
    )
    parser.add_argument("--rows", metavar="N,...", help="of each table (default 1e5,1e6,1e7; quick: 1e4,1e5)")
    parser.add_argument("--row-bytes", type=int, default=128, metavar="B", help="of one row (default %(default)s)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="default 15; quick: 2")
    parser.add_argument("--code", default="rs(4,2)", help="default %(default)s")
    parser.add_argument(
        "--settle", type=float, default=8.0, metavar="S", help="before memory is looked at (default %(default)s)"
    )
    benchmarking.add_common_arguments(parser, "small tables, few repetitions: under a minute")


def run(options: argparse.Namespace) -> int:
    from ecstore.bench.plot_scale import plot
    from ecstore.bench.scale import ScaleOptions
    from ecstore.bench.scale import run as run_scale

    out = benchmarking.begin(options)
    given = options.rows or ("1e4,1e5" if options.quick else "1e5,1e6,1e7")
    chosen = ScaleOptions(
        rows=benchmarking.numbers("--rows", given, lambda size: int(float(size)), "1e5,1e6"),
        row_bytes=options.row_bytes,
        request_rows=2_000 if options.quick else 20_000,
        repetitions=options.repetitions if options.repetitions is not None else 2 if options.quick else 15,
        code=options.code,
        settle_s=max(0.0, options.settle),
    )
    report = run_scale(chosen, out.line)
    return benchmarking.finish(out, report, options.plot, lambda folder: plot(report.records, folder))
