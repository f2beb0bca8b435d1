"""Matrices over GF(2^8): generator, inverse and the cached decode matrices.

A systematic code keeps its k data shards as they are; parity shard k+i of a stripe is
`sum_j generator(k, m)[i, j] * data_j`. docs/CODEC.md tells why this generator and proves it MDS: every square
submatrix of it is invertible, so any k shards of a stripe determine all the others.

All matrices handed out are cached and read-only; they may be shared between threads.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ecstore.codec import field
from ecstore.codec.field import Bytes
from ecstore.errors import CodeError

#: Largest k+m of a code. The generator below would carry 257; 255 leaves every shard index a byte.
MAX_WIDTH = 255

#: Decode matrices kept. One is at most wanted x k bytes; a cluster uses one for each pattern of lost shards,
#: a handful at a time, so the bound is there for callers that walk through patterns.
DECODE_CACHE_ENTRIES = 512


@lru_cache(maxsize=256)
def generator(k: int, m: int) -> Bytes:
    """Parity coefficients `uint8[m, k]`, read-only. Row i does not depend on m: codes are nested.

    Row 0 is all ones (XOR parity), row 1 the powers 2^j (Horner's rule), row i >= 2 the normalised Cauchy row
    (x_i + 1) / (x_i + 2^-j) with x_i = 2^(i-1). Column 0 is all ones, so `k = 1` is replication.
    Generalised Cauchy matrices: Roth and Seroussi, "On generator matrices of MDS codes", IEEE Trans. IT
    31(6), 1985; row 0 and 1 alone are RAID-6: Anvin, "The mathematics of RAID-6".
    """
    matrix = np.ones((m, k), np.uint8)
    column = field.power_of_two(-np.arange(k))
    if m > 1:
        matrix[1] = field.inverse(column)
    for row in range(2, m):
        x = field.power_of_two(row - 1)
        matrix[row] = field.multiply(x ^ np.uint8(1), field.inverse(x ^ column))
    matrix.flags.writeable = False
    return matrix


def product(a: Bytes, b: Bytes) -> Bytes:
    """Matrix product `uint8[p, q] x uint8[q, r] -> uint8[p, r]`."""
    result = np.zeros((a.shape[0], b.shape[1]), np.uint8)
    for inner in range(a.shape[1]):
        result ^= field.multiply(a[:, inner, None], b[inner])
    return result


def invert(matrix: Bytes) -> Bytes:
    """Inverse of a square matrix by Gauss-Jordan elimination; `CodeError` when it is singular."""
    size = matrix.shape[0]
    work = np.concatenate([matrix, np.eye(size, dtype=np.uint8)], axis=1)
    for column in range(size):
        candidates = np.flatnonzero(work[column:, column])
        if not candidates.size:
            raise CodeError("the matrix is singular: this cannot happen with an MDS code, report it as a defect")
        pivot = column + int(candidates[0])
        if pivot != column:
            work[[column, pivot]] = work[[pivot, column]]
        work[column] = field.multiply(work[column], field.inverse(work[column, column]))
        factors = work[:, column].copy()
        factors[column] = 0
        work ^= field.multiply(factors[:, None], work[column])
    return np.ascontiguousarray(work[:, size:])


def shard_rows(k: int, m: int, indexes: tuple[int, ...]) -> Bytes:
    """Rows of the systematic generator (identity above parity): `uint8[len(indexes), k]`."""
    parity = generator(k, m)
    rows = np.zeros((len(indexes), k), np.uint8)
    for row, index in enumerate(indexes):
        if index < k:
            rows[row, index] = 1
        else:
            rows[row] = parity[index - k]
    return rows


@lru_cache(maxsize=DECODE_CACHE_ENTRIES)
def solve(k: int, m: int, wanted: tuple[int, ...], sources: tuple[int, ...]) -> Bytes:
    """Coefficients that make the `wanted` shards of rs(k, m) from exactly k distinct `sources`.

    Result `uint8[len(wanted), k]`, read-only; its columns follow `sources`. The caller has checked the
    indexes.

    Only the e missing data shards are unknown. With P the parity sources and K the known data,
    P = A*U + B*K, hence U = A^-1 * (P + B*K): an e x e inverse, not a k x k one.
    """
    known = [index for index in sources if index < k]
    parity = [index for index in sources if index >= k]
    missing = sorted(set(range(k)) - set(known))
    position = {index: column for column, index in enumerate(sources)}
    known_columns = [position[index] for index in known]

    data = np.zeros((k, k), np.uint8)  # row j: data shard j as a combination of the sources
    data[known, known_columns] = 1
    if missing:
        equations = shard_rows(k, m, tuple(parity))
        unknown = invert(np.ascontiguousarray(equations[:, missing]))
        data[np.ix_(missing, [position[index] for index in parity])] = unknown
        if known:
            data[np.ix_(missing, known_columns)] = product(unknown, equations[:, known])
    rows = product(shard_rows(k, m, wanted), data)
    rows.flags.writeable = False
    return rows
