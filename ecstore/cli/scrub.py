"""`ecstore scrub`: let the nodes of a running cluster compare parity with data, and repair what can be told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ecstore.cli.output import Output, add_json_argument

if TYPE_CHECKING:
    from ecstore.client.scrub import ScrubReport

#: Seconds of the scrub between two plain lines.
PLAIN_EVERY_S = 2.0

#: Findings that are printed; the JSON report has more.
MAX_LINES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 0 when everything was checked and is right, or has been repaired; 1 when something is not "
        "attributable to one shard, not repaired, or could not be checked."
    )
    parser.add_argument(
        "--connect", default="127.0.0.1:7400", metavar="HOST:PORT", help="any node, or several (default %(default)s)"
    )
    parser.add_argument("--table", metavar="T", help="only this table (default: all)")
    parser.add_argument(
        "--rate", type=float, metavar="MIB", help="MiB a second that each node reads at most (default 32)"
    )
    parser.add_argument("--no-repair", action="store_true", help="report what is wrong, overwrite nothing")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore import aio
    from ecstore.errors import ConfigError
    from ecstore.transport import run as run_loop

    if options.rate is not None and not 0 < options.rate < float("inf"):
        raise ConfigError(f"--rate must be positive, not {options.rate:g}")
    out = Output(options.json)

    async def scrub() -> ScrubReport:
        async with await aio.connect(options.connect, timeout=10.0) as store:
            with _progress(out.stream) as progress:
                return await store.scrub(
                    table=options.table, rate_mib_s=options.rate, repair=not options.no_repair, progress=progress
                )

    report = run_loop(scrub())
    for finding in report.findings[:MAX_LINES]:
        out.line(finding["message"])
    unsaid = len(report.findings) + report.findings_omitted - MAX_LINES
    if unsaid > 0:
        out.line(f"and {unsaid} more")
    out.line(report.describe())
    out.report(report.to_json())
    return 0 if report.ok else 1


@contextmanager
def _progress(stream: TextIO) -> Iterator[Callable[[ScrubReport], None]]:
    """A bar on a terminal, a plain line every few seconds elsewhere."""
    if not stream.isatty():
        due = PLAIN_EVERY_S

        def line(report: ScrubReport) -> None:
            nonlocal due
            if report.seconds >= due:
                due = report.seconds + PLAIN_EVERY_S
                stream.write(f"scrubbing: {_figures(report)}\n")
                stream.flush()

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("scrubbing"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("", total=None, figures="")
        yield lambda report: bar.update(
            task, total=report.groups_total, completed=report.groups_done, figures=_figures(report)
        )


def _figures(report: ScrubReport) -> str:
    waits = f"; {report.waiting_for[0]}" if report.waiting_for else ""
    return (
        f"{report.groups_done} of {report.groups_total} groups, {report.bytes_read / (1 << 20):,.0f} MiB, "
        f"{report.corrupt} corrupt, {report.repaired} repaired{waits}"
    )
