"""The service dies while shards are decoded, and there are two of it: nobody notices, and what they say is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import ecstore
from ecstore.launcher import ClusterOptions, LocalCluster, NodeSettings, local_cluster
from ecstore.launcher.ports import free_ports
from ecstore.launcher.processes import spawn
from tests.admin.conftest import until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

KEYS, DIM = 60_000, 16


@pytest.fixture(scope="module")
def slow() -> Iterator[LocalCluster]:
    """Five nodes that decode so slowly that there is time to kill the service meanwhile."""
    settings = NodeSettings(decode_mib_per_s=0.5, decode_block_rows=256)
    with local_cluster(options=ClusterOptions(nodes=5, settings=settings)) as running:
        yield running


def get(url: str, path: str, **params: Any) -> dict[str, Any] | None:
    """The answer; None while the service is away."""
    try:
        answer = httpx.get(f"{url}{path}", params=params, timeout=20.0)
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code == 200 else None


class Pusher(threading.Thread):
    """Pushes ones until told to stop; what a training does to the store, and as easily disturbed."""

    def __init__(self, table: ecstore.Table, ids: np.ndarray) -> None:
        super().__init__(daemon=True)
        self.table, self.ids, self.done = table, ids, 0
        self.problem: BaseException | None = None
        self.stop = threading.Event()

    def run(self) -> None:
        ones = np.ones((len(self.ids), DIM), np.float32)
        try:
            while not self.stop.wait(0.01):
                self.table.push(self.ids, ones)
                self.done += 1
        except BaseException as error:
            self.problem = error


def second_service(cluster: LocalCluster) -> tuple[subprocess.Popen[bytes], str]:
    """One more service for the same nodes with the same run directory, as somebody would start it by hand."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "ecstore", "admin", f"--listen=127.0.0.1:{port}", f"--run-dir={cluster.run_dir}",
        f"--coordination={cluster.coordination}", f"--exit-with={os.getpid()}", *cluster.options.settings.arguments(),
        *(f"--node={name}={address}" for name, address in cluster.addresses.items()),
    ]  # fmt: skip
    return spawn(command, cluster.run_dir / "second.log"), f"http://127.0.0.1:{port}"


def test_the_service_is_killed_while_shards_are_decoded(slow: LocalCluster) -> None:
    url = slow.admin_url
    with ecstore.connect(slow.address, timeout=60.0) as store:
        table = store.create_table("t", dim=DIM, optimizer=ecstore.SGD(lr=1.0), code="rs(2,1)", init=ecstore.Zeros())
        ids = np.arange(KEYS, dtype=np.uint64)
        table.push(ids, np.zeros((KEYS, DIM), np.float32))
        until(lambda: (get(url, "/cluster") or {}).get("clean"), "a clean cluster")
        pusher = Pusher(table, ids[::100])
        pusher.start()
        held = {(s["group"], s["shard"]) for s in (get(url, "/nodes/n2") or {})["shards"]}
        epoch = (get(url, "/cluster") or {})["epoch"]
        httpx.post(f"{url}/nodes/n2/kill", timeout=20.0).raise_for_status()
        until(lambda: (get(url, "/decoding", state="running") or {}).get("recoveries"), "decoding to begin")
        before = (get(url, "/events", after=0, limit=5000) or {})["events"]

        service = slow._children["admin"]
        os.kill(service.pid, signal.SIGKILL)
        pushed = pusher.done
        until(lambda: slow._children["admin"].pid != service.pid, "the launcher to start the service again")
        until(lambda: get(url, "/cluster"), "the new service to answer")
        assert pusher.problem is None
        assert pusher.done > pushed

        def of_n2() -> list[dict[str, Any]]:
            found = (get(url, "/decoding", limit=5000) or {"recoveries": []})["recoveries"]
            return [entry for entry in found if entry["lost_node"] == "n2" and entry["epoch"] > epoch]

        until(lambda: of_n2() and all(entry["state"] == "done" for entry in of_n2()), "all of n2 to be decoded")
        done = of_n2()
        assert {(entry["group"], entry["shard"]) for entry in done} == held
        assert all(entry["rows_decoded"] == entry["rows_total"] for entry in done)
        assert all(entry["started_at"] <= entry["finished_at"] for entry in done)
        after = (get(url, "/events", after=0, limit=5000) or {})["events"]
        assert after[: len(before)] == before
        assert len({(e["kind"], e["node"], e["message"], e["at"]) for e in after}) == len(after)
        assert [e["kind"] for e in after].count("node_down") == 1

        pusher.stop.set()
        pusher.join(60.0)
        assert pusher.problem is None
        values = table.pull(ids[::100])
        assert np.array_equal(values, np.full_like(values, -float(pusher.done)))


