"""`LocalStore` against a naive dictionary of rows, its errors, and the comparison of stores."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore.errors import (
    DtypeError,
    KeyRangeError,
    NonFiniteError,
    ShapeError,
    TableExistsError,
    UnknownTableError,
)
from ecstore.hashing import initial_weights
from ecstore.optim import SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad, new_rows, reference_update
from ecstore.tables import Constant, Uniform
from ecstore.trainer.local import LocalStore, LocalTable, as_keys, compare_stores, sum_duplicates

DIM = 3
TOP = 2**64 - 1
INIT = Uniform(-0.5, 0.5)


def make(store: LocalStore, optimizer: Optimizer | None = None, **changes: Any) -> LocalTable:
    options: dict[str, Any] = {
        "dim": DIM,
        "optimizer": optimizer if optimizer is not None else Adagrad(lr=0.1),
        "code": "rs(3,2)",
        "init": INIT,
        "seed": 7,
    }
    return store.create_table("t", **(options | changes))


class Naive:
    """Rows in a dictionary, one key at a time."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.rows: dict[int, np.ndarray] = {}

    def fresh(self, key: int) -> np.ndarray:
        return new_rows(self.optimizer, initial_weights(INIT, 7, np.array([key], np.uint64), DIM))

    def push(self, keys: list[int], grads: np.ndarray) -> None:
        sums: dict[int, np.ndarray] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = sums[key] + grad if key in sums else grad
        for key, total in sums.items():
            row = self.rows.get(key, self.fresh(key))
            self.rows[key] = reference_update(self.optimizer, row, total.reshape(1, DIM))

    def load(self, keys: list[int], weights: np.ndarray) -> None:
        for key, weight in zip(keys, weights, strict=True):
            self.rows[key] = new_rows(self.optimizer, weight.reshape(1, DIM))

    def pull(self, keys: list[int]) -> np.ndarray:
        found = [self.rows.get(key, self.fresh(key)).view(np.float32)[0, :DIM] for key in keys]
        return np.array(found, np.float32).reshape(-1, DIM)


KEYS = st.lists(st.sampled_from([0, 1, 2, 3, 5, 2**40, 2**63, TOP - 1, TOP]), max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from(["push", "load", "delete", "pull"]), KEYS), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    optimizer=st.sampled_from([SGD(lr=0.5), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.01)]),
    seed=st.integers(0, 99),
)
def test_any_sequence_of_calls_equals_a_dictionary(steps: Any, optimizer: Optimizer, seed: int) -> None:
    random = np.random.default_rng(seed)
    table, naive = make(LocalStore(), optimizer), Naive(optimizer)
    for action, keys in steps:
        ids = np.array(keys, np.uint64)
        values = random.normal(size=(len(keys), DIM)).astype(np.float32)
        if action == "push":
            table.push(ids, values)
            naive.push(keys, values)
        elif action == "load":
            table.load(ids, values)
            naive.load(keys, values)
        elif action == "delete":
            table.delete(ids)
            for key in keys:
                naive.rows.pop(key, None)
        assert table.pull(ids).tobytes() == naive.pull(keys).tobytes()
        assert len(table) == len(naive.rows)
    keys, rows = table.export(state=True)
    assert keys.tolist() == sorted(naive.rows)
    assert rows.tobytes() == b"".join(naive.rows[key].tobytes() for key in sorted(naive.rows))
    assert table.export()[1].tobytes() == naive.pull(sorted(naive.rows)).tobytes()


def test_many_rows_grow_the_table() -> None:
    table = make(LocalStore(), SGD(lr=1.0), init=Constant(1.0))
    random = np.random.default_rng(1)
    keys = random.permutation(5000).astype(np.uint64)
    for part in np.array_split(keys, 13):
        table.push(part, np.repeat(part[:, None], DIM, axis=1).astype(np.float32))
    assert len(table) == 5000
    assert np.array_equal(table.pull(keys)[:, 0], 1.0 - keys.astype(np.float32))


def test_duplicates_are_summed_in_input_order() -> None:
    big, one = np.float32(2.0**24), np.float32(1.0)
    grads = np.array([[big], [one], [one], [-big]], np.float32)
    keys, sums = sum_duplicates(np.array([9, 9, 9, 9], np.uint64), grads)
    assert (keys.tolist(), sums.tolist()) == ([9], [[0.0]])  # each 1 is rounded away next to 2**24
    _, sums = sum_duplicates(np.array([9, 9, 9, 9], np.uint64), grads[[1, 2, 0, 3]])
    assert sums.tolist() == [[2.0]]
    _, sums = sum_duplicates(np.array([9], np.uint64), np.array([[-0.0]], np.float32))
    assert np.signbit(sums[0, 0])  # a single gradient is not touched, not even its sign of zero
    random = np.random.default_rng(0)
    keys = random.integers(0, 50, 2000).astype(np.uint64)
    grads = random.normal(size=(2000, 16)).astype(np.float32)
    expected = np.zeros((50, 16), np.float32)
    for key, grad in zip(keys.tolist(), grads, strict=True):
        expected[key] += grad
    assert sum_duplicates(keys, grads)[1].tobytes() == expected.tobytes()


