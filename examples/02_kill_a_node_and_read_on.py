"""Kill a node over REST and go on reading and writing: the lost rows are decoded from the others while you ask.

Runs on a cluster of its own, or on yours: --connect HOST:PORT,... --admin http://HOST:PORT (`ecstore up` prints both).

    .venv/bin/python examples/02_kill_a_node_and_read_on.py
"""

import argparse
import time
from contextlib import ExitStack

import httpx
import numpy as np

import ecstore
from ecstore.launcher import local_cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", metavar="HOST:PORT,...", help="several nodes: one of them is going to die")
    parser.add_argument("--admin", metavar="URL", help="the admin service of the same cluster")
    options = parser.parse_args()
    with ExitStack() as stack:
        address, admin_url = options.connect, options.admin
        if address is None or admin_url is None:
            cluster = stack.enter_context(local_cluster(nodes=4, progress=print))
            address, admin_url = cluster.address, cluster.admin_url
        store = stack.enter_context(ecstore.connect(address))
        admin = stack.enter_context(httpx.Client(base_url=admin_url, timeout=10))

        table = store.create_table("demo", dim=16, optimizer=ecstore.Adagrad(lr=0.1), code="rs(2,1)", seed=3)
        ids = np.arange(20_000, dtype=np.uint64)
        table.push(ids, np.random.default_rng(0).standard_normal((len(ids), 16), dtype=np.float32))
        expected = table.pull(ids)

        victim = next(node["id"] for node in admin.get("/nodes").json()["nodes"] if node["state"] == "up")
        print(admin.post(f"/nodes/{victim}/kill").raise_for_status().json()["message"])
        began = time.perf_counter()
        rows = table.pull(ids)
        took = time.perf_counter() - began
        print(f"{len(ids):,} rows read {took:.2f} s later; the same bits: {np.array_equal(rows, expected)}")
        table.push(ids, np.ones((len(ids), 16), np.float32))
        print("and written: a push is acknowledged by the nodes that are left")

        wait_for(lambda: admin.get("/cluster").json()["health"]["degraded"] == 0)
        done = [r for r in admin.get("/decoding").json()["recoveries"] if r["lost_node"] == victim]
        decoded = sum(r["rows_decoded"] for r in done if r["kind"] == "data")
        print(f"{len(done)} shards are whole again on other nodes; {decoded:,} rows were decoded")

        print(admin.post(f"/nodes/{victim}/recover").raise_for_status().json()["message"])
        wait_for(lambda: admin.get("/cluster").json()["clean"] and store.status()["nodes"][victim]["state"] == "up")
        print(f"{victim} is back; the cluster tolerates the next loss")


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("this took too long; look at /decoding and /events of the admin service")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
