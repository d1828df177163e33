"""What pages show while the viewer or its MongoDB server does not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader.conversion.convert import convert
from tests.ext.browser.tabs import Site, Tabs
from tests.support.images import plant_photos
from tests.support.mongo import Mongod
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STOPPED = "The viewer does not answer: was `dbloader view` stopped?"
BROKEN = """[...document.images].filter((image) => image.complete && !image.naturalWidth &&
    getComputedStyle(image).visibility === "visible").length"""


# Keeps every text that the bar has shown, because a busy machine may show "Loading…" only for a moment.
KEEP_NOTES = """
window.notes = [];
new MutationObserver(() => window.notes.push(document.querySelector("#note")?.textContent))
    .observe(document, {subtree: true, childList: true, characterData: true});
"""


def check_one_message(page: Page, text: str) -> None:
    """Wait until the bar shows ``text``. Check that the page has no other message and no broken picture."""
    expect(page.locator("#note")).to_contain_text(text)
    expect(page.locator("#notice")).to_be_empty()
    expect(page.locator(".error:visible, .bad:visible")).to_have_count(0)
    assert page.evaluate(BROKEN) == 0


def test_page_of_a_stopped_viewer_shows_one_message(tabs: Tabs, chromium: Browser, tmp_path: Path) -> None:
    convert(plant_photos(tmp_path / "images", 60), tmp_path / "a.lmdb")
    with socket.create_server(("127.0.0.1", 0)) as free:  # the second viewer uses the same port
        port = free.getsockname()[1]
    arguments = (tmp_path / "a.lmdb", "--no-open", "--port", port)
    size = {"width": 360, "height": 740}
    with viewer(*arguments) as running:
        site = Site.entered(chromium, running.link)
        grid = tabs.open(site, viewport=size, refused=".")
        record = tabs.open(site, "/?view=record&index=5", refused=".")
        expect(grid.locator(".tile:visible .number").first).to_have_text("0 ·")
        expect(record.locator("db-record h1")).to_be_visible()
        running.stop()
    grid.locator("#tiles").evaluate("list => list.scrollTop = list.scrollHeight")
    expect(grid.locator(".tile:visible .number", has_text="59 ·")).to_be_visible()
    check_one_message(grid, STOPPED)
    record.keyboard.press("ArrowRight")
    check_one_message(record, STOPPED)
    expect(record.locator("db-record h1")).to_be_visible()
    with viewer(*arguments) as running:  # a new viewer does not accept the old cookies
        for page in (grid, record):
            expect(page.get_by_role("heading", name="The viewer is not open in this browser")).to_be_visible()
        grid.goto(running.link)
        expect(grid.locator("db-overview h1")).to_have_text("a.lmdb")


def test_page_loads_when_mongodb_runs_again(tabs: Tabs, chromium: Browser, tmp_path: Path) -> None:
    with Mongod() as server:
        place = server.place("viewed")
        convert(plant_photos(tmp_path / "images", 30), place)
        with viewer(f"{place}{'&' if '?' in place else '?'}timeoutMS=5000", "--port", "0", "--no-open") as running:
            site = Site.entered(chromium, running.link)
            server.stop()
            shown = {
                "/": ".tile .number",
                "/?view=record&index=5": "db-record h1",
                "/?view=training&batch_size=4": "db-training .seen img",
                "/?view=report": "db-report .empty",
            }
            pages = {}
            for path in shown:
                pages[path] = tabs.open(site, path, refused=".", script=KEEP_NOTES)
            for page in pages.values():
                check_one_message(page, "Waiting for the database: ")
            # One page is enough: a page that is busy until the answer arrives shows only the text about the database.
            slow = "Loading… MongoDB has not answered yet."
            assert any(slow in page.evaluate("window.notes") for page in pages.values())
            server.start()
            for path, page in pages.items():
                expect(page.locator(shown[path]).first).to_be_visible()
                expect(page.locator(".class", has_text="cat")).to_be_visible(visible=path == "/")
                expect(page.locator("#note")).to_be_empty()
                assert page.evaluate(BROKEN) == 0