def test_wrong_input_is_a_typed_error_and_changes_nothing() -> None:
    store = LocalStore()
    table, other = (
        make(store),
        store.create_table("u", dim=2, optimizer=SGD(lr=1.0), code="none", init=INIT, seed=1),
    )
    good = np.zeros((1, DIM), np.float32)
    cases = [
        ([-1], good, KeyRangeError),
        (np.array([-(2**63)]), good, KeyRangeError),
        ([2**64], good, KeyRangeError),
        ([0.5], good, DtypeError),
        ([True], good, DtypeError),
        ([[1]], good, ShapeError),
        ([1], good.astype(np.float64), DtypeError),
        ([1, 2], good, ShapeError),
        ([1], good[:, :2], ShapeError),
        ([1], np.full((1, DIM), np.nan, np.float32), NonFiniteError),
        ([1], np.full((1, DIM), -np.inf, np.float32), NonFiniteError),
    ]
    for ids, grads, error in cases:
        with pytest.raises(error):
            table.push(ids, grads)
        with pytest.raises(error):  # the good part of a push_many is not applied either
            store.push_many({other: (np.array([5]), np.ones((1, 2), np.float32)), table: (ids, grads)})
    with pytest.raises(ShapeError):
        table.load([1], good[:, :1])
    assert (len(table), len(other)) == (0, 0)
    with pytest.raises(TableExistsError):
        make(store, seed=8)
    assert make(store) is table
    with pytest.raises(UnknownTableError):
        store.table("absent")


def test_ids_of_every_kind() -> None:
    for ids in (
        [0, TOP],
        (1, 2**63),
        np.array([1, 2], np.int32),
        np.array([3], np.uint8),
        [],
        np.empty(0, np.int64),
    ):
        keys = as_keys(ids)
        assert keys.dtype == np.uint64
        assert keys.tolist() == list(ids)


def test_many_tables_at_once() -> None:
    store = LocalStore()
    table = make(store, SGD(lr=1.0), init=Constant(0.0))
    wide = store.create_table("w", dim=8, optimizer=SGD(lr=1.0), code="none", init=Constant(2.0), seed=1)
    store.push_many({table: ([1], np.ones((1, DIM), np.float32)), wide: ([1], np.ones((1, 8), np.float32))})
    store.flush()
    pulled = store.pull_many({table: [1, 2], wide: [2, 1]})
    assert pulled[table].tolist() == [[-1.0] * DIM, [0.0] * DIM]
    assert pulled[wide].tolist() == [[2.0] * 8, [1.0] * 8]


def test_threads_lose_no_push() -> None:
    table = make(LocalStore(), SGD(lr=1.0), init=Constant(0.0))

    def work(first: int) -> None:
        for step in range(100):
            table.push([first + step, 0], np.full((2, DIM), -1.0, np.float32))

    threads = [threading.Thread(target=work, args=(1 + 1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.pull([0])[0].tolist() == [400.0] * DIM
    assert len(table) == 401


def two_stores() -> tuple[LocalStore, LocalStore]:
    stores = (LocalStore(), LocalStore())
    for store in stores:
        make(store).push(np.array([8, 3, TOP], np.uint64), np.ones((3, DIM), np.float32))
    return stores


def test_equal_stores_compare_equal() -> None:
    result = compare_stores(*two_stores(), ["t"])
    assert result.equal
    assert result.rows == 3
    assert result.describe() == "all 3 rows of 1 tables are equal, bit for bit"


@pytest.mark.parametrize("byte", [0, 4 * DIM, -1])  # a weight, the optimizer's state, the last byte
def test_one_flipped_bit_is_found(byte: int) -> None:
    first, second = two_stores()
    keys, rows = second.table("t").export(state=True)
    rows[1, byte] ^= 1
    second.table("t").load(keys, rows)
    result = compare_stores(first, second, ["t"])
    difference = result.tables[0]
    assert not result.equal
    assert (difference.first_key, difference.different, difference.only_first, difference.only_second) == (
        8,
        1,
        0,
        0,
    )
    assert "first at key 8" in result.describe()


def test_missing_and_additional_rows_are_found() -> None:
    first, second = two_stores()
    first.table("t").delete([3])
    second.table("t").delete([TOP])
    difference = compare_stores(first, second, ["t"]).tables[0]
    assert (difference.first_key, difference.only_first, difference.only_second) == (3, 1, 1)
    assert (difference.rows, difference.different) == (3, 0)


def test_rows_of_other_width_differ() -> None:
    first, second = two_stores()[0], LocalStore()
    make(second, SGD(lr=1.0)).push([3, 8, TOP], np.ones((3, DIM), np.float32))
    assert compare_stores(first, second, ["t"]).tables[0].different == 3
