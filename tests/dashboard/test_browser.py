"""The page in real headless Chromium, over six real node processes: seen, used, and nothing leaves the machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ecstore.launcher import LocalCluster
from tests.dashboard.conftest import Visitor, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

Visit = Callable[..., Visitor]


@pytest.fixture
def whole(admin: httpx.Client, cluster: LocalCluster) -> Iterator[httpx.Client]:
    """All six nodes up and nothing on its way, before and after."""
    make_whole(admin, cluster)
    yield admin
    make_whole(admin, cluster)


def make_whole(admin: httpx.Client, cluster: LocalCluster) -> None:
    for node in cluster.addresses:
        admin.post(f"/nodes/{node}/recover").raise_for_status()
    until(lambda: is_clean(admin), "a clean cluster")


def is_clean(admin: httpx.Client) -> bool:
    answer = admin.get("/cluster")
    return answer.status_code == 200 and answer.json()["clean"] and answer.json()["nodes_up"] == 6


def held(visitor: Visitor, node: str) -> int:
    """Shards that the ring shows for a node, out of what it tells a screen reader."""
    said = visitor.page.locator(f".seat[data-node={node}] title").text_content() or ""
    words = said.split()
    return int(words[words.index("data") - 1]) + int(words[words.index("parity") - 1])


def test_six_nodes_and_what_each_has(whole, visit: Visit):
    visitor = visit()
    nodes = visitor.page.locator(".node")
    assert nodes.count() == 6
    assert [held(visitor, f"n{number}") for number in range(1, 7)] == [10] * 6
    until(lambda: visitor.level() == "safe", "a safe cluster")
    assert "survives 2 more losses" in visitor.page.inner_text("#health")
    assert visitor.page.title() == "ecstore"
    visitor.picture("safe")


def test_killed_by_its_button_decoded_to_the_end_and_recovered(whole, visit: Visit):
    visitor = visit()
    page = visitor.page
    visitor.button("Kill n2").click()
    page.get_by_text("Kill node n2?").wait_for()
    assert "every row survives 1 more loss" in page.inner_text(".dialog")
    visitor.picture("confirm")
    page.get_by_role("button", name="Cancel").click()
    assert whole.get("/nodes/n2").json()["process"] == "running"  # asked and not answered: nothing happens

    visitor.press("Kill n2")
    bar = page.locator(".burst .bar").first
    bar.wait_for()
    seen: list[int] = []

    def finished() -> bool:
        seen.append(int(bar.get_attribute("aria-valuenow") or 0))
        if len(set(seen)) >= 2 and not page.locator(".burst table").count():  # once: a second click would close it
            page.locator(".burst summary").first.click()
            page.locator(".burst table").first.wait_for()
            visitor.picture("repairing")
        return "done" in page.locator(".burst-title .state").first.inner_text()

    until(finished, "the end of the decoding")
    assert any(0 < percent < 100 for percent in seen)
    assert seen == sorted(seen), "progress goes back"
    assert bar.get_attribute("aria-valuenow") == "100"
    assert page.locator(".burst tbody tr").count() == 10
    until(lambda: held(visitor, "n2") == 0 and sum(held(visitor, f"n{n}") for n in range(1, 7)) == 60, "the new ring")
    assert page.locator(".seat.down[data-node=n2]").count() == 1
    assert page.locator(".node.down").count() == 1
    assert "Recover" in page.inner_text("#health")

    visitor.press("Recover n2")
    until(lambda: held(visitor, "n2") > 0 and page.locator(".node.up").count() == 6, "n2 back with shards")
    assert "n2" in page.inner_text(".events")


def test_pause_and_resume(whole, visit: Visit):
    visitor = visit()
    visitor.press("Pause n4")
    until(lambda: visitor.page.locator(".node.paused[data-node=n4]").count() == 1, "a paused node")
    visitor.press("Resume n4")
    until(lambda: visitor.page.locator(".node.up[data-node=n4]").count() == 1, "the node goes on")


def test_by_keyboard(whole, visit: Visit):
    visitor = visit()
    page = visitor.page
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "Kill n1":
            break
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Kill n1"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(outline.removesuffix("px")) >= 2
    page.keyboard.press("Enter")
    page.get_by_text("Kill node n1?").wait_for()
    until(lambda: page.evaluate("document.activeElement.innerText") == "Cancel", "the harmless button in focus")
    page.keyboard.press("Escape")
    page.get_by_text("Kill node n1?").wait_for(state="hidden")
    until(
        lambda: page.evaluate("document.activeElement.getAttribute('aria-label')") == "Kill n1",
        "the focus back where it was",
    )
    assert whole.get("/nodes/n1").json()["process"] == "running"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(whole, visit: Visit, scheme: str):
    visitor = visit(390, 844, color_scheme=scheme)
    page = visitor.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    until(lambda: page.evaluate("document.body.classList.contains('body--dark')") == (scheme == "dark"), scheme)
    visitor.picture(f"phone-{scheme}")
    visitor.button("Kill n3").click()
    page.get_by_text("Kill node n3?").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Cancel").click()


def test_dark_can_be_chosen(whole, visit: Visit):
    visitor = visit(color_scheme="light")
    page = visitor.page
    page.get_by_label("Colours").click()
    page.get_by_role("option", name="Dark").click()
    until(lambda: page.evaluate("document.body.classList.contains('body--dark')"), "dark")
    page.reload()
    until(lambda: page.evaluate("document.body.classList.contains('body--dark')"), "dark after coming again")
    page.wait_for_selector(".node")
    visitor.picture("dark")


def test_a_new_service_is_found_again(whole, visit: Visit, cluster: LocalCluster):
    """The launcher starts the service again; the page, left open, loads itself anew."""
    visitor = visit()
    visitor.disturbed = True
    visitor.page.evaluate("window.old = true")
    os.kill(cluster.pids["admin"], signal.SIGKILL)
    visitor.page.wait_for_function("window.old !== true")
    visitor.page.wait_for_selector(".node")


def test_the_health_line_through_all_states(admin: httpx.Client, visit: Visit, cluster: LocalCluster):
    """The last test of this cluster: what is lost stays lost."""
    make_whole(admin, cluster)
    visitor = visit()
    page = visitor.page
    until(lambda: visitor.level() == "safe", "a safe cluster")
    visitor.press("Kill n2")
    until(lambda: visitor.levels()[:3] == ["safe", "repairing", "safe"], "a repair, and safe on five nodes")
    visitor.press("Kill n5")
    until(lambda: visitor.level() == "at_risk", "too few nodes")
    assert "at risk" in page.inner_text("#health")
    until(lambda: "two shards" in page.inner_text("#health"), "the reason")
    visitor.picture("at-risk")
    visitor.press("Recover n2")
    page.get_by_text("joining").first.wait_for()
    visitor.press("Recover n5")
    until(lambda: visitor.level() == "safe" and page.locator(".node.up").count() == 6, "safe again")
    until(lambda: is_clean(admin), "a clean cluster")

    visitor.button("Kill n1").click()
    assert "for ever" not in page.inner_text(".dialog")
    page.get_by_role("button", name="Cancel").click()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: admin.post(f"/nodes/{node}/kill").raise_for_status(), ("n1", "n2", "n3")))
    until(lambda: visitor.level() == "lost", "a loss")
    assert "Lost: group" in page.inner_text("#health")
    assert "DataLossError" in page.inner_text("#health")
    visitor.picture("lost")
    levels = visitor.levels()
    assert levels[0] == "safe"
    assert levels[-1] == "lost"
    risk = levels.index("at_risk")
    assert "repairing" in levels[:risk]
    assert "safe" in levels[risk:], "safe again"
