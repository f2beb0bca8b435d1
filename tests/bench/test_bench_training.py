"""The training benchmark reports what it should. Its times are not looked at: they are the machine's business."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ecstore.bench.checkpoint import Written
from ecstore.bench.training import CODES, SIZES, TrainingOptions
from ecstore.bench.training_report import Figures, Segment, records
from ecstore.bench.workload import Workload, all_keys, categories_for, cpu_s
from ecstore.errors import CodeError, ConfigError
from ecstore.trainer import SyntheticConfig, SyntheticLog


@pytest.mark.cluster
@pytest.mark.long
def test_a_quick_run_reports_every_mode_and_draws_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ecstore", "bench", "training", "--quick", "--json", "-", "--plot", str(tmp_path / "p"),
         "--categories", "3000", "--batches", "1", "--dense-step-ms", "20"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by_name = {(r["case"], r["metric"]): r for r in report["records"]}
    assert len(by_name) == len(report["records"])
    for mode in ("none", "rs(4,1)", "replicate(2)"):
        for metric in ("samples_per_s", "samples_per_s_prefetch", "samples_per_s_store_bound"):
            record = by_name[f"{mode}/x1", metric]
            assert (record["peer"], record["unit"]) == ("none", "samples/s")
            assert record["ratio"] == pytest.approx(record["value"] / record["peer_value"])
        for metric in ("cpu_s_per_batch", "bytes_per_batch", "memory_ratio"):
            record = by_name[f"{mode}/x1", metric]
            assert record["ratio"] == pytest.approx(record["peer_value"] / record["value"])
    # What does not depend on the machine: memory (of so small a table much is index), and bytes of deltas.
    coded, copied = (by_name[f"{mode}/x1", "memory_ratio"]["value"] for mode in ("rs(4,1)", "replicate(2)"))
    assert 1.0 < coded < copied < 2.1
    assert by_name["rs(4,1)/x1", "samples_per_s_per_memory"]["peer"] == "replicate(2)"
    assert by_name["rs(4,1)/x1", "bytes_per_batch"]["value"] > by_name["none/x1", "bytes_per_batch"]["value"]
    assert by_name["checkpoint(30s)/x1", "checkpoint_bytes"]["value"] > report["machine"]["rows_x1"] * 136
    assert {f.name for f in (tmp_path / "p").iterdir()} == {
        f"training_{name}.{kind}" for name in ("overhead", "memory", "cpu") for kind in ("png", "svg")
    }
    assert "rs(4,1)/x1" in done.stderr


@pytest.mark.parametrize(
    "bad",
    [{"codes": ("rs(4,1)",)}, {"nodes": 5}, {"sizes": ("x3",)}, {"sizes": ()}, {"rounds": 0}, {"intervals": (0.0,)},
     {"codes": ("none", "rs(4)")}],
)  # fmt: skip
def test_impossible_options_are_refused(bad):
    with pytest.raises(CodeError if "rs(4)" in bad.get("codes", ()) else ConfigError):
        TrainingOptions(**bad)


def test_the_grid_is_that_of_the_paper():
    assert {"none", "rs(2,1)", "rs(4,1)"} <= set(CODES)
    assert SIZES == {"x1": (1, 1), "x2": (2, 1), "x4": (4, 1), "x8": (8, 1), "x2w2": (2, 2)}


def test_a_table_has_a_row_for_every_key_of_a_batch():
    log = SyntheticLog(SyntheticConfig(samples=5000, categories=400))
    keys = all_keys(log)
    assert keys.size == np.unique(keys).size == log.sizes.sum() + 26
    for batch in log.train_batches(1000):
        assert np.isin(batch.keys, keys).all()


def test_rows_are_about_as_many_as_wanted():
    for rows in (10_000, 3_000_000):
        sizes = SyntheticLog(SyntheticConfig(samples=1, categories=categories_for(rows))).sizes
        assert sizes.sum() == pytest.approx(rows, rel=0.01)


def test_batches_repeat_from_any_of_them():
    clicks = Workload.make(500, 3, batch_size=8).clicks
    drawn = clicks.starting_at(5).train_batches(8)
    assert [next(drawn) is clicks.batches[n % 3] for n in range(5, 12)] == [True] * 7


def test_ratios_are_those_of_pairs_and_checkpoints_stop_none():
    def figures(*seconds):
        made = Figures(samples=100, memory=10, resident=0)
        made.segments["strict"] = [Segment(s, s / 2, s) for s in seconds]
        return made

    none, coded = figures(1.0, 2.0, 4.0), figures(1.25, 2.5, 5.0)
    none.checkpoints = [Written(3.0, 1.0, 500)] * 3
    coded.memory = 15
    by_name = {(r.case, r.metric): r for r in records("x1", {"none": none, "rs(2,1)": coded}, [30.0])}
    speed = by_name["rs(2,1)/x1", "samples_per_s"]
    assert (speed.value, speed.peer_value, speed.ratio, speed.spread) == (40.0, 50.0, 0.8, 0.0)
    assert by_name["checkpoint(30s)/x1", "samples_per_s"].ratio == pytest.approx(1 / 1.1)
    assert by_name["rs(2,1)/x1", "memory_ratio"].value == 1.5
    assert by_name["rs(2,1)/x1", "cpu_parity_s_per_batch"].value == pytest.approx(0.5)
    assert ("rs(2,1)/x1", "samples_per_s_per_memory") not in by_name  # there is no replicate(2) to compare with


def test_processor_time_of_a_process_is_counted():
    import os

    assert cpu_s(os.getpid()) > 0
    assert np.isnan(cpu_s(2**30))
