"""Cluster maps and records made by hand, for tests of what the page says; and a real browser for what it does."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

import ecstore
from ecstore.launcher import ClusterOptions, LocalCluster, NodeSettings, local_cluster
from tests import node_processes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PATIENCE_S = 120.0
#: Pictures for the documentation are written here by `make screenshots`; without it none are.
SCREENSHOTS = os.environ.get("ECSTORE_SCREENSHOTS")


until = partial(node_processes.until, patience_s=PATIENCE_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Six nodes that decode slowly enough to be watched, with 20,000 rows."""
    settings = NodeSettings(decode_mib_per_s=0.03)
    with local_cluster(options=ClusterOptions(nodes=6, seed=1, settings=settings)) as running:
        with ecstore.connect(running.address) as store:
            table = store.create_table("user", dim=16, optimizer=ecstore.Adagrad(lr=0.1), code="rs(3,2)", seed=1)
            for ids in np.arange(20_000, dtype=np.uint64).reshape(4, -1):
                table.push(ids, np.ones((len(ids), 16), np.float32))
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.admin_url, timeout=20.0) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window; skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    program = os.environ.get("ECSTORE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(
            "there is no chromium here (on Debian: apt-get install chromium): the page is not tried in a browser"
        )
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


_RECORD = """() => {
    const line = document.getElementById("health"), levels = window.levels = [];
    const look = () => {
        const level = line.querySelector(".health")?.dataset.level;
        if (level && level !== levels.at(-1)) levels.push(level);
    };
    new MutationObserver(look).observe(line, {subtree: true, childList: true, attributes: true});
    look();
}"""


class Visitor:
    """One open page, and everything that its browser asked for and complained about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.disturbed = False  #: the test takes its service away, of which browsers complain
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(address)
        page.wait_for_selector(".node")
        page.evaluate(_RECORD)

    def levels(self) -> list[str]:
        """Every level that the health line has had, in order: a short one is not missed on a busy machine."""
        return list(self.page.evaluate("window.levels"))

    def level(self) -> str:
        return str(self.page.get_attribute("#health .health", "data-level"))

    def picture(self, name: str) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.page.evaluate("window.scrollTo(0, 0)")
            picture = Image.open(io.BytesIO(self.page.screenshot()))
            picture.quantize(128).save(f"{SCREENSHOTS}/{name}.png", optimize=True)  # a third of the size

    def press(self, button: str) -> None:
        """A button of a node, and then the one of the dialog."""
        self.button(button).click()
        self.page.locator("#confirm").click()
        self.page.locator("#confirm").wait_for(state="hidden")

    def button(self, name: str) -> Locator:
        """Of a card, as opposed to the one of the dialog."""
        return self.page.locator(".node").get_by_role("button", name=name, exact=True)


@pytest.fixture
def visit(browser: Browser, cluster: LocalCluster) -> Iterator[Callable[..., Visitor]]:
    """Open the page; at the end nothing must have left the machine, and the browser must not have complained."""
    visitors: list[Visitor] = []

    def visited(width: int = 1280, height: int = 860, **settings: Any) -> Visitor:
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        visitors.append(Visitor(context.new_page(), f"{cluster.admin_url}/"))
        return visitors[-1]

    yield visited
    here = cluster.admin_url.removeprefix("http")
    for visitor in visitors:
        visitor.page.context.close()
        foreign = [url for url in visitor.requests if not url.startswith((f"http{here}/", f"ws{here}/", "data:"))]
        assert not foreign
        assert len(visitor.requests) > 5
        assert visitor.disturbed or not visitor.complaints
