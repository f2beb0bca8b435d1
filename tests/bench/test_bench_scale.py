"""The scale benchmark reports what it should; times and sizes are not looked at: they are the machine's business."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ecstore.bench.scale import BOUND_BYTES, ScaleOptions, _Requests, case
from ecstore.errors import CodeError, ConfigError


@pytest.mark.cluster
@pytest.mark.long
def test_tables_of_two_sizes(tmp_path):
    report_file, plots = tmp_path / "scale.json", tmp_path / "plots"
    done = subprocess.run(
        [sys.executable, "-m", "ecstore", "bench", "scale", "--quick", "--rows", "1e3,3e3", "--code", "replicate(2)",
         "--settle", "0", "--json", str(report_file), "--plot", str(plots)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(report_file.read_text())
    records = {(record["case"], record["metric"]): record for record in report["records"]}
    metrics = ("pull_ns_per_row", "push_ns_per_row", "overhead_bytes_per_row", "recovery_s_per_gb")
    assert set(records) == {(size, metric) for size in ("1e3", "3e3") for metric in metrics}
    assert len(records) == len(report["records"])
    for (size, metric), record in records.items():
        if metric.endswith("ns_per_row"):
            assert record["peer"] == "1e3"
            assert record["ratio"] == pytest.approx(record["peer_value"] / record["value"])
            assert record["unit"] == "ns"
            assert record["value"] > 0
        elif metric == "overhead_bytes_per_row":
            assert (record["peer"], record["peer_value"]) == ("bound", BOUND_BYTES)
            if record["value"] > 0:
                assert record["ratio"] == pytest.approx(BOUND_BYTES / record["value"])
        else:
            assert record["value"] > 0, size
    assert records["1e3", "pull_ns_per_row"]["ratio"] == 1.0
    for name in ("scale_time", "scale_memory", "scale_recovery"):
        assert (plots / f"{name}.png").stat().st_size > 5_000
        assert (plots / f"{name}.svg").stat().st_size > 5_000


def test_cases_are_named_by_their_size():
    assert [case(rows) for rows in (100_000, 1_000_000, 10_000_000, 2_500)] == ["1e5", "1e6", "1e7", "2.5e3"]


def test_a_request_holds_no_row_twice_and_only_rows_of_the_table():
    requests = _Requests(ScaleOptions(rows=(3_000,), request_rows=1_000), 3_000)
    known = set((np.arange(3_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).tolist())
    for _ in range(5):
        keys = requests.next().tolist()
        assert len(set(keys)) == len(keys) == 1_000
        assert set(keys) <= known


@pytest.mark.parametrize(
    "bad", [{"rows": ()}, {"rows": (10,)}, {"row_bytes": 5}, {"repetitions": 0}, {"code": "rs(4)"}]
)
def test_impossible_options_are_refused(bad):
    with pytest.raises(CodeError if "code" in bad else ConfigError):
        ScaleOptions(**bad)
