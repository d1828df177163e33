"""The overview of a store, and two stores side by side, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from dbloader.conversion.convert import convert
from dbloader.ext.copying.listings import RecordNames, read_marks
from dbloader.stores.open import open_store
from tests.ext.browser.tabs import Site, Tabs
from tests.ext.browser.test_pages import check_page
from tests.support.images import encoded, plant, scene
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SEEDS = {"train": range(12), "val": range(9, 16)}  # images 9 to 11 are in both stores
SHARED = 3


@pytest.fixture
def split(tmp_path: Path, chromium: Browser) -> Iterator[Site]:
    """A viewer of train and val, which share three images. In train, class a has nine images, and b three."""
    for name, seeds in SEEDS.items():
        files = {f"{'b' if seed % 4 == 0 else 'a'}/{seed:02}.jpg": encoded(scene(seed), "JPEG") for seed in seeds}
        convert(plant(tmp_path / name, files), tmp_path / f"{name}.lmdb")
    with viewer(tmp_path / "train.lmdb", tmp_path / "val.lmdb", "--no-open") as running:
        yield Site.entered(chromium, running.link)


@pytest.mark.parametrize("view", ["overview", "sides"])
def test_page_of_two_stores_is_accessible_and_fits_a_phone(tabs: Tabs, split: Site, axe: str, view: str) -> None:
    page = tabs.open(split, f"/?view={view}", color_scheme="light", reduced_motion="reduce")
    expect(page.get_by_role("button", name="Search for")).to_be_visible()
    check_page(page, axe)


def test_numbers_of_the_overview_lead_to_their_images(tabs: Tabs, split: Site) -> None:
    page = tabs.open(split, "/?view=overview")
    expect(page.locator("db-overview header")).to_contain_text("12 images · 2 classes")
    classes = page.locator(".card", has=page.get_by_role("heading", name="Classes"))
    expect(classes).to_contain_text("3 to 9 images each")
    classes.get_by_role("link", name="b 3").click()
    expect(page.locator("#count")).to_have_text("3 of 12 records")
    page.go_back()
    card = page.locator(".card", has=page.get_by_role("heading", name="Duplicates"))
    expect(card).to_contain_text("have not been searched")
    card.get_by_role("button", name="Search for duplicates").click()
    expect(card).to_contain_text("No two images are equal or nearly equal.")


def test_repaired_images_are_not_shown_as_damaged(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, "/?view=overview", refused=damaged)
    for name, figure, images in (("Damaged", "0", 0), ("Repaired", "1", 1)):
        card = page.locator(".card", has=page.get_by_role("heading", name=name))
        expect(card.locator(".figure")).to_have_text(figure)
        expect(card.locator("img")).to_have_count(images)
    files = page.locator(".card", has=page.get_by_role("heading", name="Files")).locator(".four a")
    expect(files).to_have_text([re.compile(r"^\d.* k?B$")] * 4)
    page.locator(".card", has=page.get_by_role("heading", name="Repaired")).get_by_role("link").first.click()
    expect(page.locator("#count")).to_have_text("1 of 180 records")


def test_images_in_both_stores_are_dropped_from_one_in_six_clicks(tabs: Tabs, split: Site, tmp_path: Path) -> None:
    page = tabs.open(split, "/?view=overview")
    page.get_by_role("link", name="Side by side").first.click()
    page.get_by_role("button", name="Search for shared images").click()
    status = page.locator("db-sides p[role=status]").first
    expect(status).to_contain_text(f"{SHARED} images of train.lmdb and {SHARED} images of val.lmdb are in both stores")
    expect(page.locator(".shared .pairs")).to_have_count(SHARED)
    lines = page.locator(".shared .pairs").first.locator("a").nth(1).inner_text().split("\n")
    assert lines == ["val.lmdb", "same file", "a"]
    page.get_by_role("button", name="Drop in train.lmdb").click()
    dropped = page.get_by_role("button", name="Dropped in train.lmdb")
    expect(dropped).to_have_attribute("aria-pressed", "true")
    with open_store(tmp_path / "train.lmdb") as store:
        marks = read_marks(tmp_path / "train.lmdb.marks.jsonl", RecordNames([store]))
        assert {store.name(index) for index in marks} == {"a/09.jpg", "a/10.jpg", "a/11.jpg"}
    assert all(mark == {"drop": True} for mark in marks.values())
    dropped.click()  # a toggle
    expect(page.get_by_role("button", name="Drop in train.lmdb")).to_be_visible()
