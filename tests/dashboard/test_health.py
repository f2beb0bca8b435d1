"""The health line: what it says in every state, and that it never says more than the map does."""

from __future__ import annotations

import itertools

import pytest
from ecstore_admin.dashboard.health import SIGNS, consequence_of_losing, health_of

from tests.dashboard.maps import OWNERS, cluster, group, recovery

DOUBLED = ("n1", "n1", "n3", "n4", "n5")


@pytest.mark.parametrize(
    ("current", "level", "says"),
    [
        (None, "unknown", ["cannot be reached", "why"]),
        (cluster(), "empty", ["No rows yet", "ecstore train --connect 127.0.0.1:7400"]),
        (cluster(group()), "safe", ["Every row survives 2 more losses", "Nothing to do"]),
        (cluster(group(), down=("n6",)), "safe", ["survives 2", "n6 is down", "Start n6 again"]),
        (cluster(group(joining="n6")), "safe", ["1 group moves a shard"]),
        (cluster(group(recovering=(1,))), "repairing", ["survives 1 more loss", "1 of 1 group is", "2 again"]),
        (cluster(group(recovering=(1, 2))), "at_risk", ["1 group at risk", "one more node may lose rows", "Wait"]),
        (cluster(group(owners=DOUBLED), down=("n2",)), "at_risk", ["two shards", "n1 holds", "Start n2 again"]),
        (cluster(group(owners=DOUBLED), nodes=5), "at_risk", ["Add a node"]),
        (cluster(group(owners=("n1",), code="none")), "at_risk", ["keeps no parity", "rs(3,2)"]),
        (cluster(group(lost=True)), "lost", ["Lost: group 0", "DataLossError", "load your last export"]),
        (cluster(group(lost=True), group(1), group(2, lost=True)), "lost", ["groups 0 and 2", "other 1 group"]),
    ],
)  # fmt: skip
def test_every_state(current, level, says):
    busy = [recovery()] if current is not None and level in ("repairing", "at_risk") else []
    health = health_of(current, "" if current is not None else "why", busy)
    assert health.level == level
    text = f"{health.title} {health.reason} {health.next_step}"
    for words in says:
        assert words in text
    assert health.next_step, "a state without a next step leaves people alone"
    assert SIGNS[health.level][0]


@pytest.mark.parametrize(
    ("problem", "silent", "frozen", "level", "says"),
    [
        ("none of 6 nodes answers", (), False, "unknown", ["None of 6 nodes answers.", "was true last"]),
        ("", ("n2",), False, "at_risk", ["n2 does not answer", "still calls"]),
        ("", ("n1", "n2", "n3"), True, "at_risk", ["n1, n2 and n3 do not", "group 0 cannot be served", "--state"]),
        ("", (), True, "at_risk", ["not repaired", "lost the coordination service", "Start the coordination"]),
    ],
)
def test_a_map_is_not_believed_when_nobody_is_left_to_change_it(problem, silent, frozen, level, says):
    current = cluster(group())
    assert health_of(current, "", []).level == "safe"
    health = health_of(current, problem, [], silent=silent, frozen=frozen)
    assert health.level == level
    text = f"{health.title} {health.reason} {health.next_step}"
    for words in says:
        assert words in text
    assert "survives 2" not in text


def test_a_group_that_is_lost_is_said_to_be_whoever_is_silent():
    assert health_of(cluster(group(lost=True)), "", [], silent=("n2",), frozen=True).level == "lost"


def test_how_long_a_repair_takes_is_that_of_its_slowest_shard():
    health = health_of(cluster(group(recovering=(1,))), "", [recovery(eta_s=3.0), recovery(eta_s=12.2)])
    assert "about 12 s" in health.next_step
    assert "about" not in health_of(cluster(group(recovering=(1,))), "", [recovery(eta_s=None)]).next_step


def test_what_the_loss_of_a_node_means_is_what_the_map_says_after_it():
    """Against a second way: the same shards, marked as not there any more."""
    for owners in (OWNERS, DOUBLED, ("n1", "n1", "n2", "n2", "n3")):
        for recovering in itertools.chain(itertools.combinations(range(5), 1), [()]):
            for victim in ("n1", "n2", "n6"):
                current = cluster(group(owners=owners, recovering=recovering))
                gone = {i for i, owner in enumerate(owners) if owner == victim} | set(recovering)
                after = cluster(group(owners=owners, recovering=tuple(gone)))
                then = consequence_of_losing(current, victim)
                assert bool(then.lost_groups) == (5 - len(gone) < 3)
                assert then.shards == owners.count(victim)
                if not then.lost_groups:
                    assert then.tolerated == after.losses_tolerated(after.groups[0])


def test_a_lost_group_is_not_lost_again():
    then = consequence_of_losing(cluster(group(lost=True)), "n1")
    assert (then.shards, then.lost_groups, then.tolerated) == (0, (), None)
