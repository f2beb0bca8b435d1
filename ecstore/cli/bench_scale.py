"""`ecstore bench scale`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ecstore.cli.output import Output, add_json_argument


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
    parser.add_argument("--quick", action="store_true", help="small tables, few repetitions: under a minute")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write figures, PNG and SVG, into this folder")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.bench import plots
    from ecstore.bench.plot_scale import plot
    from ecstore.bench.scale import ScaleOptions
    from ecstore.bench.scale import run as run_scale
    from ecstore.errors import ConfigError

    out = Output(options.json)
    given = options.rows or ("1e4,1e5" if options.quick else "1e5,1e6,1e7")
    try:
        rows = tuple(int(float(size)) for size in given.split(","))
    except (ValueError, OverflowError):
        raise ConfigError(f"--rows are numbers and commas, such as 1e5,1e6, not {given!r}") from None
    chosen = ScaleOptions(
        rows=rows,
        row_bytes=options.row_bytes,
        request_rows=2_000 if options.quick else 20_000,
        repetitions=options.repetitions if options.repetitions is not None else 2 if options.quick else 15,
        code=options.code,
        settle_s=max(0.0, options.settle),
    )
    if options.plot is not None:
        plots.figure("", "", "")  # is matplotlib here? Now, not after minutes of work
    report = run_scale(chosen, out.line)
    for line in report.lines():
        out.line(line)
    out.report(report.to_json())
    if options.plot is not None:
        for file in plot(report.records, options.plot):
            out.line(f"wrote {file}")
    return 0
