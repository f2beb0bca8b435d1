"""Compile every kernel once for this machine, before many processes need them at the same moment.

Kernels are cached on disk by numba, so a process that calls `warm_up` on a warm machine only loads them. On a fresh
machine compiling takes some tens of seconds, and N processes that start together would all do it; that is why a
launcher calls `warm_up_machine` first, which compiles in two processes side by side and leaves a stamp.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ecstore.errors import UnavailableError

_PACKAGE: Final = Path(__file__).parent

#: Longest wait for a compiling process, seconds. Two busy cores take some 40.
COMPILE_TIMEOUT_S: Final = 600.0


def _warm_codec() -> None:
    from ecstore import codec

    codec.warm_up()


def _warm_rows() -> None:
    from ecstore import checksum, hashing, routing
    from ecstore.node import rowstore

    checksum.warm_up()
    hashing.warm_up()
    routing.warm_up()
    rowstore.warm_up()


#: Parts of about equal cost that share no kernel.
PARTS: Final[dict[str, Callable[[], None]]] = {"codec": _warm_codec, "rows": _warm_rows}


def warm_up() -> None:
    """Load every kernel into this process, compiling those that are not in the cache."""
    for part in PARTS.values():
        part()


def is_warm() -> bool:
    """Whether `warm_up_machine` has finished here with this code, these versions and this kind of processor."""
    return _stamp().exists()


def warm_up_machine(on_compile: Callable[[], None] = lambda: None) -> None:
    """Compile every kernel unless that is done; `on_compile` is called first when there is something to do.

    Raises UnavailableError with the last line that a compiling process wrote when one fails.
    """
    if is_warm():
        return
    on_compile()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ecstore.warmup", part],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in PARTS
    ]
    try:
        for process in running:
            _output, errors = process.communicate(timeout=COMPILE_TIMEOUT_S)
            if process.returncode:
                last = errors.strip().rpartition("\n")[2]
                raise UnavailableError(f"compiling the kernels failed: {last}. Check that numba works on this machine")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
    try:
        _stamp().parent.mkdir(parents=True, exist_ok=True)
        _stamp().touch()
    except OSError:
        return  # a read-only installation: the next start looks again, which costs two seconds


def _stamp() -> Path:
    """Its name changes with everything that numba's cache depends on, and it lies where that cache lies."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(_PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"ecstore.jit" in text:
            digest.update(f"{source.relative_to(_PACKAGE)} {source.stat().st_mtime_ns} {len(text)}\n".encode())
    versions = (importlib.metadata.version("numba"), platform.python_version(), platform.machine(), platform.node())
    digest.update(repr(versions).encode())
    folder = os.environ.get("NUMBA_CACHE_DIR")
    return (Path(folder) if folder else _PACKAGE / "__pycache__") / f"ecstore-warm-{digest.hexdigest()}"


if __name__ == "__main__":
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            PARTS[name]()
    else:
        warm_up_machine()
