"""`ecstore train`: the bundled DLRM on a running cluster."""

from __future__ import annotations

import argparse
from typing import Any

from ecstore.cli.output import Output, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--connect", default="127.0.0.1:7400", metavar="HOST:PORT", help="any node, or several (default %(default)s)"
    )
    parser.add_argument("--data", default="synthetic", metavar="FILE", help="Criteo TSV, .gz too (default: synthetic)")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad line of the file")
    parser.add_argument("--samples", type=int, default=35_000, help="of the synthetic log (default %(default)s)")
    parser.add_argument("--code", default="rs(3,2)", help="of the embedding table (default %(default)s)")
    parser.add_argument("--epochs", type=int, metavar="N", help="default 2")
    parser.add_argument("--batches", type=int, metavar="N", help="end after so many batches (default: all)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples a batch (default 128)")
    parser.add_argument("--mode", choices=("strict", "prefetch"), default="strict",
                        help="prefetch: pushes and pulls overlap the computation (default %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of data and model (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="deadline of a pull or push")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    import ecstore
    from ecstore.trainer import CriteoFile, SyntheticConfig, SyntheticLog, TrainConfig, progress, train

    out = Output(options.json)
    given = {"epochs": options.epochs, "batch_size": options.batch_size}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = TrainConfig(code=options.code, max_batches=options.batches, mode=options.mode, seed=options.seed, **chosen)
    dataset: Any
    if options.data == "synthetic":
        dataset = SyntheticLog(SyntheticConfig(samples=options.samples, seed=options.seed))
    else:
        dataset = CriteoFile(options.data, strict=options.strict)
    if dataset.bad_lines.count:
        first = dataset.bad_lines.first[0]
        out.line(f"{dataset.bad_lines.count} bad lines are skipped; the first is line {first.number}: {first.reason}")
    with ecstore.connect(options.connect, timeout=options.timeout) as store, progress(out.stream) as show:
        if config.embedding_table in store.tables():
            rows = len(store.table(config.embedding_table))
            out.line(f"table {config.embedding_table!r} exists: training goes on from its {rows:,} rows")
        report = train(store, dataset, config, on_batch=show)
    out.line(
        f"{report.batches} batches, {report.samples:,} samples at {report.samples_per_s:,.0f} a second; loss "
        f"{report.loss_first:.4f} -> {report.loss_last:.4f}, AUC {report.auc:.4f} on {report.test_samples:,} held out"
    )
    out.report(report.to_json())
    return 0
