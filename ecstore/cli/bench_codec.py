"""`ecstore bench codec`: encode, decode and deltas beside ISA-L, zfec, galois and NumPy."""

from __future__ import annotations

import argparse
import re

from ecstore.cli.output import Output, add_json_argument


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
    parser.add_argument("--quick", action="store_true", help="less than a minute: fewer sizes and repetitions")
    parser.add_argument("--plot", default=None, metavar="DIR", help="write figures there, as PNG and SVG")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.bench import plot_codec
    from ecstore.bench.codec import KIB, CodecOptions
    from ecstore.bench.codec import run as run_codec
    from ecstore.errors import ConfigError

    out = Output(options.json)
    sizes = options.sizes or ("64,1024" if options.quick else "64,1024,16384")
    if not re.fullmatch(r"\d+(,\d+)*", sizes):
        raise ConfigError(f"--sizes is a list of KiB such as 64,1024, not {sizes!r}")
    repetitions = options.repetitions
    if repetitions is None:
        repetitions = 3 if options.quick else 15
    chosen = CodecOptions(
        codes=tuple(re.findall(r"[^,()]+(?:\([^)]*\))?", options.codes)),
        shard_bytes=tuple(int(size) * KIB for size in sizes.split(",")),
        repetitions=repetitions,
    )
    if options.plot is not None:
        plot_codec.check()
    report = run_codec(chosen, out.line)
    for line in report.lines():
        out.line(line)
    out.report(report.to_json())
    if options.plot is not None:
        for path in plot_codec.draw(report.records, options.plot):
            out.line(f"wrote {path}")
    return 0
