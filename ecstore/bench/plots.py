"""What all plots share: matplotlib on demand, colours, one figure as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ecstore.errors import ConfigError

#: Okabe and Ito (2008): told apart by colour-blind readers, too.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")


def figure(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A figure with one pair of axes. Raises ConfigError when matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'ecstore[bench]', or leave --plot away") from None
    made = Figure(figsize=(9, 5.2), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return made, axes


def save(made: Any, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `folder`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    for file in files:
        made.savefig(file, dpi=150)
    return files
