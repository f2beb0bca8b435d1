"""What every figure of a benchmark shares: colours that colour-blind people tell apart, labels, one PNG and one SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ecstore.errors import ConfigError

#: Okabe and Ito's palette, in the order of use; black comes last.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")


def figure(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A figure and its axes, titled and labelled. Raises ConfigError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'ecstore[bench]', or leave --plot out") from error
    made = Figure(figsize=(8.0, 4.8), dpi=120, layout="constrained")
    axes = made.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return made, axes


def save(figure: Any, folder: Path, name: str) -> None:
    """Write `folder`/`name`.png and .svg; the folder is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}")
    except OSError as error:
        raise ConfigError(f"cannot write plots to {folder}: {error.strerror}; choose another --plot DIR") from error
