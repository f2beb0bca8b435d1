"""Wrong calls of the public client: a typed error each, nothing applied; and what looks odd but is defined."""

from __future__ import annotations

import numpy as np
import pytest

import ecstore

pytestmark = pytest.mark.cluster
CODE, DIM = "rs(2,1)", 4
KEYS = np.arange(6)


def ones(count: int, dim: int = DIM) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def with_value(value: float) -> np.ndarray:
    grads = ones(6)
    grads[3, 2] = value
    return grads


@pytest.mark.parametrize(
    ("ids", "grads", "error"),
    [
        (KEYS, ones(6, 3), ecstore.ShapeError),
        (KEYS, ones(6, 5), ecstore.ShapeError),
        (KEYS, ones(6)[0], ecstore.ShapeError),
        (KEYS, ones(6)[None], ecstore.ShapeError),
        (KEYS, ones(5), ecstore.ShapeError),
        (KEYS, ones(7), ecstore.ShapeError),
        (KEYS.reshape(2, 3), ones(6), ecstore.ShapeError),
        (np.int64(3), ones(1), ecstore.ShapeError),
        ([], ones(1), ecstore.ShapeError),
        (KEYS, ones(0), ecstore.ShapeError),
        (KEYS, ones(6).astype(np.float64), ecstore.DtypeError),
        (KEYS, ones(6).astype(np.float16), ecstore.DtypeError),
        (KEYS, ones(6).astype(np.int32), ecstore.DtypeError),
        (KEYS, ones(6).astype(np.complex64), ecstore.DtypeError),
        (KEYS, [["a"] * DIM] * 6, ecstore.DtypeError),
        (KEYS.astype(np.float64), ones(6), ecstore.DtypeError),
        (KEYS.astype(np.bool_), ones(6), ecstore.DtypeError),
        (["a", "b"], ones(2), ecstore.DtypeError),
        ([1.5, 2.5], ones(2), ecstore.DtypeError),
        ([True, False], ones(2), ecstore.DtypeError),
        ([None], ones(1), ecstore.DtypeError),
        (KEYS - 1, ones(6), ecstore.KeyRangeError),
        ([3, -1], ones(2), ecstore.KeyRangeError),
        ([2**64], ones(1), ecstore.KeyRangeError),
        ([np.iinfo(np.int64).min], ones(1), ecstore.KeyRangeError),
        (KEYS, with_value(np.nan), ecstore.NonFiniteError),
        (KEYS, with_value(np.inf), ecstore.NonFiniteError),
        (KEYS, with_value(-np.inf), ecstore.NonFiniteError),
        ([1, 1], np.full((2, DIM), 3e38, np.float32), ecstore.NonFiniteError),  # their sum overflows
    ],
)
def test_a_wrong_push_is_refused_whole(
    table: ecstore.Table, ids: object, grads: object, error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        table.push(ids, grads)  # type: ignore[arg-type]
    assert isinstance(raised.value, ecstore.InputError)
    assert isinstance(raised.value, ValueError)
    assert len(table) == 0


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (KEYS.reshape(2, 3), ecstore.ShapeError),
        (KEYS.astype(np.float32), ecstore.DtypeError),
        ([5, -5], ecstore.KeyRangeError),
        ([2**64], ecstore.KeyRangeError),
    ],
)
def test_wrong_ids_are_refused_by_every_call(table: ecstore.Table, ids: object, error: type[Exception]) -> None:
    for call in (table.pull, table.delete, lambda keys: table.load(keys, ones(len(keys)))):
        with pytest.raises(error):
            call(ids)  # type: ignore[operator]
    assert len(table) == 0


def test_wrong_rows_are_not_loaded(table: ecstore.Table) -> None:
    width = table.spec.row_bytes
    for rows, error in [
        (ones(5), ecstore.ShapeError),
        (ones(6, 3), ecstore.ShapeError),
        (np.zeros((6, width + 8), np.uint8), ecstore.ShapeError),
        (np.zeros((5, width), np.uint8), ecstore.ShapeError),
        (ones(6).astype(np.float64), ecstore.DtypeError),
        (with_value(np.nan), ecstore.NonFiniteError),
    ]:
        with pytest.raises(error):
            table.load(KEYS, rows)
    assert len(table) == 0


