"""Large answers go out one by one, in order, each in a turn of the loop of its own."""

from __future__ import annotations

import asyncio

import numpy as np

from ecstore.transport.stream import TURN_BYTES
from tests.transport.loops import Pair, Recorder, on_both_loops, until


class _Turns(Recorder):
    """Answers with many bytes, and counts the turns of the loop between its answers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.turn = 0
        self.answered_in: list[int] = []
        self.order: list[int] = []

    def count(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.count)

    def on_frame(self, conn, frame) -> None:
        self.answered_in.append(self.turn)
        self.order.append(frame.meta["n"])
        conn.reply(frame.rid, {"n": frame.meta["n"]}, [np.full(self.size, frame.meta["n"], np.uint8)])


async def answers(size: int) -> _Turns:
    handler = _Turns(size)
    async with Pair(handler) as pair:
        conn = await pair.connect()
        handler.count()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(conn.request("get", {"n": n}, timeout=20.0)) for n in range(30)]
        for number, task in enumerate(asked):
            frame = task.result()
            assert frame.meta["n"] == number
            assert (frame.bin(0, np.uint8) == number).all()
        handler.count = lambda: None  # type: ignore[method-assign]
    return handler


@on_both_loops
async def test_each_large_answer_has_a_turn():
    handler = await answers(TURN_BYTES)
    assert handler.order == list(range(30))
    assert len(set(handler.answered_in)) == 30


@on_both_loops
async def test_small_answers_share_one():
    handler = await answers(100)
    assert handler.order == list(range(30))
    assert len(set(handler.answered_in)) < 30


@on_both_loops
async def test_an_end_between_two_turns_leaves_nothing():
    """The connection is closed while frames wait for their turn, and while its handler holds it."""
    handler = _Turns(TURN_BYTES)
    async with Pair(handler) as pair:
        conn = await pair.connect()
        for n in range(5):
            conn.request_nowait("get", {"n": n}, [], lambda _answer: None, 20.0)
        await until(lambda: handler.order)
        served = handler_connection(pair)
        served.hold()
        held_at = len(handler.order)
        await asyncio.sleep(0.02)
        assert len(handler.order) == held_at
        served.release()
        await until(lambda: len(handler.order) > held_at or len(handler.order) == 5)
        served.abort()
        await asyncio.sleep(0.02)


def handler_connection(pair):
    (served,) = pair.server.connections
    return served
