"""`ecstore chaos` itself: a short run of the real thing, and the parts that judge it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ecstore.chaos.ledger import Ledger, total
from ecstore.chaos.load import growth


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_short_run_proves_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    ran = subprocess.run(
        [
            sys.executable, "-m", "ecstore", "chaos", "--minutes=0.1", "--seed=49", "--suspect-after=1.5",
            f"--json={file}", f"--run-dir={tmp_path / 'run'}",
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(file.read_text())
    assert report["ok"]
    assert report["failures"] == []
    assert (report["lost"], report["doubled"], report["in_doubt"]) == (0, 0, 0)
    assert (report["kills"], report["isolations"]) == (1, 1), "the second while the first is being decoded"
    assert report["recoveries"]["data"]["rows"] > 100
    assert report["pushes"] > 20
    assert report["pulls"] > 10
    assert report["bit_identical"] and report["rows_compared"] == 3000  # noqa: PT018
    assert report["trainer_bit_identical"] and report["trainer_rows"] > 1000  # noqa: PT018
    assert report["parity_verified"]
    assert report["parity"]["stripes"] > 1000
    assert report["starvation"]["speeds"]["otherwise"]["pushes_per_s"] > 0
    done = sum(report[name] for name in ("kills", "pauses", "isolations", "partitions", "delays", "cuts", "slowdowns"))
    assert done == len([entry for entry in report["timeline"] if entry["kind"] != "note"])
    assert all(line in ran.stdout for line in (entry["text"] for entry in report["timeline"]))


def test_the_schedule_can_be_seen_before() -> None:
    command = [sys.executable, "-m", "ecstore", "chaos", "--plan", "--minutes=5", "--seed=3", "--json=-"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    planned = json.loads(shown.stdout)["rounds"]
    assert len(planned) == 20
    assert "round 1: " in shown.stderr


def test_memory_that_grows_is_seen() -> None:
    flat = [(float(second), 100 << 20) for second in range(0, 120, 2)]
    grown = [(at, size + int(at) * (1 << 18)) for at, size in flat]
    told = growth(flat)
    assert told is not None
    assert (told["first_mib"], told["last_mib"], told["growth"], told["ok"]) == (100.0, 100.0, 0.0, True)
    assert told["series_mib"] == [100.0] * 12
    told = growth(grown)
    assert told is not None
    assert not told["ok"]
    assert growth(flat[:20]) is None, "too short a life to tell"
    warming = [(at, 1 << 20) if at < 10 else (at, size) for at, size in flat]
    told = growth(warming)
    assert told is not None
    assert told["ok"], "the beginning of a life does not count"


def test_a_ledger_is_read_by_others(tmp_path: Path) -> None:
    mine = [Ledger(tmp_path / f"{number}", 10, 2, create=True) for number in range(2)]
    for number, ledger in enumerate(mine):
        np.add.at(ledger.attempted, [3, 3], [[1, 2], [1, 2]])
        ledger.acknowledged[3] += number
        ledger.count("pushes", 5)
    theirs = [Ledger(tmp_path / f"{number}", 10, 2) for number in range(2)]
    assert total([ledger.attempted for ledger in theirs])[3].tolist() == [4, 8]
    assert total([ledger.acknowledged for ledger in theirs])[3].tolist() == [1, 1]
    assert [ledger.get("pushes") for ledger in theirs] == [5, 5]
