"""The demonstration itself, small: through kills, rounds and a loss that is too much."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


def demo(folder: Path, *arguments: str) -> tuple[int, dict, str]:
    """Exit code, report, and what went to standard error, of `ecstore demo --json -`."""
    ran = subprocess.run(
        [sys.executable, "-m", "ecstore", "demo", "--json", "-", *arguments],
        capture_output=True, text=True, timeout=110, check=False, cwd=folder,
    )  # fmt: skip
    assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
    return ran.returncode, json.loads(ran.stdout), ran.stderr


def test_two_rounds_without_a_spare_node(tmp_path):
    code, report, said = demo(
        tmp_path, "--nodes=3", "--code=rs(2,1)", "--kill=1", "--rounds=2", "--batches=60", "--seed=3", "--keep=0.5"
    )
    assert code == 0, said
    assert report["ok"] is True
    assert "watch them live at http://127.0.0.1:" in said
    assert said.index("OK: nodes died") < said.index("the cluster goes on for 0.5 s")
    assert report["bit_identical"] is True
    assert report["parity_verified"] is True
    assert report["verify"]["wrong_stripes"] == 0
    assert report["batches"] == report["batches_planned"] == 60
    assert [kill["round"] for kill in report["kills"]] == [1, 2]
    for kill in report["kills"]:
        assert 0 < kill["detected_ms"] <= kill["recovered_ms"]
        assert kill["detected_ms"] <= kill["first_decoded_row_ms"]
        assert kill["rows_decoded"] > 0
        assert kill["bytes_decoded"] > 0
        assert kill["at_risk_seen"] is True
    first, second = report["kills"]
    assert first["at_risk_ended_ms"] > first["recovered_ms"]
    assert first["back_ms"] is not None
    assert second["at_batch"] > first["at_batch"]
    assert set(report["samples_per_s"]) == {"before", "during_recovery", "after"}
    assert all(speed > 0 for speed in report["samples_per_s"].values())
    assert report["loss"]["last"] < report["loss"]["first"]
    assert "OK:" in said


def test_the_second_kill_falls_into_the_decoding_of_the_first(tmp_path):
    code, report, said = demo(tmp_path, "--nodes=5", "--code=rs(2,2)", "--kill=2", "--batches=60")
    assert code == 0, said
    first, second = report["kills"]
    assert second["while_another_was_decoded"] is True
    assert first["node"] != second["node"]
    assert report["bit_identical"] is True


def test_more_kills_than_the_code_tolerates(tmp_path):
    code, report, said = demo(tmp_path, "--nodes=4", "--code=rs(2,1)", "--kill=2", "--kill-together", "--batches=60")
    assert code == 1
    assert report["ok"] is False
    assert report["bit_identical"] is False
    assert report["lost_groups"]
    assert "lost" in report["error"]
    assert {entry["group"] for entry in report["recoveries"] if entry["state"] == "lost"} >= set(report["lost_groups"])
    assert "LOST groups" in said
    assert "Traceback" not in said
