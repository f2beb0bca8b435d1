"""The compiled updates give the bits of the NumPy definition, and the definition is the textbook's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore.errors import ConfigError, ShapeError
from ecstore.node.rowstore import RowStore
from ecstore.optim import (
    SGD,
    Adagrad,
    Adam,
    RowWiseAdagrad,
    new_rows,
    optimizer_from_wire,
    optimizer_to_wire,
    reference_update,
    row_bytes,
    sum_of_squares,
)
from ecstore.tables import TableSpec, Zeros

OPTIMIZERS = [
    SGD(0.1),
    SGD(3e37),
    Adagrad(0.05),
    Adagrad(0.05, 1e-3, 0.1),
    RowWiseAdagrad(0.05),
    RowWiseAdagrad(1e30, 1e-3, 0.1),
    Adam(0.01),
    Adam(0.01, 0.0, 0.5, 1e-3),
]
NAMES = [str(optimizer) for optimizer in OPTIMIZERS]


def numbers(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Finite float32 numbers of one kind: usual ones, denormals, huge ones, or any finite bit pattern."""
    if kind == "usual":
        return rng.normal(size=shape).astype(np.float32)
    if kind == "denormal":
        signs = rng.integers(0, 2, shape, dtype=np.uint32) << np.uint32(31)
        return (rng.integers(0, 1 << 23, shape, dtype=np.uint32) | signs).view(np.float32)
    if kind == "huge":
        return (rng.uniform(-1, 1, shape) * 3.4e38).astype(np.float32)
    bits = rng.integers(0, 2**32, shape, dtype=np.uint32)
    return np.where(np.isfinite(bits.view(np.float32)), bits, np.uint32(0x3F800000)).view(np.float32)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(1, 130),
    count=st.integers(0, 6),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["usual", "denormal", "huge", "any"]),
)
def test_kernel_gives_the_bits_of_the_reference(optimizer, dim, count, steps, seed, kind):
    """Several updates in a row; overflow to infinity and NaN included."""
    rng = np.random.default_rng(seed)
    store = RowStore(TableSpec("t", dim, optimizer, Zeros(), 0, "none"), max_rows=64)
    keys = np.arange(count, dtype=np.uint64)
    expected = new_rows(optimizer, numbers(kind, rng, (count, dim)))
    store.put(keys, expected)
    for _ in range(steps):
        grads = numbers(kind, rng, (count, dim))
        expected = reference_update(optimizer, expected, grads)
        store.push(keys, grads)
    np.testing.assert_array_equal(store.read(store.find(keys)), expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
def test_every_nan_that_an_update_makes_has_the_same_bits(optimizer):
    """Infinity minus infinity is a negative NaN on some processors; what is stored must not depend on it."""
    rows = new_rows(optimizer, np.array([[np.inf, -np.inf, 1.0]], np.float32))
    rows.view(np.uint32)[0, 2] = 0xFFC12345  # a NaN with another sign and payload
    grads = np.full((1, 3), 3e38, np.float32)
    store = RowStore(TableSpec("t", 3, optimizer, Zeros(), 0, "none"), max_rows=4)
    key = np.zeros(1, np.uint64)
    store.put(key, rows)
    store.push(key, grads)
    for result in (reference_update(optimizer, rows, grads), store.read(store.find(key))):
        found = np.isnan(result.view(np.float32))
        assert found.any()
        assert set(result.view(np.uint32)[found].tolist()) == {0x7FC00000}


def test_reference_is_the_textbook_formula():
    """Three steps against float64 formulas written differently, to a few float32 roundings."""
    rng = np.random.default_rng(5)
    dim, steps = 11, 3
    start, grads = rng.normal(size=(1, dim)), rng.normal(size=(steps, 1, dim))

    def run(optimizer):
        rows = new_rows(optimizer, start.astype(np.float32))
        for step in range(steps):
            rows = reference_update(optimizer, rows, grads[step].astype(np.float32))
        return rows.view(np.float32)[:, :dim]

    np.testing.assert_allclose(run(SGD(0.1)), start - 0.1 * grads.sum(axis=0), rtol=1e-5)
    adagrad, rowwise, adam = start.copy(), start.copy(), start.copy()
    m, v = np.zeros((1, dim)), np.zeros((1, dim))
    for t in range(1, steps + 1):
        g, past = grads[t - 1], grads[:t]
        adagrad -= 0.1 * g / (np.sqrt(0.5 + (past**2).sum(axis=0)) + 1e-6)
        rowwise -= 0.1 * g / (math.sqrt(0.5 + (past**2).mean(axis=2).sum()) + 1e-6)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        adam -= 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(run(Adagrad(0.1, 1e-6, 0.5)), adagrad, rtol=1e-5)
    np.testing.assert_allclose(run(RowWiseAdagrad(0.1, 1e-6, 0.5)), rowwise, rtol=1e-5)
    # 1 - beta2 loses four digits to the rounding of 0.999
    np.testing.assert_allclose(run(Adam(0.1)), adam, rtol=2e-4)


def test_sum_of_squares_has_the_stated_order():
    """A scalar loop over lanes and the tree, written out, gives the same bits; a plain sum does not."""
    grads = np.random.default_rng(1).normal(size=(200, 37)).astype(np.float32)
    differs = False
    for row, total in zip(grads, sum_of_squares(grads), strict=True):
        s = [np.float32(0)] * 8
        for column, value in enumerate(row):
            s[column % 8] = s[column % 8] + value * value
        assert total == ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
        plain = np.float32(0)
        for value in row:
            plain = plain + value * value
        differs |= bool(plain != total)
    assert differs


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 63, 64])
def test_row_layout(optimizer, dim):
    """Whole 8-byte words, no more than needed; weights first; padding zero before and after an update."""
    width, used = row_bytes(dim, optimizer), 4 * (dim + optimizer.state_floats(dim))
    assert width % 8 == 0
    assert used <= width < used + 8
    weights = np.arange(2 * dim, dtype=np.float32).reshape(2, dim)
    rows = new_rows(optimizer, weights)
    assert rows.shape == (2, width)
    np.testing.assert_array_equal(rows.view(np.float32)[:, :dim], weights)
    for some in (rows, reference_update(optimizer, rows, weights)):
        assert not some[:, used:].any()


