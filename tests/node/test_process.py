"""The node process itself: it ends when told to, whatever it is waiting for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_node_that_waits_for_the_coordination_service_can_be_ended(number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "ecstore",
        "node",
        "--name=x",
        "--listen=127.0.0.1:0",
        "--coordination=127.0.0.1:9",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "Connection refused" not in process.stderr.readline():  # it listens, and tries to join
                assert process.poll() is None
            time.sleep(0.5)
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()
