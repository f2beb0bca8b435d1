"""The laws of GF(2^8), by name, and the tables against galois, which builds the field another way."""

import galois
import numpy as np
import pytest

from ecstore.codec import field, reference

ALL = np.arange(256, dtype=np.uint8)
A, B = ALL[:, None], ALL[None, :]


def test_polynomial_is_primitive_with_element_two():
    assert reference.GF.irreducible_poly == galois.Poly.Int(field.POLYNOMIAL)
    assert int(reference.GF.primitive_element) == 2


def test_whole_multiplication_table_equals_galois():
    expected = np.asarray(reference.GF(A) * reference.GF(B))
    assert np.array_equal(field.multiply(A, B), expected)


def test_inverses_equal_galois():
    assert np.array_equal(field.inverse(ALL[1:]), np.asarray(reference.GF(1) / reference.GF(ALL[1:])))


def test_commutativity():
    assert np.array_equal(field.MUL, field.MUL.T)


def test_identity_and_absorbing_zero():
    assert np.array_equal(field.multiply(ALL, 1), ALL)
    assert not field.multiply(ALL, 0).any()


def test_every_nonzero_element_times_its_inverse_is_one():
    assert (field.multiply(ALL[1:], field.inverse(ALL[1:])) == 1).all()


@pytest.mark.parametrize("a", [0, 1, 2, 3, 0x1D, 0x80, 0x8E, 0xFF])
def test_associativity(a):
    assert np.array_equal(field.multiply(field.multiply(a, A), B), field.multiply(a, field.multiply(A, B)))


@pytest.mark.parametrize("a", [0, 1, 2, 3, 0x1D, 0x80, 0x8E, 0xFF])
def test_distributivity(a):
    assert np.array_equal(field.multiply(a, A ^ B), field.multiply(a, A) ^ field.multiply(a, B))


def test_no_zero_divisors():
    assert field.MUL[1:, 1:].all()


def test_powers_of_two_go_round_after_255():
    exponents = np.arange(-300, 600)
    assert np.array_equal(field.power_of_two(exponents), field.power_of_two(exponents + 255))
    assert np.array_equal(field.power_of_two([0, 1, 7, 8, -1]), [1, 2, 128, 0x1D, field.inverse(2)])


def test_zero_has_no_inverse():
    with pytest.raises(ZeroDivisionError):
        field.inverse([3, 0])


def test_nibble_products_spell_out_multiplication():
    products = field.nibble_products(ALL)
    assert products.shape == (256, 32)
    assert np.array_equal(products[:, 1], ALL)
    bytes_ = np.arange(256)
    assert np.array_equal(products[:, bytes_ & 15] ^ products[:, 16 + (bytes_ >> 4)], field.MUL)


def test_tables_are_read_only():
    for table in (field.EXP, field.LOG, field.MUL):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1
