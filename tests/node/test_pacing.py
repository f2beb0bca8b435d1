"""Background work keeps its rate and lets requests go first, in virtual time: every second here is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ecstore.node.pacing import BURST_S, GRACE_S, IN_USE_S, LONGEST_YIELD_S, QUIET_S, Pacer
from tests.sim.loop import VirtualLoop


def in_virtual_time(work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_the_rate_is_kept() -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1.0)
        pacer, start = Pacer(1000.0), loop.time()
        await asyncio.gather(*(pacer.take(100) for _ in range(20)))
        return loop.time() - start

    assert in_virtual_time(work()) == pytest.approx(2.0 - BURST_S)


def test_work_waits_until_requests_pause() -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        pacer = Pacer(1e9)
        for number in range(5):
            loop.call_later(number * QUIET_S / 2, pacer.asked)
        await asyncio.sleep(0)
        start = loop.time()
        await pacer.take(1)
        return loop.time() - start

    assert in_virtual_time(work()) == pytest.approx(4 * QUIET_S / 2 + QUIET_S)


@pytest.mark.parametrize("waited_for", [False, True])
def test_under_steady_load_work_goes_on_in_steps(waited_for: bool) -> None:
    async def ask(pacer: Pacer) -> None:
        while True:
            pacer.asked()
            await asyncio.sleep(QUIET_S / 2)

    async def work() -> float:
        loop = asyncio.get_running_loop()
        pacer, start = Pacer(1e9), loop.time()
        if waited_for:
            with pacer.waited_for():
                await pacer.take(1)
                await pacer.take(1)
        else:
            load = asyncio.create_task(ask(pacer))
            await asyncio.sleep(0)
            await pacer.take(1)
            await pacer.take(1)
            load.cancel()
        return loop.time() - start

    assert in_virtual_time(work()) == pytest.approx(2 * LONGEST_YIELD_S)


def test_an_idle_cluster_waits_for_nobody() -> None:
    async def work() -> float:
        pacer = Pacer(1e12)
        with pacer.waited_for():
            pass
        await pacer.take(1)
        return asyncio.get_running_loop().time()

    assert in_virtual_time(work()) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("asked_before_s", [0.1, IN_USE_S - 0.1, IN_USE_S + 0.1])
def test_after_a_loss_background_work_begins_later_if_clients_are_there(asked_before_s: float) -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        pacer = Pacer(1e9)
        pacer.asked()
        await asyncio.sleep(asked_before_s)
        pacer.lost()
        start = loop.time()
        await asyncio.gather(pacer.take(0), pacer.take(1))
        return loop.time() - start

    grace = GRACE_S if asked_before_s < IN_USE_S else 0.0
    assert in_virtual_time(work()) == pytest.approx(grace, abs=1e-6)


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_a_new_rate_holds_for_what_waits_already(factor: float) -> None:
    """40 pieces are in line for 2 s; after 0.5 s the rate changes: what is left takes so much less, or more."""

    async def work() -> tuple[float, list[int]]:
        loop = asyncio.get_running_loop()
        pacer, start, order = Pacer(1000.0), loop.time(), []

        async def piece(number: int) -> None:
            await pacer.take(50)
            order.append(number)

        waiting = [asyncio.create_task(piece(number)) for number in range(40)]
        loop.call_later(0.5, lambda: pacer.set_rate(1000.0 * factor, lets_requests_go_first=True))
        await asyncio.gather(*waiting)
        return loop.time() - start, order

    took, order = in_virtual_time(work())
    assert took == pytest.approx(0.5 + (2.0 - 0.5) / factor)
    assert order == sorted(order)


def test_work_that_was_given_up_leaves_nothing_behind() -> None:
    async def work() -> tuple[int, float]:
        pacer = Pacer(10.0)
        task = asyncio.create_task(pacer.take(1000))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pacer.set_rate(1e6, lets_requests_go_first=True)
        start = asyncio.get_running_loop().time()
        await pacer.take(1)
        return len(pacer._turns), asyncio.get_running_loop().time() - start

    turns, waited = in_virtual_time(work())
    assert turns == 0
    assert waited < 0.01


def test_with_recovery_first_nobody_is_let_go_first() -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        pacer = Pacer(1e9)
        pacer.set_rate(1e9, lets_requests_go_first=False)
        pacer.asked()
        pacer.lost()
        start = loop.time()
        for _ in range(5):
            pacer.asked()
            await pacer.take(1)
        return loop.time() - start

    assert in_virtual_time(work()) == pytest.approx(0.0, abs=1e-6)
