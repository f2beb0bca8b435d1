"""The REST interface does what its OpenAPI document says, for whatever is sent to it.

Requests are made from the document: right ones and wrong ones, destructive posts included. No answer is a server error,
each has a status, a content type and a body that are declared, and errors are problem documents.
"""

from __future__ import annotations

import contextlib

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from ecstore.launcher import LocalCluster
from tests.hostile.profiles import FUZZ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(0 if FUZZ else 120)]


OPERATIONS = (
    "GET /healthz", "GET /cluster", "GET /nodes", "GET /nodes/{node_id}", "GET /ring", "GET /tables", "GET /decoding",
    "GET /events", "POST /nodes/{node_id}/kill", "POST /nodes/{node_id}/recover",
    "GET /faults", "DELETE /faults/{fault_id}", "GET /scrub", "DELETE /scrub", "GET /metrics", "GET /throttle",
    "GET /tables/{table}/rows/{key}", "GET /training",
)  # fmt: skip

#: These stop, cut off or change the cluster that the others need, or do not end; test_admin_faults.py,
#: test_admin_scrub.py, test_admin_throttle.py, test_admin_nodes.py and test_admin_events.py try them.
TRIED_ELSEWHERE = (
    "POST /nodes/{node_id}/pause", "POST /nodes/{node_id}/resume", "POST /faults", "POST /scrub",
    "PUT /throttle", "POST /nodes", "POST /nodes/{node_id}/drain", "GET /events/stream",
)  # fmt: skip


@pytest.fixture(scope="module")
def openapi(cluster: LocalCluster, store: object) -> schemathesis.BaseSchema:
    """Of the service that runs, with a table in the cluster behind it."""
    return schemathesis.openapi.from_url(f"{cluster.admin_url}/openapi.json")


def check(case: schemathesis.Case) -> None:
    """Send one request; what comes must be what the document declares."""
    response = case.call()
    case.validate_response(response)
    kind = response.headers["content-type"][0].partition(";")[0]
    if response.status_code >= 400:
        assert kind == "application/problem+json"
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["detail"]
    else:
        assert kind == ("text/plain" if case.operation.path == "/metrics" else "application/json")


def test_every_operation_is_tried(openapi: schemathesis.BaseSchema) -> None:
    assert sorted(result.ok().label for result in openapi.get_all_operations()) == sorted(OPERATIONS + TRIED_ELSEWHERE)


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_the_service_keeps_its_word(
    openapi: schemathesis.BaseSchema, admin: httpx.Client, label: str, mode: GenerationMode
) -> None:
    (operation,) = [found for result in openapi.get_all_operations() if (found := result.ok()).label == label]
    strategies = [operation.as_strategy(generation_mode=mode)]
    if mode is GenerationMode.POSITIVE:
        strategies += operation.get_strategies_from_examples()

    @settings(
        max_examples=15 * max(1, FUZZ),
        derandomize=not FUZZ,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(strategies))
    def attack(case: schemathesis.Case) -> None:
        check(case)

    with contextlib.suppress(*([Unsatisfiable] if mode is GenerationMode.NEGATIVE else [])):
        attack()  # an operation without parameters cannot be asked wrongly
