"""The simulator in the test suite: a short range, the same trace twice, and every seeded bug caught.

The long range is `make sim`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]

#: More than these are `make sim`'s.
SEEDS = "0:12"


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.sim` in a process of its own, where sets of strings have the same order in every run."""
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=7200
    )


def test_a_short_range_of_seeds_passes() -> None:
    ended = sim("--seeds", SEEDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.rstrip().endswith("12 passed, 0 failed")


def stories(seeds: str) -> list[list[str]]:
    """What the runs of seeds A to B-1 tell, each up to the digest of everything that was sent."""
    told, lines = [], []
    for line in sim("--seeds", seeds, "--trace", "--jobs", "1").stdout.splitlines():
        lines.append(line)
        if line.startswith("trace "):
            told.append(lines)
            lines = []
    return told


def test_the_same_seed_tells_the_same_story() -> None:
    first, other = stories("3:5")
    assert len(first) > 20
    assert stories("3:4") == [first]
    assert first[1:] != other[1:]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_seeded_bug_is_caught(tmp_path: Path) -> None:
    """Each with the seed that is known to catch it, and some more if the code has changed since."""
    ended = sim("--mutations", "--known-first", "--tries", "200", "--json", str(tmp_path / "caught.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    caught = json.loads((tmp_path / "caught.json").read_text())
    assert set(caught) == set(MUTATIONS)
    assert len(MUTATIONS) >= 12


@pytest.mark.skipif("ECSTORE_SIM_SEEDS" not in os.environ, reason="takes long: give ECSTORE_SIM_SEEDS, or make sim")
@pytest.mark.timeout(0)
def test_a_long_range_takes_every_rare_path() -> None:
    ended = sim("--seeds", os.environ.get("ECSTORE_SIM_SEEDS", "0:2000"), "--require-markers")
    assert ended.returncode == 0, ended.stdout + ended.stderr
