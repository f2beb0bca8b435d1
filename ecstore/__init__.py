"""ecstore: an in-memory, erasure-coded embedding store for recommendation-model training.

import ecstore
store = ecstore.connect("127.0.0.1:7400")
users = store.create_table("user", dim=16, optimizer=ecstore.Adagrad(lr=0.05), code="rs(3,2)")
rows = users.pull(ids)
users.push(ids, grads)
"""

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
    "connect",
]
