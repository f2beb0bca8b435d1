"""Who kills the nodes: a thread beside the training, told by it how far it is.

Each round has a window of batches. The kills begin at its start; the training does not leave it before everything is
whole again (it waits at the end of the window, if it must; on a small data set training would be over otherwise).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ecstore.demo.admin import Admin
from ecstore.demo.options import DemoOptions
from ecstore.demo.watch import Kill, Watch
from ecstore.errors import EcstoreError, UnavailableError

#: Shares of a round's batches: kills begin, and the training waits for the round's recoveries.
KILL_AT: Final = 0.2
WAIT_AT: Final = 0.75
POLL_S: Final = 0.02
#: Longest wait for any one thing to happen.
STAGE_TIMEOUT_S: Final = 60.0


class Killer:
    """Call `start` before the training and `on_batch` after each batch; `finish` afterwards."""

    def __init__(
        self, options: DemoOptions, admin: Admin, watch: Watch, batches: int, tell: Callable[[str], None]
    ) -> None:
        self._options = options
        self._admin = admin
        self._watch = watch
        self._batches = batches
        self._tell = tell
        self._random = random.Random(options.seed)
        self._changed = threading.Condition()
        self._done = 0
        self._over = False
        self._released = 0  # rounds that are over
        self._thread = threading.Thread(target=self._run, name="kill nodes", daemon=True)
        self.held_s = 0.0  #: the training waited so long at the ends of windows
        self.error: EcstoreError | None = None

    def start(self) -> None:
        if self._options.kill:
            self._thread.start()
        else:
            self._released = self._options.rounds

    def on_batch(self, batch: int) -> None:
        """The training has finished `batch`. Returns when it may go on; raises what the killing failed with."""
        entered = time.monotonic()
        with self._changed:
            self._done = batch
            self._changed.notify_all()
            while self._window(batch) > self._released and self.error is None and not self._watch.lost_groups():
                self._changed.wait(0.05)
        self.held_s += time.monotonic() - entered
        if self.error is not None:
            raise self.error

    def _window(self, batch: int) -> int:
        """How many rounds must be over before the batch after `batch` may begin."""
        per_round = self._batches / self._options.rounds
        full, into = divmod(batch, per_round)
        return int(full) + (into >= WAIT_AT * per_round)

    def finish(self, *, failed: bool) -> None:
        """Wait until the last round is over; at once when the training has failed."""
        with self._changed:
            self._over = failed
            self._done = self._batches
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self.error is not None and not failed:
            raise self.error

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for number in range(self._options.rounds):
                self._round(number)
                with self._changed:
                    self._released = number + 1
                    self._changed.notify_all()
                if self._stopped():
                    return
        except EcstoreError as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _stopped(self) -> bool:
        return self._over or bool(self._watch.lost_groups())

    def _round(self, number: int) -> None:
        begin = (number + KILL_AT) * self._batches / self._options.rounds
        with self._changed:
            self._changed.wait_for(lambda: self._done >= begin or self._over)
        victims: list[Kill] = []
        if self._options.kill_together:
            nodes = self._random.sample(self._up(), self._options.kill)
            with ThreadPoolExecutor(len(nodes)) as pool:
                victims += pool.map(lambda node: self._kill(node, number), nodes)
        else:
            for _ in range(self._options.kill):
                node = self._next_victim(victims)
                if node is None:
                    return
                victims.append(self._kill(node, number))
        self._wait(self._watch.whole, "the lost shards were whole again")
        if number + 1 < self._options.rounds and not self._stopped():
            self._bring_back(victims)

    def _next_victim(self, victims: list[Kill]) -> str | None:
        """The first at random; each further one is a node that is decoding the loss before. None: it is over."""
        if not victims:
            return None if self._stopped() else self._random.choice(self._up())
        deadline = time.monotonic() + STAGE_TIMEOUT_S
        while time.monotonic() < deadline and not self._stopped():
            if self._watch.losses_tolerated() >= 1 and victims[-1].detected_at is not None:
                decoding = self._decoding(victims[-1])
                if decoding:
                    return decoding[0]
                if self._watch.whole():
                    return self._random.choice(self._up())
            time.sleep(POLL_S)
        if self._stopped():
            return None
        raise UnavailableError("no further node could be killed without losing data; see /cluster and /decoding")

    def _decoding(self, victim: Kill) -> list[str]:
        """Nodes that are decoding what the victim held, the busiest first; one row at least is decoded."""
        running = [
            entry
            for entry in self._admin.recoveries()
            if entry["lost_node"] == victim.node and entry["kind"] == "data" and entry["started_at"] >= victim.at
            and entry["finished_at"] is None
        ]  # fmt: skip
        if not any(entry["rows_decoded"] for entry in running):
            return []
        left: dict[str, int] = {}
        for entry in running:
            todo = entry["rows_total"] - entry["rows_decoded"]
            left[entry["new_owner"]] = left.get(entry["new_owner"], 0) + todo
        up = set(self._up())
        return sorted((node for node in left if left[node] > 0 and node in up), key=lambda node: (-left[node], node))

    def _up(self) -> list[str]:
        killed = {kill.node for kill in self._watch.kills if kill.recover_asked_at is None}
        return [node for node in self._watch.store.cluster_map.up_nodes() if node not in killed]

    def _kill(self, node: str, number: int) -> Kill:
        current = self._watch.store.cluster_map
        incarnation = current.nodes[node].incarnation
        together = self._options.kill_together
        others = [] if together else [kill for kill in self._watch.kills if kill.recovered_at is None]
        kill = Kill(
            node=node,
            round=number + 1,
            at_batch=self._done,
            at=time.time(),
            incarnation=incarnation,
            shards=tuple((group.gid, shard.index) for group, shard in current.shards_on(node, incarnation)),
            at_risk_before=any(current.at_risk(group) for group in current.groups),
            others_decoding=bool(others),
        )
        self._watch.kills.append(kill)
        self._admin.kill(node)
        meanwhile = f", while the loss of {', '.join(k.node for k in others)} is still being decoded" if others else ""
        self._tell(f"batch {kill.at_batch}: killed node {node} ({len(kill.shards)} shards){meanwhile}")
        return kill

    def _bring_back(self, victims: list[Kill]) -> None:
        """Start the killed nodes again and wait until shards have moved back and nothing is at risk."""
        for kill in victims:
            kill.recover_asked_at = time.time()
            self._admin.recover(kill.node)
        self._tell(f"batch {self._done}: started {', '.join(k.node for k in victims)} again")
        self._wait(lambda: self._watch.clean(self._options.nodes), "the nodes were back and everything was in place")
        self._tell(f"batch {self._done}: all nodes are up, shards have moved back, nothing is at risk")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STAGE_TIMEOUT_S
        while not done() and not self._stopped():
            if time.monotonic() > deadline:
                raise UnavailableError(f"it took over {STAGE_TIMEOUT_S:g} s until {what}; see /decoding and the logs")
            time.sleep(POLL_S)
