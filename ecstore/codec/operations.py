"""The checked doors to the kernels: argument checks and choice of kernel, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ecstore.codec import field, kernels
from ecstore.codec.code import Code, decode_matrix
from ecstore.codec.field import Bytes
from ecstore.codec.kernels import Slots
from ecstore.errors import CodeError, DtypeError, KeyRangeError, ShapeError

#: Rows are a multiple of this many bytes (as in slabs): every row is whole 8-byte words.
WORD_BYTES: Final = 8

#: Bytes of one shard that `mismatched_stripes` encodes at a time: bounds its scratch memory.
VERIFY_BLOCK_BYTES: Final = 1 << 20

#: `field.nibble_products` of every coefficient: uint8[256, 32].
_TABLES: Final = field.nibble_products(np.arange(256))

AnyArray = TypeVar("AnyArray", bound=NDArray[Any])


def scale_add(dst: Bytes, src: Bytes, coefficient: int) -> None:
    """dst ^= coefficient * src, byte by byte in GF(2^8).

    `dst`, `src`: uint8 arrays of one shape. Writes `dst` (C-contiguous), reads `src`; they must not overlap
    (not checked). Calls commute: partial sums may be made anywhere, in any order, and added up later.

    Raises `ShapeError`, `DtypeError`, `CodeError`; nothing is written then.
    """
    _check_bytes(src, "src")
    _check_written(dst, "dst")
    if dst.shape != src.shape:
        raise ShapeError(f"dst has shape {dst.shape}, src {src.shape}; they must be equal")
    kernels.scale_add(dst.reshape(-1), _behaved(src).reshape(-1), _table_of(coefficient))


def apply_delta(parity: Bytes, slots: Slots, delta: Bytes, coefficient: int) -> None:
    """parity[slots[i]] ^= coefficient * delta[i]: one parity shard follows a change of one data shard.

    `parity`: uint8[capacity, row_bytes], C-contiguous, aligned to 8 bytes; rows `slots` are written. `delta`:
    uint8[n, row_bytes], aligned to 8 bytes, old XOR new bytes of the data shard's rows; read. `slots`:
    uint32[n] or int64[n]; a slot may occur several times, each occurrence counts. `coefficient`:
    `code.coefficients[i, j]` for parity shard k+i and data shard j. Applying a delta a second time undoes it.

    Raises `ShapeError`, `DtypeError`, `CodeError`, and `KeyRangeError` for a slot outside of `parity`;
    nothing is written then. Not checked: that `delta` is the whole truth, and that `parity` and `delta` do
    not overlap.
    """
    _check_rows(delta, "delta")
    _check_rows(parity, "parity")
    _check_written(parity, "parity")
    if parity.shape[1] != delta.shape[1]:
        raise ShapeError(f"parity rows have {parity.shape[1]} bytes, delta rows {delta.shape[1]}: other table?")
    if slots.dtype != np.uint32 and slots.dtype != np.int64:
        raise DtypeError(f"slots have dtype {slots.dtype}; use uint32 or int64")
    if slots.shape != delta.shape[:1]:
        raise ShapeError(f"slots have shape {slots.shape}, expected {delta.shape[:1]}: one for each delta row")
    outcome = kernels.scatter(parity, _behaved(slots), _behaved(delta), _table_of(coefficient))
    if outcome == kernels.NOT_ALIGNED:
        raise ShapeError(f"parity and delta must start at a multiple of {WORD_BYTES} bytes; pass a copy")
    if outcome == kernels.SLOT_OUT_OF_RANGE:
        raise KeyRangeError(
            f"slots {slots.min()}..{slots.max()} are not all inside of the {len(parity)} slots of the parity "
            "shard; give it as many slots as its data shards may use"
        )


def encode(code: Code, data: Sequence[Bytes], *, out: Sequence[Bytes] | None = None) -> list[Bytes]:
    """The m parity shards of k data shards: each uint8[n, row_bytes].

    `data`: k C-contiguous arrays of one shape, only read. `out`: m arrays of that shape to write into (and
    return), not overlapping `data` (not checked); new ones when None. Large new arrays cost more than the
    arithmetic, in page faults: callers that encode block after block pass `out`.

    Raises `CodeError` for a wrong number of shards, `ShapeError`, `DtypeError`; nothing is written then.
    """
    if len(data) != code.k:
        raise CodeError(f"{code.name} encodes {code.k} data shards, {len(data)} given")
    sources = _sources(data, range(code.k))
    shape = data[0].shape
    if out is None:
        parity = [np.empty(shape, np.uint8) for _ in range(code.m)]
    elif len(out) != code.m:
        raise CodeError(f"{code.name} has {code.m} parity shards, out has {len(out)}")
    else:
        parity = list(out)
    if parity:
        _combine(_outputs(parity, shape), _encoding(code), sources, data[0].nbytes)
    return parity


def decode(
    code: Code, wanted: Sequence[int], have: Mapping[int, Bytes], *, out: Mapping[int, Bytes] | None = None
) -> dict[int, Bytes]:
    """The `wanted` shards, data or parity, from any k that survived: {shard index: uint8[n, row_bytes]}.

    `have`: shard index -> rows, C-contiguous and of one shape, of the same slots *at the same cut*; only
    read. Of more than k the lowest indexes are used: data needs least arithmetic, then XOR parity. `out`:
    arrays to write wanted shards into (and return), not overlapping `have` (not checked); shards not in it
    get new arrays. A wanted shard that `have` holds is copied, never aliased.

    Raises `CodeError` for fewer than k shards or an unknown index, `ShapeError`, `DtypeError`; nothing is
    written then. Not checked: that the shards belong together. Rows of different cuts decode to garbage.
    """
    plan = _decoding(code, tuple(wanted), tuple(sorted(have)))
    sources = dict(zip(have, _sources(list(have.values()), list(have)), strict=True))
    first = have[plan.sources[0]]
    shape = first.shape
    result: dict[int, Bytes] = {}
    for index in plan.wanted:
        given = out.get(index) if out else None
        result[index] = np.empty(shape, np.uint8) if given is None else given
    outputs = dict(zip(result, _outputs(list(result.values()), shape), strict=True))
    for index in plan.copied:
        np.copyto(result[index], have[index])
    if plan.computed:
        _combine([outputs[i] for i in plan.computed], plan.sums, [sources[i] for i in plan.sources], first.nbytes)
    return result


def mismatched_stripes(code: Code, shards: Sequence[Bytes]) -> NDArray[np.int64]:
    """Slots of the stripes whose parity is not that of their data: int64[], ascending; empty: all is well.

    `shards`: all k+m shards in index order, C-contiguous and of one shape, only read. Works in blocks, so its
    scratch memory is bounded: m times `VERIFY_BLOCK_BYTES`. It can't tell which shard is wrong.

    Raises `CodeError`, `ShapeError`, `DtypeError`.
    """
    if len(shards) != code.width:
        raise CodeError(f"{code.name} has {code.width} shards, {len(shards)} given; give all, in index order")
    _sources(shards, range(code.width))
    rows, row_bytes = shards[0].shape
    step = max(1, VERIFY_BLOCK_BYTES // max(1, row_bytes))
    found = [np.empty(0, np.int64)]
    for start in range(0, rows, step):
        block = [shard[start : start + step] for shard in shards]
        wrong = np.zeros(len(block[0]), np.bool_)
        for stored, computed in zip(block[code.k :], encode(code, block[: code.k]), strict=True):
            wrong |= (stored != computed).any(axis=1)
        found.append(start + np.flatnonzero(wrong))
    return np.concatenate(found)


def verify(code: Code, shards: Sequence[Bytes]) -> bool:
    """True when every stripe's parity is that of its data; see `mismatched_stripes`."""
    return mismatched_stripes(code, shards).size == 0


