"""Bits flipped inside node processes by `fault.flip`, found and repaired by `ecstore scrub` and over several deaths."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from node_processes import NodeProcesses, until_settled

import ecstore
import ecstore.aio
from ecstore.launcher.nodes import NodeSettings
from ecstore.verify import verify

pytestmark = [pytest.mark.cluster]

CODE, KEYS, DIM = "rs(4,2)", 4_000, 16


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory):
    settings = NodeSettings(allow_faults=True, suspect_after_s=4.0)
    with NodeProcesses(tmp_path_factory.mktemp("seven"), 7, settings) as nodes:
        yield nodes


def flip(address: str, code: str, name: str, count: int, seed: int) -> set[tuple[int, int, int]]:
    """Flip `count` bits, one in a stripe, by messages; (group, shard, slot) of each."""
    rng = np.random.default_rng(seed)

    async def run() -> set[tuple[int, int, int]]:
        async with await ecstore.aio.connect(address) as store:
            current = store.cluster_map
            groups, table = current.groups_of(code), current.tables[name]
            done: dict[tuple[int, int], int] = {}
            while len(done) < count:
                group = groups[len(done) % len(groups)]
                shard, slot = int(rng.integers(len(group.shards))), int(rng.integers(40))
                if (group.gid, slot) not in done:
                    done[group.gid, slot] = shard
                    where = {
                        "group": group.gid, "shard": shard, "table": table.id, "slot": slot,
                        "byte": int(rng.integers(table.spec.row_bytes)), "bit": int(rng.integers(8)),
                    }  # fmt: skip
                    await store._session.ask(group.shards[shard].owner, "fault.flip", where, timeout=10.0)
            return {(gid, shard, slot) for (gid, slot), shard in done.items()}

    return asyncio.run(run())


def scrub(address: str, folder: Path, *more: str) -> tuple[int, dict, str]:
    """Run the command; exit code, report, what it printed."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "ecstore", "scrub", "--connect", address, "--json", str(report), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.returncode, json.loads(report.read_text()), done.stdout + done.stderr


def test_the_command_repairs_what_was_flipped_in_other_processes(seven: NodeProcesses, tmp_path: Path) -> None:
    with ecstore.connect(seven.address, timeout=60.0) as store:
        table = store.create_table("t", dim=DIM, optimizer=ecstore.Adam(lr=0.01), code=CODE, seed=3)
        busy = store.create_table("busy", dim=DIM, optimizer=ecstore.SGD(lr=0.5), code=CODE, seed=4)
        rng, everything = np.random.default_rng(1), np.arange(KEYS)
        table.push(everything, rng.normal(size=(KEYS, DIM)).astype(np.float32))
        until_settled(store, CODE)
        before = table.export(state=True)
        stop = threading.Event()

        def push_on() -> None:
            while not stop.is_set():
                busy.push(everything[:500], np.ones((500, DIM), np.float32))

        pushing = threading.Thread(target=push_on)
        pushing.start()
        try:
            flipped = flip(seven.address, CODE, "t", 100, seed=2)
            found = store.scrub(repair=False, table="t", rate_mib_s=500.0)
            assert not found.ok
            assert (found.corrupt, found.unrepaired, found.repaired) == (100, 100, 0)
            assert {entry["outcome"] for entry in found.findings} == {"found"}
            code, report, said = scrub(seven.address, tmp_path, "--rate", "64")
        finally:
            stop.set()
            pushing.join()
        assert code == 0, said
        assert report["ok"]
        assert (report["corrupt"], report["repaired"]) == (100, 100)
        assert {(e["group"], e["shard"], e["slot"]) for e in report["findings"]} == flipped
        assert verify(seven.address).ok
        after = table.export(state=True)
        assert np.array_equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])


def test_with_one_parity_shard_the_command_reports_and_overwrites_nothing(seven: NodeProcesses, tmp_path: Path) -> None:
    with ecstore.connect(seven.address, timeout=60.0) as store:
        table = store.create_table("one", dim=DIM, optimizer=ecstore.SGD(lr=0.1), code="rs(4,1)", seed=3)
        table.push(np.arange(KEYS), np.ones((KEYS, DIM), np.float32))
        until_settled(store, "rs(4,1)")
        flipped = flip(seven.address, "rs(4,1)", "one", 100, seed=3)
        before = table.export(state=True)
        code, report, said = scrub(seven.address, tmp_path, "--table", "one", "--rate", "500")
        assert code == 1
        assert "100 NOT ATTRIBUTABLE to one shard, nothing overwritten" in said
        assert (report["corrupt"], report["not_attributable"], report["repaired"]) == (100, 100, 0)
        stripes = {(gid, slot) for gid, _shard, slot in flipped}
        assert {(e["group"], e["slot"]) for e in report["findings"]} == stripes
        assert np.array_equal(table.export(state=True)[1], before[1])
        again = store.scrub(table="one", rate_mib_s=500.0)
        assert {(e["group"], e["slot"]) for e in again.findings} == stripes, "parity rows are as they were, too"
        store.drop_table("one")


def test_a_scrub_survives_the_death_of_nodes_that_carry_it_out(seven: NodeProcesses) -> None:
    """Their groups are scrubbed by the new owners once these are whole. The node stays dead: this test is the last."""
    with ecstore.connect(seven.address, timeout=60.0) as store:
        wide = store.create_table("wide", dim=512, optimizer=ecstore.SGD(lr=1.0), code=CODE, seed=5)
        wide.push(np.arange(KEYS), np.ones((KEYS, 512), np.float32))
        until_settled(store, CODE)
        killed = threading.Event()

        def kill_one(report: object) -> None:
            if not killed.is_set() and report.stripes > 0:  # type: ignore[attr-defined]
                killed.set()
                seven.kill("n3")

        report = store.scrub(rate_mib_s=4.0, table="wide", progress=kill_one)
        assert killed.is_set()
        assert report.ok, report.describe()
        assert report.groups_done == report.groups_total == len(store.cluster_map.groups_of(CODE))