def test_reference_does_not_write_its_arguments():
    rows, grads = new_rows(Adam(0.1), np.ones((2, 3), np.float32)), np.ones((2, 3), np.float32)
    before = rows.copy()
    reference_update(Adam(0.1), rows, grads)
    np.testing.assert_array_equal(rows, before)


def test_reference_refuses_rows_of_another_width():
    with pytest.raises(ShapeError):
        reference_update(SGD(0.1), np.zeros((2, 16), np.uint8), np.zeros((2, 3), np.float32).repeat(2, axis=1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
def test_wire_form_comes_back_equal(optimizer):
    assert optimizer_from_wire(optimizer_to_wire(optimizer)) == optimizer


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": "nope", "lr": 0.1},
        {"kind": ["sgd"], "lr": 0.1},
        {"kind": "sgd"},
        {"kind": "sgd", "lr": "0.1"},
        {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        {"kind": "sgd", "lr": float("nan")},
    ],
)
def test_malformed_wire_form_is_a_config_error(data):
    with pytest.raises(ConfigError):
        optimizer_from_wire(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(0.0),
        lambda: SGD(-1.0),
        lambda: SGD(1e39),
        lambda: SGD(1e-60),
        lambda: SGD(True),
        lambda: Adagrad(0.1, eps=0.0),
        lambda: Adagrad(0.1, initial_accumulator=-1.0),
        lambda: RowWiseAdagrad(0.1, eps=float("inf")),
        lambda: Adam(0.1, beta1=1.0),
        lambda: Adam(0.1, beta2=1.0 - 1e-12),  # 1 as a float32: the bias correction would divide by zero
    ],
)
def test_settings_out_of_range_are_config_errors(make):
    with pytest.raises(ConfigError):
        make()
