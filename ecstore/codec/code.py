"""The name, shape and coefficients of an erasure code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ecstore.codec import matrix
from ecstore.codec.field import Bytes
from ecstore.codec.matrix import MAX_WIDTH
from ecstore.errors import CodeError

_RS: Final = re.compile(r"rs\((\d{1,4}),(\d{1,4})\)", re.ASCII)
_REPLICATE: Final = re.compile(r"replicate\((\d{1,4})\)", re.ASCII)
_HELP: Final = 'write "rs(k,m)" (k data + m parity shards), "replicate(copies)" or "none"'


@dataclass(frozen=True, slots=True)
class Code:
    """A systematic MDS code: k data shards, m parity shards, any m losses tolerated.

    Shard indexes: 0..k-1 data, k..k+m-1 parity. Hashable, comparable, free to copy: a value, not a resource.
    Two codes of the same k and m but another name (`rs(1,2)` and `replicate(3)`) have the same coefficients
    but are different codes: tables of one are not placed in groups of the other.
    """

    k: int  #: data shards, >= 1
    m: int  #: parity shards = losses tolerated, >= 0
    name: str  #: canonical: "rs(3,2)", "replicate(3)", "none"

    def __post_init__(self) -> None:
        if self.k < 1 or self.m < 0 or self.k + self.m > MAX_WIDTH:
            raise CodeError(
                f"code {self.name!r} has k={self.k}, m={self.m}; a code needs k >= 1, m >= 0 and k + m <= {MAX_WIDTH}"
            )
        if self.name not in _names(self.k, self.m):
            raise CodeError(f"{self.name!r} is not how the code k={self.k}, m={self.m} is named; use Code.parse(text)")

    @classmethod
    def parse(cls, text: str) -> Code:
        """The code a user wrote; blanks and case do not matter. `CodeError` says what would be accepted.

        `rs(k,m)`: k data + m parity shards. `replicate(r)`: r copies, that is k=1, m=r-1. `none`: k=1, m=0.
        """
        if not isinstance(text, str):
            raise CodeError(f"a code is a string, got {type(text).__name__}: {_HELP}")
        compact = "".join(text.split()).lower()
        shape = _shape(compact)
        if shape is None:
            raise CodeError(f"unknown code {text[:80]!r}: {_HELP}")
        k, m = shape
        if compact.startswith("rs"):
            return cls(k, m, f"rs({k},{m})")
        return cls(k, m, "none" if compact == "none" else f"replicate({m + 1})")

    @property
    def width(self) -> int:
        """Shards of a group, k + m: the number of distinct nodes a group wants."""
        return self.k + self.m

    @property
    def coefficients(self) -> Bytes:
        """`uint8[m, k]`, read-only, shared: parity shard k+i is the sum over j of [i, j] * data shard j."""
        return matrix.generator(self.k, self.m)

    def check_indexes(self, indexes: Iterable[int], what: str) -> tuple[int, ...]:
        """`indexes` as a tuple of plain ints; `CodeError` when one is outside 0..width-1."""
        checked = tuple(int(index) for index in indexes)
        for index in checked:
            if not 0 <= index < self.width:
                raise CodeError(
                    f"{what} names shard {index}; {self.name} has shards 0..{self.k - 1} (data)"
                    + (f" and {self.k}..{self.width - 1} (parity)" if self.m else "")
                )
        return checked

    def __str__(self) -> str:
        return self.name


def _shape(name: str) -> tuple[int, int] | None:
    """(k, m) of a compact name, None when it is no name of a code. Bounds are checked by `Code`."""
    if name == "none":
        return 1, 0
    if found := _RS.fullmatch(name):
        return int(found[1]), int(found[2])
    if found := _REPLICATE.fullmatch(name):
        return 1, int(found[1]) - 1
    return None


def _names(k: int, m: int) -> tuple[str, ...]:
    """Canonical names a code of this shape may have."""
    if k > 1:
        return (f"rs({k},{m})",)
    return (f"rs({k},{m})", f"replicate({m + 1})") + (() if m else ("none",))


def coefficients(code: Code) -> Bytes:
    """`code.coefficients` as a function: `uint8[m, k]`, read-only."""
    return code.coefficients


def decode_matrix(code: Code, wanted: Iterable[int], have: Iterable[int]) -> Bytes:
    """Coefficients that make the `wanted` shards from the first k of `have`: `uint8[len(wanted), k]`.

    `have` lists distinct shards in order of preference; only its first k are used, and column c of the result
    belongs to `have[c]`. Both may name data and parity shards. Cached and read-only.

    Raises `CodeError` when an index is not a shard of the code, `have` repeats one or holds fewer than k.
    """
    wanted = code.check_indexes(wanted, "wanted")
    have = code.check_indexes(have, "have")
    if len(set(have)) != len(have):
        raise CodeError(f"have names a shard twice: {list(have)}; give each survivor once")
    if len(have) < code.k:
        raise CodeError(
            f"{code.name} needs {code.k} shards to decode, {len(have)} given: {list(have)}; "
            "ask another survivor, or treat the group as lost"
        )
    return matrix.solve(code.k, code.m, wanted, have[: code.k])
