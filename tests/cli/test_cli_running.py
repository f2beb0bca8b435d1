"""What is done to a running cluster: the examples as they stand, `train`, `status --verify`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ecstore
from ecstore import verify as verifying
from ecstore.cli import main

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_examples_are_short():
    files = sorted(EXAMPLES.glob("*.py"))
    assert len(files) == 3
    assert all(len(file.read_text().splitlines()) < 80 for file in files)


def test_pull_and_push(running_cluster):
    said = example("01_pull_and_push.py", "--connect", running_cluster.address)
    assert "refused: gradients" in said


def test_kill_a_node_and_read_on(running_cluster):
    where = ("--connect", running_cluster.address, "--admin", running_cluster.admin_url)
    said = example("02_kill_a_node_and_read_on.py", *where)
    assert "the same bits: True" in said
    assert "is back" in said


def test_status_with_verify(running_cluster, capsys):
    assert main(["status", "--connect", running_cluster.address, "--verify", "--json", "-"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["ok"] is True
    assert report["verify"]["stripes"] > 0
    assert report["verify"]["wrong_stripes"] == 0
    assert "parity of all" in captured.err


def test_status_goes_on_in_plain_lines(running_cluster, capsys):
    assert main(["status", "--connect", running_cluster.address, "--watch-for", "1.5"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].partition(":")[0] in ("Safe", "Empty", "Repairing", "At risk")
    assert len(said) < 20, "the same again and again"


def test_watching_and_reporting_do_not_go_together(running_cluster, capsys):
    assert main(["status", "--connect", running_cluster.address, "--watch", "--verify"]) == 2
    assert "--watch goes alone" in capsys.readouterr().err


@pytest.fixture
def coded_rows(running_cluster):
    with ecstore.connect(running_cluster.address) as store:
        table = store.create_table("verified", dim=4, optimizer=ecstore.SGD(lr=1.0), code="rs(2,1)")
        table.push(np.arange(300, dtype=np.uint64), np.ones((300, 4), np.float32))


def test_verify_sees_one_wrong_byte(running_cluster, coded_rows, monkeypatch, capsys):
    """One byte of what one parity shard answers is turned over: exactly its stripe is reported, and the exit code."""
    asked = verifying._ask

    async def corrupted(session, group, index, kind, meta, slots=None):
        answer = await asked(session, group, index, kind, meta, slots)
        if kind != "parity.read" or group.gid != 0 or session.map.tables["verified"].id != meta["table"]:
            return answer
        rows = np.array(answer.bin(0, np.uint8))
        rows[5] ^= 1
        return dataclasses.replace(answer, bins=(rows,))

    monkeypatch.setattr(verifying, "_ask", corrupted)
    report = verifying.verify(running_cluster.address)
    assert not report.ok
    assert report.wrong_stripes == 1
    assert [(m.group, m.table, m.first_slot) for m in report.mismatches] == [(0, "verified", 0)]
    assert main(["status", "--connect", running_cluster.address, "--verify"]) == 1
    assert "wrong parity" in capsys.readouterr().out


def test_train_on_a_running_cluster(running_cluster, capsys, tmp_path):
    file = tmp_path / "train.json"
    where = ("--connect", running_cluster.address, "--code", "rs(2,1)", "--seed", "9")
    arguments = ["train", *where, "--samples", "2000", "--epochs", "1", "--batches", "6", "--json", str(file)]
    assert main(arguments) == 0
    report = json.loads(file.read_text())
    assert report["batches"] == 6
    assert "AUC" in capsys.readouterr().out
    with ecstore.connect(running_cluster.address) as store:
        store.drop_table("embedding")
        store.drop_table("dense")


def test_train_through_a_failure(running_cluster):
    where = ("--connect", running_cluster.address, "--admin", running_cluster.admin_url)
    said = example("03_train_through_a_failure.py", *where, "--samples", "3500")
    assert "equal, bit for bit" in said
    assert "was killed" in said
