"""The cluster map under every kind of event: single rules by name, then long random histories."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import msgpack
import pytest

from ecstore.cluster.map import ClusterMap, Group, empty_map
from ecstore.cluster.moves import MAX_JOINS_PER_NODE, plan_moves
from ecstore.cluster.transitions import (
    CreateTable,
    Drain,
    DropTable,
    Event,
    NodeDown,
    NodeJoin,
    NodeRemove,
    ShardReady,
    check_invariants,
    next_map,
)
from ecstore.errors import CodeError, ConfigError, FrameError, TableExistsError, UnknownTableError
from ecstore.optim import SGD
from ecstore.tables import TableSpec, Zeros


def spec(name: str = "t", code: str = "rs(3,2)", dim: int = 8) -> TableSpec:
    return TableSpec(name=name, dim=dim, optimizer=SGD(0.1), init=Zeros(), seed=1, code=code)


def step(current: ClusterMap, event: Event) -> ClusterMap:
    """next_map with everything that must hold after any event."""
    after = next_map(current, event)
    check_invariants(after)
    if after is current:
        return after
    assert after.epoch == current.epoch + 1
    assert next_map(current, event) == after, "not deterministic"
    assert plan_moves(after) == (), "a move was left out"
    for old, new in zip(current.groups, after.groups, strict=False):
        assert new.lost or not old.lost, "a lost group came back"
        stamped = [
            (a.owner, a.incarnation, a.joining, a.joining_incarnation)
            != (b.owner, b.incarnation, b.joining, b.joining_incarnation)
            for a, b in zip(old.shards, new.shards, strict=True)
        ]
        assert (new.epoch == after.epoch) == (any(stamped) or old.lost != new.lost)
        for a, b in zip(old.shards, new.shards, strict=True):
            moved = (a.owner, a.incarnation) != (b.owner, b.incarnation)
            assert (b.owner_epoch == after.epoch) == moved
            # Nobody becomes the active owner of a shard without having reported it ready.
            if moved and b.state == "active":
                assert isinstance(event, ShardReady)
                assert (b.owner, b.incarnation) == (event.node, event.incarnation)
            # Nobody is given a second shard of a group while another node is free.
            if moved and not new.lost and [s.owner for s in new.shards].count(b.owner) > 1:
                assert set(after.up_nodes()) <= {s.owner for s in new.shards}
    return after


def cluster(nodes: int, *codes: str, seed: int = 7) -> ClusterMap:
    current = empty_map("test", seed)
    for i in range(nodes):
        current = step(current, NodeJoin(f"n{i}", f"host:{i}"))
    for code in codes:
        current = step(current, CreateTable(spec(f"t-{code}", code)))
    return current


def down(current: ClusterMap, node: str) -> ClusterMap:
    return step(current, NodeDown(node, current.nodes[node].incarnation, "refused"))


def test_who_is_down_accuses_nobody() -> None:
    """Of two nodes that can't hear each other only one goes: its accusation comes too late."""
    before = cluster(5, "rs(3,2)")
    after = step(before, NodeDown("n0", 1, "silent", by=("n1", 1)))
    assert not after.nodes["n0"].alive
    assert step(after, NodeDown("n1", 1, "silent", by=("n0", 1))) is after
    assert step(after, NodeDown("n1", 1, "silent", by=("n2", 2))) is after  # a life that never was
    assert not step(after, NodeDown("n1", 1, "silent", by=("n2", 1))).nodes["n1"].alive


def test_a_sparing_accusation_loses_no_group() -> None:
    before = cluster(3, "rs(2,1)")
    after = down(before, "n0")
    assert step(after, NodeDown("n1", 1, "silent", by=("n2", 1), sparing=True)) is after
    lost = step(after, NodeDown("n1", 1, "silent", by=("n2", 1)))
    assert all(group.lost for group in lost.groups)


def pending(current: ClusterMap) -> list[ShardReady]:
    """Every report that a shard is ready which may arrive now."""
    ready = []
    for group in current.groups:
        if group.lost:
            continue
        for shard in group.shards:
            if shard.state == "recovering":
                ready.append(ShardReady(group.gid, shard.index, shard.owner, shard.incarnation, group.epoch))
            if shard.joining is not None:
                life = (shard.joining, shard.joining_incarnation)
                ready.append(ShardReady(group.gid, shard.index, *life, group.epoch))
    return ready


