"""Hostile names and images run no code in the browser and leave the page intact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from dbloader import Record
from tests.ext.browser.tabs import Site, Tabs
from tests.support.images import large_png, photo
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ATTACK = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
NAMES = {
    ATTACK: ATTACK,
    "a&b &lt;b&gt;.jpg": "a&b &lt;b&gt;.jpg",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe": "\\u202egpj.exe",
    "two\nlines\t.jpg": "two\\nlines\\t.jpg",
    "\N{ZERO WIDTH SPACE}\x07.jpg": "\\u200b\\u0007.jpg",
    "x" * 4096: "x" * 300,
}
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>parent.document.title="owned"</script></svg>'
IMAGES = {"svg.jpg": SVG, "html.jpg": ATTACK.encode(), "bomb.png": large_png(60_000, 60_000), "cut.jpg": photo()[:200]}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("hostile") / "hostile.lmdb"
    records = [Record(name, 0, photo(), 40, 30, "JPEG") for name in NAMES]
    records += [Record(name, 1, image, 40, 30, "JPEG") for name, image in IMAGES.items()]
    store_records(place, records, classes=[ATTACK, 'a "quoted\\class" \N{RIGHT-TO-LEFT OVERRIDE}'])
    with viewer(place, "--no-open") as running:
        yield Site.entered(chromium, running.link)


def test_hostile_names_are_shown_as_text_with_visible_escapes(tabs: Tabs, hostile: Site) -> None:
    page = tabs.open(hostile, refused="/thumb/")
    expect(page.locator(".tile:visible")).to_have_count(len(NAMES) + len(IMAGES))
    expect(page.locator(".tile .name").nth(len(NAMES))).to_have_text("svg.jpg")
    assert page.locator(".tile .name").all_text_contents()[: len(NAMES)] == [*NAMES.values()]
    expect(page.locator(".class .name")).to_have_text([ATTACK, 'a "quoted\\class" \\u202e'])
    assert page.locator("script, main img:not(.frame img, .stage img)").count() == 1
    assert page.title() == "hostile.lmdb · dbloader"


def test_hostile_class_names_can_be_searched(tabs: Tabs, hostile: Site) -> None:
    page = tabs.open(hostile, refused="/thumb/")
    for place, count in ((1, len(IMAGES)), (0, len(NAMES))):
        page.locator(".class").nth(place).click()
        expect(page.locator("#count")).to_have_text(f"{count} of {len(NAMES) + len(IMAGES)} records")
        expect(page.locator("#finder .chips").get_by_role("button")).to_have_count(1)
    assert ATTACK in page.title()


def test_files_that_are_not_images_appear_as_cells_with_a_message(tabs: Tabs, hostile: Site) -> None:
    page = tabs.open(hostile, "/?q=label:1", refused="/thumb/")
    bad = page.locator(".tile.bad")
    expect(bad.filter(has_text="svg.jpg")).to_have_count(1)
    expect(bad.filter(has_text="html.jpg")).to_have_count(1)
    expect(bad.filter(has_text="bomb.png")).to_have_count(1)
    for why in bad.locator(".why").all_text_contents():
        assert len(why) > 20
    assert page.title() == "label:1 · hostile.lmdb · dbloader"


def test_hostile_record_is_shown_and_runs_no_code(tabs: Tabs, hostile: Site) -> None:
    page = tabs.open(hostile, "/?view=record", refused="/(thumb|image|api/0/record)/")
    for index in (0, 2, len(NAMES), len(NAMES) + 1):  # markup, a direction override, SVG, HTML
        page.goto(f"/?view=record&index={index}")
        expect(page.locator("db-record h1")).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.title().endswith(" · hostile.lmdb · dbloader")
        assert page.locator("script").count() == 1
