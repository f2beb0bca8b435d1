"""What the trainer needs of a store: the part of the public client that it calls, as protocols.

`ecstore.connect(...)` gives such a store, and so does `LocalStore`; the trainer cannot tell them apart, and
one worker in strict order leaves the same bits in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ecstore.optim import Optimizer
from ecstore.tables import Initializer

FloatArray = npt.NDArray[np.float32]
KeyArray = npt.NDArray[np.uint64]


class Table(Protocol):
    """One table of a store. Tables are hashable: they are the keys of `pull_many` and `push_many`."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def __hash__(self) -> int: ...

    def __len__(self) -> int:
        """Rows that were pushed or loaded."""
        ...

    def pull(self, ids: KeyArray, /) -> FloatArray:
        """Weights f32[n, dim] of ids u64[n]; a key that was never pushed has its initial weights."""
        ...

    def push(self, ids: KeyArray, grads: FloatArray, /) -> None:
        """Apply gradients f32[n, dim] with the table's optimizer; duplicate ids are summed in input order."""
        ...

    def load(self, keys: KeyArray, rows: npt.NDArray[Any], /) -> None:
        """Set rows: float32[n, dim] weights with fresh optimizer state, or whole rows uint8[n, row_bytes]."""
        ...

    def export(self, *, state: bool = False) -> tuple[KeyArray, npt.NDArray[Any]]:
        """All keys, ascending, and weights f32[n, dim]; with `state` whole rows uint8[n, row_bytes]."""
        ...


TableT = TypeVar("TableT", bound=Table)


class Store(Protocol[TableT]):
    """A store whose tables are of type `TableT`."""

    def create_table(
        self, name: str, *, dim: int, optimizer: Optimizer, code: str, init: Initializer, seed: int
    ) -> TableT:
        """Make a table; one that exists with the same options is opened, with others `TableExistsError`."""
        ...

    def table(self, name: str, /) -> TableT:
        """Open an existing table; `UnknownTableError` otherwise."""
        ...

    def pull_many(self, requests: Mapping[TableT, KeyArray], /) -> Mapping[TableT, FloatArray]:
        """`Table.pull` of several tables at once. Prefetching calls it from a second thread."""
        ...

    def push_many(self, updates: Mapping[TableT, tuple[KeyArray, FloatArray]], /) -> None:
        """`Table.push` to several tables at once; returns when all of it is acknowledged."""
        ...

    def flush(self) -> None:
        """Wait until every push so far is acknowledged."""
        ...