def test_two_services_agree(slow: LocalCluster) -> None:
    url = slow.admin_url
    process, other = second_service(slow)
    try:
        until(lambda: get(other, "/cluster"), "the second service to answer")
        httpx.post(f"{url}/nodes/n2/recover", timeout=20.0).raise_for_status()
        until(lambda: (get(url, "/cluster") or {}).get("clean"), "n2 to be back")
        # Each does what it is asked for, and the other one neither undoes nor forgets it.
        killed = httpx.post(f"{other}/nodes/n3/kill", timeout=20.0).json()
        assert killed["outcome"] == "killed"
        for asked in (url, other):
            until(lambda asked=asked: node(asked, "n3")["state"] == "down", "n3 to be down")
            assert node(asked, "n3")["wanted"] == "down"
            again = httpx.post(f"{asked}/nodes/n3/kill", timeout=20.0).json()
            assert again["outcome"] == "already_down"
        until(lambda: (get(url, "/decoding") or {})["totals"]["running"] == 0, "n3 to be decoded")
        assert httpx.post(f"{other}/nodes/n3/recover", timeout=20.0).json()["outcome"] == "started"
        for asked in (url, other):
            until(lambda asked=asked: node(asked, "n3")["state"] == "up", "n3 to be back")
            until(lambda asked=asked: (get(asked, "/cluster") or {}).get("clean"), "a clean cluster")
        pids = [node(asked, "n3")["pid"] for asked in (url, other)]
        assert pids[0] == pids[1]

        def same(path: str, **params: Any) -> bool:
            return get(url, path, **params) == get(other, path, **params) is not None

        for path, params in (("/decoding", {}), ("/events", {"after": 0, "limit": 5000}), ("/ring", {})):
            until(lambda path=path, params=params: same(path, **params), f"the same answer to {path}")
        until(lambda: steady(get(url, "/cluster")) == steady(get(other, "/cluster")), "the same answer to /cluster")
        everything = (get(url, "/events", after=0, limit=5000) or {})["events"]
        for kind in ("killed", "node_down"):
            assert [e["node"] for e in everything if e["kind"] == kind] == ["n2", "n3"]
        assert not [e for e in everything if e["kind"] == "exited"]

        # Whoever starts crashed nodes again dies; the other one takes its place.
        os.kill(slow._children["admin"].pid, signal.SIGKILL)
        lives = node(other, "n4")["starts"]
        os.kill(node(other, "n4")["pid"], signal.SIGKILL)
        until(lambda: node(other, "n4")["starts"] == lives + 1, "n4 to be started again")
        until(lambda: node(other, "n4")["state"] == "up", "n4 to be back")
        assert node(other, "n4")["starts"] == lives + 1
    finally:
        process.kill()
        process.wait()


def node(url: str, name: str) -> dict[str, Any]:
    answer = until(lambda: get(url, f"/nodes/{name}"), f"an answer of {url}")
    assert isinstance(answer, dict)
    return answer


def steady(answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without what nodes measure anew all the time."""
    return None if answer is None else {key: value for key, value in answer.items() if key != "loop_lag_ms"}