def test_one_wrong_table_of_a_batch_keeps_the_others_out(store: ecstore.Store, table: ecstore.Table) -> None:
    other = store.create_table("other", dim=2, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    for wrong in (ones(6, 3), with_value(np.nan)[:, 2:], np.full((6, 2), np.nan, np.float32)):
        with pytest.raises(ecstore.InputError):
            store.push_many({table: (KEYS, ones(6)), other: (KEYS, wrong)})
    assert len(table) == 0
    assert len(other) == 0
    store.drop_table("other")


def test_unknown_tables(store: ecstore.Store, table: ecstore.Table) -> None:
    with pytest.raises(ecstore.UnknownTableError, match="create_table"):
        store.table("nowhere")
    with pytest.raises(ecstore.UnknownTableError):
        store.drop_table("nowhere")
    gone = store.create_table("gone", dim=2, optimizer=ecstore.SGD(lr=1.0), code=CODE)
    store.drop_table("gone")
    for call in (
        lambda: gone.pull(KEYS),
        lambda: gone.push(KEYS, ones(6, 2)),
        lambda: gone.delete(KEYS),
        lambda: gone.export(),
        lambda: len(gone),
    ):
        with pytest.raises(ecstore.UnknownTableError):
            call()


def test_a_client_that_has_not_heard_of_the_end_of_a_table(store: ecstore.Store, bystander: ecstore.Store) -> None:
    """The table is dropped, and made anew, by another client: rows of the new one are not mixed with the old one's."""
    old = store.create_table("again", dim=2, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    old.push(KEYS, ones(6, 2))
    bystander.drop_table("again")
    new = bystander.create_table("again", dim=3, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Zeros())
    assert np.array_equal(new.pull(KEYS), np.zeros((6, 3)))
    try:
        found = old.pull(KEYS)
    except ecstore.UnknownTableError:
        found = old.pull(KEYS)
    assert np.array_equal(found, np.zeros((6, 3)))
    bystander.drop_table("again")


def test_a_table_that_exists_with_other_options(store: ecstore.Store, table: ecstore.Table) -> None:
    same = {"dim": DIM, "optimizer": ecstore.SGD(lr=1.0), "code": CODE, "init": ecstore.Zeros()}
    assert store.create_table("t", **same).spec == table.spec  # type: ignore[arg-type]
    for other in (
        {"dim": DIM + 1},
        {"optimizer": ecstore.SGD(lr=0.5)},
        {"optimizer": ecstore.Adagrad(lr=1.0)},
        {"code": "replicate(2)"},
        {"init": ecstore.Uniform(-1, 1)},
        {"seed": 1},
    ):
        with pytest.raises(ecstore.TableExistsError):
            store.create_table("t", **(same | other))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["rs(3,2)", "rs(2,2)", "replicate(4)", "rs(200,55)"])
def test_a_code_wider_than_the_cluster(store: ecstore.Store, code: str) -> None:
    with pytest.raises(ecstore.CodeError, match="3"):
        store.create_table("wide", dim=2, optimizer=ecstore.SGD(lr=1.0), code=code)
    assert "wide" not in store.tables()


@pytest.mark.parametrize(
    "code", ["rs(200,56)", "rs(0,1)", "rs(1,-1)", "rs(2)", "replicate(0)", "banana", "", "rs(2,1) "]
)
def test_a_code_that_is_none(store: ecstore.Store, code: str) -> None:
    try:
        store.create_table("odd", dim=2, optimizer=ecstore.SGD(lr=1.0), code=code)
    except ecstore.CodeError:
        assert "odd" not in store.tables()
    else:  # spaces around a good name may be forgiven
        assert code.strip() == CODE
        store.drop_table("odd")


@pytest.mark.parametrize(
    "options",
    [
        {"dim": 0},
        {"dim": -1},
        {"dim": 1 << 20},
        {"name": ""},
        {"name": "x" * 200},
        {"name": "line\nbreak"},
        {"dtype": "float16"},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_impossible_tables(store: ecstore.Store, options: dict[str, object]) -> None:
    given = {"name": "impossible", "dim": 2, "optimizer": ecstore.SGD(lr=1.0), "code": CODE} | options
    with pytest.raises(ecstore.InputError):
        store.create_table(**given)  # type: ignore[arg-type]
    assert not {"impossible", options.get("name")} & store.tables().keys()


def test_impossible_optimizers_and_initial_values() -> None:
    for make in (
        lambda: ecstore.SGD(lr=float("nan")),
        lambda: ecstore.SGD(lr=-1.0),
        lambda: ecstore.Adam(lr=0.1, beta1=1.0),
        lambda: ecstore.Uniform(1.0, -1.0),
        lambda: ecstore.Constant(float("inf")),
    ):
        with pytest.raises(ecstore.ConfigError):
            make()


def test_every_uint64_is_a_key(table: ecstore.Table) -> None:
    keys = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64)
    grads = np.arange(24, dtype=np.float32).reshape(6, DIM)
    table.push(keys, grads)
    assert np.array_equal(table.pull(keys), -grads)
    assert np.array_equal(table.pull([2**64 - 1, 0]), -grads[[5, 0]])
    assert np.array_equal(table.pull(np.array([0, 2**63 - 1], np.int64)), -grads[[0, 2]])
    found, rows = table.export()
    assert np.array_equal(found, keys)
    assert np.array_equal(rows, -grads)
    table.delete([2**64 - 1])
    assert np.array_equal(table.pull([2**64 - 1]), np.zeros((1, DIM)))
    table.load([2**64 - 1], ones(1))
    assert np.array_equal(table.pull([2**64 - 1]), ones(1))
    assert len(table) == 6


def test_empty_batches(store: ecstore.Store, table: ecstore.Table) -> None:
    for nothing in ([], np.array([], np.int64), np.array([], np.uint64)):
        assert table.pull(nothing).shape == (0, DIM)
        assert table.pull(nothing).dtype == np.float32
        table.push(nothing, np.zeros((0, DIM), np.float32))
        table.delete(nothing)
        table.load(nothing, np.zeros((0, DIM), np.float32))
    assert store.pull_many({}) == {}
    store.push_many({})
    store.flush()
    assert len(table) == 0
    assert table.export()[1].shape == (0, DIM)
    assert table.export(state=True)[1].shape == (0, table.spec.row_bytes)


def test_duplicate_ids_are_summed_in_input_order(table: ecstore.Table) -> None:
    """In float32 the order shows: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1."""
    big, one = np.full(DIM, 1e8, np.float32), np.ones(DIM, np.float32)
    table.push([7, 8, 7, 8, 7, 8], np.stack([big, big, one, -big, -big, one]))
    assert np.array_equal(table.pull([7, 8]), np.stack([0 * one, -one]))
    assert np.array_equal(table.pull([8, 7, 8]), np.stack([-one, 0 * one, -one])), "pulled twice, told twice"
    assert len(table) == 2


def test_a_batch_larger_than_a_message(table: ecstore.Table) -> None:
    """It travels in several: 3 million rows, 48 MiB of gradients, and more ids than one request may hold."""
    count = 3_000_000
    keys = np.random.default_rng(1).integers(0, 40_000, count)
    table.push(keys, np.ones((count, DIM), np.float32))
    counts = np.bincount(keys, minlength=40_000)
    assert np.array_equal(table.pull(np.arange(40_000))[:, 0], -counts.astype(np.float32))
    assert np.array_equal(table.pull(keys)[:, 3], -counts[keys].astype(np.float32))


def test_more_ids_than_a_request_may_hold(store: ecstore.Store) -> None:
    """Rows of 4 bytes: the ids of a pull reach their bound before the bytes do."""
    narrow = store.create_table("narrow", dim=1, optimizer=ecstore.SGD(lr=1.0), code=CODE, init=ecstore.Constant(2.0))
    count = 3 * (1 << 22) + 300_000  # more than three nodes may be asked for at once
    rows = narrow.pull(np.arange(count))
    assert rows.shape == (count, 1)
    assert (rows == 2.0).all()
    store.drop_table("narrow")


def test_wrong_options_of_calls(store: ecstore.Store, table: ecstore.Table) -> None:
    with pytest.raises(ecstore.InputError, match="ack"):
        table.push(KEYS, ones(6), ack="never")  # type: ignore[arg-type]
    with pytest.raises(ecstore.InputError, match="timeout"):
        ecstore.connect("127.0.0.1:1", timeout=0.0)
    assert len(table) == 0


def test_addresses_that_lead_nowhere(three: object) -> None:
    with pytest.raises(ecstore.UnavailableError):
        ecstore.connect("127.0.0.1:1", timeout=0.2)
    for address in ("", "nonsense", "127.0.0.1:notaport", "127.0.0.1:70000"):
        with pytest.raises(ecstore.EcstoreError):
            ecstore.connect(address, timeout=0.2)