def warm_up() -> None:
    """Call every kernel once on tiny arrays of the types used in service, so that no later call compiles.

    Loading from the disk cache takes some 0.2 s; compiling, once on a machine, some seconds.
    """
    rows = np.zeros((2, WORD_BYTES), np.uint8)
    scale_add(rows.copy(), rows, 3)
    apply_delta(rows.copy(), np.arange(2, dtype=np.uint32), rows, 3)
    apply_delta(rows.copy(), np.arange(2, dtype=np.int64), rows, 3)
    code = Code.parse("rs(2,3)")
    decode(code, [0, 1], dict(enumerate(encode(code, [rows, rows]), start=code.k)))


@dataclass(frozen=True, slots=True)
class _Sums:
    """A matrix of coefficients as `kernels.combine` takes it: outputs are its rows, sources its columns."""

    tables: Bytes  #: uint8[columns, rows, 32]
    first: int  #: what is known of its first rows, see there

    @classmethod
    def of(cls, matrix: Bytes) -> _Sums:
        first = kernels.GENERAL
        if len(matrix) and (matrix[0] == 1).all():  # such rows have faster ways than products
            powers = len(matrix) > 1 and np.array_equal(matrix[1], field.power_of_two(np.arange(matrix.shape[1])))
            first = kernels.XOR_AND_POWERS if powers else kernels.XOR_FIRST
        return cls(_TABLES.take(matrix.T, axis=0), first)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """How the wanted shards come about, by a pattern of losses."""

    wanted: tuple[int, ...]  #: as plain ints
    copied: tuple[int, ...]  #: wanted and there
    computed: tuple[int, ...]  #: wanted and lost: the outputs of `sums`
    sources: tuple[int, ...]  #: its sources
    sums: _Sums


