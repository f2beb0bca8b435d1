"""G8 reproducible: one worker in strict order, with kills, ends with the same bits as in one process without.

Fails when anything is lost, applied twice, applied in another order, or summed in another order.
"""

from __future__ import annotations

import numpy as np
import pytest
from node_processes import NodeProcesses, until_active, until_settled
from parity_equation import rows_with_wrong_parity

import ecstore
from ecstore.trainer.local import LocalStore, compare_stores

CODE = "rs(3,2)"
OPTIMIZERS = {
    "g8 sgd": ecstore.SGD(lr=0.05),
    "g8 adagrad": ecstore.Adagrad(lr=0.05),
    "g8 rowwise": ecstore.RowWiseAdagrad(lr=0.05),
    "g8 adam": ecstore.Adam(lr=0.01),
}
STEPS = 60


def tables_of(store) -> dict[str, object]:  # type: ignore[no-untyped-def]
    options = {"code": CODE, "init": ecstore.Uniform(-1, 1)}
    return {
        name: store.create_table(name, dim=3 + 2 * number, optimizer=optimizer, seed=number, **options)
        for number, (name, optimizer) in enumerate(OPTIMIZERS.items())
    }


def step(store, tables, number: int) -> None:  # type: ignore[no-untyped-def]
    """A gradient that depends on the rows pulled, so that a wrong bit anywhere spreads; ids repeat within a batch."""
    rng = np.random.default_rng(number)
    ids = {table: rng.zipf(1.3, 300) % 4000 for table in tables.values()}
    rows = store.pull_many(ids)
    pushed = {
        table: (keys, np.sin(3 * rows[table]) + rng.normal(size=rows[table].shape).astype(np.float32))
        for table, keys in ids.items()
    }
    store.push_many(pushed)


@pytest.mark.cluster
def test_training_through_failures_gives_the_same_bits(six: NodeProcesses, store: ecstore.Store) -> None:
    tables = tables_of(store)
    until_settled(store, CODE)
    events = {
        10: lambda: six.kill("n1"),
        12: lambda: six.kill("n4"),  # while n1 is being decoded
        30: lambda: (until_active(store, CODE), six.start("n1", "n4")),
        45: lambda: (until_settled(store, CODE), six.kill("n2", "n3")),
    }
    for number in range(STEPS):
        events.get(number, lambda: None)()
        step(store, tables, number)
    local = LocalStore()
    local_tables = tables_of(local)
    for number in range(STEPS):
        step(local, local_tables, number)
    comparison = compare_stores(store, local, OPTIMIZERS)
    assert comparison.equal, comparison.describe()
    assert comparison.rows > 1000
    until_active(store, CODE)
    assert compare_stores(store, local, OPTIMIZERS).equal, "after the last row was decoded"
    assert rows_with_wrong_parity(six.address, CODE)[0] == 0
    for name in OPTIMIZERS:
        store.drop_table(name)
