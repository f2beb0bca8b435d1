"""One thread for linear algebra in every process. Imports nothing: it must come before NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

#: Many processes share the cores, and the matrices here are small.
SINGLE_THREADED: Final[Mapping[str, str]] = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


def limit_threads() -> None:
    """Ask for one thread, unless the environment asks for something else. No effect once NumPy is imported."""
    for name, count in SINGLE_THREADED.items():
        os.environ.setdefault(name, count)
