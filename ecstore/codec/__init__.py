"""Erasure coding of row bytes: encode, follow changes, decode, verify.

    code = Code.parse("rs(3,2)")
    parity = encode(code, data)                  # once, or never: all-zero rows have all-zero parity
    apply_delta(parity[i], slots, old ^ new, code.coefficients[i, j])    # when rows of data shard j change
    lost = decode(code, [1], {0: rows_0, 2: rows_2, 3: parity_0})[1]     # any k shards, the same slots

Here a *shard* is a `uint8[n, row_bytes]` array, row_bytes a multiple of 8; row s of all shards of a group is
a stripe. A function reads what it is given and writes only what its docstring names. Kernels release the GIL,
so the caller sees to it that nobody writes a buffer which is being read, and nobody reads one being written.

Shapes, dtypes, indexes and slots are checked, with typed errors before anything is written; overlap of
buffers is not. A code brings back *erased* shards; whether bytes are wrong, and in which shard, `syndromes`
and `locate` say where the code can tell. All is compared with a slow oracle, `ecstore.codec.reference`;
docs/CODEC.md has the algebra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ecstore.codec.code import Code, coefficients, decode_matrix

if TYPE_CHECKING:
    from ecstore.codec.locating import UNKNOWN, WrongStripes, locate, syndromes
    from ecstore.codec.operations import (
        apply_delta,
        decode,
        encode,
        mismatched_stripes,
        scale_add,
        verify,
        warm_up,
    )

__all__ = [
    "UNKNOWN",
    "Code",
    "WrongStripes",
    "apply_delta",
    "coefficients",
    "decode",
    "decode_matrix",
    "encode",
    "locate",
    "mismatched_stripes",
    "scale_add",
    "self_check",
    "syndromes",
    "verify",
    "warm_up",
]


#: What needs the compiler is imported when it is first used: the cluster map asks for `Code` alone, in processes that
#: never encode anything.
_HOMES = {
    **dict.fromkeys(
        ("apply_delta", "decode", "encode", "mismatched_stripes", "scale_add", "verify", "warm_up"),
        "ecstore.codec.operations",
    ),
    **dict.fromkeys(("UNKNOWN", "WrongStripes", "locate", "syndromes"), "ecstore.codec.locating"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def self_check() -> None:
    """Compare every kernel, as compiled on this machine, with the slow reference; takes some seconds.

    Raises `EcstoreError` that names the first difference: such a machine must not serve.
    """
    from ecstore.codec import reference  # imports galois, about two seconds: paid by this call alone

    reference.self_check()
