"""Table specs: validated when made, and the same after the wire."""

from __future__ import annotations

import numpy as np
import pytest

from ecstore.errors import ConfigError
from ecstore.optim import SGD, Adam
from ecstore.tables import (
    Constant,
    TableSpec,
    Uniform,
    Zeros,
    initializer_from_wire,
    initializer_to_wire,
)

GOOD = {
    "name": "user",
    "dim": 16,
    "optimizer": Adam(0.1),
    "init": Uniform(-0.1, 0.1),
    "seed": 1,
    "code": "rs(3,2)",
}


@pytest.mark.parametrize("init", [Uniform(-0.5, 0.25), Zeros(), Constant(3)])
def test_spec_comes_back_equal_from_the_wire(init):
    spec = TableSpec(**{**GOOD, "init": init, "seed": 2**64 - 1, "name": "кухня 7"})
    assert TableSpec.from_wire(spec.to_wire()) == spec
    assert initializer_from_wire(initializer_to_wire(init)) == init


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 129),
        ("name", "a\nb"),
        ("name", 7),
        ("dim", 0),
        ("dim", 65_537),
        ("dim", True),
        ("dim", 2.0),
        ("optimizer", "adam"),
        ("init", None),
        ("seed", -1),
        ("seed", 2**64),
        ("code", ""),
        ("code", 3),
        ("dtype", "float16"),
    ],
)
def test_a_bad_field_is_a_config_error(field, value):
    with pytest.raises(ConfigError):
        TableSpec(**{**GOOD, field: value})


def test_malformed_wire_forms_are_config_errors():
    data = TableSpec(**GOOD).to_wire()
    for bad in (None, [], {}, {**data, "extra": 1}, {**data, "init": {}}, {**data, "optimizer": 5}):
        with pytest.raises(ConfigError):
            TableSpec.from_wire(bad)
    for bad in ({"kind": "uniform", "low": 0.0}, {"kind": "constant", "value": "x"}, {"kind": None}, 5):
        with pytest.raises(ConfigError):
            initializer_from_wire(bad)


@pytest.mark.parametrize("bounds", [(0.1, 0.1), (1.0, -1.0), (-3e38, 3e38), (0.0, float("nan")), (1.0, 1.0 + 1e-12)])
def test_uniform_needs_an_interval(bounds):
    with pytest.raises(ConfigError):
        Uniform(*bounds)


def test_row_bytes_count_weights_state_and_padding():
    assert TableSpec(**{**GOOD, "dim": 3, "optimizer": SGD(0.1)}).row_bytes == 16
    assert TableSpec(**GOOD).row_bytes == 4 * (16 * 3 + 2)


def test_affine_top_is_below_high():
    low, span, top = Uniform(-0.01, 0.01).affine()
    assert low == np.float32(-0.01)
    assert top < np.float32(0.01)
    assert span == np.float32(0.02)
