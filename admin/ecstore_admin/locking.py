"""A lock in a file, for services that share a run directory. The kernel opens it when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ecstore.errors import UnavailableError

#: Whoever holds a lock works for some milliseconds; a holder that is stopped must not stop others for ever.
TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.005


class FileLock:
    """Held by at most one process. Made anew for each use of a process; not for threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def try_acquire(self) -> bool:
        """Take it if nobody has it. OSError where the file cannot be written."""
        if self._file is not None:
            return True
        opened = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        except BaseException:
            os.close(opened)
            raise
        self._file = opened
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextlib.contextmanager
    def held(self, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
        """Hold it for a block of a few milliseconds without an await. UnavailableError when another one keeps it."""
        deadline = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > deadline:
                raise UnavailableError(f"another admin service holds {self.path}; is it stopped? Ask again")
            time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            self.release()
