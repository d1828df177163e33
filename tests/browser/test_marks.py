"""Records are marked in a browser by mouse, keys and touch, and a copy applies the marks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader import Record
from tests.browser.tabs import Site, Tabs
from tests.browser.test_pages import check_page
from tests.support.conversion import records
from tests.support.images import photo, run
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT = 400
CLASSES = ["cat", "dog", "maine coon"]
WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 780}


class Marked(NamedTuple):
    """A viewer of a store, and the file with its marks."""

    site: Site
    place: Path
    file: Path


@pytest.fixture
def marked(tmp_path: Path, chromium: Browser) -> Iterator[Marked]:
    place, image = tmp_path / "train.lmdb", photo()
    store_records(place, (Record(f"{n:03}.jpg", n % 3, image, 40, 30, "JPEG") for n in range(COUNT)), classes=CLASSES)
    with viewer(place, "--no-open") as running:
        yield Marked(Site.entered(chromium, running.link), place, tmp_path / "train.lmdb.marks.jsonl")


def hold(page: Page, index: int) -> None:
    """Rest a finger on a record."""
    box = page.locator(f"#tiles-{index}").bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 40}
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
    expect(page.locator("#chosen")).to_be_visible()
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_copy_applies_exactly_the_marks(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?px=80", viewport=WIDE)
    chosen, notice = page.locator("#chosen"), page.locator("#notice")
    # Mark 30 records: a range of 20 with the mouse, and a range of 10 with keys.
    page.locator("#tiles-2").click(modifiers=["Control"])
    page.locator("#tiles-21").click(modifiers=["Shift"])
    expect(chosen).to_contain_text("20 selected")
    page.locator("#tiles-30").click(modifiers=["Control"])
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("X")
    expect(chosen).to_contain_text("30 selected")
    page.get_by_role("button", name="Drop").click()
    expect(notice).to_have_text("30 records: drop")
    expect(chosen).to_be_hidden()
    expect(page.locator(".tile .marks.drop")).to_have_count(30)
    # Mark every record of a search except one.
    page.goto("/?q=class:dog+index>=300&px=80")
    page.locator("#everything").click()
    expect(chosen).to_contain_text("33 selected")
    page.locator("#tiles-4").click(modifiers=["Control"])
    expect(chosen).to_contain_text("32 selected")
    expect(page.locator('.tile[aria-selected="true"]')).to_have_count(32)
    page.get_by_label("Class to set").fill("maine coon")
    page.get_by_role("button", name="Set label").click()
    expect(page.locator(".tile .marks").first).to_have_text("→ maine coon")
    # Mark three records by touch on a phone.
    phone = tabs.open(marked.site, viewport=PHONE, has_touch=True)
    hold(phone, 0)
    phone.locator("#tiles-1").tap()
    phone.locator("#tiles-3").tap()
    expect(phone.locator("#chosen")).to_contain_text("3 selected")
    phone.get_by_label("Tag to add").fill("blurry")
    phone.get_by_label("Tag to add").press("Enter")
    expect(phone.locator("#tiles-3 .marks")).to_have_text("drop · blurry")
    phone.locator("#tiles-1").tap()
    expect(phone.locator("db-record tr", has_text="tags")).to_contain_text("blurry")
    # Marks can be searched like fields, and the page shows the command that copies.
    page.goto("/?q=mark.drop+or+mark.tags~blurry")
    expect(page.locator("#count")).to_have_text(f"32 of {COUNT} records")
    _, *words = shlex.split(page.locator("#marks code").inner_text())
    assert words == ["copy", str(marked.place), "clean.lmdb", "--marks", str(marked.file)]
    dropped = {*range(2, 22), *range(30, 40)}
    labelled = {n for n in range(300, COUNT) if n % 3 == 1} - {313}
    rows = [json.loads(line) for line in marked.file.read_text().splitlines()]
    assert [row["index"] for row in rows] == sorted({0, 1, 3} | dropped | labelled)
    assert run(*words, cwd=marked.place.parent).status == 0
    assert {record.name: record.label for record in records(marked.place.with_name("clean.lmdb"))} == {
        f"{n:03}.jpg": 2 if n in labelled else n % 3 for n in range(COUNT) if n not in dropped
    }


def test_page_shows_changes_and_mistakes_in_the_marks_file(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?view=record&index=5", refused="/api/0/marks")
    page.get_by_role("button", name="Drop").click()
    expect(page.locator("db-record tr", has_text="drop")).to_contain_text("true")
    marked.file.write_text('{"index": 6, "name": "007.jpg", "drop": true}\n')
    page.get_by_role("button", name="Drop").click()
    expect(page.locator("#notice")).to_contain_text("row 1: record 6 of")
    page.goto("/?selected=5")
    expect(page.locator("db-grid db-marks")).to_contain_text("Marks are off: ")
    expect(page.locator("db-grid db-marks")).to_contain_text("belongs to another store")
    expect(page.locator("db-grid db-marks").get_by_role("button", name="Drop")).to_be_disabled()
    marked.file.write_text('{"index": 6, "name": "006.jpg", "tags": ["by hand"]}\n')
    page.reload()
    expect(page.locator("#tiles-6 .marks")).to_have_text("by hand")
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#everything").click()
    page.get_by_role("button", name="Clear marks").click()
    expect(page.locator("#notice")).to_have_text(f"{COUNT} records: marks removed")
    expect(page.locator("#marks")).to_be_hidden()
    assert not marked.file.exists()


def test_selection_of_all_records_is_cleared_by_another_search(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?q=class:dog&selected=all,4", viewport=WIDE)
    expect(page.locator("#chosen")).to_contain_text("132 selected")
    page.locator(".class", has_text="cat").click()
    expect(page.locator("#count")).to_contain_text("134 of")
    expect(page.locator("#chosen")).to_be_hidden()
    assert "selected" not in page.url


@pytest.mark.parametrize("path", ["/?selected=0-2", "/?view=record&index=0"])
def test_marks_bar_is_accessible_and_fits_a_narrow_window(tabs: Tabs, marked: Marked, axe: str, path: str) -> None:
    marks = [
        {"index": n, "name": f"{n:03}.jpg", "drop": n > 0, "label": "dog", "tags": ["blurry" * 20]} for n in (0, 1)
    ]
    marked.file.write_text("".join(f"{json.dumps(mark)}\n" for mark in marks))
    check_page(tabs.open(marked.site, path, color_scheme="light", reduced_motion="reduce"), axe)
