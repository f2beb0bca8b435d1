"""`ecstore bench training`: what each code costs training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecstore.cli import benchmarking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains the bundled DLRM in every mode on the same six nodes, a few batches of each in turns, and compares "
        "each with training without redundancy; a checkpoint of all rows is timed as well. Some ten minutes on two "
        "cores."
    )
    parser.add_argument("--codes", metavar="CODE,...", help="such as 'none,rs(4,1)'; none must be among them")
    parser.add_argument("--sizes", metavar="SIZE,...", help="of x1, x2, x4, x8 and x2w2 (default: all)")
    parser.add_argument("--nodes", type=int, metavar="N", help="node processes, for all modes the same (default 6)")
    parser.add_argument("--categories", type=int, metavar="N", help="ids of the largest feature at x1 (default 200000)")
    parser.add_argument("--dim", type=int, metavar="N", help="width of an embedding at x1 (default 32)")
    parser.add_argument("--dense-step-ms", type=float, metavar="MS",
                        help="wanted cost of forward and backward on one core (default 85)")  # fmt: skip
    parser.add_argument("--rounds", type=int, metavar="N", help="repetitions; twice as many at x1 (default 4)")
    parser.add_argument("--batches", type=int, metavar="N", help="of one repetition of one mode (default 6)")
    parser.add_argument("--checkpoint-every", metavar="S,...", help="intervals, seconds (default 30,60; - for none)")
    parser.add_argument("--checkpoint-dir", type=Path, metavar="DIR", help="(default: a temporary folder)")
    benchmarking.add_common_arguments(parser, "under a minute: three modes, one small table")


def run(options: argparse.Namespace) -> int:
    from ecstore.bench.plot_training import plot
    from ecstore.bench.training import TrainingOptions
    from ecstore.bench.training import run as run_training

    out = benchmarking.begin(options)
    given: dict[str, Any] = {
        "codes": None if options.codes is None else benchmarking.codes(options.codes),
        "sizes": None if options.sizes is None else tuple(options.sizes.split(",")),
        "nodes": options.nodes,
        "categories": options.categories,
        "dim": options.dim,
        "dense_step_s": None if options.dense_step_ms is None else options.dense_step_ms / 1000,
        "rounds": options.rounds,
        "batches": options.batches,
        "intervals": None if options.checkpoint_every is None else _intervals(options.checkpoint_every),
        "folder": options.checkpoint_dir,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    report = run_training(replace(TrainingOptions.quick() if options.quick else TrainingOptions(), **chosen), out.line)
    return benchmarking.finish(out, report, options.plot, lambda folder: plot(report.records, folder))


def _intervals(text: str) -> tuple[float, ...]:
    return () if text == "-" else benchmarking.numbers("--checkpoint-every", text, float, "30,60 (seconds)")
