"""The view model: nodes, recoveries, events, charts and the ring, made of records; no browser."""

from __future__ import annotations

import io
import math
import re
from html.parser import HTMLParser

import pytest
from ecstore_admin.dashboard import markup
from ecstore_admin.dashboard.charts import Chart, Mark, chart_html, labels_of
from ecstore_admin.dashboard.recoveries import MAX_BURSTS, bursts_of
from ecstore_admin.dashboard.ring import SIZE, ring_of, ring_svg
from ecstore_admin.dashboard.training import MAX_POINTS, MAX_TRAINERS, Figures
from ecstore_admin.dashboard.view import view_of
from ecstore_admin.dashboard.words import duration, listed, short, size
from rich.console import Console

from ecstore.cli.watching import lines_of, screen_of
from tests.dashboard.maps import cluster, event, group, node_record, recovery, snapshot, trainer


def test_recoveries_of_one_loss_are_one_with_a_sum():
    (burst,) = bursts_of([recovery(), recovery(shard=1, rows_total=3000, rows_decoded=600, eta_s=12.0)])
    assert (burst.total, burst.decoded, burst.percent, burst.state) == (4000, 1000, 25, "running")
    assert (burst.rate, burst.eta_s) == (400.0, 12.0)
    assert "n2 was lost: 2 shards" in burst.title
    assert burst.figures() == "1,000 of 4,000 rows, 100 of them on demand, 400 rows/s, 12 s to go"


def test_a_later_loss_of_the_same_node_is_another_and_a_move_is_no_loss():
    old = recovery(state="done", rows_decoded=1000, finished_at=105.0)
    moves = [
        recovery(kind="move", lost_node=f"n{n}", started_at=150.0 + n, finished_at=150.5 + n, state="done")
        for n in range(3)
    ]
    bursts = bursts_of([old, recovery(started_at=200.0), *moves])
    assert [burst.title for burst in bursts] == [
        "n2 was lost: 1 shard to repair", "Rebalancing: 3 shards moved to n6", "n2 was lost: 1 shard",
    ]  # fmt: skip
    assert bursts[-1].percent == 100


def test_what_happens_to_many_groups_at_once_is_one_line():
    many = [
        event(n, "group_at_risk", at=100.0, message=f"group {n} is at risk") | {"details": {"group": n}}
        for n in range(12)
    ]
    first, second = view_of(snapshot(events=[*many, event(99, "killed", "n1", at=101.0)])).events
    assert first.message == "something"
    assert second.message == "12 groups are at risk: 0, 1, 2, 3, 4, 5 and 6 more"


def test_shards_of_lost_groups_are_given_up_and_their_nodes_not_called_lost():
    gone = [
        recovery(
            new_owner="", lost_node=f"n{n}", group=n, state="lost", finished_at=100.0, rows_total=0, rows_decoded=0
        )
        for n in range(3)
    ]
    (burst,) = bursts_of(gone)
    assert burst.title == "Given up: 3 shards of lost groups 0, 1 and 2"
    assert burst.figures() == "too few shards are left to decode them"


def test_what_was_cancelled_is_shown_and_not_counted():
    (burst,) = bursts_of([recovery(state="cancelled", finished_at=101.0), recovery(new_owner="n5", started_at=100.5)])
    assert (burst.total, len(burst.shards)) == (1000, 2)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (("running", "stuck"), "stuck"), (("done", "waiting"), "waiting"), (("done", "done"), "done"),
        (("lost", "done"), "lost"),
    ],
)  # fmt: skip
def test_a_burst_shows_what_needs_attention(states, shown):
    entries = [recovery(shard=n, state=state) for n, state in enumerate(states)]
    assert bursts_of(entries)[0].state == shown


def test_a_bar_is_full_only_at_the_end():
    assert bursts_of([recovery(rows_total=1000, rows_decoded=1000)])[0].percent == 99
    assert bursts_of([recovery(state="done", finished_at=1.0, rows_total=0, rows_decoded=0)])[0].percent == 100


