"""ecstore: an in-memory, erasure-coded embedding store for recommendation-model training.

    import ecstore
    store = ecstore.connect("127.0.0.1:7400")
    users = store.create_table("user", dim=16, optimizer=ecstore.Adagrad(lr=0.05), code="rs(3,2)")
    rows = users.pull(ids)
    users.push(ids, grads)

Names are imported when they are first used, so that a command can choose NumPy's threads before NumPy is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecstore import aio
    from ecstore.client.blocking import Store, Table, connect
    from ecstore.errors import (
        AuthError,
        AvailabilityError,
        CapacityError,
        CodeError,
        ConfigError,
        DataLossError,
        DtypeError,
        EcstoreError,
        FrameError,
        FrameTooLargeError,
        InputError,
        KeyRangeError,
        NonFiniteError,
        ProtocolError,
        ShapeError,
        TableError,
        TableExistsError,
        TimeoutError,
        UnavailableError,
        UnknownTableError,
        VersionMismatchError,
        WrongClusterError,
    )
    from ecstore.optim import SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
    from ecstore.tables import Constant, Initializer, TableSpec, Uniform, Zeros

__version__ = "0.1.0"

#: Public name -> the module it lives in.
_HOMES = {
    **dict.fromkeys(("aio",), "ecstore.aio"),
    **dict.fromkeys(
        (
            "Store",
            "Table",
            "connect",
        ),
        "ecstore.client.blocking",
    ),
    **dict.fromkeys(
        (
            "AuthError",
            "AvailabilityError",
            "CapacityError",
            "CodeError",
            "ConfigError",
            "DataLossError",
            "DtypeError",
            "EcstoreError",
            "FrameError",
            "FrameTooLargeError",
            "InputError",
            "KeyRangeError",
            "NonFiniteError",
            "ProtocolError",
            "ShapeError",
            "TableError",
            "TableExistsError",
            "TimeoutError",
            "UnavailableError",
            "UnknownTableError",
            "VersionMismatchError",
            "WrongClusterError",
        ),
        "ecstore.errors",
    ),
    **dict.fromkeys(
        (
            "SGD",
            "Adagrad",
            "Adam",
            "Optimizer",
            "RowWiseAdagrad",
        ),
        "ecstore.optim",
    ),
    **dict.fromkeys(
        (
            "Constant",
            "Initializer",
            "TableSpec",
            "Uniform",
            "Zeros",
        ),
        "ecstore.tables",
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ecstore' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = globals()[name] = module if home.endswith("." + name) else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AuthError",
    "AvailabilityError",
    "CapacityError",
    "CodeError",
    "ConfigError",
    "Constant",
    "DataLossError",
    "DtypeError",
    "EcstoreError",
    "FrameError",
    "FrameTooLargeError",
    "Initializer",
    "InputError",
    "KeyRangeError",
    "NonFiniteError",
    "Optimizer",
    "ProtocolError",
    "RowWiseAdagrad",
    "ShapeError",
    "Store",
    "Table",
    "TableError",
    "TableExistsError",
    "TableSpec",
    "TimeoutError",
    "UnavailableError",
    "Uniform",
    "UnknownTableError",
    "VersionMismatchError",
    "WrongClusterError",
    "Zeros",
    "aio",
    "connect",
]
