"""The loop's lag is measured on the loop's clock, and shown by every node."""

from __future__ import annotations

import asyncio

import pytest

from ecstore.errors import ConfigError
from ecstore.node.config import NodeConfig
from ecstore.node.lag import BOUNDS_MS, WINDOW_S, LoopLag
from tests.in_process import connect, in_process


class _Clock:
    """A loop whose time is told, with at most one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timer = None

    def time(self) -> float:
        return self.now

    def call_at(self, when, callback):
        self.timer = (when, callback)
        return self

    def cancel(self) -> None:
        self.timer = None

    def wait(self, late: float) -> None:
        when, callback = self.timer
        self.now = when + late
        callback()


def test_lag_is_how_late_the_timer_is_and_own_what_this_thread_worked_of_it():
    clock, worked = _Clock(), [0.0]
    lag = LoopLag(clock, 1.0, lambda: worked[0])  # type: ignore[arg-type]
    lag.start()
    clock.wait(0.0)
    worked[0] += 0.004  # 30 ms late, and most of that somebody else had the core
    clock.wait(0.030)
    worked[0] += 0.070
    clock.wait(0.060)
    found = lag.statistics()
    assert sum(found["counts"]) == 3
    assert found["counts"][BOUNDS_MS.index(50.0)] == 1
    assert found["max_ms"] == pytest.approx(60.0)
    assert found["own_max_ms"] == pytest.approx(60.0)
    clock.wait(5.0)
    assert lag.statistics()["recent_max_ms"] == lag.statistics()["max_ms"] == pytest.approx(5000.0)
    for _ in range(int(2 * WINDOW_S)):
        clock.wait(0.001)
    assert lag.statistics()["max_ms"] == pytest.approx(5000.0)
    assert lag.statistics()["recent_max_ms"] == pytest.approx(1.0)
    lag.stop()
    assert clock.timer is None


def test_the_interval_is_positive():
    with pytest.raises(ConfigError, match="lag_interval_s"):
        NodeConfig(name="n", listen="127.0.0.1:0", coordination="127.0.0.1:1", lag_interval_s=0.0)


async def test_a_node_shows_its_lag(monkeypatch):
    async with in_process(1, monkeypatch) as cluster, await connect(cluster) as store:

        async def lag():
            return (await store.status())["nodes"]["n1"]["statistics"]["loop_lag"]

        first = await lag()
        assert set(first) == {
            "bounds_ms", "counts", "sum_ms", "max_ms", "own_max_ms", "recent_max_ms", "recent_own_max_ms",
        }  # fmt: skip
        await asyncio.sleep(0.1)
        assert sum((await lag())["counts"]) > sum(first["counts"])
        _busy(0.15)
        await asyncio.sleep(0.05)
        assert (await lag())["own_max_ms"] >= 50.0


def _busy(seconds: float) -> None:
    """Use the processor for so long."""
    import time

    stop = time.thread_time() + seconds
    while time.thread_time() < stop:
        pass
