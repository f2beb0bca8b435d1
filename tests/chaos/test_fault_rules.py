"""The rule table: what happens to bytes between a node and a peer, as a function of rules, peer, direction and time."""

from __future__ import annotations

from typing import Any

import pytest

from ecstore.errors import CapacityError, ConfigError
from ecstore.faults.rules import FINE, MAX_RULES, Rule, RuleTable, Verdict, rule_from_wire

NOW = 100.0


def rule(kind: str, *peers: str, number: str = "f", direction: str = "both", seconds: float = 5.0, **more: Any) -> Rule:
    meta = {"id": number, "kind": kind, "peers": list(peers), "direction": direction, "duration_s": seconds}
    return rule_from_wire(meta | more, NOW)


def table(*rules: Rule) -> RuleTable:
    made = RuleTable("n1")
    for one in rules:
        made.add(one)
    return made


def test_a_rule_concerns_its_peers_and_nobody_else() -> None:
    made = table(rule("partition", "n2", "coordination"))
    assert made.verdict("n2", "out").blocked
    assert made.verdict("n2", "in").blocked
    assert made.verdict("coordination", "out").blocked
    assert made.verdict("n3", "out") == FINE
    assert made.verdict("clients", "in") == FINE
    assert made.verdict(None, "in") == FINE, "who has not said its name yet gets as far as its hello"


def test_everybody_is_all_nodes_and_the_coordination_service() -> None:
    made = table(rule("partition", "*"))
    assert made.verdict("n9", "in").blocked
    assert made.verdict("coordination", "out").blocked
    assert made.verdict("clients", "in") == FINE
    assert made.verdict("n1", "out") == FINE, "a node hears itself"


@pytest.mark.parametrize(
    ("direction", "out", "into"), [("out", True, False), ("in", False, True), ("both", True, True)]
)
def test_directions(direction: str, out: bool, into: bool) -> None:
    made = table(rule("partition", "n2", direction=direction))
    assert (made.verdict("n2", "out").blocked, made.verdict("n2", "in").blocked) == (out, into)


def test_rules_add_up() -> None:
    made = table(
        rule("delay", "n2", number="a", delay_ms=100, jitter_ms=20),
        rule("delay", "*", number="b", delay_ms=50),
        rule("drop", "n2", number="c", probability=0.5),
        rule("drop", "n2", number="d", probability=0.5, direction="out"),
    )
    out = made.verdict("n2", "out")
    assert not out.blocked
    assert (out.delay_s, out.jitter_s, out.cut) == pytest.approx((0.15, 0.02, 0.75))
    assert made.verdict("n2", "in").cut == pytest.approx(0.5)
    assert made.verdict("n3", "in") == Verdict(delay_s=0.05)


def test_chance_comes_in_as_an_argument() -> None:
    verdict = Verdict(delay_s=0.1, jitter_s=0.02, cut=0.5)
    assert verdict.hold_s(0.0) == pytest.approx(0.08)
    assert verdict.hold_s(0.5) == pytest.approx(0.1)
    assert Verdict(delay_s=0.0, jitter_s=1.0).hold_s(0.0) == 0.0, "nothing arrives before it was sent"
    assert verdict.cuts(1, 0.49)
    assert not verdict.cuts(1, 0.51)
    assert verdict.cuts(3, 0.87), "three frames survive with 1/8"
    assert not verdict.cuts(3, 0.88)
    assert not FINE.cuts(10, 0.0)


def test_rules_end() -> None:
    made = table(rule("partition", "n2", number="a", seconds=1.0), rule("partition", "n3", number="b", seconds=2.0))
    assert made.next_end() == NOW + 1.0
    assert made.expire(NOW + 0.9) == []
    assert [one.id for one in made.expire(NOW + 1.0)] == ["a"]
    assert made.verdict("n2", "out") == FINE
    assert made.verdict("n3", "out").blocked
    assert [one.id for one in made.remove("b")] == ["b"]
    assert made.remove("b") == []
    assert made.next_end() is None


def test_rules_are_bounded_and_replaced_by_id() -> None:
    made = table(*(rule("partition", "n2", number=str(number)) for number in range(MAX_RULES)))
    made.add(rule("delay", "n2", number="0", delay_ms=1))
    assert len(made) == MAX_RULES
    with pytest.raises(CapacityError, match="clear some"):
        made.add(rule("partition", "n2", number="one more"))
    assert len(made.remove(None)) == MAX_RULES
    assert len(made) == 0


@pytest.mark.parametrize(
    "meta",
    [
        {"kind": "flood"}, {"direction": "up"}, {"id": ""}, {"id": None}, {"peers": []}, {"peers": "n2"},
        {"peers": [2]}, {"duration_s": 0}, {"duration_s": 1e9}, {"duration_s": True}, {"duration_s": float("nan")},
        {"kind": "delay"}, {"kind": "delay", "delay_ms": 5, "jitter_ms": 6}, {"kind": "drop", "probability": 1.1},
        {"kind": "slow", "block_ms": 50}, {"kind": "slow", "peers": [], "block_ms": 300, "every_ms": 200},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(meta: dict[str, Any]) -> None:
    fine = {"id": "f", "kind": "partition", "peers": ["n2"], "duration_s": 1.0}
    assert rule_from_wire(fine, NOW)
    with pytest.raises(ConfigError):
        rule_from_wire(fine | meta, NOW)


def test_what_is_shown_is_what_was_set() -> None:
    shown = rule("delay", "n2", delay_ms=125, jitter_ms=25, direction="out").to_wire(NOW + 2)
    assert shown == {
        "id": "f", "kind": "delay", "left_s": 3.0, "peers": ["n2"], "direction": "out", "delay_ms": 125.0,
        "jitter_ms": 25.0,
    }  # fmt: skip
    assert rule("slow", block_ms=20).to_wire(NOW)["every_ms"] == 200.0
