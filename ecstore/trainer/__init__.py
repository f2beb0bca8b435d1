"""The bundled trainer: a DLRM in NumPy that keeps every parameter in a store.

`train(store, dataset, config)` runs on any store with the public client's interface, the `LocalStore` of this
package included. Datasets: `load_criteo`, `CriteoFile`, `SyntheticLog`.
"""

from ecstore.trainer.data import (
    ArrayDataset,
    BadLine,
    BadLines,
    Batch,
    CriteoFile,
    DataError,
    Dataset,
    load_criteo,
)
from ecstore.trainer.local import Comparison, LocalStore, LocalTable, TableDifference, compare_stores
from ecstore.trainer.metrics import Throughput, auc, log_loss
from ecstore.trainer.model import Dlrm, ModelConfig
from ecstore.trainer.progress import progress
from ecstore.trainer.source import Store, Table
from ecstore.trainer.synthetic import SyntheticConfig, SyntheticLog
from ecstore.trainer.train import BatchReport, TrainConfig, TrainReport, evaluate, train

__all__ = [
    "ArrayDataset",
    "BadLine",
    "BadLines",
    "Batch",
    "BatchReport",
    "Comparison",
    "CriteoFile",
    "DataError",
    "Dataset",
    "Dlrm",
    "LocalStore",
    "LocalTable",
    "ModelConfig",
    "Store",
    "SyntheticConfig",
    "SyntheticLog",
    "Table",
    "TableDifference",
    "Throughput",
    "TrainConfig",
    "TrainReport",
    "auc",
    "compare_stores",
    "evaluate",
    "load_criteo",
    "log_loss",
    "progress",
    "train",
]
