"""The schedule: a function of the seed, never more than m nodes faulty, and everything that can happen does."""

from __future__ import annotations

import itertools
import random

import pytest

from ecstore.chaos.plan import HARD, SOFT, PlanOptions, Round, rounds
from ecstore.errors import ConfigError

NODES = tuple(f"n{number + 1}" for number in range(6))
LIMIT = 3.0


def schedule(seed: int, m: int = 2, count: int = 120, *, drain: bool = True) -> list[Round]:
    options = PlanOptions(nodes=NODES, m=m, suspect_after_s=LIMIT, drain=drain)
    return list(itertools.islice(rounds(options, random.Random(seed)), count))


def test_the_seed_says_it_all() -> None:
    assert schedule(1) == schedule(1)
    assert schedule(1) != schedule(2)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_round_hits_no_more_nodes_than_the_code_bears(m: int) -> None:
    for one in itertools.chain.from_iterable(schedule(seed, m) for seed in range(20)):
        assert len(one.faulty) <= m
        for action in one.actions:
            assert action.node in NODES
            assert action.node not in action.peers
            assert action.kind in SOFT or action.faulty or action.duration_s < 3 * LIMIT, "a pair that blames nobody"
            assert action.kind not in SOFT or not action.faulty
            assert action.duration_s >= 0.0


def test_everything_happens() -> None:
    actions = [action for one in schedule(3) for action in one.actions]
    assert {action.kind for action in actions} == {*HARD, *SOFT}
    assert any(action.in_recovery for action in actions), "a second node while the first is being decoded"
    kinds = {(action.kind, action.both) for action in actions}
    for kind in ("isolate", "partition", "unplug"):
        assert {(kind, True), (kind, False)} <= kinds
    pairs = [action for action in actions if action.kind == "partition"]
    assert {len(action.faulty) for action in pairs} == {0, 2}, "brief and long"
    assert any(len(one.faulty) == 2 for one in schedule(3))
    pauses = [action.duration_s for action in actions if action.kind == "pause"]
    assert min(pauses) > LIMIT, "a pause is longer than the detector's limit"
    assert any(action.kind == "kill" and action.duration_s < LIMIT / 4 for action in actions), (
        "back before it is missed"
    )


def test_every_bag_of_rounds_has_every_kind() -> None:
    firsts = [{action.kind for action in one.actions} for one in schedule(4, count=18, drain=False)]
    for bag in (firsts[:7], firsts[7:14]):
        assert set().union(*bag) == {*HARD, *SOFT} - {"drain"}


def test_without_drain_nothing_is_drained() -> None:
    assert all(action.kind != "drain" for one in schedule(5, drain=False) for action in one.actions)


def test_a_plan_needs_nodes_to_spare() -> None:
    with pytest.raises(ConfigError):
        PlanOptions(nodes=NODES[:3], m=2, suspect_after_s=LIMIT)
    with pytest.raises(ConfigError):
        PlanOptions(nodes=NODES, m=0, suspect_after_s=LIMIT)
