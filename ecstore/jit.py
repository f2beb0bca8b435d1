"""One typed door to numba, so that kernels stay `mypy --strict` clean and share one set of flags.

Kernels are cached on disk (compiled once per machine), release the GIL and never use fast-math: the bits a
kernel writes are part of the store's contract, so no reassociation and no fused multiply-add is allowed.

What the cache is keyed with: numba looks at the text of the kernel's own file, the argument types, the name of the
processor and its features, so one cache folder may serve unlike machines. It does not look at other files. Hence two
rules: a kernel only calls kernels of its own file, and whatever is inlined from elsewhere comes through
`ecstore.jit.inlined`, whose file `kernel` adds to the name of the cache entry (and this file: it has the flags).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., object])

#: id of everything that `inlined` has made (all live as long as their modules) -> the file it comes from.
_INLINED_FROM: Final[dict[int, str]] = {}


def kernel(function: F) -> F:
    """Compile `function` with numba: cached, nogil, IEEE-strict. The signature is inferred at first call."""
    files = {__file__} | {
        _INLINED_FROM[id(value)] for value in function.__globals__.values() if id(value) in _INLINED_FROM
    }
    name = function.__qualname__
    # numba names the cache file by this at once, and everything else later.
    function.__qualname__ = f"{name}-{_digest(tuple(sorted(files)))}"
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)
    finally:
        function.__qualname__ = name
    compiled.__qualname__ = name
    return cast("F", compiled)


def inlined(emit: Callable[..., Any]) -> Any:
    """A function for kernels of any file that is made of LLVM instructions: `emit` is what numba calls an intrinsic.

    Import it by name at the top of the kernels' file. Typed loosely: numba's annotations describe the typing
    function `emit`, not what a kernel calls.
    """
    made: Any = intrinsic(emit)
    _INLINED_FROM[id(made)] = emit.__code__.co_filename
    return made


@lru_cache(maxsize=64)
def _digest(files: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(digest_size=4)
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
