"""One typed door to numba, so that kernels stay `mypy --strict` clean and share one set of flags.

Kernels are cached on disk (compiled once per machine), release the GIL and never use fast-math: the bits a
kernel writes are part of the store's contract, so no reassociation and no fused multiply-add is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` with numba: cached, nogil, IEEE-strict. The signature is inferred at first call."""
    return cast("F", numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function))
