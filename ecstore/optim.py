"""Optimizers: their settings, the layout of a row, and the exact arithmetic of an update.

A row is `row_bytes` bytes, read as little-endian float32 numbers:

    weights[dim] | optimizer state | zero padding up to a multiple of 8 bytes

    SGD              no state
    Adagrad          sum of squared gradients, one per column
    RowWiseAdagrad   sum of mean squared gradients, one per row
    Adam             first moments[dim], second moments[dim], beta1^t, beta2^t   (t = updates of this row)

`reference_update` is the definition of the bits: float32, one rounded operation after the other, no fused
multiply-add, no fast-math, sums in a stated order. The compiled kernels of the nodes must give the same bits.
A NaN that arises (only by overflow: gradients are finite) is stored as the one quiet NaN `0x7fc00000`,
because processors differ in the NaN they make and a decoded row has to equal the lost one everywhere.

Sources: Adagrad, Duchi et al. 2011; Adam, Kingma and Ba 2015 (Algorithm 1, applied to touched rows only,
"lazy"); row-wise Adagrad as in DLRM, Naumov et al. 2019.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ecstore.errors import ConfigError, ShapeError

FloatArray: TypeAlias = npt.NDArray[np.float32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

#: Lanes of the sum of squares of `RowWiseAdagrad`: eight float32 fill one 256-bit register.
LANES = 8
#: Bits of the only NaN that is ever stored by an update.
NAN_BITS = np.uint32(0x7FC00000)
_ROW_ALIGN = 8  # the codec works on 8-byte words


def _check(owner: str, name: str, value: object, *, positive: bool, below_one: bool = False) -> None:
    """ConfigError unless `value` is a real number whose float32 form lies in the stated range."""
    wanted = "a number > 0" if positive else "a number >= 0"
    wanted += " and < 1" if below_one else ""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 3.0e38
    if number:
        assert isinstance(value, int | float)
        single = float(np.float32(value))
        low_enough = single < 1.0 if below_one else math.isfinite(single)
        number = low_enough and (single > 0.0 if positive else single >= 0.0)
    if not number:
        raise ConfigError(f"{owner}: {name} must be {wanted} as a float32, not {value!r}; correct this setting")


@dataclass(frozen=True, slots=True)
class SGD:
    """w -= lr * g."""

    kind: ClassVar[str] = "sgd"
    lr: float

    def __post_init__(self) -> None:
        _check("SGD", "lr", self.lr, positive=True)

    def state_floats(self, dim: int) -> int:
        """State numbers of a row with `dim` weights."""
        return 0


@dataclass(frozen=True, slots=True)
class Adagrad:
    """a += g*g;  w -= (lr * g) / (sqrt(a) + eps), column by column."""

    kind: ClassVar[str] = "adagrad"
    lr: float
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check("Adagrad", "lr", self.lr, positive=True)
        _check("Adagrad", "eps", self.eps, positive=True)
        _check("Adagrad", "initial_accumulator", self.initial_accumulator, positive=False)

    def state_floats(self, dim: int) -> int:
        """State numbers of a row with `dim` weights."""
        return dim


@dataclass(frozen=True, slots=True)
class RowWiseAdagrad:
    """a += sum(g*g) / dim;  w -= (lr / (sqrt(a) + eps)) * g: one accumulator for a whole row.

    The sum goes by eight lanes (lane l adds columns l, l+8, l+16, ... in this order), then by the tree
    ((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7)).
    """

    kind: ClassVar[str] = "rowwise_adagrad"
    lr: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check("RowWiseAdagrad", "lr", self.lr, positive=True)
        _check("RowWiseAdagrad", "eps", self.eps, positive=True)
        _check("RowWiseAdagrad", "initial_accumulator", self.initial_accumulator, positive=False)

    def state_floats(self, dim: int) -> int:
        """State numbers of a row with `dim` weights."""
        return 1


@dataclass(frozen=True, slots=True)
class Adam:
    """Lazy Adam: moments and step count belong to the row and move only when the row is pushed.

    p1 *= beta1;  p2 *= beta2;  m = beta1*m + (1-beta1)*g;  v = beta2*v + (1-beta2)*(g*g)
    w -= (lr * (m / (1-p1))) / (sqrt(v / (1-p2)) + eps)

    The row stores p1 = beta1^t and p2 = beta2^t as running products: no `pow`, whose bits differ by library.
    """

    kind: ClassVar[str] = "adam"
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check("Adam", "lr", self.lr, positive=True)
        _check("Adam", "beta1", self.beta1, positive=False, below_one=True)
        _check("Adam", "beta2", self.beta2, positive=False, below_one=True)
        _check("Adam", "eps", self.eps, positive=True)

    def state_floats(self, dim: int) -> int:
        """State numbers of a row with `dim` weights."""
        return 2 * dim + 2


Optimizer: TypeAlias = SGD | Adagrad | RowWiseAdagrad | Adam

_KINDS: dict[str, type[Optimizer]] = {kind.kind: kind for kind in (SGD, Adagrad, RowWiseAdagrad, Adam)}


def row_bytes(dim: int, optimizer: Optimizer) -> int:
    """Bytes of a row: weights and state as float32, padded with zeros to a multiple of 8."""
    used = 4 * (dim + optimizer.state_floats(dim))
    return -(-used // _ROW_ALIGN) * _ROW_ALIGN


def named_state(optimizer: Optimizer, dim: int, row: FloatArray) -> dict[str, Any]:
    """The optimizer's state in a row f32[row_bytes / 4], by name: floats, and arrays f32[dim] (copies)."""
    state = row[dim : dim + optimizer.state_floats(dim)]
    match optimizer:
        case SGD():
            return {}
        case Adagrad():
            return {"accumulator": state.copy()}
        case RowWiseAdagrad():
            return {"accumulator": float(state[0])}
        case Adam():
            return {
                "m": state[:dim].copy(), "v": state[dim : 2 * dim].copy(), "beta1_power": float(state[2 * dim]),
                "beta2_power": float(state[2 * dim + 1]),
            }  # fmt: skip


