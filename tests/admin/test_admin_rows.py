"""GET /tables/{table}/rows/{key} over a real cluster: what a row holds and where it lies, without making it."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

import ecstore
from ecstore import optim
from tests.admin.conftest import until

pytestmark = pytest.mark.cluster


def look(admin: httpx.Client, key: int, table: str = "t") -> dict:
    found: dict = admin.get(f"/tables/{table}/rows/{key}").raise_for_status().json()
    return found


def test_a_row_is_shown_as_it_lies(admin: httpx.Client, store: ecstore.Store) -> None:
    shown = look(admin, 17)
    table = store.table("t")
    assert shown["weights"] == pytest.approx(table.pull([17])[0].tolist())
    assert len(shown["state"]["accumulator"]) == 8
    assert min(shown["state"]["accumulator"]) >= 1.0, "of gradients of ones"
    assert (shown["table"], shown["key"], shown["decoded"]) == ("t", 17, False)
    group = admin.get("/ring").json()["groups"][shown["group"]]
    assert group["shards"][shown["shard"]]["owner"] == shown["owner"]
    table.push([17], np.full((1, 8), 0.5, np.float32))
    again = look(admin, 17)
    assert again["seq"] > shown["seq"]
    assert (again["slot"], again["shard"]) == (shown["slot"], shown["shard"])
    assert again["state"]["accumulator"] == pytest.approx([a + 0.25 for a in shown["state"]["accumulator"]])


@pytest.mark.parametrize(
    "optimizer",
    [ecstore.SGD(lr=0.1), ecstore.Adagrad(lr=0.1), ecstore.RowWiseAdagrad(lr=0.1), ecstore.Adam(lr=0.1)],
    ids=lambda optimizer: optimizer.kind,
)
def test_the_state_of_every_optimizer_has_names(
    admin: httpx.Client, store: ecstore.Store, optimizer: optim.Optimizer
) -> None:
    name = f"look_{optimizer.kind}"
    table = store.create_table(name, dim=3, optimizer=optimizer, code="rs(2,1)", seed=1)
    table.push([5], np.array([[1.0, 2.0, 4.0]], np.float32))
    shown = look(admin, 5, name)
    assert shown["weights"] == pytest.approx(table.pull([5])[0].tolist())
    names = {"sgd": [], "adagrad": ["accumulator"], "rowwise_adagrad": ["accumulator"],
             "adam": ["m", "v", "beta1_power", "beta2_power"]}  # fmt: skip
    assert list(shown["state"]) == names[optimizer.kind]
    expected = {
        "sgd": {}, "adagrad": {"accumulator": [1.0, 4.0, 16.0]}, "rowwise_adagrad": {"accumulator": 7.0},
        "adam": {"m": [0.1, 0.2, 0.4], "v": [0.001, 0.004, 0.016], "beta1_power": 0.9, "beta2_power": 0.999},
    }[optimizer.kind]  # fmt: skip
    for part, numbers in expected.items():
        assert shown["state"][part] == pytest.approx(numbers, rel=1e-4)
    store.drop_table(name)


def test_looking_makes_no_row(admin: httpx.Client, store: ecstore.Store) -> None:
    rows, key = len(store.table("t")), (1 << 64) - 1
    for _ in range(3):
        answer = admin.get(f"/tables/t/rows/{key}")
        assert answer.status_code == 404
        assert f"has no row {key}" in answer.json()["detail"]
    assert len(store.table("t")) == rows


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/tables/nowhere/rows/1", 404, "no table 'nowhere'"),
        ("/tables/t/rows/-1", 422, "key"),
        (f"/tables/t/rows/{1 << 64}", 422, "key"),
        ("/tables/t/rows/one", 422, "key"),
    ],
)
def test_what_is_no_row_is_refused(admin: httpx.Client, path: str, status: int, says: str) -> None:
    answer = admin.get(path)
    assert answer.status_code == status
    assert says in answer.json()["detail"]


def test_a_lost_row_is_decoded_to_be_shown(admin: httpx.Client) -> None:
    """At a kilobyte a second the sweep would need minutes to come to this row: it is decoded for this request."""
    before = look(admin, 1234)
    admin.put("/throttle", json={"profile": "training_first", "rate_bytes_per_s": 1024}).raise_for_status()
    try:
        admin.post(f"/nodes/{before['owner']}/kill").raise_for_status()

        def elsewhere() -> dict | None:
            answer = admin.get("/tables/t/rows/1234")
            return answer.json() if answer.status_code == 200 and answer.json()["owner"] != before["owner"] else None

        after = until(elsewhere, "the row to be shown by another node")
    finally:
        admin.put("/throttle", json={"profile": "training_first"}).raise_for_status()
    assert after["decoded"] is True
    assert (after["weights"], after["state"], after["slot"]) == (before["weights"], before["state"], before["slot"])
    assert after["seq"] == before["seq"]
