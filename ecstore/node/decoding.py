"""Which parity shards a decode needs, and the decode itself. Pure.

A data shard j is lost; each other data shard has answered with its rows, except for slots that it has itself lost
and not decoded yet: there it counts as erased. Slots with the same erasures form one pattern and are decoded together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecstore.codec import Code, decode

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]


@dataclass(slots=True)
class DataAnswer:
    """Rows of one surviving data shard: uint8 (n, row_bytes), its seq at that instant, and a mask of erased slots."""

    seq: int
    rows: U8
    erased: NDArray[np.bool_] | None  # None: no slot is erased


@dataclass(frozen=True, slots=True)
class Pattern:
    """Slots (positions in the request) at which the same data shards are erased; `lost` includes the wanted one."""

    lost: tuple[int, ...]
    positions: I64


def patterns(wanted: int, count: int, answers: Mapping[int, DataAnswer]) -> list[Pattern]:
    """Split `count` requested slots by which data shards are erased there."""
    erased_somewhere = sorted(
        index for index, answer in answers.items() if answer.erased is not None and answer.erased.any()
    )
    if not erased_somewhere:
        return [Pattern((wanted,), np.arange(count, dtype=np.int64))]
    number = np.zeros(count, np.int64)
    for bit, index in enumerate(erased_somewhere):
        erased = answers[index].erased
        assert erased is not None
        number |= erased.astype(np.int64) << bit
    result = []
    for value in np.unique(number):
        lost = [index for bit, index in enumerate(erased_somewhere) if value >> bit & 1]
        result.append(Pattern(tuple(sorted([wanted, *lost])), np.flatnonzero(number == value)))
    return result


def parities_needed(split: Sequence[Pattern]) -> int:
    return max((len(pattern.lost) for pattern in split), default=0)


def combine(
    code: Code,
    wanted: int,
    split: Sequence[Pattern],
    answers: Mapping[int, DataAnswer],
    parity: Mapping[int, U8],
) -> U8:
    """Rows of shard `wanted`, uint8 (n, row_bytes), from data `answers` and parity rows, by shard index."""
    example = next(iter(parity.values()))
    out = np.empty_like(example)
    for pattern in split:
        everything = pattern.positions.size == example.shape[0]
        have: dict[int, U8] = {}
        for index in range(code.k):
            if index not in pattern.lost:
                rows = answers[index].rows
                have[index] = rows if everything else np.ascontiguousarray(rows[pattern.positions])
        for index in sorted(parity)[: len(pattern.lost)]:
            rows = parity[index]
            have[index] = rows if everything else np.ascontiguousarray(rows[pattern.positions])
        decoded = decode(code, [wanted], have)[wanted]
        if everything:
            return decoded
        out[pattern.positions] = decoded
    return out
