"""One training process of `test_counters.py`: pushes integer gradients until told to stop, and checks what it reads.

python counter_client.py ADDRESS TABLE SHARED_KEYS PRIVATE_FROM PRIVATE_TO SEED OUTPUT

Every push touches shared keys [0, SHARED_KEYS), which other clients push to as well, and keys of this client alone,
whose values it therefore knows at any moment. It ends when its standard input does, and leaves in OUTPUT (.npz):
`acknowledged` int64 (keys, dim), the exact sum of acknowledged gradients; `open_ids`, `open_grads`, one entry for
each push that timed out.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

import ecstore

DIM = 6
SHARED_PER_PUSH, PRIVATE_PER_PUSH = 200, 60
PER_PUSH = SHARED_PER_PUSH + PRIVATE_PER_PUSH
#: Far beyond any failover, even on a slow machine.
TIMEOUT_S = 60.0


def main(address: str, table_name: str, shared: int, low: int, high: int, seed: int, output: str) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    rng = np.random.default_rng(seed)
    acknowledged = np.zeros((high, DIM), np.int64)
    unsure = np.zeros(high, np.bool_)
    timed_out: list[tuple[np.ndarray, np.ndarray]] = []
    pushes = pulls = 0
    with ecstore.connect(address, timeout=TIMEOUT_S) as store:
        table = store.table(table_name)
        while not stop.is_set():
            ids = np.concatenate([rng.integers(0, shared, SHARED_PER_PUSH), rng.integers(low, high, PRIVATE_PER_PUSH)])
            grads = rng.integers(-3, 4, (ids.size, DIM))
            try:
                table.push(ids, grads.astype(np.float32))
            except ecstore.TimeoutError:
                timed_out.append((ids, grads))
                unsure[ids] = True
                continue
            np.add.at(acknowledged, ids, grads)
            pushes += 1
            if pushes % 3 == 0:
                mine = rng.integers(low, high, 150)
                mine = mine[~unsure[mine]]
                found = table.pull(mine)
                wrong = np.flatnonzero((found != -acknowledged[mine]).any(axis=1))
                if wrong.size:
                    key = mine[wrong[0]]
                    sys.exit(f"{wrong.size} rows are wrong; key {key}: {found[wrong[0]]}, wanted {-acknowledged[key]}")
                pulls += 1
    np.savez(
        output,
        acknowledged=acknowledged,
        open_ids=np.array([ids for ids, _grads in timed_out], np.int64).reshape(len(timed_out), PER_PUSH),
        open_grads=np.array([grads for _ids, grads in timed_out], np.int64).reshape(len(timed_out), PER_PUSH, DIM),
        pushes=pushes,
        pulls=pulls,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]), sys.argv[7])
