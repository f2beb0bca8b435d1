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

from tests.sim.markers import MARKERS
from tests.sim.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]

#: More seeds than these are `make sim`'s.
SEEDS = os.environ.get("ECSTORE_SIM_SEEDS", "0:16")


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.sim` in a process of its own, where sets of strings have the same order in every run."""
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=7200
    )


def test_a_short_range_of_seeds_passes() -> None:
    ended = sim("--seeds", SEEDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.rstrip().endswith(" passed, 0 failed")


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = (sim("--seed", "3", "--trace").stdout.splitlines() for _ in range(2))
    assert len(first) > 20
    assert [line for line in first if line.startswith("trace ")]
    # The last lines say how long it took.
    assert (
        first[: first.index(next(line for line in first if line.startswith("trace "))) + 1]
        == second[: second.index(next(line for line in second if line.startswith("trace "))) + 1]
    )


def test_another_seed_tells_another_story() -> None:
    assert (
        sim("--seed", "3", "--trace").stdout.splitlines()[:10] != sim("--seed", "4", "--trace").stdout.splitlines()[:10]
    )


def test_every_seeded_bug_is_caught(tmp_path: Path) -> None:
    """Each with the seed that is known to catch it, and some more if the code has changed since."""
    ended = sim("--mutations", "--known-first", "--tries", "8", "--json", str(tmp_path / "caught.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    caught = json.loads((tmp_path / "caught.json").read_text())
    assert set(caught) == set(MUTATIONS)
    assert len(MUTATIONS) >= 12


@pytest.mark.skipif("ECSTORE_SIM_SEEDS" not in os.environ, reason="needs a long range: make sim")
def test_a_long_range_takes_every_rare_path(tmp_path: Path) -> None:
    ended = sim("--seeds", SEEDS, "--json", str(tmp_path / "markers.json"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    taken = json.loads((tmp_path / "markers.json").read_text())["markers"]
    assert not [name for name in MARKERS if not taken.get(name)]
