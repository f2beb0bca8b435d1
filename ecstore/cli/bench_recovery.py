"""`ecstore bench recovery`: kill nodes while training, beside recovery from a checkpoint."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecstore.cli import benchmarking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fills a cluster, trains on it, kills nodes with SIGKILL, and measures until every lost row and parity row is "
        "back; writes and restores a checkpoint of as many rows to compare with. Some eight minutes on two cores."
    )
    parser.add_argument("--rows-gb", type=float, metavar="GB", help="rows of the main cases (default 2, quick 0.05)")
    parser.add_argument("--ablation-gb", type=float, metavar="GB", help="rows of the ablations (default 0.5)")
    parser.add_argument("--nodes", type=int, metavar="N", help="node processes (default 8)")
    parser.add_argument("--dim", type=int, metavar="N", help="width of an embedding (default 64)")
    parser.add_argument("--dense-step-ms", type=float, metavar="MS",
                        help="wanted cost of forward and backward on one core (default 85)")  # fmt: skip
    parser.add_argument("--before", type=float, metavar="S", help="training before the kill (default 8)")
    parser.add_argument("--after", type=float, metavar="S", help="training after the recovery (default 4)")
    parser.add_argument("--only", metavar="CASE,...", help="such as 'rs(4,2)/1-node,rs(4,2)/rate=4'")
    parser.add_argument("--no-checkpoint", action="store_true", help="without the peer")
    parser.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="(default: a temporary folder)")
    benchmarking.add_common_arguments(parser, "under a minute: two cases, few rows")


def run(options: argparse.Namespace) -> int:
    from ecstore.bench.plot_recovery import plot
    from ecstore.bench.recovery import RecoveryOptions
    from ecstore.bench.recovery import run as run_recovery

    out = benchmarking.begin(options)
    given: dict[str, Any] = {
        "rows_gb": options.rows_gb,
        "ablation_gb": options.ablation_gb,
        "nodes": options.nodes,
        "dim": options.dim,
        "dense_step_s": None if options.dense_step_ms is None else options.dense_step_ms / 1000,
        "before_s": options.before,
        "after_s": options.after,
        "only": None if options.only is None else tuple(re.findall(r"(?:[^,(]|\([^)]*\))+", options.only)),
        "folder": options.checkpoint_dir,
        "baseline": False if options.no_checkpoint else None,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = replace(RecoveryOptions.quick() if options.quick else RecoveryOptions(), **chosen)
    report, timelines = run_recovery(settings, out.line)
    return benchmarking.finish(
        out, report, options.plot, lambda folder: plot(report.records, timelines, folder), timelines=timelines
    )
