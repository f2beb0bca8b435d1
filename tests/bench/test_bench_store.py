"""The store benchmark reports what it should. Its times are not looked at: they are the machine's business."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from ecstore.bench import redis_peer
from ecstore.bench.loopback_peer import loopback
from ecstore.bench.report import Record, Report, interleaved, spread, throughput, throughput_beside
from ecstore.bench.store import StoreOptions
from ecstore.errors import CodeError, ConfigError

FIELDS = {"case", "metric", "value", "unit", "peer", "peer_value", "ratio", "spread"}
SMALL = ("--quick", "--rows", "300", "--repetitions", "2")


def bench(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ecstore", "bench", "store", "--json", "-", *arguments],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def check_numbers(report):
    assert report["machine"]["python"]
    for record in report["records"]:
        assert record.keys() == FIELDS
        for name in ("value", "peer_value", "ratio"):
            if record[name] is not None:
                assert math.isfinite(record[name])
                assert record[name] > 0


@pytest.mark.cluster
@pytest.mark.skipif(redis_peer.why_not() is not None, reason=redis_peer.why_not() or "")
def test_the_store_beside_redis_and_loopback(tmp_path):
    report, shown = bench(*SMALL, "--row-bytes", "64,256", "--codes", "none", "--plot", str(tmp_path))
    check_numbers(report)
    by_name = {(r["case"], r["metric"], r["peer"]): r for r in report["records"]}
    assert len(by_name) == len(report["records"]) == 10
    moved = by_name["pull/none/64B", "bytes_per_request", "redis"]
    assert moved["value"] == moved["peer_value"] == 300 * 64
    for case in ("pull/none/64B", "push/none/64B", "pull/none/256B", "push/none/256B"):
        for peer in ("redis", "loopback"):
            record = by_name[case, "rows_per_s", peer]
            assert record["unit"] == "rows/s"
            assert record["ratio"] == pytest.approx(record["value"] / record["peer_value"])
            assert record["spread"] >= 0
    assert "ratio" in shown
    assert "push/none/64B" in shown
    assert report["machine"]["redis_server"]
    for name in ("store_64B.png", "store_64B.svg", "store_256B.png", "store_256B.svg"):
        assert (tmp_path / name).stat().st_size > 5_000


@pytest.mark.cluster
def test_without_redis_the_peer_is_null_and_codes_are_told_apart():
    report, _shown = bench(
        *SMALL, "--no-redis", "--no-loopback", "--row-bytes", "256", "--codes", "none,replicate(2)"
    )  # fmt: skip
    check_numbers(report)
    assert all(r["peer"] is r["peer_value"] is r["ratio"] is None for r in report["records"])
    speeds = [r["case"] for r in report["records"] if r["metric"] == "rows_per_s"]
    assert speeds == [f"{op}/{code}/256B" for code in ("none", "replicate(2)") for op in ("pull", "push")]


@pytest.mark.parametrize(
    "bad",
    [
        {"rows": 0},
        {"row_bytes": (64, 6)},
        {"row_bytes": (0,)},
        {"repetitions": 0},
        {"codes": ("rs(4)",)},
    ],
)
def test_impossible_options_are_refused(bad):
    with pytest.raises(CodeError if "codes" in bad else ConfigError, match=r"\d"):
        StoreOptions(**bad)


def test_repetitions_alternate_and_warm_up_is_not_counted():
    calls = []
    sides = {name: lambda number, name=name: calls.append((name, number)) for name in "ab"}
    seconds = interleaved(sides, 2, warm_up=1)
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_how_many_times_better_and_its_spread_that_of_pairs():
    record = throughput_beside("c", 100, "rows/s", "rows_per_s", [1.0, 2.0, 4.0], "peer", [3.0, 6.0, 12.0])
    assert (record.value, record.peer_value, record.ratio) == (50.0, 100 / 6, 3.0)
    assert record.spread == 0.0  # what slowed both sides down cancels out
    assert throughput("c", 100, "rows/s", "rows_per_s", [1.0, 2.0, 4.0]).spread == pytest.approx(0.75)
    assert spread([1.0]) is None


def test_the_table_shows_ratios_first():
    report = Report({"processor": "p"}, [Record("pull/none/256B", "rows_per_s", 5e6, "rows/s", "redis", 1e6, 5.0, 0.1)])
    head, line, *_ = report.lines()
    assert head.split()[0] == "ratio"
    assert line.split()[0] == "5.00x"


def test_loopback_moves_any_number_of_bytes():
    with loopback(1 << 20) as copier:
        for send, receive in ((0, 0), (1, 0), (0, 1 << 20), (1 << 20, 5)):
            copier.exchange(send, receive)
