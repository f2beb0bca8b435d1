"""/metrics says what Prometheus expects, and the Grafana dashboard asks for nothing else."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from ecstore_admin.app import Service
from ecstore_admin.metrics import ClusterCollector
from ecstore_admin.settings import AdminSettings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import ecstore
from ecstore.launcher import LocalCluster
from tests.admin.conftest import until

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "ecstore.json"

#: Label -> values; None: the nodes of the cluster.
LABELS: dict[str, set[str] | None] = {
    "node": None,
    "role": {"data", "parity"},
    "kind": {"data", "parity", "move", "index", "log"},
    "state": {
        "active", "recovering", "up", "draining", "down", "ok", "degraded", "at_risk", "lost", "waiting", "running",
        "throttled", "stuck", "done", "cancelled",
    },
    "trigger": {"on_demand", "sweep"},
    "outcome": {"repaired", "unrepaired", "not_attributable"},
    "profile": {"training_first", "balanced", "recovery_first"},
    "version": {ecstore.__version__},
}  # fmt: skip


def families(text: str) -> dict[str, Metric]:
    found = list(text_string_to_metric_families(text))
    names = Counter(family.name for family in found)
    assert max(names.values()) == 1, f"families that come twice: {names.most_common(3)}"
    return {family.name: family for family in found}


def problems_of(text: str, nodes: set[str]) -> list[str]:
    """What a strict reader of the text format and of its conventions would say."""
    problems = []
    series = Counter(line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#"))
    problems += [f"{name} comes {count} times" for name, count in series.items() if count > 1]
    declared = Counter(re.findall(r"^# (HELP|TYPE) (\S+)", text, re.MULTILINE))
    problems += [f"{what} of {name} comes {count} times" for (what, name), count in declared.items() if count > 1]
    for family in families(text).values():
        problems += [f"{family.name}: {said}" for said in _of_family(family, nodes)]
        exposed = family.name + ("_total" if family.type == "counter" else "")
        problems += [f"{exposed} has no {what}" for what in ("HELP", "TYPE") if not declared[what, exposed]]
    return problems


def _of_family(family: Metric, nodes: set[str]) -> Iterator[str]:
    if not re.fullmatch(r"ecstore_[a-z]+(_[a-z]+)*", family.name):
        yield "is not named as metrics are"
    if family.type not in ("counter", "gauge", "histogram"):
        yield f"is of type {family.type}"
    if not family.documentation.endswith(".") or len(family.documentation) < 15:
        yield f"its help is no sentence: {family.documentation!r}"
    if re.search(r"_(ms|milliseconds|kib|mib|mb|kilobytes|percent|minutes)(_|$)", family.name):
        yield "is not in base units"
    if re.search(r"_(total|count|sum|bucket|gauge|counter|histogram)$", family.name):
        yield "ends as other types do"
    if family.type == "histogram" and not family.name.endswith("_seconds"):
        yield "is a histogram without its unit"
    for sample in family.samples:
        if family.type == "counter" and (sample.name != f"{family.name}_total" or sample.value < 0):
            yield f"{sample.name} is no counter"
        if not math.isfinite(sample.value):
            yield f"{sample} is no number"
        for label, value in sample.labels.items():
            allowed = nodes if label == "node" else LABELS.get(label, set())
            if label != "le" and value not in (allowed or set()):
                yield f"label {label}={value!r} is not bounded"
    if family.type == "histogram":
        yield from _of_histogram(family)


def _of_histogram(family: Metric) -> Iterator[str]:
    buckets: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    totals: dict[Any, dict[str, float]] = defaultdict(dict)
    for sample in family.samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        if sample.name.endswith("_bucket"):
            buckets[labels].append((float(sample.labels["le"]), sample.value))
        else:
            totals[labels][sample.name.removeprefix(family.name)] = sample.value
    for labels, found in buckets.items():
        bounds, counts = zip(*found, strict=True)
        if list(bounds) != sorted(set(bounds)) or bounds[-1] != math.inf:
            yield f"{labels}: bounds {bounds}"
        if list(counts) != sorted(counts):
            yield f"{labels}: buckets are not cumulative"
        if totals[labels]["_count"] != counts[-1]:
            yield f"{labels}: _count is not that of +Inf"
        if (totals[labels]["_sum"] > 0) != (counts[-1] > 0):
            yield f"{labels}: _sum {totals[labels]['_sum']} of {counts[-1]}"
    if set(buckets) != set(totals):
        yield "series without buckets"


def scrape(admin: httpx.Client) -> str:
    answer = admin.get("/metrics").raise_for_status()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.text


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """Sum of the series of a family that have these labels."""
    family = found[name]
    wanted = [
        sample.value
        for sample in family.samples
        if sample.name in (name, f"{name}_total", f"{name}_count") and labels.items() <= sample.labels.items()
    ]
    assert wanted, f"{name} {labels} is not there"
    return sum(wanted)


@pytest.mark.cluster
def test_metrics_are_as_prometheus_wants_them(admin: httpx.Client, cluster: LocalCluster) -> None:
    text = scrape(admin)
    assert problems_of(text, set(cluster.addresses)) == []
    found = families(text)
    assert value(found, "ecstore_up") == 1
    assert value(found, "ecstore_node_up") == 4
    assert value(found, "ecstore_groups", state="ok") == len(admin.get("/ring").json()["groups"])
    assert value(found, "ecstore_shards", role="data", state="active") > 0
    for kind in ("data", "parity", "index"):
        assert value(found, "ecstore_memory_bytes", kind=kind) > 0, kind
    assert value(found, "ecstore_event_loop_lag_seconds") > 0


@pytest.mark.cluster
def test_requests_are_counted_and_timed(admin: httpx.Client, store: ecstore.Store) -> None:
    before = families(scrape(admin))
    table, ids = store.table("t"), np.arange(500, dtype=np.uint64)
    for _ in range(3):
        table.pull(ids)
        table.push(ids, np.zeros((500, 8), np.float32))

    def grown(name: str) -> float:
        return value(families(scrape(admin)), name) - value(before, name)

    until(lambda: grown("ecstore_pushed_rows") >= 1500, "the pushes to be told")
    assert grown("ecstore_pulled_rows") >= 1500
    for name in ("pull", "push", "delta_ack"):
        assert grown(f"ecstore_{name}_duration_seconds") >= 3, name
    assert grown("ecstore_sent_deltas") >= 3
    assert grown("ecstore_sent_delta_bytes") >= 3 * 500 * 8 * 4


@pytest.mark.cluster
def test_openmetrics_is_given_to_who_asks_for_it(admin: httpx.Client) -> None:
    answer = admin.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.cluster
def test_a_lost_node_leaves_its_series_and_what_it_cost_is_counted(admin: httpx.Client) -> None:
    before = families(scrape(admin))
    admin.post("/nodes/n2/kill").raise_for_status()

    def done(found: dict[str, Metric]) -> float:
        """Of the survivors: what n2 has counted goes with it."""
        ended = "ecstore_recoveries_ended"
        return sum(value(found, ended, state="done", kind="data", node=node) for node in ("n1", "n3", "n4"))

    def after() -> dict[str, Metric] | None:
        found = families(scrape(admin))
        ended = done(found) > done(before) and value(found, "ecstore_recoveries_active") == 0
        return found if ended and value(found, "ecstore_node_up", node="n2") == 0 else None

    found = until(after, "n2 to be recovered from")
    assert problems_of(scrape(admin), {"n1", "n2", "n3", "n4"}) == []
    assert {sample.labels["node"] for sample in found["ecstore_node_rows"].samples} == {"n1", "n3", "n4"}
    assert value(found, "ecstore_nodes", state="down") == 1
    assert value(found, "ecstore_recovered_rows", kind="data") > 0
    assert value(found, "ecstore_recovered_bytes", kind="data") > 0
    assert value(found, "ecstore_decode_block_duration_seconds") > 0
    assert value(found, "ecstore_recovery_failed_rows") == 0


def test_a_scrape_works_when_nobody_answers(tmp_path: Path) -> None:
    settings = AdminSettings(
        host="127.0.0.1", port=0, run_dir=tmp_path, coordination="127.0.0.1:1", nodes={"n1": "127.0.0.1:1"}
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ClusterCollector(Service(settings)))
    text = generate_latest(registry).decode()
    assert problems_of(text, {"n1"}) == []
    found = families(text)
    assert value(found, "ecstore_up") == 0
    assert "ecstore_node_rows" not in found
    assert "ecstore_groups" not in found, "nobody knows"


# -- the dashboard -------------------------------------------------------------------------------------------------


def expressions() -> list[tuple[str, str, str]]:
    """(panel, expression, legend) of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    variables = [
        ("variable " + v["name"], v["definition"], "") for v in dashboard["templating"]["list"] if "definition" in v
    ]
    return found + variables


