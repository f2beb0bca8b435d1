"""A buffer is used again when nobody refers to it, and never before."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ecstore import buffers
from ecstore.buffers import MAX_BUFFERS, MAX_POOL_BYTES, SMALLEST_BYTES, BufferPool

SIZE = 2 * SMALLEST_BYTES


def address(array):
    return array.ctypes.data


def test_a_dropped_array_makes_room_for_the_next():
    pool = BufferPool()
    first = address(pool.empty(SIZE, np.uint8))
    assert address(pool.empty(SIZE // 4 - 9, np.float32)) == first
    assert pool.reused == 1


@pytest.mark.parametrize(
    "view_of",
    [
        lambda array: array,
        lambda array: array[5:9],
        lambda array: array.view(np.uint16)[::2],
        lambda array: array.reshape(-1, 8)[1:, 2:].T,
        lambda array: memoryview(array)[7:],
        lambda array: np.frombuffer(array, np.uint8),
        lambda array: np.ndarray((3,), np.uint8, array.base, 1),
        lambda array: array.data.cast("B"),
    ],
)
def test_whoever_keeps_a_view_keeps_the_bytes(view_of):
    pool = BufferPool()
    first = pool.empty(SIZE, np.uint8)
    first[:] = 7
    kept = view_of(first)
    del first
    for _ in range(100):
        pool.empty(SIZE, np.uint8)[:] = 1
    assert (np.asarray(kept) == np.asarray([7], np.uint8).repeat(2).view(np.asarray(kept).dtype)[0]).all()


def test_live_arrays_never_share_memory():
    pool, rng = BufferPool(), np.random.default_rng(1)
    live: list[np.ndarray] = []
    for number in range(400):
        made = pool.empty((int(rng.integers(SIZE // 8, SIZE // 7)), 3), np.uint16)
        made[:] = number
        live.append(made)
        for _ in range(int(rng.integers(0, 3))):
            if live:
                del live[int(rng.integers(len(live)))]
        del live[: max(0, len(live) - 12)]
        del made
        assert all((array == array[0, 0]).all() for array in live)
        assert len({int(array[0, 0]) for array in live}) == len(live)
    assert pool.reused > 50


def test_arrays_have_the_form_that_was_asked_for():
    made = BufferPool().empty((SIZE // 8, 5), np.uint64)
    assert made.shape == (SIZE // 8, 5)
    assert made.dtype == np.uint64
    assert made.flags.carray


def test_a_much_smaller_array_does_not_hold_a_large_buffer():
    pool = BufferPool()
    pool.empty(2 * SIZE, np.uint8)
    small = pool.empty(SIZE, np.uint8)
    assert small.base.nbytes < 2 * SIZE
    assert not pool.reused


def test_small_and_huge_arrays_are_not_kept():
    pool = BufferPool()
    pool.empty(SMALLEST_BYTES - 1, np.uint8)
    pool.empty(MAX_POOL_BYTES, np.uint8)
    assert pool.count == pool.nbytes == 0


def test_a_pool_is_bounded():
    pool = BufferPool()
    live = [pool.empty(SIZE, np.uint8) for _ in range(3 * MAX_BUFFERS)]
    assert pool.count == min(MAX_BUFFERS, MAX_POOL_BYTES // SIZE)
    live += [pool.empty(MAX_POOL_BYTES // 3, np.uint8) for _ in range(5)]
    assert pool.count <= MAX_BUFFERS
    assert pool.nbytes <= MAX_POOL_BYTES


def test_what_nobody_asks_for_any_more_is_given_back():
    pool = BufferPool()
    kept = pool.empty(SIZE, np.uint8)
    kept[:] = 5
    pool.empty(SIZE, np.uint8)
    pool.empty(4 * SIZE, np.uint8)
    pool.trim()
    assert pool.count == 3  # all were asked for since the last time
    pool.empty(4 * SIZE, np.uint8)
    pool.trim()
    assert pool.count == 2  # one is free and in demand, one is neither
    pool.trim()
    assert pool.count == 1
    pool.empty(SIZE, np.uint8)[:] = 6
    assert (kept == 5).all()


def test_each_thread_has_its_own_pool_and_arrays_may_go_elsewhere():
    import threading

    made = buffers.empty(SIZE, np.uint8)
    made[:] = 3
    others: list[np.ndarray] = []

    def work() -> None:
        others.append(buffers.empty(SIZE, np.uint8))
        others[0][:] = 4

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert (made == 3).all()
    assert (others[0] == 4).all()
