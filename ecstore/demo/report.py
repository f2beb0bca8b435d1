"""What a demonstration has shown: as JSON for programs, and in words for people."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ecstore.demo.run import DemoResult
from ecstore.demo.watch import Kill


def to_json(result: DemoResult) -> dict[str, Any]:
    """The report. `*_ms` of a kill count from the POST that killed the node; null: it did not happen."""
    options, dataset = result.options, result.dataset
    trained, comparison = result.trained, result.comparison
    return {
        "ok": result.ok,
        "nodes": options.nodes,
        "code": result.config.code,
        "dense_code": result.config.replicas,
        "dataset": dataset.name,
        "seed": options.seed,
        "batches": len(result.batches),
        "batches_planned": result.batches_planned,
        "samples": sum(report.samples for _at, report in result.batches),
        "samples_per_s": speeds(result),
        "kills": [kill_to_json(kill, result.recoveries) for kill in result.kills],
        "kill_together": options.kill_together,
        "rounds": options.rounds,
        "bit_identical": comparison is not None and comparison.equal,
        "compared": None
        if comparison is None
        else {
            "rows": comparison.rows,
            "differing_rows": sum(t.different + t.only_first + t.only_second for t in comparison.tables),
            "tables": [table.table for table in comparison.tables],
            "with": "the same training in one process, undisturbed; weights, optimizer state and dense parameters",
        },
        "parity_verified": result.verified is not None and result.verified.ok,
        "verify": None if result.verified is None else result.verified.to_json(),
        "loss": None if trained is None else {"first": trained.loss_first, "last": trained.loss_last},
        "auc": None if trained is None else trained.auc,
        "log_loss": None if trained is None else trained.log_loss,
        "auc_undisturbed": None if result.undisturbed is None else result.undisturbed.auc,
        "held_out": {
            "samples": dataset.test_samples,
            "note": "auc and log_loss are of the last seventh of the data, which was not trained on",
        },
        "bad_lines": dataset.bad_lines.count,
        "lost_groups": result.lost_groups,
        "loss_noticed_s": result.loss_noticed_s,
        "recoveries": [entry for entry in result.recoveries if entry["state"] in ("lost", "cancelled")],
        "held_s": round(result.held_s, 3),
        "seconds": {stage: round(seconds, 2) for stage, seconds in result.seconds.items()},
        "error": result.error,
    }


def speeds(result: DemoResult) -> dict[str, float | None]:
    """Samples a second before the first kill, while anything was being recovered, and after the last recovery.

    Time in which the training was held for the sake of the demonstration does not count.
    """
    intervals = [(kill.at, kill.recovered_at if kill.recovered_at is not None else math.inf) for kill in result.kills]
    first = min((begin for begin, _end in intervals), default=math.inf)
    last = max((end for _begin, end in intervals), default=math.inf)
    parts: dict[str, list[tuple[int, float]]] = {"before": [], "during_recovery": [], "after": []}
    for at, report in result.batches:
        took = report.pull_s + report.compute_s + report.push_s
        if any(begin <= at and at - took <= end for begin, end in intervals):
            parts["during_recovery"].append((report.samples, took))
        elif at < first:
            parts["before"].append((report.samples, took))
        elif at > last:
            parts["after"].append((report.samples, took))
    return {name: _rate(batches) for name, batches in parts.items()}


def _rate(batches: list[tuple[int, float]]) -> float | None:
    seconds = sum(took for _samples, took in batches)
    return round(sum(samples for samples, _took in batches) / seconds, 1) if seconds > 0 else None


def kill_to_json(kill: Kill, recoveries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One kill, with what was done for the shards that this life of the node had."""
    held = set(kill.shards)
    ended = kill.recover_asked_at if kill.recover_asked_at is not None else math.inf
    own = [
        entry
        for entry in recoveries
        if entry["lost_node"] == kill.node
        and entry["kind"] in ("data", "parity")
        and (entry["group"], entry["shard"]) in held
        and kill.at <= entry["started_at"] < ended
    ]
    data = [entry for entry in own if entry["kind"] == "data"]
    parity = [entry for entry in own if entry["kind"] == "parity"]
    first = min((e["first_row_at"] for e in data if e["first_row_at"] is not None), default=None)
    # On a busy machine a node acts on the new map before it is seen here.
    noticed = min((at for at in (kill.detected_at, *(e["started_at"] for e in own)) if at is not None), default=None)
    return {
        "node": kill.node,
        "round": kill.round,
        "at_batch": kill.at_batch,
        "while_another_was_decoded": kill.others_decoding,
        "detected_ms": _ms(kill.at, noticed),
        "first_decoded_row_ms": _ms(kill.at, first),
        "recovered_ms": _ms(kill.at, kill.recovered_at),
        "data_shards": sum(1 for entry in {(e["group"], e["shard"]) for e in data} if entry),
        "parity_shards": len({(e["group"], e["shard"]) for e in parity}),
        "rows_decoded": sum(entry["rows_decoded"] for entry in data),
        "rows_on_demand": sum(entry["rows_on_demand"] for entry in data),
        "bytes_decoded": sum(entry["bytes_decoded"] for entry in data),
        "parity_rows_read": sum(entry["rows_decoded"] for entry in parity),
        "at_risk_seen": kill.at_risk_seen,
        "at_risk_ended_ms": _ms(kill.at, kill.at_risk_ended_at),
        "back_ms": _ms(kill.recover_asked_at, kill.back_at),
    }