def labels_in(expression: str, legend: str) -> set[str]:
    matched = {name for part in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)\s*[=!]", part)}
    grouped = {name.strip() for part in re.findall(r"\bby \(([^)]*)\)", expression) for name in part.split(",")}
    asked = set(re.findall(r"label_values\(\w+, (\w+)\)", expression))
    return matched | grouped | asked | set(re.findall(r"\{\{(\w+)\}\}", legend))


@pytest.mark.cluster
def test_the_dashboard_asks_for_what_is_there(admin: httpx.Client) -> None:
    there: dict[str, set[str]] = defaultdict(set)
    values: dict[str, set[str]] = defaultdict(set)
    for family in families(scrape(admin)).values():
        for sample in family.samples:
            there[sample.name] |= set(sample.labels)
            for label, said in sample.labels.items():
                values[sample.name, label].add(said)  # type: ignore[index]
    assert len(expressions()) > 30
    for panel, expression, legend in expressions():
        names = set(re.findall(r"\becstore_\w+", expression))
        assert names, f"{panel}: {expression}"
        assert names <= set(there), f"{panel} asks for {names - set(there)}"
        has = set().union(*(there[name] for name in names))
        assert labels_in(expression, legend) <= has, f"{panel}: {labels_in(expression, legend) - has}"
        for name, part in re.findall(r"(ecstore_\w+)\{([^}]*)\}", expression):
            for label, wanted in re.findall(r'(\w+)="([^"$]*)"', part):
                assert wanted in values[name, label], f"{panel}: {label}={wanted}"  # type: ignore[index]


def test_counters_are_asked_for_as_rates_and_gauges_are_not() -> None:
    for panel, expression, _legend in expressions():
        for name in re.findall(r"\becstore_\w+", expression):
            counts = name.endswith(("_total", "_bucket"))
            rated = re.search(rf"(rate|increase)\({name}\b", expression) is not None
            absolute = panel in ("Scrub", "Recoveries ended, retries")
            assert rated == counts or (absolute and not rated), f"{panel}: {expression}"


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    source = {"type": "prometheus", "uid": "${datasource}"}
    (variable,) = [entry for entry in dashboard["templating"]["list"] if entry["type"] == "datasource"]
    assert (variable["name"], variable["query"]) == ("datasource", "prometheus")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"] == source
            assert all(target["datasource"] == source for target in panel["targets"])
