"""What must be true of the rows: a single-process model, with a set of possible states where a client gave up."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ecstore.hashing import initial_weights
from ecstore.optim import new_rows, reference_update
from ecstore.tables import TableSpec

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]

#: Possible states of one key beyond which it is not checked any more.
MAX_STATES = 64

State = bytes | None  # whole row; None: the key has no row


class OwnedRows:
    """Rows that one client alone writes, so their order is known. Each key has one possible state, and more after a
    push of which the client can't know whether it is in."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._states: dict[int, frozenset[State]] = {}
        self.unknown: set[int] = set()

    def states(self, key: int) -> frozenset[State]:
        return self._states.get(key, frozenset((None,)))

    def keys(self) -> list[int]:
        return sorted(self._states.keys() - self.unknown)

    def push(self, keys: U64, grads: F32, *, sure: bool) -> None:
        """Gradients, one for each key, each key once."""
        before = [sorted(self.states(int(key)), key=repr) for key in keys]
        flat = [(int(key), state) for key, states in zip(keys, before, strict=True) for state in states]
        rows = self._rows(flat)
        repeated = np.repeat(grads, [len(states) for states in before], axis=0)
        after = reference_update(self.spec.optimizer, rows, repeated)
        self._became(flat, [row.tobytes() for row in after], sure)

    def load(self, keys: U64, weights: F32, *, sure: bool) -> None:
        rows = new_rows(self.spec.optimizer, weights)
        self._became([(int(key), None) for key in keys], [row.tobytes() for row in rows], sure)

    def delete(self, keys: U64, *, sure: bool) -> None:
        self._became([(int(key), None) for key in keys], [None] * len(keys), sure)

    def _rows(self, flat: list[tuple[int, State]]) -> U8:
        rows = self.fresh(np.array([key for key, _ in flat], np.uint64))
        for number, (_key, state) in enumerate(flat):
            if state is not None:
                rows[number] = np.frombuffer(state, np.uint8)
        return rows

    def fresh(self, keys: U64) -> U8:
        """Rows as they are before their first push."""
        return new_rows(self.spec.optimizer, initial_weights(self.spec.init, self.spec.seed, keys, self.spec.dim))

    def _became(self, flat: list[tuple[int, State]], after: list[State], sure: bool) -> None:
        gathered: dict[int, set[State]] = {}
        for (key, _before), state in zip(flat, after, strict=True):
            gathered.setdefault(key, set()).add(state)
        for key, states in gathered.items():
            if not sure:
                states |= self.states(key)
            if len(states) > MAX_STATES:
                self.unknown.add(key)
            else:
                self._states[key] = frozenset(states)

    def weights_allowed(self, key: int, weights: F32) -> bool:
        """Whether a pull of `key` may give these weights, float32 (dim,)."""
        if key in self.unknown:
            return True
        width = 4 * self.spec.dim
        first = self.fresh(np.array([key], np.uint64))[0]
        possible = {first[:width].tobytes() if state is None else state[:width] for state in self.states(key)}
        return weights.tobytes() in possible


@dataclass(slots=True)
class SharedSums:
    """Rows that all clients push whole numbers to (SGD, lr 1, from zero): sums, in whatever order.

    Column 0 counts pushes; column 1 tells them apart. Arrays int64 (keys, 2).
    """

    keys: int
    acked: NDArray[np.int64] = field(init=False)
    issued: NDArray[np.int64] = field(init=False)
    doubtful: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.acked = np.zeros((self.keys, 2), np.int64)
        self.issued = np.zeros((self.keys, 2), np.int64)

    def begin(self, keys: U64, numbers: NDArray[np.int64]) -> None:
        np.add.at(self.issued, keys.astype(np.int64), numbers)

    def end(self, keys: U64, numbers: NDArray[np.int64], *, sure: bool) -> None:
        if sure:
            np.add.at(self.acked, keys.astype(np.int64), numbers)
        else:
            self.doubtful.append((keys.astype(np.int64), numbers))

    def wrong(self, key: int, found: NDArray[np.int64]) -> str:
        """Why `found` int64 (2,) can't be the final sum of `key`; "" if it can."""
        extra = found - self.acked[key]
        if not extra.any():
            return ""
        open_numbers = [row for keys, numbers in self.doubtful for row in numbers[keys == key]]
        if extra.min() < 0 or extra[0] > len(open_numbers):
            word = "lost" if extra.min() < 0 else "doubled"
            return f"key {key} is {found.tolist()}, acknowledged {self.acked[key].tolist()} ({word})"
        sums = {(0, 0)}
        for row in open_numbers[:12]:
            sums |= {(count + int(row[0]), mark + int(row[1])) for count, mark in sums}
        if (int(extra[0]), int(extra[1])) in sums or len(open_numbers) > 12:
            return ""
        word = "lost" if extra[0] < 0 else "doubled"
        return f"key {key} is {found.tolist()}, acknowledged {self.acked[key].tolist()} ({word})"
