"""`ecstore demo`: train, kill nodes, prove that nothing was lost."""

from __future__ import annotations

import argparse
import threading
import webbrowser
from typing import Any

from ecstore.cli.output import Output, add_json_argument
from ecstore.launcher.nodes import NodeSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Without --decode-rate the nodes decode slowly in the background, so that a small data set takes a second or "
        "two and the second node can be killed meanwhile; rows that the training asks for are decoded at once all the "
        "same. Exit code 0 only if training finished, every kill was recovered from, all parity is right, and every "
        "row and dense parameter has the bits of an undisturbed run."
    )
    parser.add_argument("--data", default="synthetic", metavar="FILE", help="Criteo TSV, .gz too (default: synthetic)")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad line of the file")
    parser.add_argument("--nodes", type=int, default=6, metavar="N", help="node processes (default %(default)s)")
    parser.add_argument("--code", default="rs(3,2)", help="rs(k,m) or replicate(r) (default %(default)s)")
    parser.add_argument("--kill", type=int, default=2, metavar="N", help="nodes to kill a round (default %(default)s)")
    parser.add_argument(
        "--kill-together", action="store_true",
        help="kill them at the same instant, instead of each while the one before is being decoded",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N",
        help="after each round but the last start the killed nodes again and wait until shards have moved back",
    )  # fmt: skip
    parser.add_argument("--epochs", type=int, metavar="N", help="default 2")
    parser.add_argument("--batches", type=int, metavar="N", help="end after so many batches (default: all)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples a batch (default 128)")
    parser.add_argument("--seed", type=int, default=1, help="of data, model, placement, victims (default %(default)s)")
    parser.add_argument("--open", action="store_true", help="show the live page in a browser; keeps the cluster, too")
    parser.add_argument(
        "--keep", type=float, nargs="?", const=float("inf"), metavar="S",
        help="let the cluster go on afterwards until Ctrl-C, or for S seconds: to look at the page, kill and recover",
    )  # fmt: skip
    NodeSettings.add_arguments(parser)
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.demo import DemoOptions, DemoResult, run_demo
    from ecstore.demo.report import summary, to_json
    from ecstore.errors import ConfigError

    out = Output(options.json)
    if options.keep is not None and not options.keep > 0:
        raise ConfigError(f"--keep takes a positive number of seconds, not {options.keep:g}")
    keep_s = options.keep or (float("inf") if options.open else 0.0)
    page = ""

    def show(report: dict[str, Any]) -> None:
        for line in summary(report):
            out.line(line)

    def started(url: str) -> None:
        nonlocal page
        page = url
        if options.open:
            _open(url, out)

    def finished(result: DemoResult) -> None:
        if keep_s:
            show(to_json(result))
            until = "until Ctrl-C" if keep_s == float("inf") else f"for {keep_s:g} s, or until Ctrl-C"
            out.line(f"the cluster goes on {until}: kill and recover nodes at {page}")
            _wait(keep_s)

    result = run_demo(
        DemoOptions(
            data=options.data, strict=options.strict, nodes=options.nodes, code=options.code, kill=options.kill,
            kill_together=options.kill_together, rounds=options.rounds, epochs=options.epochs,
            batches=options.batches, batch_size=options.batch_size, seed=options.seed,
            settings=NodeSettings.of(options),
        ),
        out.stream,
        out.line,
        on_start=started,
        on_finish=finished,
    )  # fmt: skip
    report = to_json(result)
    if not keep_s:
        show(report)
    out.report(report)
    return 0 if result.ok else 1


def _open(url: str, out: Output) -> None:
    """In a browser with windows; one that would take over this terminal is not started."""
    try:
        browser = webbrowser.get()
        opened = type(browser) is not webbrowser.GenericBrowser and browser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        out.line(f"no browser could be started here: open {url} yourself")


def _wait(seconds: float) -> None:
    """So long, or until Ctrl-C: here a wish like any other."""
    try:
        threading.Event().wait(min(seconds, threading.TIMEOUT_MAX))
    except KeyboardInterrupt:
        return
