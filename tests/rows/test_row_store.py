"""Row store against a dict of rows, and its deltas against its rows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ecstore.errors import CapacityError, FrameError, ShapeError
from ecstore.hashing import initial_weights
from ecstore.node.keylist import KeyList
from ecstore.node.rowstore import RowDelta, RowStore, warm_up
from ecstore.optim import SGD, Adagrad, Adam, RowWiseAdagrad, new_rows, reference_update
from ecstore.tables import TableSpec, Uniform

WORD = 2**64 - 1
OPTIMIZERS = [SGD(0.1), Adagrad(0.1), RowWiseAdagrad(0.1, initial_accumulator=0.5), Adam(0.1)]


def make_spec(optimizer=OPTIMIZERS[1], dim=5) -> TableSpec:
    return TableSpec("t", dim, optimizer, Uniform(-0.5, 0.5), 11, "rs(3,2)")


def u64(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


class Model:
    """key -> row bytes in a dict, by the reference update, one key at a time."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.rows: dict[int, np.ndarray] = {}

    def weights(self, key: int) -> np.ndarray:
        if key in self.rows:
            return self.rows[key].view(np.float32)[: self.spec.dim]
        return initial_weights(self.spec.init, self.spec.seed, u64(key), self.spec.dim)[0]

    def push(self, keys: np.ndarray, grads: np.ndarray) -> None:
        for key, grad in zip(keys.tolist(), grads, strict=True):
            old = self.rows.get(key)
            if old is None:
                old = new_rows(self.spec.optimizer, self.weights(key)[np.newaxis])[0]
            self.rows[key] = reference_update(self.spec.optimizer, old[np.newaxis], grad[np.newaxis])[0]


class Mirror:
    """A parity shard with coefficient 1: bytes by slot, XORed from deltas, and the key list."""

    def __init__(self, row_bytes: int) -> None:
        self.rows = np.zeros((4096, row_bytes), np.uint8)
        self.keylist = KeyList()

    def apply(self, delta: RowDelta) -> None:
        assert delta.slots.dtype == delta.new_slots.dtype == delta.freed_slots.dtype == np.uint32
        assert delta.delta.shape == (len(delta.slots), self.rows.shape[1])
        assert set(delta.new_slots.tolist()) | set(delta.freed_slots.tolist()) <= set(delta.slots.tolist())
        np.bitwise_xor.at(self.rows, delta.slots, delta.delta)
        self.keylist.apply(delta.new_slots, delta.new_keys, delta.freed_slots)


