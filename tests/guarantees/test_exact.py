"""G1 exact: a decoded row equals, bit for bit, the row that was lost, weights and optimizer state.

Fails when a substitute serves rows before it has decoded them, when a decode mixes moments (ignores the cut), when
any byte of a row (state, padding) is not coded, or when a coefficient is wrong.
"""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
from node_processes import NodeProcesses, keys_owned_by, until_active, until_settled
from parity_equation import rows_with_wrong_parity

import ecstore

KEYS = 6000


def fill(store: ecstore.Store, code: str, rng: np.random.Generator) -> list[ecstore.Table]:
    """Two tables with optimizer state that differs from row to row."""
    tables = [
        store.create_table(f"adagrad {code}", dim=47, optimizer=ecstore.Adagrad(lr=0.1), code=code, seed=3),
        store.create_table(f"adam {code}", dim=25, optimizer=ecstore.Adam(lr=0.01), code=code, seed=4),
    ]
    for table, _round in itertools.product(tables, range(3)):
        keys = rng.choice(KEYS, KEYS // 2, replace=False)
        table.push(keys, rng.normal(size=(keys.size, table.dim)).astype(np.float32))
    return tables


def rows_on_demand(store: ecstore.Store, since: float) -> int:
    """Rows that recoveries begun after `since` (unix seconds) decoded because somebody asked for them."""
    statistics = [node["statistics"] or {} for node in store.status()["nodes"].values()]
    recoveries = [recovery for node in statistics for recovery in node.get("recoveries", [])]
    return sum(recovery["rows_on_demand"] for recovery in recoveries if recovery["started_at"] >= since)


# rs(4,1) comes first: it does not survive the two losses of the others.
@pytest.mark.cluster
@pytest.mark.parametrize(("code", "losses"), [("rs(4,1)", 1), ("rs(3,2)", 2), ("replicate(3)", 2)])
def test_lost_rows_come_back_bit_for_bit(six: NodeProcesses, store: ecstore.Store, code: str, losses: int) -> None:
    rng = np.random.default_rng(losses + len(code))
    tables = fill(store, code, rng)
    until_settled(store, code)
    everything = np.arange(KEYS)
    before = [(table.export(state=True), table.pull(everything)) for table in tables]

    killed_at = time.time()
    six.kill(*rng.choice(list(six.addresses), losses, replace=False))
    for table, (_whole, weights) in zip(tables, before, strict=True):
        some = rng.choice(KEYS, 500, replace=False)
        assert np.array_equal(table.pull(some).view(np.uint32), weights[some].view(np.uint32)), "pulled on demand"
    for table, (whole, _weights) in zip(tables, before, strict=True):
        assert_same(table.export(state=True), whole)
    assert rows_on_demand(store, killed_at) > 0, "nothing was decoded on demand: the test did not test it"

    until_active(store, code)
    for table, (whole, weights) in zip(tables, before, strict=True):
        assert_same(table.export(state=True), whole)
        assert np.array_equal(table.pull(everything).view(np.uint32), weights.view(np.uint32))
    wrong, compared = rows_with_wrong_parity(six.address, code)
    assert wrong == 0
    assert compared > 0
    for table in tables:
        store.drop_table(table.name)


def assert_same(found: tuple[np.ndarray, np.ndarray], wanted: tuple[np.ndarray, np.ndarray]) -> None:
    assert np.array_equal(found[0], wanted[0]), "other keys"
    assert np.array_equal(found[1], wanted[1]), f"{(found[1] != wanted[1]).any(axis=1).sum()} rows have other bytes"


@pytest.mark.cluster
def test_rows_are_decoded_at_one_moment_while_others_change(six: NodeProcesses, store: ecstore.Store) -> None:
    """The neighbours of lost rows in their stripes are pushed to without a pause: data and parity shards are never
    at the same moment by themselves, and only a decode at a cut gets the lost rows right.
    """
    code = "rs(3,2)"
    dim = 96  # wide rows: the background takes its time, and most rows are decoded while the pushes are in full swing
    table = store.create_table("busy", dim=dim, optimizer=ecstore.SGD(lr=1.0), code=code, init=ecstore.Zeros())
    rng = np.random.default_rng(5)
    everything = np.arange(KEYS, dtype=np.uint64)
    table.push(everything, rng.integers(-9, 9, (KEYS, dim)).astype(np.float32))
    until_settled(store, code)
    victims = ("n2", "n5")
    lost = np.concatenate([keys_owned_by(store.cluster_map, code, victim, everything) for victim in victims])
    neighbours = np.setdiff1d(everything, lost)
    wanted = table.pull(lost)
    stop, failures = threading.Event(), []

    def push_on(ack: str) -> None:
        grads = np.ones((neighbours.size, dim), np.float32)
        with ecstore.connect(six.address, timeout=60.0) as mine:
            same = mine.table("busy")
            try:
                while not stop.is_set():
                    same.push(neighbours, grads, ack=ack)
            except ecstore.EcstoreError as error:
                failures.append(error)

    pushers = [threading.Thread(target=push_on, args=(ack,)) for ack in ("parity", "local")]
    for pusher in pushers:
        pusher.start()
    try:
        six.kill(*victims)
        for start in range(0, lost.size, 50):
            found = table.pull(lost[start : start + 50])
            assert np.array_equal(found, wanted[start : start + 50]), "decoded on demand"
        until_active(store, code)
        assert np.array_equal(table.pull(lost), wanted), "decoded in the background"
    finally:
        stop.set()
        for pusher in pushers:
            pusher.join()
    assert not failures
    assert rows_with_wrong_parity(six.address, code)[0] == 0
    store.drop_table("busy")
