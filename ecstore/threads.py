"""One thread for linear algebra in every process. Imports nothing: it must come before NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

#: Many processes share the cores, and the matrices here are small.
SINGLE_THREADED: Final[Mapping[str, str]] = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


def limit_threads() -> bool:
    """Ask for one thread, unless the environment asks for something else; True when that has changed it.

    No effect in this process once NumPy is imported.
    """
    missing = [name for name in SINGLE_THREADED if name not in os.environ]
    os.environ.update({name: SINGLE_THREADED[name] for name in missing})
    return bool(missing)
