"""Names of codes, the generator (MDS-ness included) and decode matrices."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecstore.codec import Code, coefficients, decode_matrix, field, matrix, reference
from ecstore.errors import CodeError

SMALL = [(k, m) for k in range(1, 9) for m in range(8) if k + m <= 8]


@pytest.mark.parametrize(
    ("text", "k", "m", "name"),
    [
        ("rs(3,2)", 3, 2, "rs(3,2)"),
        (" RS ( 03 , 2 ) ", 3, 2, "rs(3,2)"),
        ("rs(1,2)", 1, 2, "rs(1,2)"),
        ("rs(4,0)", 4, 0, "rs(4,0)"),
        ("rs(200,55)", 200, 55, "rs(200,55)"),
        ("replicate(3)", 1, 2, "replicate(3)"),
        ("replicate( 1 )", 1, 0, "replicate(1)"),
        ("none", 1, 0, "none"),
    ],
)
def test_parse(text, k, m, name):
    code = Code.parse(text)
    assert (code.k, code.m, code.name, code.width, str(code)) == (k, m, name, k + m, name)
    assert Code.parse(code.name) == code == pickle.loads(pickle.dumps(code))


@pytest.mark.parametrize(
    "text",
    ["", "rs", "rs(3)", "rs(3,2", "rs(-1,2)", "rs(0,2)", "rs(3;2)", "rs(1.5,2)", "rs(254,2)", "rs(9999,9999)",
     "replicate(0)", "replicate(256)", "replicate()", "raid6", "none(1)", "rs(٣,2)", "rs(99999999999,1)",
     3, None],
)  # fmt: skip
def test_parse_refuses(text):
    with pytest.raises(CodeError) as caught:
        Code.parse(text)
    assert len(str(caught.value)) > 30, "the message must help"


@pytest.mark.parametrize("fields", [(3, 2, "rs(3,1)"), (3, 2, "rs(03,2)"), (2, 0, "none"), (2, 1, "replicate(2)")])
def test_a_code_cannot_carry_a_name_that_is_not_its_own(fields):
    with pytest.raises(CodeError):
        Code(*fields)


@pytest.mark.parametrize(("k", "m"), [*SMALL, (10, 4), (20, 30), (251, 4), (2, 253), (1, 254), (253, 2)])
def test_generator_equals_the_formula_evaluated_by_galois(k, m):
    code = Code.parse(f"rs({k},{m})")
    assert np.array_equal(code.coefficients, reference.generator(code))
    assert coefficients(code) is code.coefficients
    assert not code.coefficients.flags.writeable


def test_generator_rows_that_make_kernels_fast():
    rows = Code.parse("rs(200,55)").coefficients
    assert (rows[0] == 1).all(), "row 0 is XOR"
    assert np.array_equal(rows[1], field.power_of_two(np.arange(200))), "row 1 is Horner's"
    assert (rows[:, 0] == 1).all(), "column 0 is replication"
    assert np.array_equal(rows[:3, :5], Code.parse("rs(5,3)").coefficients), "codes are nested"
    assert (Code.parse("replicate(5)").coefficients == 1).all()


@pytest.mark.parametrize(("k", "m"), SMALL)
def test_mds_every_square_submatrix_is_invertible(k, m):
    rows = reference.generator(Code.parse(f"rs({k},{m})"))
    for size in range(1, min(k, m) + 1):
        for chosen in itertools.product(itertools.combinations(range(m), size), itertools.combinations(range(k), size)):
            assert np.linalg.det(reference.GF(rows[np.ix_(*chosen)])) != 0, chosen


@pytest.mark.parametrize(("k", "m"), [(127, 128), (128, 127), (252, 3), (3, 252), (250, 5)])
def test_mds_of_wide_codes_for_small_submatrices(k, m):
    """All entries, all 2x2 minors of neighbouring rows, and random larger submatrices."""
    rows = Code.parse(f"rs({k},{m})").coefficients
    assert rows.all()
    for first in range(m - 1):
        ratios = field.multiply(rows[first], field.inverse(rows[first + 1]))
        assert len(np.unique(ratios)) == k, "two columns are dependent in two rows"
    random = np.random.default_rng(k)
    for _ in range(20):
        size = int(random.integers(2, min(k, m, 40) + 1))
        part = rows[np.ix_(random.choice(m, size, replace=False), random.choice(k, size, replace=False))]
        inverse = matrix.invert(np.ascontiguousarray(part))
        assert np.array_equal(matrix.product(part, inverse), np.eye(size, dtype=np.uint8))


@pytest.mark.parametrize(("k", "m"), [(1, 3), (3, 2), (4, 3), (2, 4)])
def test_decode_matrix_equals_galois_for_every_choice_of_survivors(k, m):
    code = Code.parse(f"rs({k},{m})")
    wanted = tuple(range(code.width))
    for chosen in itertools.combinations(range(code.width), k):
        have = chosen[::-1] if sum(chosen) % 2 else chosen  # the order of columns follows the order of have
        assert np.array_equal(decode_matrix(code, wanted, have), reference.decode_matrix(code, wanted, have))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_decode_matrix_of_wide_codes(data):
    k = data.draw(st.integers(1, 254))
    m = data.draw(st.integers(1, 255 - k))
    code = Code.parse(f"rs({k},{m})")
    order = data.draw(st.permutations(range(code.width)))
    have, wanted = tuple(order[:k]), tuple(order[k : k + 6])
    rows = matrix.shard_rows(k, m, have)
    product = matrix.product(decode_matrix(code, wanted, have), rows)
    assert np.array_equal(product, matrix.shard_rows(k, m, wanted))


def test_decode_matrix_takes_the_first_k_of_have_and_is_cached_read_only():
    code = Code.parse("rs(3,2)")
    first = decode_matrix(code, (1,), (0, 2, 3, 4))
    assert first is decode_matrix(code, [1], [0, 2, 3])
    assert not first.flags.writeable
    assert np.array_equal(first, [[1, 1, 1]]), "one loss, XOR parity"
    assert decode_matrix(code, (), (0, 1, 2)).shape == (0, 3)


@pytest.mark.parametrize(
    ("wanted", "have", "words"),
    [
        ((0,), (1, 2), "needs 3 shards"),
        ((0,), (1, 2, 2), "twice"),
        ((5,), (1, 2, 3), "wanted names shard 5"),
        ((0,), (1, 2, -1), "have names shard -1"),
    ],
)
def test_decode_matrix_refuses(wanted, have, words):
    with pytest.raises(CodeError, match=words):
        decode_matrix(Code.parse("rs(3,2)"), wanted, have)


def test_singular_matrix_is_an_error_not_a_result():
    with pytest.raises(CodeError, match="singular"):
        matrix.invert(np.array([[1, 2], [2, 4]], np.uint8))


def test_public_names_are_what_they_say_whatever_was_imported_before() -> None:
    """Those that need the compiler come when they are first used; no module of the package may stand in their place."""
    import importlib
    import pkgutil
    import types

    from ecstore import codec

    for module in pkgutil.iter_modules(codec.__path__):
        importlib.import_module(f"ecstore.codec.{module.name}")
    for name in codec.__all__:
        assert not isinstance(getattr(codec, name), types.ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = codec.nothing
