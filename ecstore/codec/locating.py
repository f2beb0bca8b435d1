"""Which shard of a stripe is wrong, when the code can tell.

The *syndrome* of parity shard i of a stripe is what it holds XOR what the data shards encode to. All zero: the
stripe agrees. Let shard x alone be wrong by e (wrong bytes XOR right ones). Then, the code being linear, the
syndromes are c_i * e for every i, where c is column x of the coefficients for a data shard, and a unit vector for a
parity shard. With m >= 2 no two shards can leave the same syndromes: their columns would be dependent, and any m
columns of an MDS code are not. With m = 1 every shard can: nothing is attributable.

A stripe is judged by all of its bytes together: one shard must explain all m syndromes at every byte, or none is
named. Two wrong shards are therefore taken for a third one only where they are wrong at the very same bytes and in
the very proportion of the third, and with m >= 3 never (two errors are within the distance of the code, m + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ecstore.codec import field
from ecstore.codec.code import Code
from ecstore.codec.field import Bytes
from ecstore.codec.operations import encode, scale_add
from ecstore.errors import CodeError

I64 = NDArray[np.int64]

#: In the place of a shard index: no single shard explains what is wrong.
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class WrongStripes:
    """Stripes that do not agree. Arrays belong to the receiver."""

    positions: I64  #: of the stripes among those that were given, int64[n], ascending
    shards: I64  #: int64[n]: index of the one wrong shard, or UNKNOWN
    errors: Bytes  #: uint8[n, row_bytes]: bytes of that shard XOR the right ones; all zero where UNKNOWN

    def __len__(self) -> int:
        return int(self.positions.size)


def syndromes(code: Code, shards: Sequence[Bytes]) -> list[Bytes]:
    """What each parity shard holds XOR what it should: m new arrays uint8[n, row_bytes].

    `shards`: all k+m shards in index order, the same slots at the same cut, C-contiguous and of one shape; only
    read. Raises `CodeError` for another number of shards, `ShapeError`, `DtypeError`.
    """
    if len(shards) != code.width:
        raise CodeError(f"{code.name} has {code.width} shards, {len(shards)} given; give all, in index order")
    found = encode(code, shards[: code.k])
    for computed, stored in zip(found, shards[code.k :], strict=True):
        np.bitwise_xor(computed, stored, out=computed)
    return found


def locate(code: Code, found: Sequence[Bytes]) -> WrongStripes:
    """The stripes whose syndromes are not all zero, and the one shard that explains each.

    `found`: as `syndromes` gives them; only read. Raises `CodeError` when they are not m.
    """
    if len(found) != code.m:
        raise CodeError(f"{code.name} has {code.m} syndromes, {len(found)} given; take them from syndromes()")
    if not found:
        return WrongStripes(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.uint8))
    disagree = np.logical_or.reduce([rows.any(axis=1) for rows in found])
    positions = np.flatnonzero(disagree)
    wrong = [rows[positions] for rows in found]
    shards = np.full(positions.size, UNKNOWN, np.int64)
    errors = np.zeros_like(wrong[0])
    for index in range(code.width if code.m >= 2 else 0):
        rest = np.flatnonzero(shards == UNKNOWN)
        if not rest.size:
            break
        explained, error = _explained_by(_column(code, index), [rows[rest] for rows in wrong])
        shards[rest[explained]] = index
        errors[rest[explained]] = error[explained]
    return WrongStripes(positions, shards, errors)


def _column(code: Code, index: int) -> list[int]:
    """What an error of 1 in shard `index` adds to each syndrome."""
    if index < code.k:
        return [int(row[index]) for row in code.coefficients]
    return [int(parity == index - code.k) for parity in range(code.m)]


def _explained_by(column: Sequence[int], wrong: Sequence[Bytes]) -> tuple[NDArray[np.bool_], Bytes]:
    """For each stripe, whether one error in the shard of this column makes these syndromes; and that error."""
    first = next(number for number, coefficient in enumerate(column) if coefficient)
    error = _times(wrong[first], int(field.inverse(column[first])))
    explained = np.ones(error.shape[0], np.bool_)
    for rows, coefficient in zip(wrong, column, strict=True):
        explained &= (rows == _times(error, coefficient)).all(axis=1)
    return explained, error


def _times(rows: Bytes, coefficient: int) -> Bytes:
    out = np.zeros_like(rows)
    scale_add(out, rows, coefficient)
    return out
