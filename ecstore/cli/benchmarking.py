"""What the commands of all benchmarks share: their options, what is checked before minutes of work, and what is shown
and written afterwards.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ecstore.cli.output import Output, add_json_argument
from ecstore.errors import ConfigError

if TYPE_CHECKING:
    from ecstore.bench.report import Report

T = TypeVar("T")


def add_common_arguments(parser: argparse.ArgumentParser, quick: str) -> None:
    """--quick, which does what `quick` says, --plot and --json."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write figures, PNG and SVG, into this folder")
    add_json_argument(parser)


def codes(text: str) -> tuple[str, ...]:
    """Names of codes, which hold commas themselves: "none,rs(4,2)"."""
    return tuple(re.findall(r"[^,()]+(?:\([^)]*\))?", text))


def numbers(option: str, text: str, kind: Callable[[str], T], example: str) -> tuple[T, ...]:
    """A list such as "1,2". ConfigError, naming `option`, when it is another thing."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} is a list of numbers such as {example}, not {text!r}") from None


def begin(options: argparse.Namespace) -> Output:
    """Where lines and the report go. ConfigError, before anything is measured, when figures can't be drawn."""
    if options.plot is not None:
        from ecstore.bench.plots import figure

        figure("", "", "")
    return Output(options.json)


def finish(
    out: Output, report: Report, plot_to: Path | None, draw: Callable[[Path], Iterable[Path]], **more: Any
) -> int:
    """Show the records, write the report, with `more` in it, and the figures; the exit code."""
    for line in report.lines():
        out.line(line)
    out.report(report.to_json() | more)
    if plot_to is not None:
        for file in draw(plot_to):
            out.line(f"wrote {file}")
    return 0
