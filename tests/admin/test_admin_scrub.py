"""POST and GET /scrub over a real cluster; the flips themselves are in tests/scrub."""

from __future__ import annotations

import time

import httpx
import pytest

from tests.admin.conftest import until

pytestmark = pytest.mark.cluster


def ended(admin: httpx.Client) -> dict | None:
    shown = admin.get("/scrub").raise_for_status().json()
    return shown if shown["state"] != "running" else None


def test_one_scrub_at_a_time_with_progress_and_totals(admin: httpx.Client) -> None:
    first = admin.post("/scrub", json={"rate_mib_s": 0.05, "table": "t"}).raise_for_status().json()
    assert first["started"] is True
    second = admin.post("/scrub").raise_for_status().json()
    assert second["started"] is False
    assert "is running" in second["message"]
    assert second["scrub"]["started_at"] == first["scrub"]["started_at"]
    assert second["scrub"]["request"]["table"] == "t"
    until(lambda: admin.get("/cluster").json()["scrub"]["running"], "the nodes to say that they scrub")
    stopped = admin.delete("/scrub").raise_for_status().json()
    assert stopped["state"] == "stopped"
    assert stopped["ok"] is None

    began = time.time()
    until(lambda: not admin.get("/cluster").json()["scrub"]["running"], "the nodes to stop")
    assert admin.post("/scrub", json={"rate_mib_s": 500.0}).json()["started"] is True
    done = until(lambda: ended(admin), "the scrub to end")
    assert (done["state"], done["ok"], done["problem"]) == ("done", True, "")
    assert done["groups_done"] == done["groups_total"] == len(admin.get("/ring").json()["groups"])
    assert done["stripes"] == done["stripes_total"] > 0
    assert (done["corrupt"], done["findings"], done["unchecked"]) == (0, [], [])
    totals = admin.get("/cluster").json()["scrub"]
    assert totals["stripes"] >= done["stripes"]
    assert totals["finished_at"] > began - 1.0
    assert any(event["kind"] == "scrub_done" for event in admin.get("/events").json()["events"])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"table": "nowhere"}, 404, "no table 'nowhere'"),
        ({"groups": [9999]}, 422, "no groups [9999]"),
        ({"rate_mib_s": 0}, 422, "rate_mib_s"),
        ({"rate": 3}, 422, "rate"),
    ],
)
def test_what_cannot_be_scrubbed_is_refused(admin: httpx.Client, body: dict, status: int, says: str) -> None:
    answer = admin.post("/scrub", json=body)
    assert answer.status_code == status
    assert says in answer.json()["detail"]
