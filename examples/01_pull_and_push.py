"""Pull rows, push gradients, export them. Runs on a cluster of its own, or on yours: --connect HOST:PORT.

.venv/bin/python examples/01_pull_and_push.py
"""

import argparse
from contextlib import ExitStack

import numpy as np

import ecstore
from ecstore.launcher import local_cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connect", metavar="HOST:PORT", help="any node of a running cluster")
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.connect
        if address is None:
            address = stack.enter_context(local_cluster(nodes=3, progress=print)).address
        store = stack.enter_context(ecstore.connect(address))

        # Two tables. Every row is coded 2+1: a third of the memory goes into parity, any one node may die.
        users = store.create_table("user", dim=8, optimizer=ecstore.Adagrad(lr=0.1), code="rs(2,1)", seed=1)
        items = store.create_table("item", dim=8, optimizer=ecstore.SGD(lr=0.1), code="rs(2,1)", seed=2)

        # Any uint64 is a key. A key that was never pushed has its initial value and needs no memory.
        ids = np.array([7, 2**64 - 1, 42], np.uint64)
        before = users.pull(ids)
        print(f"{len(ids)} rows of {users.dim} weights, {len(users)} of them stored")

        # The optimizer runs on the node, beside the row. The push returns when the parity nodes have it, too.
        users.push(ids, np.ones((3, 8), np.float32))
        after = users.pull(ids)
        print(f"first weight of row 7: {before[0, 0]:+.4f} -> {after[0, 0]:+.4f}")

        # One message to each node for several tables; duplicate ids are summed.
        grads = np.full((4, 8), 0.5, np.float32)
        store.push_many({users: ([1, 2, 2, 3], grads), items: ([10, 11, 12, 13], grads)})
        rows = store.pull_many({users: [1, 2, 3], items: [10, 11]})
        print(f"pulled {rows[users].shape} users and {rows[items].shape} items in one go")

        # Without waiting for each: a window of pushes is under way, flush() waits for all of them.
        for step in range(100):
            items.push_async(np.arange(step, step + 50, dtype=np.uint64), np.ones((50, 8), np.float32))
        store.flush()

        keys, weights = items.export()
        print(f"exported {len(keys)} items, {weights.nbytes:,} bytes of weights")
        try:
            users.push([1], np.full((1, 8), np.nan, np.float32))
        except ecstore.NonFiniteError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    main()
