"""`ecstore bench store`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ecstore.cli.output import Output, add_json_argument


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
    parser.add_argument("--quick", action="store_true", help="small requests, few repetitions: under a minute")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write figures, PNG and SVG, into this folder")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.bench import plots
    from ecstore.bench.plot_store import plot
    from ecstore.bench.store import StoreOptions
    from ecstore.bench.store import run as run_store
    from ecstore.errors import ConfigError

    out = Output(options.json)
    try:
        sizes = tuple(int(size) for size in options.row_bytes.split(","))
    except ValueError:
        raise ConfigError(f"--row-bytes are whole numbers and commas, not {options.row_bytes!r}") from None
    chosen = StoreOptions(
        rows=options.rows if options.rows is not None else 2_000 if options.quick else 20_000,
        row_bytes=sizes,
        repetitions=options.repetitions if options.repetitions is not None else 3 if options.quick else 25,
        codes=tuple(re.findall(r"[^,()]+(?:\([^)]*\))?", options.codes)),
        redis=not options.no_redis,
        loopback=not options.no_loopback,
    )
    if options.plot is not None:
        plots.figure("", "", "")  # is matplotlib here? Now, not after minutes of work
    report = run_store(chosen, out.line)
    for line in report.lines():
        out.line(line)
    out.report(report.to_json())
    if options.plot is not None:
        for file in plot(report.records, options.plot):
            out.line(f"wrote {file}")
    return 0