def test_many_losses_are_bounded_and_the_newest_is_first():
    many = [recovery(lost_node=f"n{n}", started_at=float(n), finished_at=n + 0.5, state="done") for n in range(50)]
    bursts = bursts_of(many)
    assert len(bursts) == MAX_BURSTS
    assert bursts[0].title.startswith("n49")


@pytest.mark.parametrize(
    ("record", "events", "state", "buttons"),
    [
        ({}, [], "up", "kill pause"),
        ({}, [event(1, "paused", "n1")], "paused", "kill resume"),
        ({}, [event(1, "paused", "n1"), event(2, "resumed", "n1")], "up", "kill pause"),
        ({"process": "paused"}, [], "paused", "kill resume"),
        ({"state": "down", "down_reason": "refused", "process": "exited"}, [], "down", "recover"),
        ({"state": "starting"}, [], "starting", "kill pause"),
        ({"state": "down", "down_reason": "left", "process": "exited"}, [], "left", "recover"),
        ({"managed": False, "process": "unknown"}, [], "up", ""),
    ],
)
def test_buttons_of_a_node_are_those_that_can_do_something(record, events, state, buttons):
    (node,) = view_of(snapshot(nodes=[node_record(**record)], events=events)).nodes
    assert node.state == state
    assert node.icon
    possible = {"kill": node.can_kill, "pause": node.can_pause, "resume": node.can_resume, "recover": node.can_recover}
    assert " ".join(sorted(name for name, can in possible.items() if can)) == buttons


def test_before_a_kill_the_page_says_what_it_would_do():
    (node,) = view_of(snapshot()).nodes
    assert not node.loses_rows
    assert "1 shard of it" in node.warning
    (node,) = view_of(snapshot(map=cluster(group(recovering=(1, 2))))).nodes
    assert node.loses_rows
    assert "lost for ever: group 0" in node.warning


def test_the_ring_shows_every_shard_where_it_is():
    current = cluster(group(), group(1, owners=("n6", "n1", "n2", "n3", "n4"), recovering=(0,)))
    states = {f"n{n}": ("up", "✓") for n in range(1, 7)}
    ring = ring_of(current, states, [recovery()])
    assert [len(seat.cells) for seat in ring.seats] == [2, 2, 2, 2, 1, 1]
    assert sum(cell.role == "parity" for seat in ring.seats for cell in seat.cells) == 4
    assert [seat.node for seat in ring.seats if any(cell.recovering for cell in seat.cells)] == ["n6"]
    assert ring.flows[0].text == "1 shard of n2 now on n6"
    assert ring.middle == ("6 of 6 nodes up", "2 groups")
    svg = ring_svg(ring)
    assert "1 recovering" in svg
    numbers = [float(n) for path in re.findall(r' d="([^"]+)"', svg) for n in re.findall(r"\d+\.\d+", path)]
    assert all(0 <= n <= SIZE for n in numbers)


@pytest.mark.parametrize("nodes", [1, 2, 3, 6, 17, 64])
def test_nodes_do_not_cover_each_other(nodes):
    ring = ring_of(None, {f"n{n}": ("up", "✓") for n in range(nodes)}, [])
    seats = ring.seats
    for one, other in zip(seats, (*seats[1:], seats[0]), strict=True):
        if one is not other:
            assert math.dist((one.x, one.y), (other.x, other.y)) > 1.5 * ring.badge_radius


def test_a_dead_node_holds_nothing_in_the_ring():
    ring = ring_of(cluster(group(), down=("n1",)), {"n1": ("down", "✕"), "n2": ("up", "✓")}, [])
    assert [len(seat.cells) for seat in ring.seats] == [0, 1]