def check_all(store: RowStore, model: Model, mirror: Mirror, keys: list[int]) -> None:
    assert len(store) == len(model.rows)
    slots = store.find(np.array(keys, np.uint64))
    assert [slot >= 0 for slot in slots.tolist()] == [key in model.rows for key in keys]
    present = [i for i, key in enumerate(keys) if key in model.rows]
    if present:
        expected = np.stack([model.rows[keys[i]] for i in present])
        np.testing.assert_array_equal(store.read(slots[present]), expected)
    out = np.full((len(keys), store.dim), np.nan, np.float32)
    store.pull(np.array(keys, np.uint64), out)
    np.testing.assert_array_equal(out, np.stack([model.weights(key) for key in keys]))
    np.testing.assert_array_equal(store.read(np.arange(len(mirror.rows))), mirror.rows)
    np.testing.assert_array_equal(store.keylist.keys, mirror.keylist.keys)
    np.testing.assert_array_equal(store.keylist.allocated, mirror.keylist.allocated)
    assert mirror.keylist.used == store.used
    assert mirror.keylist.live == len(store)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_equal_the_model_and_deltas_equal_the_rows(optimizer, seed):
    """Push with repeats, raw puts, deletes and takeovers; checked whole after every operation."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    spec = make_spec(optimizer, dim=rng.choice([1, 2, 5, 16, 31]))
    store, model, mirror = RowStore(spec, max_rows=4096), Model(spec), Mirror(spec.row_bytes)
    pool = [0, WORD, *range(1, 40), *(rng.randrange(2**64) for _ in range(40))]
    for _ in range(40):
        keys = np.array(rng.choices(pool, k=rng.choice([0, 1, 5, 30])), np.uint64)
        action = rng.choice(["push", "push", "push", "put", "delete", "takeover"])
        if action == "push":
            grads = numbers.normal(size=(len(keys), spec.dim)).astype(np.float32)
            mirror.apply(store.push(keys, grads))
            model.push(keys, grads)
        elif action == "put":
            rows = new_rows(optimizer, numbers.normal(size=(len(keys), spec.dim)).astype(np.float32))
            mirror.apply(store.put(keys, rows))
            model.rows.update(zip(keys.tolist(), rows, strict=True))
        elif action == "delete":
            mirror.apply(store.delete(keys))
            for key in keys.tolist():
                model.rows.pop(key, None)
        else:
            successor = RowStore(spec, max_rows=4096)
            successor.adopt(*mirror.keylist.snapshot())
            assert not successor.read(np.arange(store.used)).any()
            live = np.flatnonzero(mirror.keylist.allocated)
            successor.write(live, mirror.rows[live])
            store.close()
            store = successor
        check_all(store, model, mirror, pool)


def test_put_takes_any_bytes():
    """Raw rows may hold any bit pattern, NaNs with payload too: a load gives back what an export gave."""
    store = RowStore(make_spec(), max_rows=10)
    rows = np.random.default_rng(0).integers(0, 256, (3, store.row_bytes), dtype=np.uint8)
    rows.view(np.uint32)[0, :4] = [0x7F800001, 0xFFFFFFFF, 0x80000000, 1]
    delta = store.put(u64(1, 2, 3), rows)
    np.testing.assert_array_equal(delta.delta, rows)
    np.testing.assert_array_equal(store.read(store.find(u64(1, 2, 3))), rows)
    again = store.put(u64(2, 2), rows[[0, 1]])
    np.testing.assert_array_equal(again.delta, np.stack([rows[1] ^ rows[0], rows[0] ^ rows[1]]))
    np.testing.assert_array_equal(store.read(store.find(u64(2)))[0], rows[1])


def test_delta_of_a_new_row_is_its_full_bytes_and_of_a_deleted_row_too():
    spec = make_spec()
    store, grads = RowStore(spec, max_rows=10), np.ones((2, 5), np.float32)
    delta = store.push(u64(7, 8), grads)
    start = new_rows(spec.optimizer, initial_weights(spec.init, spec.seed, u64(7, 8), 5))
    np.testing.assert_array_equal(delta.delta, reference_update(spec.optimizer, start, grads))
    assert (delta.new_slots.tolist(), delta.new_keys.tolist()) == ([0, 1], [7, 8])
    gone = store.delete(u64(9, 8, 8))
    np.testing.assert_array_equal(gone.delta[0], delta.delta[1])
    assert (gone.slots.tolist(), gone.freed_slots.tolist()) == ([1], [1])
    assert not store.read(np.array([1])).any()
    assert len(store) == 1


def test_the_lowest_free_slot_comes_first_also_after_a_takeover():
    store = RowStore(make_spec(), max_rows=20)
    grads = np.ones((6, 5), np.float32)
    store.push(u64(*range(6)), grads)
    store.delete(u64(4))
    store.delete(u64(1))
    store.delete(u64(5))
    successor = RowStore(make_spec(), max_rows=20)
    successor.adopt(*store.keylist.snapshot())
    assert (successor.used, len(successor)) == (6, 3)
    for each in (store, successor):
        assert each.push(u64(100, 101, 102, 103), grads[:4]).new_slots.tolist() == [1, 4, 5, 6]


def test_a_full_shard_refuses_the_whole_call():
    """The limit counts rows, not keys of the call, and freed slots count as room."""
    store = RowStore(make_spec(), max_rows=3)
    grads = np.ones((4, 5), np.float32)
    store.push(u64(1, 2), grads[:2])
    before = store.read(np.arange(3))
    for call in (
        lambda: store.push(u64(1, 3, 4, 3), grads),
        lambda: store.put(u64(3, 4), np.ones((2, store.row_bytes), np.uint8)),
    ):
        with pytest.raises(CapacityError):
            call()
        np.testing.assert_array_equal(store.read(np.arange(3)), before)
        assert store.find(u64(1, 2, 3, 4)).tolist() == [0, 1, -1, -1]
        assert (len(store), store.used) == (2, 2)
    store.push(u64(3, 3, 1, 3), grads)
    assert len(store) == 3
    store.delete(u64(1))
    store.push(u64(4), grads[:1])
    with pytest.raises(CapacityError):
        store.adopt(np.arange(4, dtype=np.uint64), np.ones(4, np.uint8))
    assert len(store) == 3


def test_pull_allocates_nothing():
    store = RowStore(make_spec(), max_rows=3)
    store.pull(np.arange(100, dtype=np.uint64), np.empty((100, 5), np.float32))
    assert (len(store), store.used) == (0, 0)


def test_reading_beyond_the_rows_gives_zeros_and_writing_there_is_an_error():
    store = RowStore(make_spec(), max_rows=10)
    store.push(u64(1), np.ones((1, 5), np.float32))
    got = store.read(np.array([0, 1, 9, 4_000_000_000], np.uint32))
    assert got[0].any()
    assert not got[1:].any()
    assert not store.read(np.array([-1])).any()
    for slot in (-1, 1, 9, 2**40):
        with pytest.raises(FrameError):
            store.write(np.array([slot]), np.ones((1, store.row_bytes), np.uint8))
    store.write(np.array([0], np.uint32), np.full((1, store.row_bytes), 9, np.uint8))
    assert set(store.read(np.array([0])).ravel().tolist()) == {9}
    assert store.find(u64(1)).tolist() == [0]


def test_unfit_arrays_are_taken_as_they_are_or_refused():
    """Read-only, strided and unaligned inputs work (they are copied); wrong shapes do not."""
    store = RowStore(make_spec(), max_rows=10)
    buffer = np.zeros(1 + 3 * store.row_bytes, np.uint8)
    rows = buffer[1:].reshape(3, -1)
    rows[:] = np.arange(3, dtype=np.uint8)[:, np.newaxis]
    keys = np.arange(6, dtype=np.uint64)[::2]
    keys.flags.writeable = False
    store.put(keys, rows)
    np.testing.assert_array_equal(store.read(store.find(keys)), rows)
    store.write(store.find(keys), rows[::-1])
    np.testing.assert_array_equal(store.read(store.find(keys)), rows[::-1])
    store.push(keys, np.asfortranarray(np.ones((3, 5), np.float32)))
    for call in (
        lambda: store.push(keys, np.ones((3, 4), np.float32)),
        lambda: store.push(keys, np.ones((2, 5), np.float32)),
        lambda: store.put(keys, np.ones((3, 8), np.uint8)),
        lambda: store.write(store.find(keys), np.ones((2, store.row_bytes), np.uint8)),
        lambda: store.pull(keys, np.empty((3, 4), np.float32)),
        lambda: store.pull(keys, np.empty((3, 5), np.float64)),
        lambda: store.pull(keys, np.empty((5, 3), np.float32).T),
    ):
        with pytest.raises(ShapeError):
            call()


def test_memory_beyond_the_rows_stays_in_its_budget():
    """Owner: index and key list; both parity shards of rs(k,2) keep a key list too: 40 bytes in all."""
    store = RowStore(make_spec(SGD(0.1), dim=2), max_rows=1_000_000)
    count = 200_000
    store.push(np.arange(count, dtype=np.uint64), np.ones((count, 2), np.float32))
    memory = store.memory()
    assert memory["rows"] == count * store.row_bytes
    assert memory["index"] + memory["keys"] + 2 * memory["keys"] <= 40 * count


def test_warm_up_covers_every_kernel_and_type():
    """After it, a store run with frames' arrays compiles nothing more."""
    from ecstore.node import index, kernels

    warm_up()
    compiled = [
        kernels.gather,
        kernels.push_sgd,
        kernels.push_adagrad,
        kernels.push_rowwise_adagrad,
        kernels.push_adam,
        kernels.put_rows,
        kernels.clear_rows,
        kernels.read_rows,
        kernels.write_rows,
        index._find,
        index._insert,
        index._remove,
    ]
    before = [len(kernel.signatures) for kernel in compiled]
    for optimizer in OPTIMIZERS:
        store = RowStore(make_spec(optimizer), max_rows=100)
        keys = np.frombuffer(np.arange(9, dtype=np.uint64).tobytes(), np.uint64)  # read-only
        store.push(keys, np.frombuffer(np.ones((9, 5), np.float32).tobytes(), np.float32).reshape(9, 5))
        rows = store.read(store.find(keys).astype(np.uint32))
        store.put(keys, np.frombuffer(rows.tobytes(), np.uint8).reshape(rows.shape))
        store.write(store.find(keys), rows)
        store.pull(keys, np.empty((9, 5), np.float32))
        store.delete(keys)
    assert [len(kernel.signatures) for kernel in compiled] == before
    assert min(before) > 0
