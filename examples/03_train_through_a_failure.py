"""Train a DLRM, kill a node over REST in the middle, and end with the bits of an undisturbed run.

Runs on a cluster of its own, or on a fresh one of yours: --connect HOST:PORT,... --admin http://HOST:PORT.

    .venv/bin/python examples/03_train_through_a_failure.py
"""

import argparse
from contextlib import ExitStack

import httpx

import ecstore
from ecstore.launcher import local_cluster
from ecstore.trainer import (
    BatchReport,
    LocalStore,
    SyntheticConfig,
    SyntheticLog,
    TrainConfig,
    compare_stores,
    train,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", metavar="HOST:PORT,...", help="several nodes: one of them is going to die")
    parser.add_argument("--admin", metavar="URL", help="the admin service of the same cluster")
    parser.add_argument("--samples", type=int, default=7_000, help="of the synthetic click log")
    options = parser.parse_args()
    dataset = SyntheticLog(SyntheticConfig(samples=options.samples, seed=1))
    config = TrainConfig(code="rs(2,1)", epochs=1)
    kill_at = config.batches(dataset) // 2

    with ExitStack() as stack:
        address, admin_url = options.connect, options.admin
        if address is None or admin_url is None:
            cluster = stack.enter_context(local_cluster(nodes=4, progress=print))
            address, admin_url = cluster.address, cluster.admin_url
        store = stack.enter_context(ecstore.connect(address))

        def on_batch(report: BatchReport) -> None:
            if report.batch % 10 == 0:
                print(f"batch {report.batch}/{report.batches}: loss {report.loss:.4f}")
            if report.batch == kill_at:
                victim = store.cluster_map.up_nodes()[0]
                print(httpx.post(f"{admin_url}/nodes/{victim}/kill", timeout=10).raise_for_status().json()["message"])

        # The trainer holds no parameters between two batches; embeddings and dense layers are rows of the store.
        disturbed = train(store, dataset, config, on_batch=on_batch)
        print(f"trained on {disturbed.samples:,} samples through the loss of a node; AUC {disturbed.auc:.4f}")

        undisturbed = LocalStore()  # the same rows in this process: no network, no coding, nobody dies
        train(undisturbed, dataset, config)
        comparison = compare_stores(store, undisturbed, config.tables)
        print(comparison.describe())
        if not comparison.equal:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
