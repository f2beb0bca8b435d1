"""One chaos run from the start of the cluster to the verdict."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import ecstore
from ecstore.chaos.clients import SUMS, ClientOptions, create_tables, keys_of, open_ledger, open_progress
from ecstore.chaos.driver import Driver, GivenUp
from ecstore.chaos.ledger import Ledger, total
from ecstore.chaos.load import Client, Sampler, start_client
from ecstore.chaos.options import ChaosOptions
from ecstore.chaos.plan import rounds
from ecstore.chaos.rest import Rest
from ecstore.chaos.watch import Watch
from ecstore.errors import ConfigError, EcstoreError
from ecstore.launcher import ClusterOptions, LocalCluster, local_cluster
from ecstore.verify import VerifyReport, verify

#: Between two looks whether all processes that should run do.
CHECK_PAUSE_S: Final = 1.0
#: A client gets so long to end: the trainer trains everything once more without a cluster.
FINISH_S: Final = 300.0
START_S: Final = 60.0
#: Of each check after a failure: a cluster that is broken may not answer at all.
FAILED_CHECK_S: Final = 20.0


@dataclass(slots=True)
class ChaosResult:
    """All that was seen; `ecstore.chaos.report` makes the JSON report of it."""

    options: ChaosOptions
    rounds: int = 0
    driver: Driver | None = None
    sampler: Sampler | None = None
    watch: Watch | None = None
    pushes: int = 0
    pulls: int = 0
    in_doubt: int = 0
    lost: int = 0  #: increments that were acknowledged and are not there
    doubled: int = 0  #: increments that are there beyond those attempted
    sums_checked: int = 0
    said: dict[str, dict[str, Any]] = field(default_factory=dict)  #: by client
    verified: VerifyReport | None = None
    clean_after_s: float | None = None
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Run:
    def __init__(self, options: ChaosOptions, tell: Callable[[str], None], stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self._began = time.time()
        self._tell = tell
        self.result = ChaosResult(options)
        self._clients: dict[str, Client] = {}
        self.others: list[Ledger] = []  # of the clients that keep no ledger of sums
        self._check_at = 0.0
        self._cluster: LocalCluster | None = None
        self._folder = options.run_dir
        if self._folder is None:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ecstore-chaos-")))

    def tell(self, text: str) -> None:
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        self._tell(f"{clock}.{int(now * 1000) % 1000:03d} +{now - self._began:6.1f} s  {text}")

    # -- the parts --------------------------------------------------------------------------------------

    def cluster(self) -> str:
        """A cluster to run against; the URL of its admin service."""
        options = self._options
        if options.admin is not None:
            return options.admin
        chosen = ClusterOptions(
            nodes=options.nodes, seed=options.seed % 2**31, settings=options.settings(), restart_crashed=False,
            run_dir=options.run_dir,
        )  # fmt: skip
        self._cluster = self._stack.enter_context(local_cluster(options=chosen, progress=self.tell))
        self.tell(f"{options.nodes} nodes are up; admin service at {self._cluster.admin_url}/docs")
        return self._cluster.admin_url

    def load(self, address: str) -> list[Ledger]:
        """Make the tables and start the clients; returns when every counter counts."""
        options = self._options
        assert self._folder is not None
        with ecstore.connect(address, timeout=START_S) as store:
            create_tables(store, options.code)
        paths = [str(self._folder / f"ledger-{number}") for number in range(options.counters)]
        ledgers = [open_ledger(path, options.counters, create=True) for path in paths]
        common = {"address": address, "code": options.code, "seed": options.seed, "ledgers": paths}
        roles = [(f"counter-{number}", {"role": "counter", "number": number}) for number in range(options.counters)]
        for role in ("reader", "trainer"):
            path = str(self._folder / f"progress-{role}")
            self.others.append(open_progress(path, create=True))
            roles.append((role, {"role": role, "progress": path}))
        for name, more in roles:
            chosen = ClientOptions(**common, **more, rate=options.rate)  # type: ignore[arg-type]
            self._clients[name] = client = start_client(name, chosen, self._folder)
            self._stack.callback(client.kill)
        deadline = time.monotonic() + START_S
        while not all(ledger.get("pulls") for ledger in ledgers):
            self._ended_clients()
            if time.monotonic() > deadline:
                raise GivenUp(f"the counters did not begin to count within {START_S:g} s")
            time.sleep(0.05)
        return ledgers

    def _ended_clients(self) -> None:
        for name, client in self._clients.items():
            if client.process.poll() is not None:
                said = client.finish(1.0)
                self.result.said[name] = said
                raise GivenUp(f"{name} has ended: {said.get('error', said)}")

    def check(self, rest: Rest) -> None:
        """GivenUp when a process has ended that nobody ended."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_PAUSE_S
        self._ended_clients()
        for name, node in rest.nodes().items():
            if node["process"] == "exited" and node["wanted"] == "up":
                raise GivenUp(f"node {name} ended by itself, exit code {node['exit_code']}; its log says why")

    def processes(self, watch: Watch) -> Mapping[str, int]:
        """Processes of this machine, by name."""
        found = {name: client.process.pid for name, client in self._clients.items() if client.process.poll() is None}
        if self._cluster is not None:
            found |= self._cluster.pids | {name: pid for name, (pid, _size) in dict(watch.rss).items()}
        return found | {"chaos": os.getpid()}

    # -- the end ----------------------------------------------------------------------------------------

    def finish_clients(self, ledgers: list[Ledger]) -> None:
        """Tell all clients to end, and take what they say."""
        result = self.result
        for client in self._clients.values():
            if client.process.stdin is not None:
                client.process.stdin.close()  # all at once; `finish` waits for each
                client.process.stdin = None
        for name, client in self._clients.items():
            if name in result.said:
                continue  # it ended before, and that is told already
            result.said[name] = client.finish(FINISH_S)
            if "error" in result.said[name]:
                result.failures.append(f"{name}: {result.said[name]['error']}")
        result.pushes = sum(ledger.get("pushes") for ledger in ledgers)
        result.pulls = sum(ledger.get("pulls") for ledger in [*ledgers, *self.others])
        result.in_doubt = sum(ledger.get("in_doubt") for ledger in ledgers)

    def check_sums(self, store: ecstore.Store, ledgers: list[Ledger]) -> None:
        """Every sum: what was acknowledged is in, and nothing that was not attempted. Without doubts both are equal."""
        found = store.table(SUMS).pull(np.arange(keys_of(len(ledgers)))).astype(np.int64)
        acknowledged = total([ledger.acknowledged for ledger in ledgers])
        attempted = total([ledger.attempted for ledger in ledgers])
        result = self.result
        result.lost = int(np.maximum(acknowledged - found, 0).sum())
        result.doubled = int(np.maximum(found - attempted, 0).sum())
        result.sums_checked = found.size
        for what, count in (("lost", result.lost), ("doubled", result.doubled)):
            if count:
                result.failures.append(f"{count} acknowledged increments were {what}")

    def prove(self, address: str, ledgers: list[Ledger], *, timeout_s: float = START_S) -> None:
        """End the load and check everything, within `timeout_s` for each check of the cluster."""
        self.tell("ending the clients; the trainer trains the same once more without a cluster, to compare")
        self.finish_clients(ledgers)
        with ecstore.connect(address, timeout=timeout_s) as store:
            self.check_sums(store, ledgers)
        self.tell("checking that every group's parity is that of its data")
        self.result.verified = verify(address, timeout=timeout_s)
        self.tell(self.result.verified.describe())
        if not self.result.verified.ok:
            self.result.failures.append(self.result.verified.describe())


