"""GET /training over a real cluster: what trainers say through the client, merged from all nodes."""

from __future__ import annotations

import threading

import httpx
import pytest
from ecstore_admin.training import merged

import ecstore
import ecstore.aio
from ecstore.errors import InputError
from ecstore.launcher import LocalCluster
from ecstore.trainer import SyntheticConfig, SyntheticLog, TrainConfig, train
from tests.admin.conftest import until


def shown(admin: httpx.Client) -> dict[str, dict]:
    return {entry["id"]: entry for entry in admin.get("/training").raise_for_status().json()["trainers"]}


@pytest.mark.cluster
async def test_reports_are_shown_by_both_clients(
    admin: httpx.Client, store: ecstore.Store, cluster: LocalCluster
) -> None:
    store.report("sync", {"batch": 7, "batches_total": 10, "samples": 896, "samples_per_s": 12.5, "loss": 0.5})
    async with await ecstore.aio.connect(cluster.address) as aio:
        await aio.report("aio", {"state": "finished", "auc": 0.75})
    found = until(lambda: shown(admin) if {"sync", "aio"} <= set(shown(admin)) else None, "both to be shown")
    assert found["sync"] | {"at": 0} == {
        "id": "sync", "at": 0, "state": "running", "batch": 7, "batches_total": 10, "samples": 896,
        "samples_per_s": 12.5, "loss": 0.5, "auc": None,
    }  # fmt: skip
    assert (found["aio"]["state"], found["aio"]["auc"]) == ("finished", 0.75)
    store.report("sync", {"batch": 8})
    until(lambda: shown(admin)["sync"]["batch"] == 8, "the newer report")


@pytest.mark.cluster
def test_a_report_outlives_a_node(admin: httpx.Client, store: ecstore.Store) -> None:
    store.report("survivor", {"batch": 3})
    admin.post("/nodes/n4/kill").raise_for_status()
    until(lambda: admin.get("/nodes/n4").json()["state"] == "down", "n4 to be down")
    assert shown(admin)["survivor"]["batch"] == 3


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "figures"), [("", {}), ("x", {"loss": float("nan")}), ("x", {"secret": 1})])
def test_wrong_reports_are_refused_before_they_are_sent(store: ecstore.Store, name: str, figures: dict) -> None:
    with pytest.raises(InputError):
        store.report(name, figures)
    with pytest.raises(InputError):
        store.report_async(name, figures).result(10)


@pytest.mark.cluster
def test_the_bundled_trainer_says_how_it_is_doing(admin: httpx.Client, cluster: LocalCluster) -> None:
    log = SyntheticLog(SyntheticConfig(samples=4_000, seed=1))
    config = TrainConfig(code="rs(2,1)", embedding_table="e", dense_table="d")
    seen: list[dict] = []
    go_on = threading.Event()

    def run() -> None:
        with ecstore.connect(cluster.address) as own:
            # No batch is the last before the test has seen the run going on.
            train(own, log, config, name="bundled", on_batch=lambda report: report.batch < 30 or go_on.wait(60))

    def running() -> dict | None:
        entry = shown(admin).get("bundled")
        return entry if entry is not None and entry["state"] == "running" else None

    training = threading.Thread(target=run)
    training.start()
    try:
        seen.append(until(running, "the trainer to report"))
    finally:
        go_on.set()
        training.join()
    finished = until(lambda: (e := shown(admin)["bundled"])["state"] == "finished" and e, "the end to be shown")
    first = seen[0]
    assert 1 <= first["batch"] <= first["batches_total"] == config.batches(log)
    assert first["samples"] == 128 * first["batch"]
    assert 0 < first["loss"] < 2
    assert 0 <= first["auc"] <= 1
    assert finished["batch"] == finished["batches_total"]
    assert finished["samples_per_s"] > 0
    assert 0 <= finished["auc"] <= 1


def test_the_newest_report_of_each_trainer_counts() -> None:
    told = [
        {"trainers": [{"id": "a", "at": 1.0, "batch": 1}, {"id": "b", "at": 5.0, "batch": 9}]},
        {"trainers": [{"id": "a", "at": 2.0, "batch": 2}]},
        {},
    ]
    assert merged(told) == [{"id": "a", "at": 2.0, "batch": 2}, {"id": "b", "at": 5.0, "batch": 9}]