@lru_cache(maxsize=64)
def _encoding(code: Code) -> _Sums:
    return _Sums.of(code.coefficients)


@lru_cache(maxsize=128)  # patterns of losses are few; the largest takes 0.5 MiB
def _decoding(code: Code, wanted: tuple[int, ...], have: tuple[int, ...]) -> _Decoding:
    wanted, have = code.check_indexes(wanted, "wanted"), code.check_indexes(have, "have")
    computed = tuple(dict.fromkeys(index for index in wanted if index not in have))
    sums = _Sums.of(decode_matrix(code, computed, have))
    return _Decoding(wanted, tuple(index for index in wanted if index in have), computed, have[: code.k], sums)


def _combine(outputs: list[int], sums: _Sums, sources: list[int], size: int) -> None:
    """Outputs = sums of sources, all by address, of `size` bytes each. The callers hold the arrays meanwhile."""
    kernels.combine(np.array(outputs + sources, np.uint64), sums.tables, sums.first, size)


def _sources(shards: Sequence[Bytes], names: Sequence[int]) -> list[int]:
    """Addresses of shards that are read, after checks; at least one, as every code has k >= 1."""
    _load()
    try:
        rows, row_bytes = shards[0].shape
        found = [kernels.source_address(array, rows, row_bytes) for array in shards]
    except (TypeError, ValueError):
        found = [-1]
    if -1 in found:  # not told what is wrong, nor surely wrong: NumPy has equal dtypes that numba does not know
        for array, name in zip(shards, names, strict=True):
            _check_rows(array, f"shard {name}")
            if not array.flags.c_contiguous:
                raise ShapeError(f"shard {name} is not C-contiguous; pass a copy")
            if array.shape != shards[0].shape:
                raise ShapeError(
                    f"shard {name} has shape {array.shape}, others {shards[0].shape}: give the same slots of each"
                )
        found = [array.ctypes.data for array in shards]
    return found  # type: ignore[return-value]


def _outputs(arrays: Sequence[Bytes], shape: tuple[int, ...]) -> list[int]:
    """Addresses of arrays that are written, after checks."""
    rows, row_bytes = shape
    try:
        found = [kernels.output_address(array, rows, row_bytes) for array in arrays]
    except TypeError:
        found = [-1]
    if -1 in found:
        for array in arrays:
            _check_written(array, "an out array")
            if array.shape != shape:
                raise ShapeError(f"an out array has shape {array.shape}, the shards {shape}; they must be equal")
        found = [array.ctypes.data for array in arrays]
    return found  # type: ignore[return-value]


@lru_cache(maxsize=1)
def _load() -> None:
    """Once in a process, before the first address is asked for."""
    kernels.load()


def _table_of(coefficient: int) -> Bytes:
    if not 0 <= coefficient <= 255:
        raise CodeError(f"coefficient {coefficient} is no element of GF(2^8); take it from code.coefficients")
    return np.asarray(_TABLES[coefficient])


def _behaved(array: AnyArray) -> AnyArray:
    """The array, or a copy when it is read-only or strided: kernels are compiled for plain arrays alone, and
    a call with another kind would compile for seconds in the middle of service."""
    return array if array.flags.carray else array.copy()


def _check_bytes(array: Bytes, what: str) -> None:
    if array.dtype.char != "B":
        raise DtypeError(f"{what} has dtype {array.dtype}; the codec takes raw bytes: .view(numpy.uint8)")


def _check_written(array: Bytes, what: str) -> None:
    _check_bytes(array, what)
    if not array.flags.carray:
        raise ShapeError(f"{what} is written and so must be C-contiguous and writable; pass a plain array")


def _check_rows(array: Bytes, what: str) -> None:
    _check_bytes(array, what)
    if array.ndim != 2 or array.shape[1] % WORD_BYTES:
        raise ShapeError(
            f"{what} has shape {array.shape}; rows are (n, row_bytes), row_bytes a multiple of {WORD_BYTES}"
        )