def optimizer_to_wire(opt: Optimizer) -> dict[str, Any]:
    """Plain data: {"kind": name, setting: number, ...}."""
    return {"kind": opt.kind, **{field.name: getattr(opt, field.name) for field in dataclasses.fields(opt)}}


def optimizer_from_wire(d: object) -> Optimizer:
    """The inverse of `optimizer_to_wire`. ConfigError for anything malformed or out of range."""
    if not isinstance(d, Mapping):
        raise ConfigError(f"an optimizer is sent as a map with a 'kind', not as {type(d).__name__}")
    kind = d.get("kind")
    optimizer_class = _KINDS.get(kind) if isinstance(kind, str) else None
    if optimizer_class is None:
        raise ConfigError(f"unknown optimizer {kind!r}; use one of {', '.join(_KINDS)}")
    settings = {str(key): value for key, value in d.items() if key != "kind"}
    try:
        return optimizer_class(**settings)
    except TypeError as error:
        raise ConfigError(f"optimizer {kind!r}: wrong settings {sorted(settings)}; {error}") from None


def new_rows(optimizer: Optimizer, weights: FloatArray) -> ByteArray:
    """Rows u8[n, row_bytes] with these weights f32[n, dim] and the optimizer's first state. Owned by the
    caller.
    """
    if weights.ndim != 2:
        raise ShapeError(f"weights must have shape (n, dim), not {weights.shape}")
    count, dim = weights.shape
    rows = np.zeros((count, row_bytes(dim, optimizer)), np.uint8)
    numbers = rows.view(np.float32)
    numbers[:, :dim] = weights
    match optimizer:
        case Adagrad():
            numbers[:, dim : 2 * dim] = optimizer.initial_accumulator
        case RowWiseAdagrad():
            numbers[:, dim] = optimizer.initial_accumulator
        case Adam():
            numbers[:, 3 * dim : 3 * dim + 2] = 1.0
        case SGD():
            pass
    return rows