def run_chaos(options: ChaosOptions, tell: Callable[[str], None]) -> ChaosResult:
    """Run it; `tell` gets one line for each thing that is done. Errors of the input are raised, others are told in
    the result.
    """
    with ExitStack() as stack:
        run = _Run(options, tell, stack)
        began = time.monotonic()
        rest = Rest(run.cluster())
        stack.callback(rest.close)
        nodes = rest.nodes()
        addresses = {name: str(node["address"]) for name, node in nodes.items()}
        plan = options.plan(tuple(addresses), drain=rest.can_drain())
        rest.require_faults()
        rest.end_faults()
        watch = run.result.watch = Watch(addresses)
        watch.start()
        stack.callback(watch.stop)
        _disturb(run, rest, watch, ",".join(addresses.values()), lambda: rounds(plan, random.Random(options.seed)))
        run.result.seconds = time.monotonic() - began
        return run.result


def _disturb(run: _Run, rest: Rest, watch: Watch, address: str, schedule: Callable[[], Any]) -> None:
    options, result = run.result.options, run.result
    driver = result.driver = Driver(
        rest, watch, run.tell, lambda: run.check(rest), options.suspect_after_s, options.clean_within_s,
        m=options.plan(tuple(rest.nodes())).m,
    )  # fmt: skip
    ledgers: list[Ledger] = []
    try:
        run.tell(f"starting {options.counters} counters, a reader and a trainer")
        ledgers = run.load(address)
        sampler = result.sampler = Sampler([*ledgers, *run.others], watch.phase, lambda: run.processes(watch))
        sampler.start()
        try:
            driver.settle()
            run.tell(f"chaos for {options.minutes:g} minutes, seed {options.seed}")
            try:
                result.rounds = driver.run(schedule(), time.monotonic() + 60.0 * options.minutes)
            finally:
                driver.stop_faults()
            result.clean_after_s = driver.settle()
            run.tell(f"faults have ended; the cluster was clean after {result.clean_after_s:.1f} s")
        finally:
            sampler.stop()
        run.prove(address, ledgers)
    except ConfigError:
        raise
    except (GivenUp, EcstoreError) as error:
        run.tell(f"given up: {error}")
        result.failures.append(str(error))
        if ledgers:
            _look_once_more(run, address, ledgers)


def _look_once_more(run: _Run, address: str, ledgers: list[Ledger]) -> None:
    """The run has failed; how far the damage goes is worth knowing all the same."""
    try:
        run.prove(address, ledgers, timeout_s=FAILED_CHECK_S)
    except (GivenUp, EcstoreError) as error:
        run.result.failures.append(f"the last checks could not be made: {error}")
