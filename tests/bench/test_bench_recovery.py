"""The recovery benchmark reports what it should. Its times are not looked at: they are the machine's business."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ecstore.bench.checkpoint import Written
from ecstore.bench.plot_recovery import plot
from ecstore.bench.recovery import CASES, RecoveryOptions
from ecstore.bench.recovery_case import Case, Seen
from ecstore.bench.recovery_report import Baseline, records, timeline
from ecstore.demo.watch import Kill
from ecstore.errors import ConfigError


@pytest.mark.cluster
@pytest.mark.long
def test_a_node_is_killed_and_its_rows_come_back(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ecstore", "bench", "recovery", "--quick", "--json", "-", "--plot", str(tmp_path / "p"),
         "--rows-gb", "0.01", "--dense-step-ms", "20", "--before", "0.5", "--after", "0.5",
         "--only", "rs(4,2)/1-node"],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by_name = {(r["case"], r["metric"]): r for r in report["records"]}
    case = "rs(4,2)/1-node"
    for metric in ("detected_ms", "first_decoded_row_ms", "recovered_s", "rows_decoded", "moved_bytes"):
        assert by_name[case, metric]["value"] > 0
    during = by_name[case, "throughput_during"]
    assert (during["peer"], during["unit"]) == ("before", "samples/s")
    assert during["ratio"] == pytest.approx(during["value"] / during["peer_value"])
    beside = by_name[case, "recovery_vs_checkpoint"]
    assert beside["value"] == by_name[case, "recovered_s"]["value"]
    assert beside["ratio"] == pytest.approx(beside["peer_value"] / beside["value"])
    # An eighth of the rows, and of twice as many parity rows as half of them, each moved four times.
    assert by_name[case, "moved_bytes"]["value"] > 4 * 0.01e9 / 8
    assert len(report["timelines"][case]["kills"]) == 1
    assert {f.stem for f in (tmp_path / "p").iterdir()} >= {"recovery_vs_checkpoint", "recovery_ablations"}
    assert "first row decoded" in done.stderr


@pytest.mark.parametrize("bad", [{"rows_gb": 0}, {"only": ("rs(9,9)/1-node",)}, {"nodes": 6}])
def test_impossible_options_are_refused(bad):
    with pytest.raises(ConfigError):
        RecoveryOptions(**bad)


def test_every_ablation_is_there():
    names = {case.name for case in CASES}
    assert {"rs(4,2)/1-node", "rs(4,2)/2-nodes", "rs(4,1)/1-node", "rs(4,2)/sweep-only", "rs(4,2)/on-demand-only",
            "rs(4,2)/kill-during-recovery"} <= names  # fmt: skip
    assert {name.partition("/")[2].partition("=")[0] for name in names} >= {"block", "rate"}


def seen(**more):
    made = Seen(Case(name="c", code="rs(4,2)", full=True), samples=100, table_bytes=1, **more)
    made.kills = [Kill(node="n1", round=1, at_batch=3, at=110.0, incarnation=1, shards=(), at_risk_before=False,
                       detected_at=110.1, recovered_at=114.0)]  # fmt: skip
    made.started_at, made.ended_at = 100.0, 118.0
    # A batch each second before the kill, one in two seconds during the recovery.
    made.finishes = [101.0 + n for n in range(10)] + [112.0, 114.0] + [115.0, 116.0, 117.0, 118.0]
    made.recoveries = [
        {"kind": "data", "first_row_at": 110.2, "bytes_decoded": 30, "rows_decoded": 3, "rows_on_demand": 1},
        {"kind": "parity", "first_row_at": 110.1, "bytes_decoded": 40, "rows_decoded": 4, "rows_on_demand": 0},
    ]
    return made


def test_throughput_is_that_of_spans_and_recovery_is_compared_with_restore_and_half_an_interval():
    baseline = Baseline(Written(2.0, 1.0, 10), restore_s=3.0, restore_disk_s=0.5, overhead=0.05)
    assert (baseline.interval_s, baseline.recovery_s, baseline.disk_recovery_s) == (40.0, 23.0, 10.5)
    by_name = {record.metric: record for record in records(seen(), baseline, None)}
    assert by_name["throughput_during"].ratio == pytest.approx(0.5)
    assert by_name["throughput_after"].ratio == pytest.approx(1.0)
    assert by_name["first_decoded_row_ms"].value == pytest.approx(200.0)  # of a data shard
    assert by_name["recovered_s"].value == pytest.approx(4.0)
    assert by_name["recovery_vs_checkpoint"].ratio == pytest.approx(23 / 4)
    assert by_name["moved_bytes"].value == 4 * 30 + 40


def test_what_never_recovers_has_no_time_for_it_and_is_drawn_all_the_same(tmp_path):
    unfinished = seen()
    unfinished.kills[0].recovered_at = None
    found = records(unfinished, None, None)
    assert "recovered_s" not in {record.metric for record in found}
    assert plot(found, {"rs(4,2)/1-node": timeline(unfinished)}, tmp_path)
    assert (tmp_path / "recovery_ablations.svg").stat().st_size > 1000