def settle(current: ClusterMap, rng: random.Random | None = None) -> tuple[ClusterMap, int]:
    """Let all recoveries and moves complete; the map at rest and how many reports it took."""
    reports = 0
    while ready := pending(current):
        after = step(current, rng.choice(ready) if rng else ready[0])
        assert after is not current, "a due report changed nothing"
        current, reports = after, reports + 1
        assert reports < 20_000, "the map never comes to rest"
    return current, reports


def ratios(current: ClusterMap) -> tuple[float, float]:
    loads = [current.load()[node] for node in current.up_nodes()]
    return tuple(
        max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0
        for counts in ([load.data for load in loads], [load.parity for load in loads])
    )  # type: ignore[return-value]


def spread(current: ClusterMap, code: str, *, parity: bool) -> int:
    """Most minus fewest shards of one code and role on an up node."""
    counts = dict.fromkeys(current.up_nodes(), 0)
    for group in current.groups_of(code):
        if not group.lost:
            for shard in group.shards:
                if (shard.index >= current.code(group).k) == parity and shard.owner in counts:
                    counts[shard.owner] += 1
    return max(counts.values()) - min(counts.values())


def owners(current: ClusterMap) -> list[tuple[str, int]]:
    return [(s.owner, s.incarnation) for g in current.groups for s in g.shards]


# -- nodes and tables ----------------------------------------------------------------------------------------


def test_epochs_count_and_incarnations_rise() -> None:
    current = cluster(3)
    assert current.epoch == 3
    assert current.nodes["n1"].incarnation == 1
    current = step(down(current, "n1"), NodeJoin("n1", "elsewhere:9"))
    assert (current.nodes["n1"].incarnation, current.nodes["n1"].address) == (2, "elsewhere:9")
    assert current.nodes["n1"].down_reason == ""


def test_duplicates_and_outdated_events_give_the_same_object() -> None:
    current = cluster(6, "rs(3,2)")
    assert step(current, CreateTable(spec("t-rs(3,2)"))) is current
    assert step(current, CreateTable(spec("t-rs(3,2)", "rs( 3, 2 )"))) is current
    assert step(current, NodeDown("nobody", 1, "silent")) is current
    assert step(current, NodeDown("n0", 2, "silent")) is current
    current = down(current, "n0")
    assert step(current, NodeDown("n0", 1, "silent")) is current
    report = pending(current)[0]
    assert step(current, replace(report, group_epoch=report.group_epoch - 1)) is current
    assert step(current, replace(report, incarnation=9)) is current
    assert step(current, replace(report, gid=10_000)) is current
    assert step(current, replace(report, index=99)) is current
    after = step(current, report)
    assert step(after, report) is after
    drained = step(cluster(6, "rs(3,2)"), Drain("n2"))
    assert step(drained, Drain("n2")) is drained


def test_a_code_needs_its_width_and_says_what_is_missing() -> None:
    current = cluster(5)
    with pytest.raises(CodeError, match=r"rs\(4,2\) needs 6 nodes, 5 are up"):
        next_map(current, CreateTable(spec(code="rs(4,2)")))
    with pytest.raises(CodeError, match=r"none needs 1 nodes, 0 are up"):
        next_map(empty_map("c", 1), CreateTable(spec(code="none")))
    with pytest.raises(CodeError):
        next_map(current, CreateTable(spec(code="nonsense")))
    current = down(cluster(5, "rs(3,2)"), "n0")
    step(current, CreateTable(spec("more")))  # the code has its groups: degraded, but they take tables


def test_tables() -> None:
    current = cluster(5, "rs(3,2)", "replicate(3)")
    groups = current.groups
    with pytest.raises(TableExistsError):
        next_map(current, CreateTable(spec("t-rs(3,2)", dim=9)))
    current = step(current, CreateTable(spec("second")))
    assert current.groups == groups, "tables of one code share its groups"
    assert [t.id for t in current.tables.values()] == [1, 2, 3]
    current = step(current, DropTable("second"))
    current = step(current, CreateTable(spec("second")))
    assert current.tables["second"].id == 4, "ids are never used again"
    assert current.table_by_id(3) is None
    assert current.table_by_id(4) is current.tables["second"]
    with pytest.raises(UnknownTableError):
        next_map(current, DropTable("third"))


