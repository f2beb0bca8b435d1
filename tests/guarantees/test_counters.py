"""G2 durable and G3 exactly once, under fire: counters that four processes count while nodes come and go.

Fails when a push is acknowledged before every parity shard has it, when a retried push is applied twice or not at
all, when a takeover starts from a seq below an acknowledged one, when a cut is ignored, or when a row is served
before it is decoded. ECSTORE_TEST_SECONDS sets how long it runs.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from counter_client import DIM
from node_processes import NodeProcesses, newest_map, tolerated, until, until_settled
from parity_equation import rows_with_wrong_parity

import ecstore

CODE = "rs(3,2)"
CLIENTS = 4
SHARED = 6000
PRIVATE = 1500
KEYS = SHARED + CLIENTS * PRIVATE
Clients = list[subprocess.Popen[str]]
SECONDS = float(os.environ.get("ECSTORE_TEST_SECONDS", "20"))


def start_client(number: int, address: str, output: Path) -> subprocess.Popen[str]:
    low = SHARED + number * PRIVATE
    arguments = [address, "counters", SHARED, low, low + PRIVATE, 100 + number, output]
    script = Path(__file__).with_name("counter_client.py")
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def disturb(nodes: NodeProcesses, store: ecstore.Store, rng: random.Random, clients: Clients) -> int:
    """Kill as many nodes as the code can bear just now, again and again, also while others are decoded. The kills."""
    kills, ends_at = 0, time.monotonic() + SECONDS
    while time.monotonic() < ends_at or not kills:
        time.sleep(rng.uniform(0.05, 0.8))
        assert all(client.poll() is None for client in clients), "a client has ended"
        current = newest_map(store)
        up = {node.id for node in current.nodes.values() if node.alive}
        missing = sorted(set(nodes.addresses) - set(nodes.running))
        if up - set(nodes.running):
            continue  # the map does not know yet what we did last
        bearable = min(tolerated(current, CODE), 2 - len(missing))
        if bearable > 0 and rng.random() < 0.6:
            victims = rng.sample(nodes.running, rng.randint(1, bearable))
            nodes.kill(*victims)
            kills += len(victims)
        elif missing and rng.random() < 0.7:
            nodes.start(rng.choice(missing))
    return kills


@pytest.mark.cluster
@pytest.mark.timeout(180 + 4 * SECONDS)
def test_every_acknowledged_gradient_is_counted_once(six: NodeProcesses, store: ecstore.Store, tmp_path: Path) -> None:
    table = store.create_table("counters", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    until_settled(store, CODE)
    outputs = [tmp_path / f"{number}.npz" for number in range(CLIENTS)]
    clients = [start_client(number, six.address, output) for number, output in enumerate(outputs)]
    try:
        until(lambda: len(table) > KEYS // 4, "the clients to count")
        kills = disturb(six, store, random.Random(1), clients)
        missing = sorted(set(six.addresses) - set(six.running))
        six.start(*missing)
        for client in clients:
            _out, errors = client.communicate("", timeout=90.0)
            assert client.returncode == 0, errors
    finally:
        for client in clients:
            client.kill()
            client.wait()
            for pipe in (client.stdin, client.stderr):
                if pipe is not None:
                    pipe.close()
    until_settled(store, CODE)
    found = table.pull(np.arange(KEYS)).astype(np.int64)
    results = [np.load(output) for output in outputs]
    check(found, results)
    pushes = sum(int(result["pushes"]) for result in results)
    assert kills > 0
    assert pushes > 10 * CLIENTS
    print(f"{kills} kills, {pushes} pushes, {sum(int(result['pulls']) for result in results)} checked pulls")
    wrong, compared = rows_with_wrong_parity(six.address, CODE)
    assert wrong == 0
    assert compared > 0
    store.drop_table("counters")


def check(found: np.ndarray, results: list) -> None:
    """Every row is minus the sum of what was acknowledged; of a push that timed out, each row is in or not, once."""
    total = np.zeros((KEYS, DIM), np.int64)
    unsure: dict[int, list[np.ndarray]] = {}
    for result in results:
        acknowledged = result["acknowledged"]
        total[: len(acknowledged)] += acknowledged
        for ids, grads in zip(result["open_ids"], result["open_grads"], strict=True):
            for key in np.unique(ids).tolist():
                unsure.setdefault(key, []).append(grads[ids == key].sum(axis=0))
    different = np.flatnonzero((found != -total).any(axis=1)).tolist()
    for key in different:
        maybe = unsure.get(key, [])
        assert len(maybe) < 12, "too many pushes timed out to tell"
        rest = -found[key] - total[key]
        choices = itertools.product((0, 1), repeat=len(maybe))
        sums = (sum((bit * grad for bit, grad in zip(bits, maybe, strict=True)), np.zeros(DIM)) for bits in choices)
        assert any(np.array_equal(one, rest) for one in sums), (
            f"key {key} is {found[key]}, acknowledged {-total[key]}, {len(maybe)} open; {len(different)} keys differ"
        )
