"""The client's batch kernels against their slow NumPy meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore.errors import DtypeError, KeyRangeError, ShapeError
from ecstore.hashing import shard_of
from ecstore.routing import all_finite, as_keys, gather, joined, place, route, unique, unique_sum

WORD = 2**64 - 1
key_arrays = st.lists(st.integers(0, 12) | st.integers(0, WORD), max_size=60).map(
    lambda keys: np.array(keys, np.uint64)
)


@pytest.mark.parametrize(
    "ids",
    [
        [0, WORD],
        (0, WORD),
        np.array([0, WORD], np.uint64),
        np.array([0, WORD], ">u8"),
        np.array([0, 5, WORD, 7], np.uint64)[::2],
    ],
)
def test_every_unsigned_64_bit_number_is_a_key(ids):
    keys = as_keys(ids)
    assert keys.dtype == np.uint64
    assert keys.dtype.isnative
    assert keys.flags.c_contiguous
    assert keys.tolist() == [0, WORD]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int32, np.int64])
def test_every_integer_type_is_accepted(dtype):
    assert as_keys(np.array([0, 5, 127], dtype)).tolist() == [0, 5, 127]


@pytest.mark.parametrize("ids", [[], (), np.empty(0, np.int64), range(0)])
def test_no_ids_are_fine(ids):
    keys = as_keys(ids)
    assert keys.shape == (0,)
    assert keys.dtype == np.uint64


def test_a_fit_array_is_not_copied_and_a_read_only_one_is():
    ids = np.array([3, 4], np.int64)
    assert np.shares_memory(as_keys(ids), ids)
    ids.flags.writeable = False
    assert as_keys(ids).flags.writeable


@pytest.mark.parametrize("ids", [[-1], [1, -(2**63)], np.array([5, -1]), [2**64], [-1, WORD], [-(10**30)]])
def test_ids_out_of_range(ids):
    with pytest.raises(KeyRangeError):
        as_keys(ids)


@pytest.mark.parametrize(
    "ids",
    [
        [1.0],
        np.array([1.5]),
        np.array([True]),
        [True, False],
        ["1"],
        np.array([1], object),
        [None],
        [WORD, 1.0],
    ],
)
def test_ids_that_are_no_integers(ids):
    with pytest.raises(DtypeError):
        as_keys(ids)


@pytest.mark.parametrize("ids", [np.zeros((2, 2), np.int64), np.int64(3), [[1, 2], [3, 4]], [[1], [2, 3]]])
def test_ids_of_another_shape(ids):
    with pytest.raises((ShapeError, DtypeError)):
        as_keys(ids)


@settings(deadline=None)  # the first example may compile
@given(keys=key_arrays, seed=st.integers(0, WORD), shards=st.integers(1, 40), order_seed=st.integers(0, 9))
def test_route_is_a_stable_sort_by_the_place_of_the_shard(keys, seed, shards, order_seed):
    places = np.random.default_rng(order_seed).permutation(shards).astype(np.uint32)
    ordered, order, offsets = route(keys, seed, places)
    wanted = places[shard_of(keys, seed, shards)]
    np.testing.assert_array_equal(order, np.argsort(wanted, kind="stable"))
    np.testing.assert_array_equal(ordered, keys[order])
    np.testing.assert_array_equal(offsets, np.searchsorted(np.sort(wanted), np.arange(shards + 1)))


@pytest.mark.parametrize("width", [0, 1, 3, 16, 65])
def test_gather_and_place_move_rows(width):
    rng = np.random.default_rng(width)
    rows = rng.normal(size=(40, width)).astype(np.float32)
    order = rng.permutation(40)
    gathered, finite = gather(rows, order)
    np.testing.assert_array_equal(gathered, rows[order])
    assert finite
    back = np.zeros_like(rows)
    place(gathered, order, back)
    np.testing.assert_array_equal(back, rows)


def test_gather_takes_rows_of_bytes_at_any_address():
    rows = np.arange(1, 65, dtype=np.uint8)[: 3 * 16].reshape(3, 16)
    shifted = np.empty(49, np.uint8)[1:].reshape(3, 16)
    shifted[:] = rows
    assert (gather(shifted, np.array([2, 0]))[0] == rows[[2, 0]]).all()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_gather_sees_one_bad_number_anywhere_in_the_rows_it_takes(bad, width):
    rows = np.full((3, width), 3.4e38, np.float32)
    rows[1, width - 1] = bad
    assert not gather(rows, np.array([0, 1, 2]))[1]
    assert gather(rows, np.array([0, 2]))[1]


def test_joined_neighbours_are_not_copied():
    whole = np.arange(10, dtype=np.uint64)
    parts = [whole[2:4], whole[4:9]]
    assert np.shares_memory(joined(parts), whole)
    assert joined(parts).tolist() == [2, 3, 4, 5, 6, 7, 8]
    bytes_of = whole.view(np.uint8).reshape(5, 16)
    rows = [bytes_of[1:2].reshape(-1), bytes_of[2:4].reshape(-1)]
    assert np.shares_memory(joined(rows), whole)
    assert (joined(rows) == bytes_of[1:4].reshape(-1)).all()


def test_joined_others_are_copied():
    whole, other = np.arange(10, dtype=np.uint64), np.arange(3, dtype=np.uint64)
    for parts in ([whole[2:4], whole[5:9]], [whole[4:6], whole[2:4]], [whole[2:4], other], [other, other]):
        assert joined(parts).tolist() == np.concatenate(parts).tolist()
    assert joined([np.empty((3, 0), np.uint8)[:1].reshape(-1), np.empty((3, 0), np.uint8)[1:].reshape(-1)]).size == 0


@settings(deadline=None)  # the first example may compile
@given(keys=key_arrays)
def test_unique_keeps_first_occurrences_in_order(keys):
    found, inverse = unique(keys)
    assert found.tolist() == list(dict.fromkeys(keys.tolist()))
    np.testing.assert_array_equal(found[inverse], keys)


def test_unique_with_many_keys_that_differ_in_few_bits():
    keys = np.concatenate([np.arange(30_000) << shift for shift in (0, 20, 48)]).astype(np.uint64)
    found, inverse = unique(keys)
    assert found.tolist() == list(dict.fromkeys(keys.tolist()))
    np.testing.assert_array_equal(found[inverse], keys)


@settings(deadline=None)  # the first example may compile
@given(keys=key_arrays, dim=st.integers(1, 9), seed=st.integers(0, 1000))
def test_unique_sum_adds_duplicates_in_input_order(keys, dim, seed):
    """`np.add.at` adds one by one; each sum starts as a copy, which differs from 0 + g only for -0."""
    grads = (np.random.default_rng(seed).normal(size=(len(keys), dim)) * 10.0 ** (seed % 38)).astype(np.float32)
    with np.errstate(all="ignore"):
        names, inverse = unique(keys)
        expected = np.zeros((len(names), dim), np.float32)
        np.add.at(expected, inverse, grads)
        found, sums = unique_sum(keys, grads)
    np.testing.assert_array_equal(found, names)
    np.testing.assert_array_equal(sums, expected)


def test_unique_sum_is_sequential_float32():
    grads = np.array([[1.0], [2.0**-24], [2.0**-24]], np.float32)
    assert unique_sum(np.zeros(3, np.uint64), grads)[1] == np.float32(1.0)  # 1 + (a + a) would be larger
    assert unique_sum(np.zeros(3, np.uint64), grads[::-1])[1] == np.float32(1.0 + 2.0**-23)


def test_unique_sum_without_duplicates_gives_the_arguments_back():
    keys, grads = np.arange(5, dtype=np.uint64), np.ones((5, 2), np.float32)
    found, sums = unique_sum(keys, grads)
    assert found is keys
    assert sums is grads


def test_unique_sum_does_not_write_to_its_arguments():
    keys, grads = np.array([1, 1], np.uint64), np.ones((2, 2), np.float32)
    grads.flags.writeable = False
    assert unique_sum(keys, grads)[1].tolist() == [[2.0, 2.0]]


def test_unique_sum_checks_the_shapes():
    for shape in ((3, 2), (2,)):
        with pytest.raises(ShapeError):
            unique_sum(np.zeros(2, np.uint64), np.zeros(shape, np.float32))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 7, 64, 257])
def test_all_finite_sees_one_bad_number_anywhere(bad, size):
    numbers = np.full((3, size), 3.4e38, np.float32)
    numbers[1] = 1e-45
    assert all_finite(numbers)
    for column in {0, size // 2, size - 1}:
        spoilt = numbers.copy()
        spoilt[2, column] = bad
        assert not all_finite(spoilt)
    assert all_finite(numbers[:0])
