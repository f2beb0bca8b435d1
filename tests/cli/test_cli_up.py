"""`ecstore up` ends together with everything it has started, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ecstore
from ecstore.errors import ConfigError
from ecstore.launcher.cluster import get_json
from ecstore.launcher.nodes import NICE_BESIDE_OTHERS
from ecstore.launcher.processes import ProcessId, give_way, identify, is_running

pytestmark = pytest.mark.cluster


def up(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], dict]:
    """A running `ecstore up` whose temporary files are in `folder`, and its report."""
    report = folder / "up.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "ecstore", "up", "--nodes=3", "--free-ports", f"--json={report}", *arguments],
        env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not (report.exists() and report.stat().st_size):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, json.loads(report.read_text())


def processes_of(launcher: int) -> list[ProcessId]:
    """Every process that was started with --exit-with=launcher."""
    shown = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    pids = [int(line.split()[0]) for line in shown.splitlines() if f"--exit-with={launcher}" in line.split()]
    return [found for pid in pids if (found := identify(pid)) is not None]


def session_niceness(pid: int) -> int | None:
    """Of a process's session, where Linux shares processors among sessions; None elsewhere."""
    group = Path(f"/proc/{pid}/autogroup")
    return int(group.read_text().split()[-1]) if group.exists() else None


def test_a_niceness_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="--nice is 0 to 19, not -1"):
        give_way(-1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path, number):
    process, report = up(tmp_path)
    try:
        children = processes_of(process.pid)
        assert len(children) == 5  # three nodes, admin, coordination
        with ecstore.connect(report["nodes"]["n1"]) as store:
            assert store.cluster_map.up_nodes() == ("n1", "n2", "n3")
        assert Path(report["run_dir"]).is_dir()
        process.send_signal(number)
        output = process.communicate(timeout=30)[0]
        assert process.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 0), output
        if number is signal.SIGKILL:  # now the others notice by themselves
            deadline = time.monotonic() + 30
            while any(is_running(child) for child in children) or Path(report["run_dir"]).exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert not any(is_running(child) for child in children)
        assert list(tmp_path.glob("ecstore-*")) == []
    finally:
        process.kill()
        process.communicate()


def test_a_run_directory_is_kept_and_belongs_to_one_cluster(tmp_path):
    folder = tmp_path / "run"
    process, report = up(tmp_path, f"--run-dir={folder}")
    try:
        assert report["run_dir"] == str(folder)
        assert get_json(f"{report['admin']}/healthz", timeout=5.0)["status"] == "ok"
        mine = os.getpriority(os.PRIO_PROCESS, process.pid)
        for node in get_json(f"{report['admin']}/nodes", timeout=5.0)["nodes"]:
            assert os.getpriority(os.PRIO_PROCESS, node["pid"]) == mine + NICE_BESIDE_OTHERS
            deadline = time.monotonic() + 30
            while session_niceness(node["pid"]) not in (None, NICE_BESIDE_OTHERS):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        second = subprocess.run(
            [sys.executable, "-m", "ecstore", "up", "--nodes=3", "--free-ports", f"--run-dir={folder}"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 2
        assert "belongs to a running cluster" in second.stderr
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[0]
        assert process.returncode == 0, output
        assert "Ctrl-C ends the cluster" in output
        assert {f"{name}.log" for name in ("n1", "n2", "n3", "admin", "coordination")} <= {
            file.name for file in folder.iterdir()
        }
    finally:
        process.kill()
        process.communicate()
