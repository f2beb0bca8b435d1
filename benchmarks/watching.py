"""What it costs a training to be watched: `python benchmarks/watching.py [--rounds N] [--json FILE]`.

One cluster of six nodes, one training, three ways in turns, a few seconds each, so that repetition i of all three lies
within seconds:

- `alone`: the admin service is stopped (SIGSTOP);
- `service`: it runs, and looks at the cluster once a second, as it does while nothing changes;
- `watched`: the live page is open, too, and Prometheus asks for /metrics every 5 s (it usually asks every 15 s).

The page is opened by a client of its WebSocket in a process of its own, which takes what a browser would get and draws
nothing: a browser usually runs elsewhere. Everything else shares the machine's cores with the training.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import httpx

import ecstore
from ecstore.bench.report import Record, Report, machine, spread
from ecstore.bench.workload import PATIENT_S, Workload, calibrated, cpu_s, fill, train_config
from ecstore.cli.output import Output, add_json_argument
from ecstore.launcher import ClusterOptions, LocalCluster, NodeSettings, local_cluster
from ecstore.trainer import BatchReport, TrainConfig, train

WAYS = ("alone", "service", "watched")
CODE = "rs(4,2)"
CATEGORIES = 200_000
DENSE_STEP_S = 0.085
SCRAPE_S = 5.0
SETTLE_S = 1.0  # after a change, before anything is counted


# -- the watcher, a process of its own -------------------------------------------------------------------------


class _Visitor:
    """One open page, and a scraper. `updates` counts what the page was told since it was opened."""

    def __init__(self) -> None:
        self.updates = 0

    async def stay(self, url: str) -> None:
        """Have the page open and ask for metrics, until cancelled."""
        import socketio

        async with httpx.AsyncClient(base_url=url, timeout=30.0) as http:
            page = socketio.AsyncClient(reconnection=False)
            page.on("update", self._updated)
            query = f"client_id={await _page(http)}&document_id=d&tab_id=t&next_message_id=0&implicit_handshake=true"
            await page.connect(f"{url}?{query}", socketio_path="/_nicegui_ws/socket.io", transports=["websocket"])
            try:
                while True:
                    await asyncio.sleep(SCRAPE_S)
                    (await http.get("/metrics")).raise_for_status()
            finally:
                await page.disconnect()

    async def _updated(self, _changes: Any) -> None:
        self.updates += 1


async def _page(http: httpx.AsyncClient) -> str:
    """Open the page; its id. At the first visit it is still being loaded."""
    for _attempt in range(100):
        found = re.search(r"'client_id': '([0-9a-f-]{36})'", (await http.get("/")).text)
        if found is not None:
            return found[1]
        await asyncio.sleep(0.2)
    raise SystemExit("the page did not come")


async def _obey(url: str) -> None:
    """Lines of standard input say when to begin and when to end; the answers are `begun`, and how often the page was
    brought up to date.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    visitor, watching = _Visitor(), asyncio.get_running_loop().create_future()
    while line := (await reader.readline()).decode().strip():
        answer = "begun"
        if line == "begin":
            visitor = _Visitor()
            watching = asyncio.ensure_future(visitor.stay(url))
        else:
            watching.cancel()
            problems = await asyncio.gather(watching, return_exceptions=True)
            if not isinstance(problems[0], asyncio.CancelledError):
                raise SystemExit(f"the watcher stopped watching: {problems[0]!r}")
            answer = str(visitor.updates)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