def reference_update(optimizer: Optimizer, rows: ByteArray, grads: FloatArray) -> ByteArray:
    """The rows after one push of `grads` f32[n, dim]; `rows` u8[n, row_bytes] is only read.

    Plain NumPy, float32 operation by operation: the definition that all kernels must match bit for bit. One
    gradient per row: a row that occurs twice in `rows` is two rows here. Raises ShapeError when the shapes
    do not belong together.
    """
    dim = grads.shape[1] if grads.ndim == 2 else 0
    if grads.ndim != 2 or rows.shape != (len(grads), row_bytes(dim, optimizer)):
        raise ShapeError(f"rows {rows.shape} and gradients {grads.shape} do not belong together for {optimizer}")
    result = np.array(rows, dtype=np.uint8, order="C", copy=True)
    numbers = result.view(np.float32)
    gradient = np.asarray(grads, np.float32)
    with np.errstate(all="ignore"):  # overflow to infinity is defined behaviour here
        match optimizer:
            case SGD():
                numbers[:, :dim] -= np.float32(optimizer.lr) * gradient
            case Adagrad():
                _adagrad(optimizer, numbers, gradient, dim)
            case RowWiseAdagrad():
                _rowwise_adagrad(optimizer, numbers, gradient, dim)
            case Adam():
                _adam(optimizer, numbers, gradient, dim)
    result.view(np.uint32)[np.isnan(numbers)] = NAN_BITS
    return result


def _adagrad(optimizer: Adagrad, numbers: FloatArray, gradient: FloatArray, dim: int) -> None:
    weights, squares = numbers[:, :dim], numbers[:, dim : 2 * dim]
    squares += gradient * gradient
    weights -= (np.float32(optimizer.lr) * gradient) / (np.sqrt(squares) + np.float32(optimizer.eps))


def _rowwise_adagrad(optimizer: RowWiseAdagrad, numbers: FloatArray, gradient: FloatArray, dim: int) -> None:
    squares = numbers[:, dim]
    squares += sum_of_squares(gradient) / np.float32(dim)
    step = np.float32(optimizer.lr) / (np.sqrt(squares) + np.float32(optimizer.eps))
    numbers[:, :dim] -= step[:, np.newaxis] * gradient


def _adam(optimizer: Adam, numbers: FloatArray, gradient: FloatArray, dim: int) -> None:
    one, beta1, beta2 = np.float32(1.0), np.float32(optimizer.beta1), np.float32(optimizer.beta2)
    weights, first, second = numbers[:, :dim], numbers[:, dim : 2 * dim], numbers[:, 2 * dim : 3 * dim]
    power1, power2 = numbers[:, 3 * dim, np.newaxis], numbers[:, 3 * dim + 1, np.newaxis]
    power1 *= beta1
    power2 *= beta2
    first[...] = beta1 * first + (one - beta1) * gradient
    second[...] = beta2 * second + (one - beta2) * (gradient * gradient)
    rise = np.float32(optimizer.lr) * (first / (one - power1))
    weights -= rise / (np.sqrt(second / (one - power2)) + np.float32(optimizer.eps))


def sum_of_squares(gradient: FloatArray) -> FloatArray:
    """Sum of squares f32[n] of each row of f32[n, dim], in the order that `RowWiseAdagrad` states."""
    count, dim = gradient.shape
    squares = np.zeros((count, -(-dim // LANES) * LANES), np.float32)
    squares[:, :dim] = gradient * gradient  # the zeros added behind change no bit
    lanes = np.zeros((count, LANES), np.float32)
    for start in range(0, squares.shape[1], LANES):
        lanes += squares[:, start : start + LANES]
    four = lanes[:, :4] + lanes[:, 4:]
    two = four[:, :2] + four[:, 2:]
    total: FloatArray = two[:, 0] + two[:, 1]
    return total