def _ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(1000.0 * (end - begin), 1)


def summary(report: dict[str, Any]) -> list[str]:
    """Lines for a person, out of the JSON report."""
    lines = ["", "Summary"]
    speed = report["samples_per_s"]
    lines.append(
        f"  trained {report['batches']} of {report['batches_planned']} batches ({report['samples']:,} samples of "
        f"{report['dataset']}) on {report['nodes']} nodes with {report['code']}"
    )
    lines.append(
        "  samples/s: " + ", ".join(f"{name.replace('_', ' ')} {_figure(value)}" for name, value in speed.items())
    )
    lines += [_kill_line(kill) for kill in report["kills"]]
    if report["loss"] is not None:
        auc = _figure(report["auc"], 4)
        lines.append(
            f"  loss {_figure(report['loss']['first'], 4)} -> {_figure(report['loss']['last'], 4)}, AUC {auc} on "
            f"{report['held_out']['samples']:,} held-out samples"
        )
    if report["lost_groups"]:
        lines.append(f"  LOST groups {', '.join(map(str, report['lost_groups']))}: more nodes than the code tolerates")
    if report["error"]:
        lines.append(f"  error: {report['error']}")
    if report["verify"] is not None:
        checked = report["verify"]
        verdict = "right" if not (checked["wrong_stripes"] or checked["unchecked"]) else "WRONG or unchecked"
        which = "the other " if report["lost_groups"] else ""
        lines.append(f"  parity of {which}{checked['groups']} groups: {verdict}")
    if report["compared"] is not None:
        rows = report["compared"]["rows"]
        same = f"all {rows:,} rows are bit for bit those of an undisturbed run"
        lines.append(
            f"  {same if report['bit_identical'] else str(report['compared']['differing_rows']) + ' rows DIFFER'}"
        )
    lines.append("OK: nodes died, training went on, nothing was lost" if report["ok"] else "FAILED")
    return lines


def _kill_line(kill: dict[str, Any]) -> str:
    line = (
        f"  {kill['node']} killed at batch {kill['at_batch']}"
        + (", while another was being decoded" if kill["while_another_was_decoded"] else "")
        + f": noticed after {_figure(kill['detected_ms'])} ms, first row decoded after "
        f"{_figure(kill['first_decoded_row_ms'])} ms, whole after {_figure(kill['recovered_ms'])} ms "
        f"({kill['rows_decoded']:,} rows decoded, {kill['rows_on_demand']:,} of them on demand)"
    )
    if kill["at_risk_seen"]:
        ended = kill["at_risk_ended_ms"]
        line += "; too few nodes left for every shard to have its own" + (
            "" if ended is None else f" (at risk) until {_figure(ended)} ms"
        )
    return line


def _figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"
