"""Arithmetic of GF(2^8) on small arrays: the cold half of the codec.

An element is a byte read as a polynomial over GF(2), lowest bit = constant term, taken modulo
x^8 + x^4 + x^3 + x^2 + 1 (0x11d), for which x, the byte 2, generates all 255 non-zero elements. Addition is
XOR, so every element is its own negative.

Everything here works on matrices of coefficients (at most 255 x 255). Row bytes are never touched by these
tables: `ecstore.codec.kernels` does that. The tables take about a millisecond to build at import.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Field elements, coefficients, row bytes.
Bytes: TypeAlias = NDArray[np.uint8]

POLYNOMIAL: Final = 0x11D
#: Number of non-zero elements, and so the order of the generator 2.
ORDER: Final = 255


def _exponentials() -> Bytes:
    """2^0 .. 2^509: twice around, so that the sum of two logarithms needs no reduction."""
    table = np.empty(2 * ORDER, np.uint8)
    element = 1
    for exponent in range(ORDER):
        table[exponent] = table[exponent + ORDER] = element
        element <<= 1
        if element & 0x100:
            element ^= POLYNOMIAL
    assert element == 1, "2 must generate the multiplicative group"
    table.flags.writeable = False
    return table


def _logarithms(exponentials: Bytes) -> NDArray[np.int64]:
    """Discrete logarithm of 1..255; entry 0 is a placeholder that every reader masks out."""
    table = np.zeros(256, np.int64)
    table[exponentials[:ORDER]] = np.arange(ORDER)
    table.flags.writeable = False
    return table


def _products(exponentials: Bytes, logarithms: NDArray[np.int64]) -> Bytes:
    """Full multiplication table: 64 KiB, read only for matrices."""
    table = np.asarray(exponentials[logarithms[:, None] + logarithms[None, :]])
    table[0, :] = 0
    table[:, 0] = 0
    table.flags.writeable = False
    return table


EXP: Final[Bytes] = _exponentials()
LOG: Final[NDArray[np.int64]] = _logarithms(EXP)
MUL: Final[Bytes] = _products(EXP, LOG)


def multiply(a: ArrayLike, b: ArrayLike) -> Bytes:
    """Element-wise product of two broadcastable arrays of field elements."""
    return np.asarray(MUL[np.asarray(a, np.uint8), np.asarray(b, np.uint8)])


def inverse(a: ArrayLike) -> Bytes:
    """Element-wise multiplicative inverse; `ZeroDivisionError` when an element is zero."""
    elements = np.asarray(a, np.uint8)
    if not elements.all():
        raise ZeroDivisionError("0 has no inverse in GF(2^8)")
    return np.asarray(EXP[ORDER - LOG[elements]])


def power_of_two(exponent: ArrayLike) -> Bytes:
    """2 raised to each integer exponent, negative ones too."""
    return np.asarray(EXP[np.asarray(exponent, np.int64) % ORDER])


def nibble_products(coefficients: ArrayLike) -> Bytes:
    """For each coefficient c its table: `uint8[..., 32]`, the kernels' form of c.

    Multiplication by c is linear over GF(2), and a byte is the sum of its low and its high nibble: entries 0..15
    are c times each low nibble, 16..31 c times each high nibble, so c*x is table[x & 15] ^ table[16 + (x >> 4)].
    Entry 1 is c itself.
    """
    nibbles = np.arange(16)
    elements = np.asarray(coefficients, np.uint8)
    return multiply(elements[..., None], np.concatenate([nibbles, nibbles << 4]))
