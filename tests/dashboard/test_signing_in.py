"""Tokens and roles, in the browser: who views sees everything and can do nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from ecstore.launcher.ports import free_ports
from tests.dashboard.conftest import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("ecstore_admin.guard", reason="this service knows no roles")
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

OPERATE, VIEW = "may-do-everything", "may-only-look"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An admin service with tokens; its node finds no coordination service, which does not matter here."""
    folder = tmp_path_factory.mktemp("service")
    ports = free_ports(3)
    log = (folder / "log").open("wb")
    running = subprocess.Popen(
        [sys.executable, "-m", "ecstore", "admin", f"--listen=127.0.0.1:{ports[0]}", f"--run-dir={folder}",
         f"--coordination=127.0.0.1:{ports[1]}", f"--node=n1=127.0.0.1:{ports[2]}", f"--exit-with={os.getpid()}"],
        env=os.environ | {"ECSTORE_ADMIN_TOKEN": OPERATE, "ECSTORE_ADMIN_VIEW_TOKEN": VIEW}, stdout=log, stderr=log,
    )  # fmt: skip
    address = f"http://127.0.0.1:{ports[0]}"
    until(lambda: answers(address), "the service")
    yield address, folder
    httpx.post(f"{address}/nodes/n1/kill", headers={"Authorization": f"Bearer {OPERATE}"}, timeout=20.0)
    running.send_signal(signal.SIGTERM)
    running.wait(20)
    log.close()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/nodes").status_code == 401
    except httpx.TransportError:
        return False


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def sign_in(page: Page, address: str, token: str) -> None:
    page.goto(address)
    page.get_by_label("token").fill(token)
    page.keyboard.press("Enter")


def test_without_a_token_there_is_no_page_and_no_websocket(service):
    address, _ = service
    for path in ("/", "/_nicegui/x.js", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        assert httpx.get(address + path).status_code == 401


def test_who_operates_has_buttons(service, page: Page):
    address, folder = service
    sign_in(page, address, "wrong")
    page.get_by_text("Try again").wait_for()
    sign_in(page, address, OPERATE)
    page.wait_for_selector(".node")
    assert page.url == f"{address}/"
    assert page.evaluate("document.cookie") == "", "the token must be out of reach of scripts"
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Kill n1").click()
    page.locator("#confirm").wait_for()
    assert OPERATE not in (folder / "log").read_text()


def test_who_views_sees_it_and_can_do_nothing(service, page: Page):
    address, folder = service
    sign_in(page, address, VIEW)
    page.wait_for_selector(".node")
    page.get_by_text("view only").wait_for()
    assert page.get_by_role("button", name="Kill n1").is_disabled()
    page.evaluate("document.querySelector('[aria-label=\"Kill n1\"]').removeAttribute('disabled')")
    page.get_by_role("button", name="Kill n1").click(force=True)
    assert page.locator("#confirm").count() == 0 or not page.locator("#confirm").is_visible()
    assert VIEW not in (folder / "log").read_text()
