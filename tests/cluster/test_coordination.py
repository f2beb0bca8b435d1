"""The coordination service over real sockets, and as a real process that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ecstore.cluster.map import ClusterMap, empty_map
from ecstore.cluster.transitions import CreateTable, NodeDown, NodeJoin, next_map
from ecstore.coordination import CoordinationService, EmbeddedCoordination
from ecstore.coordination.mapfile import pack_map, read_map_file, write_map_file
from ecstore.errors import (
    CodeError,
    ConfigError,
    EcstoreError,
    FrameError,
    ProtocolError,
    UnavailableError,
    WrongClusterError,
)
from ecstore.optim import SGD
from ecstore.tables import TableSpec, Zeros
from ecstore.transport import Hello, PassiveHandler, connect


def spec(name: str, code: str = "rs(2,1)") -> TableSpec:
    return TableSpec(name=name, dim=8, optimizer=SGD(0.1), init=Zeros(), seed=1, code=code)


@contextlib.asynccontextmanager
async def service(
    state: Path | None = None, port: int = 0, cluster: str | None = "test"
) -> AsyncIterator[CoordinationService]:
    running = CoordinationService(cluster, 7, state, port=port)
    await running.start()
    try:
        yield running
    finally:
        await running.close()


@contextlib.asynccontextmanager
async def access(
    address: str, name: str = "n0", *, cluster: str | None = "test", timeout_s: float = 5.0, wait: bool = True
) -> AsyncIterator[EmbeddedCoordination]:
    coordination = EmbeddedCoordination(
        address,
        Hello(role="node", cluster=cluster, name=name),
        rng=random.Random(1),
        heartbeat_s=0.01,
        timeout_s=timeout_s,
    )
    await coordination.start(timeout_s if wait else None)
    try:
        yield coordination
    finally:
        await coordination.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the test's own time limit ends it when it never comes."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.005)


# -- compare and swap ----------------------------------------------------------------------------------------


async def test_a_fresh_service_has_an_empty_map() -> None:
    async with service() as running, access(running.address) as coordination:
        assert await coordination.get() == empty_map("test", 7)
        assert coordination.available
    async with service(cluster=None) as running, access(running.address, cluster=None) as coordination:
        assert (await coordination.get()).cluster.startswith("cluster-")


async def test_of_two_swaps_of_one_epoch_exactly_one_wins() -> None:
    async with service() as running, access(running.address, "a") as a, access(running.address, "b") as b:
        base = await a.get()
        for number in range(50):
            one, two = (next_map(base, NodeJoin(f"{name}{number}", "h:1")) for name in "ab")
            won = await asyncio.gather(a.compare_and_swap(base.epoch, one), b.compare_and_swap(base.epoch, two))
            assert sorted(won) == [False, True]
            base = await a.get()
            assert base == (one if won[0] else two)
            assert a.newest == b.newest == base, "the loser learns the map in force from the answer"


async def test_proposals_race_and_all_happen_once() -> None:
    async with service() as running, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(access(running.address, f"p{i}")) for i in range(6)]
        await asyncio.gather(*(p.propose(NodeJoin(f"n{i}", "h:1")) for i, p in enumerate(peers)))
        await asyncio.gather(*(p.propose(CreateTable(spec("shared"))) for p in peers))
        await asyncio.gather(*(p.propose(NodeDown("n3", 1, "silent")) for p in peers))
        final = await peers[0].get()
        assert final.epoch == 6 + 1 + 1
        assert running.current == final
        assert final.nodes["n3"].state == "down"


async def test_proposals_are_judged_by_the_newest_map_not_the_one_at_hand() -> None:
    async with service() as running, access(running.address, "a") as a, access(running.address, "b") as b:
        for i in range(2):
            await a.propose(NodeJoin(f"n{i}", "h:1"))
        await until(lambda: b.newest is not None and b.newest.epoch == 2)
        stale = b.newest
        await a.propose(NodeJoin("n2", "h:1"))
        await a.propose(NodeDown("n1", 1, "silent"))
        await a.propose(NodeJoin("n1", "h:1"))
        await until(lambda: b.newest is not None and b.newest.epoch == 5)
        b._newest = stale  # as if its pushes were still on the way
        after = await b.propose(CreateTable(spec("t")))  # impossible by the stale map: two nodes
        assert "t" in after.tables
        b._newest = stale
        after = await b.propose(NodeDown("n1", 2, "silent"))  # a life the stale map does not know
        assert after.nodes["n1"].state == "down"
        with pytest.raises(CodeError, match="needs 6 nodes"):
            await b.propose(CreateTable(spec("u", "rs(4,2)")))


async def test_a_swap_that_makes_no_sense_is_refused() -> None:
    async with service() as running, access(running.address) as coordination:
        base = await coordination.get()
        with pytest.raises(FrameError, match="must have epoch 1"):
            await coordination.compare_and_swap(0, replace(base, epoch=7))
        with pytest.raises(WrongClusterError):
            await coordination.compare_and_swap(0, replace(base, epoch=1, seed=8))
        conn = await connect(
            running.address,
            Hello(role="client", cluster=None, name="x"),
            PassiveHandler(),
            expect_cluster=None,
            timeout=5,
        )
        for kind, meta, bins in [
            ("coord.cas", {"old_epoch": 0}, [b"\xc1garbage"]),
            ("coord.cas", {"old_epoch": 0}, []),
            ("coord.cas", {"old_epoch": "0"}, []),
            ("coord.beat", {"node": "", "incarnation": 1}, []),
            ("coord.beat", {"node": "n", "incarnation": -1}, []),
            ("coord.get", {"epoch": None}, []),
        ]:
            with pytest.raises(FrameError):
                await conn.request(kind, meta, bins, timeout=5)
        with pytest.raises(ProtocolError, match="does not know"):
            await conn.request("pull", {}, timeout=5)
        conn.close()
        assert (await coordination.propose(NodeJoin("n0", "h:1"))).epoch == 1, "unharmed"


async def test_the_wrong_cluster_is_told_apart() -> None:
    async with service() as running, access(running.address, cluster="other", wait=False) as lost:
        with pytest.raises(WrongClusterError, match="'test'"):
            await lost.start(0.3)
        assert not lost.available


# -- watching ------------------------------------------------------------------------------------------------


async def test_watchers_see_rising_epochs_up_to_the_last() -> None:
    async with service() as running, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(access(running.address, f"p{i}")) for i in range(3)]
        seen: list[list[int]] = [[] for _ in peers]
        for peer, epochs in zip(peers, seen, strict=True):
            peer.subscribe(lambda current, epochs=epochs: epochs.append(current.epoch))
        for i in range(40):
            await peers[i % 3].propose(NodeJoin(f"n{i}", "h:1"))
        await until(lambda: all(epochs[-1] == 40 for epochs in seen))
        assert all(epochs == sorted(set(epochs)) for epochs in seen)
        assert seen[0] == list(range(41)), "one connection, nothing lost: no epoch is skipped"


async def test_a_subscriber_that_fails_or_leaves_does_not_disturb(caplog: pytest.LogCaptureFixture) -> None:
    async with service() as running, access(running.address) as coordination:
        seen: list[int] = []

        def broken(current: ClusterMap) -> None:
            raise RuntimeError("subscriber")

        leave = coordination.subscribe(broken)
        coordination.subscribe(lambda current: seen.append(current.epoch))
        await coordination.propose(NodeJoin("n0", "h:1"))
        leave()
        caplog.clear()
        await coordination.propose(NodeJoin("n1", "h:1"))
        assert seen == [0, 1, 2]
        assert not caplog.records


# -- sessions ------------------------------------------------------------------------------------------------


async def test_sessions_age_when_a_node_falls_silent() -> None:
    async with service() as running, access(running.address, "watcher") as watcher:
        async with access(running.address) as coordination:
            assert coordination.last_renewal == float("-inf")
            asked_at = asyncio.get_running_loop().time()
            await coordination.session("n0", 1)
            assert asked_at <= coordination.last_renewal <= asyncio.get_running_loop().time()
            first = coordination.last_renewal
            await until(lambda: coordination.last_renewal > first)
        ages = [(await watcher.sessions())["n0"]]
        for _ in range(3):
            await asyncio.sleep(0.02)
            ages.append((await watcher.sessions())["n0"])
        assert ages == sorted(ages)
        assert ages[-1] >= ages[0] + 0.05


async def test_a_life_declared_down_is_fenced_and_does_not_renew() -> None:
    async with service() as running, access(running.address) as node, access(running.address, "b") as other:
        await node.propose(NodeJoin("n0", "h:1"))
        await node.session("n0", 1)
        assert not node.fenced
        await other.propose(NodeDown("n0", 1, "silent"))
        await until(lambda: node.fenced)
        renewed = node.last_renewal
        await asyncio.sleep(0.1)
        assert node.last_renewal == renewed
        assert "n0" not in await other.sessions(), "its last words must not vouch for it"
        rejoined = await node.propose(NodeJoin("n0", "h:1"))
        assert "n0" in await other.sessions(), "a joiner counts as heard when it joins"
        await node.session("n0", rejoined.nodes["n0"].incarnation)
        assert not node.fenced
        assert node.last_renewal > renewed


# -- trouble -------------------------------------------------------------------------------------------------


async def test_while_the_service_is_away_membership_is_frozen_and_comes_back(tmp_path: Path) -> None:
    state = tmp_path / "map"
    epochs: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        async with service(state) as running:
            port = int(running.address.rpartition(":")[2])
            coordination = await stack.enter_async_context(access(running.address, timeout_s=0.3))
            coordination.subscribe(lambda current: epochs.append(current.epoch))
            before = await coordination.propose(NodeJoin("n0", "h:1"))
            await coordination.session("n0", 1)
        await until(lambda: not coordination.available)
        for attempt in (
            coordination.get(),
            coordination.sessions(),
            coordination.propose(NodeJoin("n1", "h")),
            coordination.compare_and_swap(1, before),
        ):
            with pytest.raises(UnavailableError, match="membership is frozen"):
                await attempt
        assert coordination.newest == before
        renewed = coordination.last_renewal
        async with service(state, port) as running:
            assert running.current == before
            assert "n0" in running._sessions, "after a restart everybody counts as heard at the start"
            await until(lambda: coordination.available and coordination.last_renewal > renewed)
            assert (await coordination.propose(NodeJoin("n1", "h:1"))).epoch == 2
        assert epochs == [0, 1, 2]
        assert coordination.connections == 2


async def test_a_change_missed_while_cut_off_is_seen_after_reconnecting(tmp_path: Path) -> None:
    async with service() as running, access(running.address) as a, access(running.address, "b") as b:
        assert b._conn is not None
        b._conn.abort()
        await a.propose(NodeJoin("n0", "h:1"))
        await until(lambda: b.newest is not None and b.newest.epoch == 1)
        assert b.connections == 2


async def test_a_service_that_lost_its_state_is_not_believed() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with service() as running:
            port = int(running.address.rpartition(":")[2])
            coordination = await stack.enter_async_context(access(running.address, timeout_s=0.3))
            known = await coordination.propose(NodeJoin("n0", "h:1"))
        async with service(port=port):
            await until(lambda: "went back from epoch 1 to 0" in str(coordination._trouble))
            with pytest.raises(UnavailableError, match=r"went back|closed"):
                await coordination.get()
            assert coordination.newest == known
            assert not coordination.available
            await coordination.close()


async def test_a_service_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with service() as running, access(running.address, timeout_s=0.2) as coordination:
        assert coordination.available
        running.on_frame = lambda conn, frame: None  # type: ignore[method-assign]
        await until(lambda: not coordination.available and coordination._conn is None)
        with pytest.raises(UnavailableError):
            await coordination.get()
        del running.on_frame
        await until(lambda: coordination.available)


async def test_a_full_disk_refuses_the_swap_and_keeps_the_old_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with service(tmp_path / "map") as running, access(running.address) as coordination:
        await coordination.propose(NodeJoin("n0", "h:1"))

        def full(path: Path, packed: bytes) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("ecstore.coordination.service.write_map_file", full)
            new = next_map(await coordination.get(), NodeJoin("n1", "h:1"))
            with pytest.raises(UnavailableError, match="No space left"):
                await coordination.compare_and_swap(1, new)
            assert (await coordination.get()).epoch == 1
        assert (await coordination.propose(NodeJoin("n1", "h:1"))).epoch == 2


async def test_a_swap_whose_answer_is_lost_is_not_made_twice() -> None:
    async with service() as running, access(running.address) as coordination:
        await coordination.propose(NodeJoin("n0", "h:1"))
        honest = coordination.compare_and_swap

        async def answer_lost(old_epoch: int, new: ClusterMap) -> bool:
            await honest(old_epoch, new)
            raise UnavailableError("the connection ended")

        coordination.compare_and_swap = answer_lost  # type: ignore[method-assign]
        after = await coordination.propose(NodeJoin("n0", "h:1"))
        assert (after.epoch, after.nodes["n0"].incarnation) == (2, 2), "joined once, not twice"


async def test_close_ends_everything_and_is_idempotent() -> None:
    async with service() as running:
        async with access(running.address) as coordination:
            await coordination.session("n0", 1)
        await coordination.close()
        with pytest.raises(UnavailableError):
            await coordination.get()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not {name for name in names if "coordination" in name}


# -- the state file ------------------------------------------------------------------------------------------


def test_a_torn_state_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "map"
    assert read_map_file(path) is None
    known = next_map(empty_map("test", 7), NodeJoin("n0", "h:1"))
    write_map_file(path, pack_map(known))
    assert read_map_file(path) == known
    whole = path.read_bytes()
    for torn in (b"", whole[:5], whole[:40], whole[:-1], whole + b"x", whole[:-3] + b"\0" + whole[-2:]):
        path.write_bytes(torn)
        with pytest.raises(ConfigError, match="torn or not a state file"):
            read_map_file(path)


async def test_a_state_file_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path / "map"):
        pass
    with pytest.raises(ConfigError, match="belongs to cluster 'test'"):
        async with service(tmp_path / "map", cluster="another"):
            pass
    async with service(tmp_path / "map", cluster=None) as running:
        assert running.current.cluster == "test"
    with pytest.raises(ConfigError, match="cannot write"):
        async with service(Path("/proc/nowhere/map")):
            pass


# -- as a process --------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ecstore.coordination", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert running.stdout is not None
    try:
        line = json.loads(await running.stdout.readline())
        yield running, line["listening"]
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
        await running.communicate()


@pytest.mark.cluster
async def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    arguments = ("--state", str(tmp_path / "map"), "--cluster", "test")
    acknowledged: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        running, address = await stack.enter_async_context(process("--listen", "127.0.0.1:0", *arguments))
        async with access(address, timeout_s=0.5) as coordination:

            async def join_for_ever() -> None:
                with contextlib.suppress(EcstoreError):
                    while True:
                        joined = await coordination.propose(NodeJoin(f"n{len(acknowledged) % 50}", "h:1"))
                        acknowledged.append(joined.epoch)

            joining = asyncio.create_task(join_for_ever())
            await until(lambda: len(acknowledged) >= 20)
            running.kill()  # between any two of its instructions
            await joining
            known = coordination.newest
            async with process("--listen", address, *arguments):
                await until(lambda: coordination.available)
                again = await coordination.get()
                assert known is not None
                assert known.epoch <= again.epoch <= acknowledged[-1] + 1
                assert acknowledged == list(range(1, len(acknowledged) + 1))
                assert await coordination.propose(NodeJoin("last", "h:1"))


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    async with process("--listen", "127.0.0.1:0") as (running, address), access(address, cluster=None):
        running.send_signal(number)
        assert await running.wait() == 0


@pytest.mark.cluster
async def test_it_ends_with_the_process_it_was_told_to_watch() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    async with process("--exit-with", str(parent.pid)) as (running, _):
        os.kill(parent.pid, signal.SIGKILL)  # and nobody waits for it before the service has ended
        assert await running.wait() == 0
    await parent.wait()


@pytest.mark.cluster
async def test_a_bad_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "map").write_bytes(b"nonsense")
    failed = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ecstore.coordination", "--state", str(tmp_path / "map"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await failed.communicate()
    assert failed.returncode == 1
    assert b"torn" in errors
    assert b"Traceback" not in errors
