"""Records are reviewed one by one in a browser, each by one key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader import Record, copy_store, open_store
from tests.ext.browser.tabs import Site, Tabs
from tests.ext.browser.test_pages import check_page
from tests.support.images import photo
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT = 300
CLASSES = [f"class {n:02}" for n in range(12)]
WRONG = {n: CLASSES[(n + 5) % 12] for n in range(0, COUNT, 6)}  # the true classes of 50 records with wrong labels


class Doubtful(NamedTuple):
    site: Site
    place: Path
    file: Path


@pytest.fixture
def doubtful(tmp_path: Path, chromium: Browser) -> Iterator[Doubtful]:
    """A viewer of records of which 50 have a wrong label and the right prediction."""
    place, image = tmp_path / "train.lmdb", photo()
    store_records(place, (Record(f"{n:03}.jpg", n % 12, image, 40, 30, "JPEG") for n in range(COUNT)), classes=CLASSES)
    lines = [{"index": n, "prediction": WRONG.get(n, CLASSES[n % 12]), "loss": 9 - n / 99} for n in range(COUNT)]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with viewer(place, "--with", tmp_path / "p.jsonl", "--no-open") as running:
        yield Doubtful(Site.entered(chromium, running.link), place, tmp_path / "train.lmdb.marks.jsonl")


def marks(doubtful: Doubtful) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in doubtful.file.read_text().splitlines()] if doubtful.file.exists() else []
    return {row.pop("index"): {key: value for key, value in row.items() if key != "name"} for row in rows}


def reviewing(page: Page, position: int, of: int) -> None:
    """Wait until the page shows the record at a position, which begins with 1."""
    expect(page.locator("db-review header .muted")).to_have_text(f"{position} of {of}")
    expect(page.locator("db-review .verdict")).not_to_be_empty()


def press(page: Page, *keys: str) -> int:
    for key in keys:
        page.keyboard.press(key)
    return len(keys)


def test_planted_wrong_labels_are_found_and_accepted_in_60_keys(tabs: Tabs, doubtful: Doubtful, tmp_path: Path) -> None:
    page = tabs.open(doubtful.site, "/?q=labels.differ&sort=-loss")
    page.get_by_role("link", name="Review", exact=True).click()
    reviewing(page, 1, len(WRONG))
    expect(page.locator("db-review .verdict")).to_contain_text("class 00→class 05")
    pressed = press(page, *["Enter"] * len(WRONG))  # without a wait: no key is lost, and none counts twice
    expect(page.locator("db-review .empty")).to_contain_text("All 50 records reviewed")
    assert pressed <= 60
    assert marks(doubtful) == {n: {"label": name} for n, name in WRONG.items()}
    page.locator("#changed").click()
    expect(page.locator("#changes h2")).to_have_text("50 changes")
    copy_store(doubtful.place, tmp_path / "clean.lmdb", marks=doubtful.file)
    with open_store(tmp_path / "clean.lmdb") as clean:
        labels = [clean.manifest.class_name(label) for label in clean.column("label").tolist()]
    assert labels == [WRONG.get(n, CLASSES[n % 12]) for n in range(COUNT)]


def test_ten_new_classes_are_set_in_60_keys(tabs: Tabs, doubtful: Doubtful) -> None:
    page = tabs.open(doubtful.site, "/?view=review&q=index:0-11")
    reviewing(page, 1, 12)
    names, pressed = [f"new{n}" for n in range(10)], 0
    for name in names:
        pressed += press(page, "l", *name, "Enter")
    reviewing(page, 11, 12)
    assert pressed <= 60
    assert [mark["label"] for mark in marks(doubtful).values()] == names
    # The last nine classes have keys. A class keeps its key while it is in use.
    recent = page.locator("db-review .chips button")
    expect(recent).to_have_text([re.compile(rf"\d {name}") for name in ["new9", *names[1:9]]])
    press(page, "2")
    reviewing(page, 12, 12)
    assert marks(doubtful)[10] == {"label": "new1"}


def test_review_drops_keeps_goes_back_and_undoes(tabs: Tabs, doubtful: Doubtful) -> None:
    page = tabs.open(doubtful.site, "/?view=review&q=labels.differ&sort=-loss")
    reviewing(page, 1, 50)
    press(page, "d")
    reviewing(page, 2, 50)
    press(page, "ArrowRight")
    reviewing(page, 3, 50)
    press(page, "Enter")
    reviewing(page, 4, 50)
    assert marks(doubtful) == {0: {"drop": True}, 12: {"label": WRONG[12]}}
    page.wait_for_url("**at=3*")
    press(page, "Control+z")  # shows the record of the undone change
    reviewing(page, 3, 50)
    assert marks(doubtful) == {0: {"drop": True}}
    press(page, "ArrowLeft", "ArrowLeft")
    reviewing(page, 1, 50)
    expect(page.locator("db-review .chip.drop")).to_have_text("Marked: drop")
    press(page, "d")  # takes the mark back
    reviewing(page, 2, 50)
    assert marks(doubtful) == {}
    press(page, "Escape")
    expect(page.locator("db-grid")).to_be_visible()


def test_overview_counts_and_reviews_only_the_labels_that_are_not_decided(tabs: Tabs, doubtful: Doubtful) -> None:
    page = tabs.open(doubtful.site, "/?view=overview")
    card = page.locator(".card", has=page.get_by_role("heading", name="Labels in doubt"))
    expect(card).to_contain_text("50of 300 predictions differ from the label")
    card.get_by_role("link", name="Review").click()
    reviewing(page, 1, 50)
    press(page, "Enter", "d")
    reviewing(page, 3, 50)
    page.goto(doubtful.site.address + "?view=overview")
    expect(card).to_contain_text("48of 300 predictions differ from the label; 2 more are decided")
    card.get_by_role("link", name="Review").click()
    reviewing(page, 1, 48)


def test_selected_records_are_reviewed_and_accepted_together(tabs: Tabs, doubtful: Doubtful) -> None:
    page = tabs.open(doubtful.site, "/?q=labels.differ&selected=0,6,12")
    page.locator("#chosen").get_by_role("link", name="review").click()
    reviewing(page, 1, 3)
    page.go_back()
    page.locator("db-grid").get_by_role("button", name="Accept predictions").click()
    expect(page.locator("#notice")).to_contain_text("3 records labeled as predicted")
    assert marks(doubtful) == {n: {"label": WRONG[n]} for n in (0, 6, 12)}
    expect(page.locator("#tiles-0 .guess")).to_have_text("✓ accepted")


def test_new_label_does_not_make_the_stored_label_differ_from_its_prediction(tabs: Tabs, doubtful: Doubtful) -> None:
    page = tabs.open(doubtful.site, "/?selected=1")
    page.locator("db-grid").get_by_label("Class to set").fill("class 07")
    page.locator("db-grid").get_by_role("button", name="Set label").click()
    expect(page.locator("#tiles-1 .marks")).to_have_text("now class 07")
    expect(page.locator("#tiles-1 .guess")).to_have_text("✓ predicted")
    expect(page.locator("#tiles-1 .guess")).to_have_class("guess same")


@pytest.mark.parametrize("path", ["&q=labels.differ", "&q=labels.differ&at=50", "&q=index:1"])
def test_review_is_accessible_and_fits_a_narrow_window(tabs: Tabs, doubtful: Doubtful, axe: str, path: str) -> None:
    page = tabs.open(doubtful.site, f"/?view=review{path}", color_scheme="light", reduced_motion="reduce")
    check_page(page, axe)