def test_charts_mark_kills_and_words_do_not_overlap():
    figures = {"host-1": [(100.0 + n, 6000.0 + n, 0.7 - n / 1000, None) for n in range(100)]}
    happened = [event(1, "killed", "n2", 150.0), event(2, "killed", "n5", 152.0), event(3, "node_up", "n2", 190.0)]
    (shown,) = view_of(snapshot(trainers=[trainer()], figures=figures, events=happened)).trainers
    throughput, loss, auc = shown.charts
    assert shown.done == 25
    assert throughput.latest == "6,099 samples/s"
    assert [label.text for label in labels_of(loss, loss.marks)] == ["n2, n5 killed", "n2 back"]
    assert chart_html(throughput).count('class="mark') == 3
    assert chart_html(auc) == ""


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e9, 1e9 + 1], [0.5, 0.49], [-3.0, 2.0]])
def test_charts_of_any_figures_stay_in_their_frame(values):
    points = tuple((float(n), value) for n, value in enumerate(values))
    drawn = chart_html(Chart("x", "", points, (Mark(0.0, "n1", "killed", True),), 0.0, 10.0))
    line = re.search(r'points="([^"]+)"', drawn)
    assert line is not None
    for pair in line[1].split():
        assert all(0 <= float(number) <= 100 for number in pair.split(","))


def test_figures_of_trainers_are_kept_and_bounded():
    figures = Figures()
    for n in range(MAX_POINTS + 50):
        figures.take([trainer(at=float(n)), trainer(at=float(n))])
    assert len(figures.points()["host-1"]) == MAX_POINTS
    for n in range(30):
        figures.take([trainer(id=f"t{n}", at=1000.0 + n)])
    assert len(figures.points()) == MAX_TRAINERS
    assert "t29" in figures.points()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_names_from_a_cluster_are_text_and_never_markup():
    evil = '"><script>alert(1)</script>'
    view = view_of(
        snapshot(
            map=None, problem=evil, nodes=[node_record(evil, down_reason=evil, state="down", address=evil)],
            recoveries=[recovery(lost_node=evil, new_owner=evil, state=evil)],
            events=[event(1, "x", evil, message=evil)], trainers=[trainer(id=evil)], connect=evil,
        )
    )  # fmt: skip
    (burst,) = view.bursts
    for html in (
        markup.health_html(view.health), ring_svg(view.ring), markup.node_html(view.nodes[0]), markup.burst_html(burst),
        markup.shards_html(burst), markup.trainers_html(view), markup.events_html(view.events),
        markup.trainers_html(view_of(snapshot(connect=evil))),
    ):  # fmt: skip
        reader = _Reader()
        reader.feed(html)
        assert "script" not in reader.tags


def test_the_terminal_says_the_same():
    seen = snapshot(
        map=cluster(group(recovering=(1,)), down=("n2",)), recoveries=[recovery()], trainers=[trainer()],
        nodes=[node_record(), node_record("n2", state="down", down_reason="refused", process="unknown")],
        figures={"host-1": [(199.0, 6000.0, 0.5, None)]}, events=[event(1, "killed", "n2", message="n2 was killed")],
    )  # fmt: skip
    view = view_of(seen)
    plain = "\n".join(lines_of(view))
    stream = io.StringIO()
    Console(file=stream, width=140, force_terminal=False).print(screen_of(view))
    for words in (
        "Every row survives 1 more loss",
        "n2 was lost: 1 shard",
        "40 %",
        "down (refused)",
        "6,000 samples/s",
    ):
        assert words in plain
        assert words in stream.getvalue()
    assert "n2 was killed" in stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_terminal_may_be_narrow_and_nothing_known(width):
    stream = io.StringIO()
    Console(file=stream, width=width).print(screen_of(view_of(snapshot(map=None, nodes=[], problem="nobody answers"))))
    assert max(map(len, stream.getvalue().splitlines())) <= width


def test_numbers_as_people_read_them():
    assert [short(n) for n in (0, 0.123456, 12, 950, 6100, 61_000, 2.3e6)] == [
        "0", "0.123", "12", "950", "6,100", "61.0k", "2.3M",
    ]  # fmt: skip
    assert [duration(s) for s in (0.2, 12.2, 300, 9000)] == ["under 1 s", "12 s", "5 min", "2.5 h"]
    assert size(80 << 20) == "80 MiB"
    assert (listed([]), listed([1]), listed([1, 2, 3])) == ("none", "1", "1, 2 and 3")
    assert listed(range(20), 3) == "0, 1, 2 and 17 more"
