"""The grid of images, in a browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from dbloader import Record
from dbloader.conversion.convert import convert
from tests.ext.browser.conftest import CLASSES, FLIPPED
from tests.ext.browser.tabs import Site, Tabs
from tests.support.images import photo, plant
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TALL = 25_000  # records; one column of them is taller than 8 million px, the limit of a scrolled element
TIMES = "\N{MULTIPLICATION SIGN}"
NARROW = {"width": 360, "height": 740}
SCROLLS = int(os.environ.get("DBLOADER_SCROLLS", "60"))


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    """The viewer of many records with one small image."""
    place, image = tmp_path_factory.mktemp("tall") / "tall.lmdb", photo()
    store_records(
        place,
        [Record(f"{index % 7}/{index}.jpg", index // 5000, image, 40, 30, "JPEG") for index in range(TALL)],
        classes=["a", "b", "c", "d", "e"],
    )
    with viewer(place, "--no-open") as running:
        yield Site.entered(chromium, running.link)


def shows(page: Page, index: int) -> None:
    """Wait until the screen shows the picture of a record."""
    tile = page.locator(".tile", has_text=re.compile(rf"(?<![\d,]){index:,} ·"))
    expect(tile).to_be_in_viewport()
    expect(tile.locator("img")).to_have_js_property("complete", True)
    expect(tile.locator("img")).not_to_have_js_property("naturalWidth", 0)


def shows_record(tile: Locator, index: int, label: str, value: str) -> None:
    expect(tile.locator(".number")).to_have_text(f"{index} ·")
    expect(tile.locator(".label")).to_have_text(label)
    expect(tile.locator(".value")).to_have_text(value)


def scroll_to(page: Page, part: float) -> None:
    """Move the scroll bar to ``part`` of its length, from 0 to 1."""
    page.locator("#tiles").evaluate(
        "(list, part) => list.scrollTop = part * list.scrollHeight - part * list.clientHeight", part
    )


def test_last_of_many_records_is_reached_by_key_scroll_bar_and_url(tabs: Tabs, tall: Site) -> None:
    page = tabs.open(tall, "/?px=320", viewport=NARROW)
    shows(page, 0)
    assert page.locator("#tiles").evaluate("list => list.scrollHeight") == 8_000_000
    page.keyboard.press("End")
    shows(page, TALL - 1)
    page.wait_for_url(f"**/?px=320&at={TALL - 1}")
    page.keyboard.press("Home")
    shows(page, 0)
    scroll_to(page, 1)
    shows(page, TALL - 1)
    page.wait_for_url(re.compile(r"at=2499\d$"))
    shows(tabs.open(tall, page.url, viewport=NARROW), TALL - 1)


def test_scroll_bar_scrolls_in_proportion_and_the_wheel_by_rows(tabs: Tabs, tall: Site) -> None:
    page = tabs.open(tall, "/?px=320", viewport=NARROW)
    shows(page, 0)
    scroll_to(page, 0.5)
    shows(page, TALL // 2)
    page.mouse.move(180, 400)
    for _ in range(3):
        page.mouse.wheel(0, 368)
    shows(page, TALL // 2 + 3)


def test_url_and_arrow_keys_keep_the_order_of_a_sorted_search(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, "/?q=-class:dog", refused=damaged)
    tiles = page.locator("#tiles .tile:visible")
    shows_record(tiles.first, 0, "cat", "")
    page.locator("#sort").select_option("width")
    shows_record(tiles.first, 0, "cat", f"40 {TIMES} 30")
    page.locator("#direction").click()
    shows_record(tiles.first, 59, "cat", f"99 {TIMES} 49")
    assert page.url.endswith("&sort=-width")
    page.reload()
    shows_record(tiles.first, 59, "cat", f"99 {TIMES} 49")
    shows_record(tiles.nth(1), 179, "maine coon", f"99 {TIMES} 49")
    shows_record(tiles.nth(2), 58, "cat", f"98 {TIMES} 48")
    page.keyboard.press("g")
    page.locator("#jump").fill("179")
    page.locator("#jump").press("Enter")
    expect(page.locator("#jump")).to_be_hidden()
    expect(page.locator(".tile.active .number")).to_have_text("179 ·")
    page.keyboard.press("Enter")
    expect(page.locator("db-record nav")).to_contain_text("2 of 120")
    page.keyboard.press("ArrowRight")
    expect(page.locator("db-record nav")).to_contain_text("3 of 120")
    assert "open=58" in page.url
    page.keyboard.press("ArrowLeft")
    expect(page.locator("db-record nav")).to_contain_text("2 of 120")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("db-record nav")).to_contain_text("1 of 120")
    assert "open=59" in page.url
    page.keyboard.press("Escape")
    page.locator("#sort").select_option("odd")
    expect(tiles.first.locator(".number")).not_to_have_text("59 ·")


def test_typed_index_scrolls_to_its_record(tabs: Tabs, tall: Site) -> None:
    page = tabs.open(tall)
    shows(page, 0)
    page.keyboard.press("g")
    page.keyboard.type("12,345")
    page.keyboard.press("Enter")
    shows(page, 12_345)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_url(re.compile(r"at=123\d\d$"))


def test_back_and_forward_restore_earlier_views(tabs: Tabs, tall: Site) -> None:
    page = tabs.open(tall)
    shows(page, 0)
    page.keyboard.press("End")
    shows(page, TALL - 1)
    page.keyboard.press("Enter")
    page.wait_for_url("**open=24999**")
    page.go_back()
    shows(page, TALL - 1)
    expect(page.locator("db-record")).to_be_hidden()
    page.go_forward()
    expect(page.locator("db-record")).to_be_visible()
    page.keyboard.press("ArrowLeft")  # the record beside the grid follows
    page.wait_for_url("**open=24998**")
    page.keyboard.press("Escape")  # the same as the back button
    expect(page.locator("db-record")).to_be_hidden()
    page.wait_for_url("**at=24998")
    page.go_forward()
    expect(page.locator("db-record")).to_be_visible()


def test_selected_records_are_downloaded_as_a_listing(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, "/?q=class:dog", refused=damaged)
    shows(page, CLASSES["cat"])
    page.keyboard.press("x")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    page.locator(".tile").nth(1).click(modifiers=["Control"])
    expect(page.locator("#chosen")).to_contain_text("3 selected")
    page.locator(".tile").nth(1).click(modifiers=["Control"])
    expect(page.locator("#chosen")).to_contain_text("2 selected")
    with page.expect_download() as download:
        page.locator("#chosen").get_by_role("link", name="csv").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 3
    assert ["d_000.jpg" in lines[1], "d_002.jpg" in lines[2]] == [True, True]
    page.locator("#chosen").get_by_role("link", name="show").click()
    expect(page.locator("#count")).to_have_text(f"2 of {sum(CLASSES.values())} records")
    expect(page.locator(".tile:visible")).to_have_count(2)


def test_name_on_hover_ends_with_the_end_of_a_long_name(tabs: Tabs, tmp_path: Path, chromium: Browser) -> None:
    files = {f"a/{'folder/' * 9}{n:03}.jpg": photo(n, 400, 300) for n in range(4)}
    files["a/b.jpg"] = files[f"a/{'folder/' * 9}003.jpg"][:6000]
    convert(plant(tmp_path / "files", files), tmp_path / "a.lmdb", on_damaged="keep")
    with viewer(tmp_path / "a.lmdb", "--no-open") as running:
        page = tabs.open(Site.entered(chromium, running.link), viewport={"width": 1440, "height": 900})
        shows(page, 0)
        expect(page.locator(".tile .kept", has_text="damaged")).to_have_count(1)
        expect(page.locator(".tile", has_text="b.jpg").locator(".kept")).to_have_text("damaged")
        name = page.locator(".tile .name").last
        expect(page.locator(".tile .facts").last).to_have_css("opacity", "0")
        page.locator(".tile").last.hover()
        expect(page.locator(".tile .facts").last).to_have_css("opacity", "1")
        right = name.locator("bdi").evaluate("(bdi) => bdi.getBoundingClientRect().right")
        assert right <= name.evaluate("(span) => span.getBoundingClientRect().right") + 1
        assert name.evaluate("(span) => span.scrollWidth > span.clientWidth")
        assert page.locator(".tile").last.evaluate("(tile) => tile.clientHeight") == 160 + 24
        for image in page.locator(".tile img").all():
            expect(image).not_to_have_js_property("naturalWidth", 0)
            assert image.evaluate("(image) => image.clientWidth <= image.naturalWidth")  # not enlarged


def test_damaged_record_is_shown_as_a_cell_with_an_error(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, refused=damaged)
    expect(page.locator(".tile.bad")).to_have_count(1)
    expect(page.locator(".tile.bad")).to_contain_text("CRC-32")
    shows_record(page.locator(".tile.bad"), FLIPPED, "cat", "")
    shows(page, FLIPPED + 1)


def test_check_circle_selects_a_record(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, refused=damaged)
    shows(page, 0)
    circle = page.locator("#tiles-1 .check")
    expect(circle).to_have_css("opacity", "0")
    page.locator("#tiles-1").hover()
    expect(circle).to_have_css("opacity", "1")
    circle.click(position={"x": 16, "y": 16})
    expect(page.locator("#chosen")).to_contain_text("1 selected")
    expect(page.locator("#tiles-5 .check")).to_have_css("opacity", "1")  # each further record needs one click
    page.locator("#tiles-5 .check").click(position={"x": 16, "y": 16})
    expect(page.locator("#chosen")).to_contain_text("2 selected")


def test_search_without_a_result_offers_to_remove_its_conditions(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, "/?q=class:dog+width<3", refused=damaged)
    expect(page.locator(".empty")).to_contain_text("No record matches all conditions")
    page.get_by_role("button", name="Remove all conditions").click()
    shows(page, 0)
    expect(page.locator(".empty")).to_be_hidden()


def test_page_shows_placeholders_until_its_modules_have_come(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = tabs.open(photos, "/?view=report", refused=damaged)
    held: list[Route] = []
    page.route("**/api/stores", lambda route: held.append(route), times=1)
    with page.expect_request("**/api/stores"):
        page.goto("/", wait_until="commit")
    expect(page.get_by_role("status", name="Loading")).to_be_visible()
    expect(page.locator("#store")).to_be_hidden()
    held.pop().continue_()
    expect(page.get_by_role("status", name="Loading")).to_be_hidden()
    expect(page.locator("#store")).to_be_visible()


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_page_moves_only_if_the_user_has_not_asked_for_less(
    tabs: Tabs, photos: Site, damaged: str, motion: Literal["reduce", "no-preference"]
) -> None:
    page = tabs.open(photos, refused=damaged, reduced_motion=motion)
    shows(page, 0)
    seconds = ".15s" if motion == "no-preference" else "0s"
    expect(page.locator(".tile .facts").first).to_have_css(
        "transition-duration", re.compile(f"^0?{re.escape(seconds)}")
    )
    assert page.evaluate("document.fonts.check('14px Inter')")


@pytest.mark.nightly
def test_scrolling_leaks_no_memory(tabs: Tabs, tall: Site) -> None:
    page = tabs.open(tall)
    shows(page, 0)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def used(scrolls: int) -> tuple[float, float]:
        for number in range(scrolls):
            scroll_to(page, number * 0.618 % 1)
            page.keyboard.press("PageDown")
        page.keyboard.press("End")
        shows(page, TALL - 1)
        session.send("HeapProfiler.collectGarbage")
        found = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        return found["JSHeapUsedSize"], found["Nodes"]

    heap, nodes = used(20)  # fills all caches of the browser
    heap_after, nodes_after = used(SCROLLS)
    assert heap_after < heap + 1_000_000
    assert nodes_after < 1.2 * nodes + 100
