"""The slow truth: the codec written a second time, with galois, from the formulas of docs/CODEC.md.

Nothing here shares code with the fast path: field, generator, inverse and shard arithmetic are galois' own.
Tests use it as the oracle and `self_check` compares every kernel with it on the machine at hand. Importing
this module imports galois (about two seconds), so only those two do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import galois
import numpy as np

from ecstore.codec import operations
from ecstore.codec.code import Code
from ecstore.codec.field import Bytes
from ecstore.errors import EcstoreError

#: GF(2^8) as galois builds it: polynomial 0x11d, primitive element 2.
GF: Final[Any] = galois.GF(2**8, irreducible_poly=0x11D, primitive_element=2)


def _bytes(elements: Any) -> Bytes:
    return np.asarray(elements).view(np.ndarray).astype(np.uint8)


def generator(code: Code) -> Bytes:
    """Parity coefficients `uint8[m, k]`: row 0 is 1, row 1 is 2^j, row i >= 2 is (x + 1) / (x + 2^-j) with x
    = 2^(i-1)."""
    two = GF(2)
    rows = GF.Ones((code.m, code.k))
    for j in range(code.k):
        if code.m > 1:
            rows[1, j] = two**j
        for i in range(2, code.m):
            rows[i, j] = (two ** (i - 1) + GF(1)) / (two ** (i - 1) + two**-j)
    return _bytes(rows)


def shard_matrix(code: Code) -> Any:
    """All shards as combinations of the data: identity above the generator, GF[k+m, k]."""
    return GF(np.concatenate([np.eye(code.k, dtype=np.uint8), generator(code)]))


def decode_matrix(code: Code, wanted: Sequence[int], have: Sequence[int]) -> Bytes:
    """`uint8[len(wanted), k]` by a plain k x k inverse; `have` are exactly k shards."""
    rows = shard_matrix(code)
    return _bytes(rows[list(wanted)] @ np.linalg.inv(rows[list(have)]))


def encode(code: Code, data: Sequence[Bytes]) -> list[Bytes]:
    """Parity shards, one scalar product for each byte position."""
    return _multiply(generator(code), data)


def decode(code: Code, wanted: Sequence[int], have: Mapping[int, Bytes]) -> dict[int, Bytes]:
    """Wanted shards from the k of `have` with the lowest indexes."""
    used = sorted(have)[: code.k]
    rows = _multiply(decode_matrix(code, wanted, used), [have[index] for index in used])
    return dict(zip(wanted, rows, strict=True))


def scale_add(dst: Bytes, src: Bytes, coefficient: int) -> Bytes:
    """dst + coefficient * src, as a new array."""
    return _bytes(GF(dst) + GF(coefficient) * GF(src))


def apply_delta(parity: Bytes, slots: Sequence[int], delta: Bytes, coefficient: int) -> Bytes:
    """The parity shard after the deltas, applied one after the other, as a new array."""
    result = parity.copy()
    for slot, row in zip(slots, delta, strict=True):
        result[slot] = scale_add(result[slot], row, coefficient)
    return result


def _multiply(matrix: Bytes, shards: Sequence[Bytes]) -> list[Bytes]:
    """Matrix times shards: each uint8[n, row_bytes]."""
    flat = GF(np.stack([shard.reshape(-1) for shard in shards]))
    return [row.reshape(shards[0].shape) for row in _bytes(GF(matrix) @ flat)] if len(matrix) else []


#: Row sizes of the self check: below, at and above one and several vector registers, and off their multiples.
_ROW_BYTES: Final = (8, 24, 64, 264)
_CODES: Final = ("none", "replicate(3)", "rs(2,1)", "rs(3,2)", "rs(4,2)", "rs(5,4)")


def self_check(seed: int = 0) -> None:
    """Compare every kernel with galois, on small inputs; `EcstoreError` at the first difference."""
    random = np.random.default_rng(seed)
    _check_scale_add(random)
    for row_bytes in _ROW_BYTES:
        _check_apply_delta(random, row_bytes)
        for name in _CODES:
            _check_code(random, Code.parse(name), row_bytes)
    # More than one block of every kernel, with a rest.
    _check_code(random, Code.parse("rs(3,3)"), row_bytes=2056, rows=9)


def _check_scale_add(random: np.random.Generator) -> None:
    """Every coefficient times every byte."""
    src = np.arange(256, dtype=np.uint8)
    dst = random.integers(0, 256, 256, dtype=np.uint8)
    for coefficient in range(256):
        actual = dst.copy()
        operations.scale_add(actual, src, coefficient)
        _compare(f"scale_add by {coefficient}", actual, scale_add(dst, src, coefficient))


def _check_apply_delta(random: np.random.Generator, row_bytes: int) -> None:
    slots = random.integers(0, 7, 20)  # more rows than slots: repetitions
    delta = random.integers(0, 256, (20, row_bytes), dtype=np.uint8)
    parity = random.integers(0, 256, (7, row_bytes), dtype=np.uint8)
    for coefficient in (0, 1, 2, 3, 142, 255):
        expected = apply_delta(parity, slots.tolist(), delta, coefficient)
        for typed in (slots.astype(np.uint32), slots.astype(np.int64)):
            actual = parity.copy()
            operations.apply_delta(actual, typed, delta, coefficient)
            _compare(f"apply_delta by {coefficient}, rows of {row_bytes}", actual, expected)


def _check_code(random: np.random.Generator, code: Code, row_bytes: int, rows: int = 5) -> None:
    data = [random.integers(0, 256, (rows, row_bytes), dtype=np.uint8) for _ in range(code.k)]
    parity = operations.encode(code, data)
    where = f"{code}, rows of {row_bytes}"
    _compare(f"coefficients of {code}", code.coefficients, generator(code))
    for actual, expected in zip(parity, encode(code, data), strict=True):
        _compare(f"encode {where}", actual, expected)
    shards = dict(enumerate(data + parity))
    for first in range(code.width):
        lost = sorted((first + step) % code.width for step in range(code.m))
        have = {index: shard for index, shard in shards.items() if index not in lost}
        for index, actual in operations.decode(code, lost, have).items():
            _compare(f"decode {where}, lost {lost}, shard {index}", actual, shards[index])


def _compare(what: str, actual: Bytes, expected: Bytes) -> None:
    if not np.array_equal(actual, expected):
        raise EcstoreError(
            f"{what}: the kernel compiled on this machine is wrong. Do not serve from it; clear numba's "
            "cache and try again. If it stays, report the processor and the versions of numba and llvmlite"
        )