@pytest.mark.parametrize("node", ["", "x" * 129, "a\nb"])
def test_bad_node_ids_are_refused(node: str) -> None:
    with pytest.raises(ConfigError):
        next_map(empty_map("c", 1), NodeJoin(node, "h:1"))


# -- placement and balance -----------------------------------------------------------------------------------

SHAPES = [
    (3, "rs(2,1)"), (4, "rs(2,2)"), (5, "rs(3,2)"), (6, "rs(3,2)"), (6, "replicate(3)"), (6, "none"),
    (8, "rs(4,2)"), (10, "rs(3,2)"), (12, "rs(10,2)"), (20, "rs(4,2)"), (24, "rs(8,3)"),
    (1, "none"), (1, "replicate(1)"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "code"), SHAPES)
def test_a_fresh_placement_is_even(nodes: int, code: str) -> None:
    current = cluster(nodes, code)
    assert plan_moves(current) == ()
    assert spread(current, code, parity=False) <= 1
    assert spread(current, code, parity=True) <= 1
    assert max(ratios(current)) <= 1.25
    assert not any(current.at_risk(group) for group in current.groups)
    per_node = sum(map(sum, current.load().values())) / nodes
    assert 5 <= per_node <= 15


def test_several_codes_are_even_together() -> None:
    current = cluster(7, "rs(3,2)", "replicate(3)", "none", "rs(4,2)")
    assert max(ratios(current)) <= 1.25
    totals = [sum(load) for load in current.load().values()]
    assert max(totals) - min(totals) <= 4


@pytest.mark.parametrize(("nodes", "code"), [(n, c) for n, c in SHAPES if c not in ("none", "replicate(1)")])
def test_one_join_moves_its_share_and_no_more(nodes: int, code: str) -> None:
    before = cluster(nodes, code)
    after, reports = settle(step(before, NodeJoin("new", "h:1")))
    moved = sum(a != b for a, b in zip(owners(before), owners(after), strict=True))
    assert reports == moved, "a shard moved twice"
    assert moved <= len(owners(before)) / (nodes + 1) + 2
    assert all(b[0] == "new" for a, b in zip(owners(before), owners(after), strict=True) if a != b)
    assert spread(after, code, parity=False) <= 1
    assert spread(after, code, parity=True) <= 1


@pytest.mark.parametrize(("nodes", "code"), [(n, c) for n, c in SHAPES if n > 8])
def test_one_loss_moves_its_share_and_stays_even(nodes: int, code: str) -> None:
    before = cluster(nodes, code)
    lost = sum(owner == ("n3", 1) for owner in owners(before))
    after = down(before, "n3")
    assert sum(a != b for a, b in zip(owners(before), owners(after), strict=True)) == lost
    after, reports = settle(after)
    assert reports <= lost * 1.6 + 2
    assert max(ratios(after)) <= 1.34 if code == "rs(10,2)" else max(ratios(after)) <= 1.25
    back, _ = settle(step(after, NodeJoin("n3", "h:1")))
    assert max(ratios(back)) <= 1.25


# -- losses --------------------------------------------------------------------------------------------------


def test_a_loss_recovers_on_others_and_activation_leaves_the_epoch_of_the_group_alone() -> None:
    current = cluster(6, "rs(3,2)")
    current = down(current, "n0")
    touched = [g for g in current.groups if g.epoch == current.epoch]
    assert touched
    group = touched[0]
    report = next(r for r in pending(current) if r.gid == group.gid)
    after = step(current, report)
    assert after.groups[group.gid].shards[report.index].state == "active"
    assert after.groups[group.gid].shards[report.index].owner_epoch == group.epoch
    assert current.health()["degraded"] == len(touched)
    assert after.health()["degraded"] == len(touched) - 1


