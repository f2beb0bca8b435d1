"""Progress of a training run: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ecstore.trainer.metrics import Throughput
from ecstore.trainer.train import BatchReport

PLAIN_EVERY_S = 2.0  #: seconds between two plain lines
_RATE_WINDOW_S = 3.0
_LOSS_SHARE = 0.05  # weight of the newest loss in the shown, smoothed one


@contextmanager
def progress(
    stream: TextIO, *, clock: Callable[[], float] = time.perf_counter, every_s: float = PLAIN_EVERY_S
) -> Iterator[Callable[[BatchReport], None]]:
    """Show progress on `stream` while the block runs; what it yields is for `train(on_batch=...)`.

    `clock` must be the clock of the run. The bar is removed at the end; plain lines stay.
    """
    view = _View(clock())
    if stream.isatty():
        with _bar(stream) as bar:
            task = bar.add_task("training", total=None, figures="")
            yield lambda report: bar.update(
                task, total=report.batches, completed=report.batch, figures=view.figures(report)
            )
        return
    due = clock() + every_s

    def line(report: BatchReport) -> None:
        nonlocal due
        figures = view.figures(report)
        if report.finished >= due or report.batch == report.batches:
            stream.write(f"training: batch {report.batch}/{report.batches}, {figures}\n")
            stream.flush()
            due = report.finished + every_s

    yield line


def _bar(stream: TextIO) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(file=stream), transient=True)


class _View:
    """The figures beside the bar, over the last seconds."""

    def __init__(self, started: float) -> None:
        self._throughput = Throughput(started, max_entries=1024)
        self._loss: float | None = None

    def figures(self, report: BatchReport) -> str:
        self._throughput.add(report.finished, report.samples)
        shown = report.loss if self._loss is None else self._loss
        self._loss = shown + _LOSS_SHARE * (report.loss - shown)
        rate = self._throughput.rate(report.finished - _RATE_WINDOW_S)
        return f"epoch {report.epoch}, loss {self._loss:.4f}, {rate:,.0f} samples/s"
