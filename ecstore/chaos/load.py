"""The processes that load the cluster, how fast they get on, and the memory of every process."""

from __future__ import annotations

import json
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ecstore.chaos.clients import ClientOptions
from ecstore.chaos.ledger import Ledger
from ecstore.chaos.watch import Phase

PHASES: Final[tuple[Phase, ...]] = ("failover", "recovery", "otherwise")

#: Between two looks at the ledgers.
LOOK_S: Final = 0.1
#: Between two samples of memory; the beginning of a life that does not count, and its least length after that.
SAMPLE_S: Final = 2.0
WARM_S: Final = 15.0
LEAST_LIFE_S: Final = 60.0
#: Growth of the mean from the first to the last third of a life that is reported as a failure.
GROWTH: Final = 0.10


@dataclass(slots=True)
class Client:
    """One process of the load. Standard error goes to `log`."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def ended(self) -> str:
        """Why it has ended, "" while it runs."""
        if self.process.poll() is None:
            return ""
        lines = self.log.read_text("utf-8", errors="replace").strip().splitlines()
        return (
            f"{self.name} ended with {self.process.returncode}: {lines[-1] if lines else 'nothing on standard error'}"
        )

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """Tell it to end; what it says. An `error` is in it when it has seen something wrong, or hangs."""
        try:
            said, _ = self.process.communicate("", timeout=timeout_s)
            result: dict[str, Any] = json.loads(said)
        except subprocess.TimeoutExpired:
            self.kill()
            return {"error": f"it did not end within {timeout_s:g} s"}
        except ValueError:
            return {"error": self.ended()}
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def start_client(name: str, options: ClientOptions, folder: Path) -> Client:
    log = folder / f"{name}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            options.arguments(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            start_new_session=True,
        )  # fmt: skip
    return Client(name, process, log)


@dataclass(slots=True)
class Speed:
    """Pushes and checked pulls in a kind of time, and the longest time without an acknowledgement that ended in it."""

    seconds: float = 0.0
    pushes: int = 0
    pulls: int = 0
    longest_gap_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        per = 1.0 / self.seconds if self.seconds else 0.0
        return {
            "seconds": round(self.seconds, 1), "pushes_per_s": round(self.pushes * per, 1),
            "pulls_per_s": round(self.pulls * per, 1), "longest_gap_s": round(self.longest_gap_s, 2),
        }  # fmt: skip


@dataclass(slots=True)
class Sampler:
    """A thread that looks at ledgers and memory. `processes` gives the processes of now: name -> process number."""

    ledgers: Sequence[Ledger]
    phase: Callable[[], Phase]
    processes: Callable[[], Mapping[str, int]]
    speeds: dict[Phase, Speed] = field(default_factory=lambda: {name: Speed() for name in PHASES})
    memory: dict[tuple[str, int], list[tuple[float, int]]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="sample the load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pushes, pulls, now = self._count("pushes"), self._count("pulls"), time.monotonic()
        acked_at, sample_at = now, now
        while not self._stop.wait(LOOK_S):
            before, now = now, time.monotonic()
            speed = self.speeds[self.phase()]
            more, more_pulls = self._count("pushes") - pushes, self._count("pulls") - pulls
            pushes, pulls = pushes + more, pulls + more_pulls
            speed.seconds += now - before
            speed.pushes += more
            speed.pulls += more_pulls
            if more:
                acked_at = now
            speed.longest_gap_s = max(speed.longest_gap_s, now - acked_at)
            if now >= sample_at:
                sample_at = now + SAMPLE_S
                self._sample(now)

    def _count(self, name: str) -> int:
        return sum(ledger.get(name) for ledger in self.ledgers)

    def _sample(self, now: float) -> None:
        for name, pid in self.processes().items():
            size = rss_bytes(pid)
            if size is not None:
                self.memory.setdefault((name, pid), []).append((now, size))


def rss_bytes(pid: int) -> int | None:
    """Resident memory of a process; None when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        if Path("/proc/self/statm").exists():
            return None
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return 1024 * int(shown.stdout) if shown.returncode == 0 and shown.stdout.strip() else None


def growth(samples: Sequence[tuple[float, int]]) -> dict[str, Any] | None:
    """Means of the first and the last third of a life, (seconds, bytes) each; None when it was too short to tell."""
    counted = [size for at, size in samples if at >= samples[0][0] + WARM_S]
    if not counted or samples[-1][0] - samples[0][0] < LEAST_LIFE_S + WARM_S:
        return None
    third = max(1, len(counted) // 3)
    twelfths = [counted[len(counted) * part // 12] for part in range(12)]
    first, last = sum(counted[:third]) / third, sum(counted[-third:]) / third
    return {
        "seconds": round(samples[-1][0] - samples[0][0], 1), "first_mib": round(first / 2**20, 2),
        "last_mib": round(last / 2**20, 2), "growth": round(last / first - 1.0, 4),
        "ok": last <= (1.0 + GROWTH) * first, "series_mib": [round(size / 2**20, 1) for size in twelfths],
    }  # fmt: skip