@pytest.mark.parametrize("victim", [f"n{i}" for i in range(8)])
def test_what_is_to_be_recovered_is_spread_over_the_nodes(victim: str) -> None:
    """Of eight nodes two are outside each group of six: nobody gets more than one shard above an even share."""
    current = down(cluster(8, "replicate(3)", "rs(4,2)"), victim)
    for code in ("replicate(3)", "rs(4,2)"):
        recovering = [s for g in current.groups_of(code) for s in g.shards if s.state == "recovering"]
        busy = Counter(shard.owner for shard in recovering)
        assert max(busy.values()) <= -(-len(recovering) // 7) + 1


def test_past_m_losses_groups_are_lost_for_good_and_the_others_go_on() -> None:
    current = cluster(8, "rs(2,1)", "rs(2,2)", "none")
    current = down(down(current, "n0"), "n1")
    lost = {g.gid for g in current.groups if g.lost}
    assert lost
    assert len(lost) < len(current.groups)
    assert not any(g.lost for g in current.groups_of("rs(2,2)"))
    assert all(not any(s.joining for s in current.groups[gid].shards) for gid in lost)
    assert not any(report.gid in lost for report in pending(current))
    current, _ = settle(step(step(current, NodeJoin("n0", "h:0")), NodeJoin("n1", "h:1")))
    assert {g.gid for g in current.groups if g.lost} == lost
    gid = min(lost)
    for shard in current.groups[gid].shards:
        life = (shard.owner, shard.incarnation)
        assert step(current, ShardReady(gid, shard.index, *life, current.groups[gid].epoch)) is current


def test_recovering_shards_do_not_count_as_survivors() -> None:
    current = cluster(5, "rs(2,1)")
    current = down(current, "n0")
    group = next(g for g in current.groups if any(s.state == "recovering" for s in g.shards))
    survivor = next(s.owner for s in group.shards if s.state == "active")
    assert down(current, survivor).groups[group.gid].lost
    again = next(s.owner for s in group.shards if s.state == "recovering")
    assert not down(current, again).groups[group.gid].lost, "the substitute had nothing yet: it may be lost again"


def test_without_parity_any_loss_is_a_loss() -> None:
    current = cluster(3, "none")
    mine = {g.gid for g, _ in current.shards_on("n1", 1)}
    assert {g.gid for g in down(current, "n1").groups if g.lost} == mine


def test_too_few_nodes_double_up_and_part_again() -> None:
    current = cluster(5, "rs(3,2)")
    current = down(current, "n0")
    assert all(current.at_risk(g) for g in current.groups)
    assert current.health()["at_risk"] == len(current.groups)
    current, _ = settle(current)
    assert current.health()["losses_tolerated"] == 1, "two of a group's shards sit together"
    current, _ = settle(step(current, NodeJoin("n0", "h:0")))
    assert not any(current.at_risk(g) for g in current.groups)
    assert current.health() == {
        "groups": 10, "ok": 10, "degraded": 0, "at_risk": 0, "lost": 0, "moving": 0, "losses_tolerated": 2,
    }  # fmt: skip


def test_losing_a_doubled_node_is_two_losses_and_may_be_survived() -> None:
    current, _ = settle(down(cluster(5, "rs(3,2)"), "n0"))
    group = current.groups[0]
    names = [s.owner for s in group.shards]
    doubled = next(n for n in names if names.count(n) == 2)
    after = down(current, doubled)
    assert not after.groups[0].lost
    assert sum(s.state == "recovering" for s in after.groups[0].shards) == 2


def test_a_doubled_node_that_dies_gets_two_different_substitutes() -> None:
    current, _ = settle(down(cluster(4, "rs(2,2)"), "n0"))
    for node in ("x", "y", "z"):
        current = step(current, NodeJoin(node, "h:1"))
    doubled = [g for g in current.groups if current.at_risk(g) and not any(s.joining for s in g.shards)]
    assert doubled
    for group in doubled:
        names = [s.owner for s in group.shards]
        after = down(current, next(n for n in names if names.count(n) == 2))
        assert not after.at_risk(after.groups[group.gid])


def test_a_node_that_restarts_unnoticed_takes_its_own_shards_back() -> None:
    for nodes in (5, 8):
        current = cluster(nodes, "rs(3,2)")
        after = step(current, NodeJoin("n2", "h:22"))
        assert [n for n, _ in owners(after)] == [n for n, _ in owners(current)]
        assert {s.state for _, s in after.shards_on("n2", 2)} == {"recovering"}
        assert after.shards_on("n2", 1) == []


def test_a_node_that_restarts_unnoticed_past_m_losses_gives_nothing_back() -> None:
    current = cluster(3, "rs(2,1)")
    current = step(current, NodeJoin("n0", "h:0"))
    current = step(current, NodeJoin("n1", "h:1"))
    assert all(g.lost for g in current.groups)


# -- moves ---------------------------------------------------------------------------------------------------


def joined(current: ClusterMap, *, parity: bool) -> tuple[Group, int]:
    """A group with a running move of that role, and the shard's index."""
    return next(
        (g, s.index)
        for g in current.groups
        for s in g.shards
        if s.joining is not None and (s.index >= current.code(g).k) == parity
    )


def test_joins_per_node_are_bounded() -> None:
    current = step(cluster(6, "rs(3,2)"), NodeJoin("new", "h:1"))
    assert len(current.joins_of("new", 1)) == MAX_JOINS_PER_NODE


def test_a_completed_move_hands_the_shard_over() -> None:
    current = step(cluster(6, "rs(3,2)"), NodeJoin("new", "h:1"))
    group, index = joined(current, parity=False)
    after = step(current, ShardReady(group.gid, index, "new", 1, group.epoch))
    shard = after.groups[group.gid].shards[index]
    assert (shard.owner, shard.state, shard.joining) == ("new", "active", None)
    assert shard.owner_epoch == after.groups[group.gid].epoch == after.epoch


def parity_move() -> tuple[ClusterMap, Group, int]:
    current = step(cluster(6, "rs(3,2)"), NodeJoin("new", "h:1"))
    while True:
        try:
            return (current, *joined(current, parity=True))
        except StopIteration:
            current = step(current, pending(current)[0])


def test_when_the_owner_dies_a_joining_parity_builder_goes_on_as_owner() -> None:
    current, group, index = parity_move()
    after = down(current, group.shards[index].owner)
    shard = after.groups[group.gid].shards[index]
    assert (shard.owner, shard.state, shard.joining) == ("new", "recovering", None)


def test_when_the_owner_dies_a_data_move_is_over() -> None:
    current = step(cluster(6, "rs(3,2)"), NodeJoin("new", "h:1"))
    group, index = joined(current, parity=False)
    after = down(current, group.shards[index].owner)
    shard = after.groups[group.gid].shards[index]
    assert (shard.state, shard.joining) == ("recovering", None)
    assert step(after, ShardReady(group.gid, index, "new", 1, group.epoch)) is after


def test_when_the_joining_node_dies_its_moves_are_called_off() -> None:
    current = step(cluster(6, "rs(3,2)"), NodeJoin("new", "h:1"))
    gids = [g.gid for g, _ in current.joins_of("new", 1)]
    after = down(current, "new")
    assert pending(after) == []
    assert all(after.groups[gid].epoch == after.epoch for gid in gids)


def test_drain_then_remove() -> None:
    current = cluster(7, "rs(3,2)", "none")
    with pytest.raises(ConfigError, match="still owns"):
        next_map(current, NodeRemove("n4"))
    current = step(current, Drain("n4"))
    with pytest.raises(ConfigError, match="still owns"):
        next_map(current, NodeRemove("n4"))
    current, _ = settle(current)
    assert current.shards_on("n4", 1) == []
    current = step(current, NodeRemove("n4"))
    assert (current.nodes["n4"].state, current.nodes["n4"].down_reason) == ("down", "left")
    assert step(current, NodeRemove("n4")) is current
    assert max(ratios(current)) <= 1.25
    assert not any(g.lost for g in current.groups)


def test_impossible_drains_and_removals_say_why() -> None:
    current = cluster(5, "rs(3,2)")
    with pytest.raises(ConfigError, match="add a node first"):
        next_map(current, Drain("n0"))
    with pytest.raises(ConfigError, match="no node"):
        next_map(current, Drain("n9"))
    with pytest.raises(ConfigError, match="no node"):
        next_map(current, NodeRemove("n9"))
    with pytest.raises(ConfigError, match="is down"):
        next_map(down(current, "n0"), Drain("n0"))


# -- random histories ----------------------------------------------------------------------------------------


def random_event(current: ClusterMap, rng: random.Random, ids: list[str]) -> Event:
    """Any event, in proportions that keep most groups alive for a while: those that are lost test little."""
    alive = [node.id for node in current.nodes.values() if node.alive]
    gone = [node for node in ids if node not in alive]
    ready = pending(current)
    weights = {
        "ready": 60 if ready else 0,
        "down": (0.6 if ready else 6) if alive else 0,
        "join": 6 if gone else 0,
        "restart": 0.2 if alive else 0,
        "drain": 0.5,
        "remove": 1,
        "create": 3,
        "drop": 0.5,
    }
    kind = rng.choices(list(weights), list(weights.values()))[0]
    if kind == "ready":
        report = rng.choice(ready)
        return replace(report, group_epoch=report.group_epoch - rng.choice([0, 0, 0, 0, 1]))
    if kind == "down":
        node = current.nodes[rng.choice(alive)]
        return NodeDown(node.id, node.incarnation - (rng.random() < 0.1), rng.choice(["refused", "silent", "left"]))
    if kind in ("join", "restart"):
        return NodeJoin(rng.choice(gone if kind == "join" else alive), f"host:{rng.randrange(99)}")
    if kind == "drain":
        return Drain(rng.choice(ids))
    if kind == "remove":
        return NodeRemove(rng.choice(ids))
    if kind == "create":
        code = rng.choice(["rs(3,2)", "rs(2,1)", "replicate(3)", "none", "rs(1,3)", "rs(4,2)"])
        return CreateTable(spec(rng.choice("abcd") + code, code, dim=rng.choice([8, 8, 8, 9])))
    return DropTable(rng.choice(list(current.tables) or ["none"]))


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_keep_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    ids = [f"n{i}" for i in range(rng.randrange(5, 12))]
    current = empty_map("random", seed)
    refused = 0
    seen = Counter[str]()
    for number in range(250):
        before, groups, nodes = current, current.groups, dict(current.nodes)
        try:
            current = step(current, random_event(current, rng, ids))
        except (CodeError, ConfigError, TableExistsError, UnknownTableError):
            refused += 1
        assert (before.groups, before.nodes) == (groups, nodes), "the old map was changed"
        if number % 10 == 0:
            assert ClusterMap.from_wire(msgpack.unpackb(msgpack.packb(current.to_wire()))) == current
        seen.update(current.group_state(group) for group in current.groups)
    assert refused < 125
    assert seen["ok"], "this history tested nothing"
    assert seen["degraded"], "this history tested nothing"
    current, _ = settle(current, rng)
    assert plan_moves(current) == ()
    width = max((len(g.shards) for g in current.groups if not g.lost), default=0)
    if len(current.up_nodes()) >= width:
        assert not any(current.at_risk(g) for g in current.groups if not g.lost)
    for load_node, load in current.load().items():
        if current.nodes[load_node].state == "draining" and len(current.up_nodes()) >= width:
            assert sum(load) == 0, "a draining node kept shards though others were free"


@pytest.mark.parametrize("seed", range(6))
def test_random_joins_and_single_losses_lose_nothing_and_stay_even(seed: int) -> None:
    """With time to recover between losses, any number of them is survived."""
    rng = random.Random(seed)
    current = cluster(9, "rs(3,2)", "replicate(3)", seed=seed)
    for _ in range(12):
        if len(current.up_nodes()) > 7 and rng.random() < 0.6:
            current = down(current, rng.choice(current.up_nodes()))
        else:
            current = step(current, NodeJoin(f"n{rng.randrange(14)}", "h:1"))
        current, _ = settle(current, rng)
        assert not any(g.lost for g in current.groups)
        for code in ("rs(3,2)", "replicate(3)"):
            assert spread(current, code, parity=False) <= 2
            assert spread(current, code, parity=True) <= 2


# -- wire form -----------------------------------------------------------------------------------------------


def test_malformed_maps_are_frame_errors() -> None:
    good = cluster(5, "rs(3,2)").to_wire()
    assert ClusterMap.from_wire(good).groups
    rng = random.Random(3)
    for bad in (None, [], 3, {}, b"x", {**good, "epoch": "1"}, {**good, "epoch": -1}, {**good, "seed": True}):
        with pytest.raises(FrameError):
            ClusterMap.from_wire(bad)
    for _ in range(300):
        broken = msgpack.unpackb(msgpack.packb(good))
        target = rng.choice([broken, *broken["groups"], *broken["nodes"], *broken["tables"], broken["groups"][0][3][0]])
        spot = rng.choice(list(target) if isinstance(target, dict) else range(len(target)))
        target[spot] = rng.choice([None, -1, "zz", [], {}, 2**70, 1.5, b"q"])
        try:
            ClusterMap.from_wire(broken)
        except FrameError:
            continue
