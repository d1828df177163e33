"""Duplicates and the HTML report, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Request, expect

from dbloader import Record, copy_store, find_duplicates, open_store, view
from dbloader.ext.viewing import duplicates
from dbloader.ext.viewing.html_report import write_html
from tests.ext.browser.tabs import Site, Tabs
from tests.support.images import encoded, scene
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ATTACK = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>\N{RIGHT-TO-LEFT OVERRIDE}"
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}


def write(place: Path, seeds: list[int]) -> None:
    """Write a store of pictures. A negative seed gives the picture of the positive seed with a lower quality."""
    images = [encoded(scene(abs(seed)), "JPEG", quality=60 if seed < 0 else 90) for seed in seeds]
    fields = [{"number": n} if place.stem == "a" else {} for n in range(len(images))]
    store_records(
        place,
        [Record(f"{ATTACK}{n}", n % 2, image, 240, 180, "JPEG", fields=fields[n]) for n, image in enumerate(images)],
        events=[{"name": ATTACK, "event": "rejected", "reason": ATTACK}],
        classes=[ATTACK, "dog"],
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 11 images: two are equal to an earlier image, and one is nearly equal to an earlier image.

    ``b.lmdb`` is beside this store, and has not been searched for duplicates.
    """
    folder = tmp_path_factory.mktemp("two")
    write(folder / "a.lmdb", [0, 1, 2, 3, 4, 5, 6, 1, 7, 2, -4])
    write(folder / "b.lmdb", [10, 4, 11, 5, 12, 13, 6, 14, 15])
    find_duplicates(folder / "a.lmdb")
    return folder / "a.lmdb"


@pytest.fixture(scope="module")
def two(place: Path, chromium: Browser) -> Iterator[Site]:
    with viewer(place, place.with_name("b.lmdb"), "--no-open") as running:
        yield Site.entered(chromium, running.link)


def test_page_searches_for_duplicates_and_drops_checked_images(tabs: Tabs, two: Site, place: Path) -> None:
    page = tabs.open(two, "/?view=duplicates&store=1", **PHONE)
    status = page.locator("db-duplicates [role=status]")
    expect(status).to_have_text("These images have not been searched for duplicates.")
    expect(page.locator("db-duplicates code")).to_contain_text(f"dbloader duplicates {place.with_name('b.lmdb')}")
    page.get_by_role("button", name="Search for duplicates").click()
    expect(status).to_have_text("No two images are equal or nearly equal.")
    assert place.with_name("b.lmdb.duplicates").exists()
    page.goto("/?view=duplicates")
    expect(status).to_contain_text("3 duplicates in 3 groups")
    groups, drop = page.locator(".group"), page.get_by_label("drop", exact=True)
    # Only copies with the same bytes are checked: a person looks at the others first.
    assert [box.is_checked() for box in drop.all()] == [True, True, False]
    pairs = groups.nth(0).locator(".pairs a")
    assert [pair.inner_text().split("\n") for pair in pairs.all()] == [["1", "first", "dog"], ["7", "same file", "dog"]]
    only = page.get_by_label("only groups whose labels differ")
    expect(status).to_contain_text("Groups with different labels: 1")
    only.check()
    expect(groups).to_have_count(1)
    assert groups.locator(".error").all_text_contents() == ["dog"]
    assert groups.locator(".pairs a").nth(1).inner_text().split("\n") == ["9", "same file", "dog"]
    only.uncheck()
    expect(groups).to_have_count(3)
    drop.first.uncheck()
    page.get_by_role("button", name="Drop the checked images").click()
    expect(page.get_by_text("1 record marked to drop")).to_be_visible()
    copy_store(place, place.with_name("clean.lmdb"), marks=f"{place}.marks.jsonl", overwrite=True)
    with open_store(place.with_name("clean.lmdb")) as clean:
        assert [name[len(ATTACK) :] for name in clean.names()] == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "10"]
    expect(groups.nth(0).locator("h2")).to_contain_text("\\u202e1 and 1 more")
    assert page.evaluate("document.querySelector('#main').scrollWidth") <= 360
    page.get_by_role("link", name="Show all duplicates in the grid").click()
    expect(page.locator("#count")).to_have_text("3 of 11 records")


def test_cancel_ends_the_search(tabs: Tabs, tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def search_for_ever(_store: Any, _distance: int, progress: Callable[[str, int, int], None]) -> None:
        while True:
            progress("Looking", 3, 9)

    monkeypatch.setattr(duplicates, "search_store", search_for_ever)
    write(tmp_path / "c.lmdb", [0, 1, 1])
    with view(tmp_path / "c.lmdb", port=0) as running:
        page = tabs.open(Site.entered(chromium, running.url), "/?view=duplicates")
        page.get_by_role("button", name="Search for duplicates").click()
        expect(page.get_by_text("3 of 3 images")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        status = page.locator("db-duplicates [role=status]")
        expect(status).to_have_text("These images have not been searched for duplicates.")
        assert not (tmp_path / "c.lmdb.duplicates").exists()


def test_query_is_kept_on_switching_to_a_store_where_it_is_valid(tabs: Tabs, two: Site) -> None:
    page = tabs.open(two, "/?q=class:dog&sort=-width", refused="number")
    count, store = page.locator("#count"), page.locator("#store")
    expect(count).to_have_text("5 of 11 records")
    store.select_option("b.lmdb")
    expect(count).to_have_text("4 of 9 records")
    assert "sort=-width" in page.url
    page.goto("/?q=number>7")
    expect(count).to_have_text("3 of 11 records")
    store.select_option("b.lmdb")
    expect(count).to_have_text("9 records")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["wide", "phone"])
def test_html_report_works_without_scripts_and_requests(
    chromium: Browser, place: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    write_html(place, tmp_path / "report.html")
    context = chromium.new_context(**options)
    try:
        page = context.new_page()
        said: list[str] = []

        def on_request(request: Request) -> None:
            if not request.url.startswith("data:image/"):
                said.append(request.url)

        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(error.message))
        page.on("request", on_request)
        page.goto((tmp_path / "report.html").as_uri())
        expect(page.locator("img")).to_have_count(11)
        for image in page.locator("img").all():
            expect(image).to_have_js_property("complete", True)
            assert image.evaluate("image => image.naturalWidth") > 0
        assert page.title() == str(place)
        expect(page.locator("td").last).to_have_text(ATTACK.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\\u202e"))
        assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("innerWidth")
        assert said == [(tmp_path / "report.html").as_uri()]
    finally:
        context.close()
