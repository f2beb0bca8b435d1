"""What commands share: where lines for people go, and where the JSON report goes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, TextIO

from ecstore.errors import ConfigError


class Output:
    """Lines for people go to standard output, or to standard error when the report takes standard output."""

    def __init__(self, report_to: str | None) -> None:
        self._report_to = report_to
        self.stream: TextIO = sys.stderr if report_to == "-" else sys.stdout
        if report_to not in (None, "-"):
            try:
                Path(str(report_to)).touch()  # now, not after a minute of work
            except OSError as error:
                raise ConfigError(f"cannot write {report_to}: {error.strerror}; choose another --json FILE") from error

    def line(self, text: str = "") -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def report(self, data: dict[str, Any]) -> None:
        """Write the report where it was asked for, if it was."""
        if self._report_to is None:
            return
        text = json.dumps(_plain(data), indent=2, allow_nan=False) + "\n"
        if self._report_to == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            Path(self._report_to).write_text(text)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write a report as JSON; - is standard output, and nothing else")


def _plain(value: Any) -> Any:
    """JSON knows no NaN: it becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
