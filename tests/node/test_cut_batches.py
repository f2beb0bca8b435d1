"""A batch that travels in many messages ends in the same bytes as one that does not, in order, and exactly once."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ecstore.aio
from ecstore.client import lanes, pieces
from ecstore.hashing import initial_weights
from ecstore.optim import RowWiseAdagrad, new_rows, reference_update
from ecstore.routing import unique_sum
from tests.in_process import connect, in_process

DIM = 6
OPTIMIZER = RowWiseAdagrad(lr=0.1)


@pytest.mark.parametrize("seed", range(50))
def test_pieces_are_all_items_in_order_and_of_about_one_size(seed):
    rng = random.Random(seed)
    scale = rng.choice([10, 1 << 12, 1 << 18, 1 << 20, 1 << 22])
    items = [rng.randint(0, scale) for _ in range(rng.randint(1, 200))]
    cut = list(pieces.pieces(items, lambda item: item))
    assert [item for piece in cut for item in piece] == items
    assert all(cut)
    assert all(sum(piece) <= pieces.MAX_MESSAGE_BYTES or len(piece) == 1 for piece in cut)
    total = sum(items)
    count = max(1, min(pieces.MAX_MESSAGES, round(total / pieces.MESSAGE_BYTES)), -(-total // pieces.MAX_MESSAGE_BYTES))
    assert len(cut) <= 2 * count + 1
    if len(cut) > 2 and scale < 1 << 16:
        assert sum(cut[0]) < 0.6 * max(map(sum, cut))


@pytest.mark.parametrize("row_bytes", [8, 72, 264, 4096, 1 << 16])
@pytest.mark.parametrize("rows", [0, 1, 7, 2_000, 300_000])
def test_sections_fit_a_message_and_are_even(rows, row_bytes):
    step = pieces.section_rows(rows, row_bytes)
    assert step >= 1
    assert step == 1 or step * row_bytes <= 2 * pieces.SECTION_BYTES
    if rows:
        assert step * (-(-rows // step)) - rows < step


@pytest.mark.parametrize("code", ["none", "rs(2,1)"])
async def test_cut_batches_end_in_the_same_bytes(monkeypatch, code):
    """Many messages for each node and several sections for each shard; batches follow each other without a wait."""
    monkeypatch.setattr(pieces, "MESSAGE_BYTES", 2_000)
    monkeypatch.setattr(pieces, "SECTION_BYTES", 500)
    monkeypatch.setattr(lanes, "LARGE_BYTES", 1_000)
    rng = np.random.default_rng(3)
    state: dict[int, np.ndarray] = {}
    async with in_process(3, monkeypatch) as cluster, await connect(cluster) as store:
        table = await store.create_table("t", dim=DIM, optimizer=OPTIMIZER, code=code, seed=4)
        for _ in range(6):
            keys = rng.integers(0, 1500, 2_000).astype(np.uint64)
            grads = rng.normal(size=(keys.size, DIM)).astype(np.float32)
            await table.push_async(keys, grads)
            _push(state, table, keys, grads)
        await store.flush()
        await _check(store, table, state)
        gone = np.array(sorted(state)[:400], np.uint64)
        await table.delete(gone)
        for key in gone.tolist():
            del state[key]
        weights = rng.normal(size=(900, DIM)).astype(np.float32)
        loaded = np.arange(1000, 1900, dtype=np.uint64)
        await table.load(loaded, weights)
        state |= dict(zip(loaded.tolist(), new_rows(OPTIMIZER, weights), strict=True))
        await _check(store, table, state)
        counters = [runtime.counters for runtime in cluster.runtimes.values()]
        assert not any(each.get("duplicate_pushes") for each in counters)
        assert store._pusher.retries == 0


def _push(state: dict[int, np.ndarray], table: ecstore.aio.Table, keys: np.ndarray, grads: np.ndarray) -> None:
    spec = table.spec
    for key, grad in zip(*unique_sum(keys, grads), strict=True):
        row = state.get(int(key))
        if row is None:
            start = initial_weights(spec.init, spec.seed, np.array([key], np.uint64), DIM)
            row = new_rows(OPTIMIZER, start)[0]
        state[int(key)] = reference_update(OPTIMIZER, row[np.newaxis], grad[np.newaxis])[0]


async def _check(store: ecstore.aio.Store, table: ecstore.aio.Table, state: dict[int, np.ndarray]) -> None:
    keys, rows = await table.export(state=True)
    expected = np.array(sorted(state), np.uint64)
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(rows, np.stack([state[key] for key in expected.tolist()]))
    asked = np.random.default_rng(1).permutation(expected)
    weights = np.stack([state[key].view(np.float32)[:DIM] for key in asked.tolist()])
    np.testing.assert_array_equal(await table.pull(asked), weights)
