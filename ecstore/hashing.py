"""Seeded 64-bit hashes: which shard a key belongs to, and the initial weights of a key.

Everything here is integer arithmetic modulo 2**64 and single float32 operations, so that every machine
computes the same shard and the same bits. The mixing function is the finaliser of SplitMix64 (Steele, Lea,
Flood: "Fast splittable pseudorandom number generators", 2014), a bijection of the 64-bit numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore.jit import kernel
from ecstore.tables import Initializer, Uniform

KeyArray: TypeAlias = npt.NDArray[np.uint64]

_WORD = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_S8, _S32, _S40 = np.uint64(8), np.uint64(32), np.uint64(40)
_LOW24 = np.uint64(0xFFFFFF)
_UNIT = np.float32(2.0**-24)
#: Different uses of one seed must not share a hash.
_SHARD_SALT = 0x51AFD7ED558CCD25
_WEIGHT_SALT = 0xC4CEB9FE1A85EC53


def mix64(values: KeyArray) -> KeyArray:
    """SplitMix64's finaliser of each element (u64 array of any shape), in NumPy."""
    mixed = (values ^ (values >> _S30)) * _MUL1
    mixed = (mixed ^ (mixed >> _S27)) * _MUL2
    result: KeyArray = mixed ^ (mixed >> _S31)
    return result


def mix64_int(value: int) -> int:
    """`mix64` of one Python int modulo 2**64."""
    return int(mix64(np.array([value & _WORD], np.uint64))[0])


@kernel
def _mix(value: np.uint64) -> np.uint64:
    mixed = (value ^ (value >> _S30)) * _MUL1
    mixed = (mixed ^ (mixed >> _S27)) * _MUL2
    return mixed ^ (mixed >> _S31)


@lru_cache(maxsize=256)
def shard_seed(seed: int) -> np.uint64:
    """The number XORed to keys before `shard_of` mixes them (for kernels that fuse the routing hash)."""
    return np.uint64(mix64_int(seed ^ _SHARD_SALT))


def weight_seed(table_seed: int) -> np.uint64:
    """The number XORed to keys before `initial_weights` mixes them (for kernels that fuse both)."""
    return np.uint64(mix64_int(table_seed ^ _WEIGHT_SALT))


@kernel
def _shard_of(keys: KeyArray, salt: np.uint64, shards: np.uint64, out: npt.NDArray[np.uint32]) -> None:
    for i in range(len(keys)):
        out[i] = ((_mix(keys[i] ^ salt) >> _S32) * shards) >> _S32


def shard_of(keys: KeyArray, seed: int, shards: int) -> npt.NDArray[np.uint32]:
    """Data shard number u32[n] in 0..shards-1 of each key u64[n].

    The upper 32 bits of the hash times `shards`, upper half: the bias is below shards / 2**32.
    """
    out = np.empty(len(keys), np.uint32)
    _shard_of(keys, shard_seed(seed), np.uint64(shards), out)
    return out


@kernel
def _count_strays(keys: KeyArray, salt: np.uint64, shards: np.uint64, shard: np.uint64) -> int:
    strays = 0
    for i in range(len(keys)):
        strays += (((_mix(keys[i] ^ salt) >> _S32) * shards) >> _S32) != shard
    return strays


def strays(keys: KeyArray, seed: int, shards: int, shard: int) -> int:
    """How many of the keys u64[n] (C-contiguous, writable) do not belong to data shard number `shard` of `shards`."""
    return int(_count_strays(keys, shard_seed(seed), np.uint64(shards), np.uint64(shard)))


@kernel
def _initial_weights(
    keys: KeyArray,
    salt: np.uint64,
    low: np.float32,
    span: np.float32,
    top: np.float32,
    out: npt.NDArray[np.float32],
) -> None:
    # One 64-bit hash serves two columns: bits 40..63 the even, bits 8..31 the odd one. The same text stands
    # in ecstore/node/kernels.py (compiled code is cached per file); a test holds the two together.
    dim = out.shape[1]
    for i in range(len(keys)):
        state = _mix(keys[i] ^ salt)
        for pair in range(dim // 2):
            state += _GOLDEN
            bits = _mix(state)
            even = np.float32(np.int32(bits >> _S40))
            odd = np.float32(np.int32((bits >> _S8) & _LOW24))
            out[i, 2 * pair] = min(low + even * _UNIT * span, top)
            out[i, 2 * pair + 1] = min(low + odd * _UNIT * span, top)
        if dim % 2 == 1:
            bits = _mix(state + _GOLDEN)
            out[i, dim - 1] = min(low + np.float32(np.int32(bits >> _S40)) * _UNIT * span, top)


def initial_weights(init: Initializer, table_seed: int, keys: KeyArray, dim: int) -> npt.NDArray[np.float32]:
    """Weights f32[n, dim] of keys that were never pushed: a function of (table seed, key, column) alone.

    Column 2p and 2p+1 of key x take 24 bits each of mix64(mix64(x ^ weight_seed) + (p+1) * golden), as
    u = bits / 2**24 in [0, 1), and become min(low + u * span, top), each operation rounded to float32.
    """
    low, span, top = init.affine()
    if not isinstance(init, Uniform):
        return np.full((len(keys), dim), low, np.float32)
    out = np.empty((len(keys), dim), np.float32)
    _initial_weights(keys, weight_seed(table_seed), low, span, top, out)
    return out


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of this module with the types used in production."""
    keys = np.array([0, 2**64 - 1], np.uint64)
    shard_of(keys, 1, 3)
    strays(keys, 1, 3, 0)
    initial_weights(Uniform(-1.0, 1.0), 1, keys, 3)
