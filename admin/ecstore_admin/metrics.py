"""`/metrics` for Prometheus: what the nodes count, as they told it last, and what the cluster map says.

Nothing is counted here. A node's counters begin at 0 with each of its lives, as Prometheus expects of a process that
was started again. A node that did not answer the last look has `ecstore_node_up` 0 and no series of its own: what it
said before is not true any more. Labels are bounded: node, role, kind, state, outcome, trigger, profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import ecstore
from ecstore.cluster.map import ClusterMap
from ecstore.throttle import PROFILES
from ecstore_admin.training import merged

if TYPE_CHECKING:
    from ecstore_admin.app import Service

Told = Mapping[str, Any]
_Simple = type[GaugeMetricFamily] | type[CounterMetricFamily]

_NODE_STATES: Final = ("up", "draining", "down")
_GROUP_STATES: Final = ("ok", "degraded", "at_risk", "lost")
_ACTIVE: Final = ("waiting", "running", "throttled", "stuck")
_ENDED: Final = ("done", "cancelled", "lost")
_KINDS: Final = ("data", "parity", "move")

#: (name, help, value) with the label node.
_GAUGES: Final[Sequence[tuple[str, str, Callable[[Told], float]]]] = (
    ("ecstore_node_start_time_seconds", "When the node began its present life, unix time.", lambda s: s["started_at"]),
    ("ecstore_node_resident_memory_bytes", "Resident memory of the node's process.", lambda s: s["rss_bytes"]),
    ("ecstore_node_rows", "Rows in the data shards of the node.", lambda s: s["rows"]),
    ("ecstore_node_may_serve", "Whether the node's lease runs.", lambda s: float(s["may_serve"])),
    ("ecstore_coordination_available", "Whether the node reaches the coordination service.",
     lambda s: float(s["coordination_available"])),
    ("ecstore_event_loop_lag_recent_max_seconds",
     "Longest time in the last minute or two for which the event loop could do nothing else, by its own work.",
     lambda s: s["loop_lag"]["recent_own_max_ms"] / 1e3),
    ("ecstore_recovery_remaining_rows", "Rows that recoveries of the node have still to bring back.",
     lambda s: sum(max(0, r["rows_total"] - r["rows_decoded"]) for r in _active(s))),
    ("ecstore_recovery_rate_limit_bytes_per_second", "Rate of row bytes that background recovery may reach.",
     lambda s: s["throttle"]["in_force_bytes_per_s"]),
    ("ecstore_scrub_running", "Whether a scrub runs on the node.", lambda s: float(s["scrub"]["running"])),
)  # fmt: skip

_COUNTERS: Final[Sequence[tuple[str, str, Callable[[Told], float]]]] = (
    ("ecstore_pulled_rows", "Rows that were pulled.", lambda s: s["counters"].get("rows_pulled", 0)),
    ("ecstore_pushed_rows", "Rows that were pushed, loaded or deleted.", lambda s: s["counters"].get("rows_pushed", 0)),
    ("ecstore_duplicate_pushes", "Pushes that had been applied before, and were only acknowledged again.",
     lambda s: s["counters"].get("duplicate_pushes", 0)),
    ("ecstore_fenced_requests", "Requests that were refused because the node's lease had run out.",
     lambda s: s["counters"].get("requests_fenced", 0)),
    ("ecstore_sent_deltas", "Deltas sent to other shards of their groups.", lambda s: s["frames_sent"]),
    ("ecstore_sent_delta_bytes", "Bytes of deltas and blocks sent to other shards.", lambda s: s["bytes_sent"]),
    ("ecstore_scrubbed_stripes", "Stripes whose parity a scrub compared with their data.",
     lambda s: s["scrub"]["stripes"]),
    ("ecstore_scrub_read_bytes", "Row bytes that scrubs read.", lambda s: s["scrub"]["bytes_read"]),
)  # fmt: skip

#: (name, help, extra labels, {label values: value}).
_LABELLED: Final[
    Sequence[tuple[_Simple, str, str, tuple[str, ...], Callable[[Told], Mapping[tuple[str, ...], float]]]]
] = (
    (GaugeMetricFamily, "ecstore_memory_bytes",
     "Memory by what it holds: rows of data shards, of parity shards, key index and key lists, logs of deltas.",
     ("kind",), lambda s: _memory(s["memory"])),
    (GaugeMetricFamily, "ecstore_recoveries_active", "Recoveries that have not ended, by what they do now.",
     ("kind", "state"), lambda s: _count_active(s)),
    (GaugeMetricFamily, "ecstore_throttle_profile", "1 for the profile of recoveries that is in force.",
     ("profile",), lambda s: {(p,): float(s["throttle"]["profile"] == p) for p in PROFILES}),
    (CounterMetricFamily, "ecstore_recoveries_started", "Recoveries that have begun.",
     ("kind",), lambda s: {(k,): s["recovery_totals"][k]["started"] for k in _KINDS}),
    (CounterMetricFamily, "ecstore_recoveries_ended", "Recoveries that have ended, by how.",
     ("kind", "state"), lambda s: {(k, e): s["recovery_totals"][k][e] for k in _KINDS for e in _ENDED}),
    (CounterMetricFamily, "ecstore_recovered_rows",
     "Rows brought back, because they were asked for or by the background work.",
     ("kind", "trigger"), lambda s: {(k, t): s["recovery_totals"][k][f"rows_{w}"] for k in _KINDS
                                     for t, w in (("on_demand", "on_demand"), ("sweep", "swept"))}),
    (CounterMetricFamily, "ecstore_recovered_bytes", "Row bytes brought back.",
     ("kind",), lambda s: {(k,): s["recovery_totals"][k]["bytes"] for k in _KINDS}),
    (CounterMetricFamily, "ecstore_recovery_retries", "Attempts of recoveries that failed and were made again.",
     ("kind",), lambda s: {(k,): s["recovery_totals"][k]["retries"] for k in _KINDS}),
    (CounterMetricFamily, "ecstore_recovery_failed_rows", "Rows that were not back when their group was lost.",
     ("kind",), lambda s: {(k,): s["recovery_totals"][k]["rows_failed"] for k in _KINDS}),
    (CounterMetricFamily, "ecstore_scrub_corrupt_stripes", "Stripes whose parity was wrong, by what came of it.",
     ("outcome",), lambda s: {(o,): s["scrub"][o] for o in ("repaired", "unrepaired", "not_attributable")}),
    (CounterMetricFamily, "ecstore_scrub_key_mismatches", "Blocks of key lists whose copies differed.",
     (), lambda s: {(): s["scrub"]["key_mismatches"]}),
)  # fmt: skip

#: (name, help, extra labels, histogram in `durations`, values of the extra labels).
_HISTOGRAMS: Final[Sequence[tuple[str, str, tuple[str, ...], Mapping[str, tuple[str, ...]]]]] = (
    ("ecstore_pull_duration_seconds", "From a pull request to its reply, on the node.", (), {"pull": ()}),
    ("ecstore_push_duration_seconds", "From a push request to its acknowledgement, on the node.", (), {"push": ()}),
    ("ecstore_delta_ack_duration_seconds", "From a message of deltas to its acknowledgement by the other shard.",
     (), {"delta_ack": ()}),
    ("ecstore_decode_block_duration_seconds", "Decoding of one block of lost rows.",
     ("trigger",), {"decode_on_demand": ("on_demand",), "decode_sweep": ("sweep",)}),
)  # fmt: skip


def _active(told: Told) -> Iterable[Told]:
    return (recovery for recovery in told["recoveries"] if recovery["finished_at"] is None)


def _count_active(told: Told) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = {(kind, state): 0 for kind in _KINDS for state in _ACTIVE}
    for recovery in _active(told):
        counts[recovery["kind"], recovery["state"]] += 1
    return counts


def _memory(told: Told) -> dict[tuple[str, ...], float]:
    return {
        ("data",): told.get("rows", 0), ("parity",): told.get("parity", 0),
        ("index",): told.get("index", 0) + told.get("keys", 0), ("log",): told.get("log", 0),
    }  # fmt: skip


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus wants them; the last bound is infinite."""
    total, buckets = 0, []
    for bound, count in zip([*bounds, float("inf")], counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets


#: A node of an older release does not tell these: it has no series, instead of there being none at all.
_NEEDED: Final = frozenset({"durations", "recovery_totals", "throttle", "scrub", "loop_lag"})


class ClusterCollector(Collector):
    """Makes every family anew from what the service knows now."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        observer = self._service.observer
        reachable, current = not observer.problem, observer.map
        yield GaugeMetricFamily("ecstore_up", "Whether any node answered the last look at the cluster.", reachable)
        version = GaugeMetricFamily("ecstore_build_info", "1, with the version of this service.", labels=["version"])
        version.add_metric([ecstore.__version__], 1)
        yield version
        known = self._service.node_ids()
        told = {
            node: statistics
            for node in known
            if reachable and node in observer.answered and (statistics := observer.statistics(node)) is not None
        }
        up = GaugeMetricFamily("ecstore_node_up", "Whether the node answered the last look.", labels=["node"])
        for node in known:
            up.add_metric([node], node in told)
        yield up
        if reachable and current is not None:  # what is in an old map may be wrong by now
            yield from _of_map(current)
        told = {node: statistics for node, statistics in told.items() if statistics.keys() >= _NEEDED}
        if told:
            yield from _of_nodes(told)


def _of_map(current: ClusterMap) -> Iterator[Metric]:
    health = current.health()
    yield GaugeMetricFamily("ecstore_cluster_epoch", "Version of the cluster map.", current.epoch)
    nodes = GaugeMetricFamily("ecstore_nodes", "Nodes by their state in the cluster map.", labels=["state"])
    states = [node.state for node in current.nodes.values()]
    for state in _NODE_STATES:
        nodes.add_metric([state], states.count(state))
    yield nodes
    groups = GaugeMetricFamily("ecstore_groups", "Groups by the worst that is true of them.", labels=["state"])
    for state in _GROUP_STATES:
        groups.add_metric([state], health[state] or 0)
    yield groups
    yield GaugeMetricFamily("ecstore_groups_moving", "Groups of which a shard is on its way.", health["moving"])
    if health["losses_tolerated"] is not None:
        yield GaugeMetricFamily(
            "ecstore_losses_tolerated", "Nodes that may be lost now, whichever they are, without losing a row.",
            health["losses_tolerated"],
        )  # fmt: skip
    yield _shards(current)
    tables = GaugeMetricFamily("ecstore_tables", "Tables of the cluster.", len(current.tables))
    yield tables


def _shards(current: ClusterMap) -> Metric:
    counts: dict[tuple[str, str, str], int] = {
        (node.id, role, state): 0
        for node in current.nodes.values() if node.alive
        for role in ("data", "parity") for state in ("active", "recovering")
    }  # fmt: skip
    for group in current.groups:
        k = current.code(group).k
        for shard in group.shards:
            key = (shard.owner, "data" if shard.index < k else "parity", shard.state)
            if key in counts and not group.lost:
                counts[key] += 1
    family = GaugeMetricFamily(
        "ecstore_shards", "Shards of a node by role and state.", labels=["node", "role", "state"]
    )
    for labels, count in counts.items():
        family.add_metric(list(labels), count)
    return family


def _of_nodes(told: Mapping[str, Told]) -> Iterator[Metric]:
    for make, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, text, value in table:
            family = make(name, text, labels=["node"])
            for node, statistics in told.items():
                family.add_metric([node], value(statistics))
            yield family
    for labelled, name, text, labels, values in _LABELLED:
        several = labelled(name, text, labels=["node", *labels])
        for node, statistics in told.items():
            for extra, number in values(statistics).items():
                several.add_metric([node, *extra], number)
        yield several
    yield from _histograms(told)
    yield from _trainers(told)


def _histograms(told: Mapping[str, Told]) -> Iterator[Metric]:
    for name, text, labels, parts in _HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=["node", *labels])
        for node, statistics in told.items():
            durations = statistics["durations"]
            for part, extra in parts.items():
                buckets = _buckets(durations["bounds_s"], durations[part]["counts"])
                family.add_metric([node, *extra], buckets, durations[part]["sum_s"])
        yield family
    lag = HistogramMetricFamily(
        "ecstore_event_loop_lag_seconds", "How late timers of the node's event loop were.", labels=["node"]
    )
    for node, statistics in told.items():
        loop = statistics["loop_lag"]
        lag.add_metric([node], _buckets([b / 1e3 for b in loop["bounds_ms"]], loop["counts"]), loop["sum_ms"] / 1e3)
    yield lag


def _trainers(told: Mapping[str, Told]) -> Iterator[Metric]:
    """All trainers together: their names are not bounded."""
    running = [trainer for trainer in merged(told.values()) if trainer["state"] == "running"]
    yield GaugeMetricFamily("ecstore_trainers_running", "Trainers that reported lately.", len(running))
    yield GaugeMetricFamily(
        "ecstore_training_samples_per_second", "Samples a second of all trainers that run.",
        sum(trainer["samples_per_s"] for trainer in running),
    )  # fmt: skip


_TEXT: Final = {
    "schema": {"type": "string"},
    "example": "# HELP ecstore_up 1 when a node of the cluster answers.\n# TYPE ecstore_up gauge\necstore_up 1.0\n",
}


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ClusterCollector(service))

    @routes.get(
        "/metrics",
        summary="For Prometheus: counters of the nodes and of the cluster",
        response_class=Response,
        responses={200: {"description": "the text format", "content": {"text/plain": _TEXT}}},
    )
    async def metrics(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Response:
        await service.observer.refresh()
        encode, content_type = choose_encoder(accept or "")
        return Response(encode(registry), media_type=content_type, headers={"Cache-Control": "no-store"})

    return routes