class _Watcher:
    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--watch", url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def tell(self, line: str) -> str:
        """Its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit("the watcher has ended; run this with --watch URL to see why")
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


# -- the training ------------------------------------------------------------------------------------------------


class _Bench:
    def __init__(self, cluster: LocalCluster, batches: int) -> None:
        self._cluster = cluster
        self._batches = batches
        self._watcher = _Watcher(cluster.admin_url)
        self.seconds: dict[str, list[float]] = {way: [] for way in WAYS}  #: of a batch
        self.service_cpu: dict[str, list[float]] = {way: [] for way in WAYS}  #: processor seconds a second

    def close(self) -> None:
        self._watcher.close()

    @contextmanager
    def _as(self, way: str) -> Any:
        admin = self._cluster.pids["admin"]
        if way == "alone":
            os.kill(admin, signal.SIGSTOP)
        elif way == "watched":
            self._watcher.tell("begin")
        try:
            time.sleep(SETTLE_S)
            yield
        finally:
            if way == "alone":
                os.kill(admin, signal.SIGCONT)
            elif way == "watched":
                updates = int(self._watcher.tell("end"))
                if not updates:
                    raise SystemExit("the page was never brought up to date: it was not watched")

    def segment(self, way: str, store: ecstore.Store, workload: Workload, config: TrainConfig, *, count: bool) -> None:
        marks: list[tuple[float, float]] = []

        def on_batch(report: BatchReport) -> None:
            if report.batch in (1, self._batches + 1):
                marks.append((report.finished, cpu_s(self._cluster.pids["admin"])))

        with self._as(way):
            train(store, workload.clicks, config, on_batch=on_batch)
        (began, cpu_from), (ended, cpu_to) = marks
        if count:
            self.seconds[way].append((ended - began) / self._batches)
            self.service_cpu[way].append((cpu_to - cpu_from) / (ended - began))

    def records(self) -> list[Record]:
        found = []
        for way in WAYS:
            rates = [1.0 / seconds for seconds in self.seconds[way]]
            peers = [1.0 / seconds for seconds in self.seconds["alone"]]
            ratios = sorted(ours / theirs for ours, theirs in zip(rates, peers, strict=True))
            value, peer = _median(rates), _median(peers)
            found.append(
                Record(way, "batches_per_s", value, "1/s", "alone", peer, _median(ratios), spread(ratios))
                if way != "alone"
                else Record(way, "batches_per_s", value, "1/s", spread=spread(rates))
            )
            cpu = self.service_cpu[way]
            found.append(
                Record(way, "service_cpu", _median(cpu), "cores", spread=spread(cpu) if _median(cpu) else None)
            )
        return found


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def run(rounds: int, batches: int, progress: Callable[[str], None]) -> Report:
    """`rounds` repetitions of each way, `batches` batches each. A ratio is the median of those of the single rounds."""
    report = Report(machine())
    workload = Workload.make(CATEGORIES, 24)
    model, taken = calibrated(DENSE_STEP_S, 32, workload.clicks.batches[0])
    report.machine |= {"code": CODE, "dense_step_ms": round(1000 * taken), "rows": int(workload.keys.size)}
    options = ClusterOptions(nodes=6, seed=1, settings=NodeSettings(suspect_after_s=PATIENT_S))
    with (
        local_cluster(options=options, progress=progress) as cluster,
        ecstore.connect(cluster.address, timeout=60.0) as store,
    ):
        config = train_config(CODE, 0, model, max_batches=batches + 1)
        train(store, workload.clicks, train_config(CODE, 0, model, max_batches=1))
        fill(store.table(config.embedding_table), workload.keys)
        bench = _Bench(cluster, batches)
        try:
            for number in range(-1, rounds):  # the first one warms everything up
                first = number % len(WAYS)
                for way in WAYS[first:] + WAYS[:first]:
                    bench.segment(way, store, workload, config, count=number >= 0)
                progress(f"round {number + 1} of {rounds}")
        finally:
            bench.close()
        report.records += bench.records()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="repetitions of each way (default %(default)s)")
    parser.add_argument("--batches", type=int, default=30, help="in each of them (default %(default)s)")
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    add_json_argument(parser)
    options = parser.parse_args()
    if options.watch:
        asyncio.run(_obey(options.watch))
        return
    out = Output(options.json)
    report = run(options.rounds, options.batches, out.line)
    for line in report.lines():
        out.line(line)
    out.report(report.to_json())


if __name__ == "__main__":
    main()
