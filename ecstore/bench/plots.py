"""Shared by the figures of all benchmarks: one look, colours that colour-blind people can tell apart, PNG and SVG.

matplotlib is imported when the first figure is made: it takes most of a second, and is an extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ecstore.errors import ConfigError

#: Okabe and Ito's palette, in the order to use it: the store first, then peers. The last one is for lines of
#: reference.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

_DPI: Final = 150


def figure(title: str, xlabel: str, ylabel: str, *, size: tuple[float, float] = (9.0, 5.0)) -> tuple[Any, Any]:
    """A new (figure, axes) of `size` inches. Labels name their unit. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'ecstore[bench]', or leave --plot out") from None
    # Not pyplot: that keeps every figure, chooses a window system, and reads the user's own settings of it.
    drawing = Figure(figsize=size, layout="constrained")
    axes = drawing.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def save(figure: Any, folder: str | Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into the folder, which is made when missing; the two paths.

    Raises ConfigError where they cannot be written.
    """
    folder = Path(folder)
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise ConfigError(f"cannot write plots to {folder}: {error.strerror}; choose another --plot DIR") from error
    return paths
