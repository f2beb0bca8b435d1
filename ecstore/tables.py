"""What a table is: its name, dimension, optimizer, initial values, seed and code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ecstore.errors import ConfigError
from ecstore.optim import Optimizer, optimizer_from_wire, optimizer_to_wire
from ecstore.optim import row_bytes as _row_bytes

#: A row of 16,384 weights with Adam state is 192 KiB: a block of 1,024 such rows still fits a frame.
MAX_DIM = 16_384
MAX_NAME_CHARS = 128
MAX_CODE_CHARS = 64
_MAX_SEED = 2**64 - 1


def _check_number(owner: str, name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or abs(value) > 3.0e38:  # type: ignore[arg-type]
        raise ConfigError(f"{owner}: {name} must be a finite float32 number, not {value!r}; correct this setting")


@dataclass(frozen=True, slots=True)
class Uniform:
    """Initial weights spread evenly over [low, high)."""

    kind: ClassVar[str] = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_number("Uniform", "low", self.low)
        _check_number("Uniform", "high", self.high)
        low, high = np.float32(self.low), np.float32(self.high)
        if not low < high or float(high) - float(low) > 3.0e38:
            raise ConfigError(
                f"Uniform: low must be below high (as float32, less than 3e38 apart), not {self.low!r}, "
                f"{self.high!r}; use Constant for one value"
            )

    def affine(self) -> tuple[np.float32, np.float32, np.float32]:
        """(low, span, top): a weight is min(low + u * span, top), u in [0, 1). `top` is the last float32 <
        high.
        """
        low, high = np.float32(self.low), np.float32(self.high)
        return low, np.float32(high - low), np.float32(np.nextafter(high, low))


@dataclass(frozen=True, slots=True)
class Zeros:
    """All initial weights are 0."""

    kind: ClassVar[str] = "zeros"

    def affine(self) -> tuple[np.float32, np.float32, np.float32]:
        """(0, 0, 0); see `Uniform.affine`."""
        return np.float32(0.0), np.float32(0.0), np.float32(0.0)


@dataclass(frozen=True, slots=True)
class Constant:
    """All initial weights are `value`."""

    kind: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        _check_number("Constant", "value", self.value)

    def affine(self) -> tuple[np.float32, np.float32, np.float32]:
        """(value, 0, value); see `Uniform.affine`."""
        value = np.float32(self.value)
        return value, np.float32(0.0), value


Initializer: TypeAlias = Uniform | Zeros | Constant

_KINDS: dict[str, type[Initializer]] = {kind.kind: kind for kind in (Uniform, Zeros, Constant)}


def initializer_to_wire(init: Initializer) -> dict[str, Any]:
    """Plain data: {"kind": name, setting: number, ...}."""
    return {
        "kind": init.kind,
        **{field.name: getattr(init, field.name) for field in dataclasses.fields(init)},
    }


def initializer_from_wire(data: object) -> Initializer:
    """The inverse of `initializer_to_wire`. ConfigError for anything malformed."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"an initializer is sent as a map with a 'kind', not as {type(data).__name__}")
    kind = data.get("kind")
    init_class = _KINDS.get(kind) if isinstance(kind, str) else None
    if init_class is None:
        raise ConfigError(f"unknown initializer {kind!r}; use one of {', '.join(_KINDS)}")
    settings = {str(key): value for key, value in data.items() if key != "kind"}
    try:
        return init_class(**settings)
    except TypeError as error:
        raise ConfigError(f"initializer {kind!r}: wrong settings {sorted(settings)}; {error}") from None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Everything that defines a table. Checked when made: an invalid one cannot exist.

    `code` is kept as text ("rs(3,2)"); whether it is a code that the cluster can carry is for the codec and
    the cluster map to say. `seed` (0..2**64-1) is the table's own: same seed, same key, same initial weights.
    """

    name: str
    dim: int
    optimizer: Optimizer
    init: Initializer
    seed: int
    code: str
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Raise ConfigError, naming the field, unless every field is in its range."""
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= MAX_NAME_CHARS or not self.name.isprintable():
            raise ConfigError(f"table name {self.name!r}: use 1 to {MAX_NAME_CHARS} printable characters")
        if not _is_int(self.dim) or not 1 <= self.dim <= MAX_DIM:
            raise ConfigError(f"table {self.name!r}: dim must be 1..{MAX_DIM}, not {self.dim!r}")
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(f"table {self.name!r}: {self.optimizer!r} is no optimizer; use e.g. Adagrad(lr=0.05)")
        if not isinstance(self.init, Initializer):
            raise ConfigError(f"table {self.name!r}: {self.init!r} is no initializer; use e.g. Uniform(-0.01, 0.01)")
        if not _is_int(self.seed) or not 0 <= self.seed <= _MAX_SEED:
            raise ConfigError(f"table {self.name!r}: seed must be 0..2**64-1, not {self.seed!r}")
        if not isinstance(self.code, str) or not 1 <= len(self.code) <= MAX_CODE_CHARS:
            raise ConfigError(f"table {self.name!r}: code must be text such as 'rs(3,2)', not {self.code!r}")
        if self.dtype != "float32":
            raise ConfigError(f"table {self.name!r}: only dtype 'float32' is supported, not {self.dtype!r}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: weights, optimizer state, padding."""
        return _row_bytes(self.dim, self.optimizer)

    def to_wire(self) -> dict[str, Any]:
        """Plain data for msgpack or JSON."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": optimizer_to_wire(self.optimizer),
            "init": initializer_to_wire(self.init),
            "seed": self.seed,
            "code": self.code,
            "dtype": self.dtype,
        }

    @classmethod
    def from_wire(cls, data: object) -> TableSpec:
        """The inverse of `to_wire`. ConfigError for anything malformed."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a table is sent as a map, not as {type(data).__name__}")
        fields = {field.name for field in dataclasses.fields(cls)}
        if set(data) != fields:
            raise ConfigError(f"a table is sent with exactly the fields {sorted(fields)}, not {sorted(map(str, data))}")
        plain = {name: data[name] for name in ("name", "dim", "seed", "code", "dtype")}
        return cls(
            optimizer=optimizer_from_wire(data["optimizer"]),
            init=initializer_from_wire(data["init"]),
            **plain,
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
