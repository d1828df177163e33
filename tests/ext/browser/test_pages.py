"""All pages of the viewer: keyboard, colors, narrow windows, accessibility."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ext.browser.conftest import CLASSES
from tests.ext.browser.tabs import Site, Tabs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VIEWS = {
    "grid": "/",
    "grid of a search": "/?q=class:dog&selected=90-92",
    "record": "/?view=record&index=1",
    "review": "/?view=review&at=1",
    "damaged record": "/?view=record&index=3",
    "report": "/?view=report",
    "training": "/?view=training&batch_size=8",
    "training on several GPUs": "/?view=training&batch_size=8&world_size=2",
    "record in a drawer": "/?open=5",
    "duplicates": "/?view=duplicates",
}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}
TARGETS = "a, button, input:not([type=checkbox]), select, summary, label:has([type=checkbox]), div[role=option]"
SMALL = f"""[...document.querySelectorAll("{TARGETS}")].filter((each) => each.checkVisibility())
    .map((each) => [each.getBoundingClientRect(), each.outerHTML.slice(0, 200)])
    .filter(([box]) => box.width < 44 || box.height < 44)"""


def settled(page: Page) -> Page:
    """Wait until a page shows everything that it requested."""
    expect(page.locator("main > .loading")).to_be_hidden()
    page.wait_for_load_state("networkidle")
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_page_is_accessible_and_fits_a_phone(tabs: Tabs, photos: Site, damaged: str, axe: str, view: str) -> None:
    check_page(tabs.open(photos, VIEWS[view], refused=damaged, color_scheme="light", reduced_motion="reduce"), axe)


def check_page(page: Page, axe: str) -> None:
    """Check a page by the rules of axe in light and dark colors. Check that it fits a phone and works by touch."""
    settled(page)
    page.evaluate(axe)
    for rules in ("", "runOnly: ['color-contrast']"):
        found = page.evaluate(f"axe.run({{resultTypes: ['violations'], {rules}}})")["violations"]
        assert [(each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"]) for each in found] == []
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.set_viewport_size(PHONE["viewport"])
    page.reload()
    settled(page)
    wider = """() => [...document.querySelectorAll("body, header *, main, main > :not([hidden])")]
        .filter((each) => each.scrollWidth > innerWidth || each.getBoundingClientRect().right > innerWidth + 1)
        .map((each) => each.outerHTML.slice(0, 200))"""
    assert page.evaluate(wider) == []
    assert page.evaluate(SMALL) == []
    page.locator("#menu").click()
    assert page.evaluate(SMALL) == []
    page.locator("#menu").click()


def test_side_bar_is_a_drawer_in_a_narrow_window(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = settled(tabs.open(photos, refused=damaged, **PHONE))
    expect(page.locator("#find-class")).to_be_hidden()
    expect(page.locator("#search")).to_be_visible()
    page.locator("#menu").click()
    expect(page.locator("#menu")).to_have_attribute("aria-expanded", "true")
    page.locator(".class", has_text="dog").click()
    expect(page.locator("#count")).to_contain_text(f"{CLASSES['dog']} of")
    expect(page.locator("#find-class")).to_be_hidden()
    expect(page.locator("#menu")).to_have_attribute("aria-expanded", "false")


def test_search_can_be_seen_and_removed_in_a_narrow_window(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = settled(tabs.open(photos, "/?q=class:dog width<90", refused=damaged, **PHONE))
    expect(page.get_by_role("button", name="width<90")).to_be_visible()
    page.get_by_role("button", name="width<90").click()
    expect(page.locator("#count")).to_contain_text(f"{CLASSES['dog']} of")
    expect(page.get_by_role("button", name="width<90")).to_have_count(0)
    page.get_by_role("button", name="class:dog").click()
    expect(page.locator("#count")).to_have_text("180 records")


def test_keyboard_opens_all_pages_and_the_list_of_keys(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = settled(tabs.open(photos, refused=damaged))
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("Go to an index")
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    pages = {"What training sees": "training", "Report": "report", "Duplicates": "duplicates", "Images": "grid"}
    for title, element in pages.items():
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate("document.activeElement.textContent")
            if focused.startswith(title) and page.evaluate("document.activeElement.localName") == "a":
                break
        else:
            raise AssertionError(f"no link {title!r} is reached by the Tab key")
        page.keyboard.press("Enter")
        expect(page.locator(f"db-{element}")).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")  # this may follow the link to the images, which may still have the focus
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Enter")
    page.wait_for_url("**open=**")
    expect(page.locator("db-record h1")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("db-grid")).to_be_visible()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.localName"))


def test_focus_moves_to_the_found_images_and_the_opened_record(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = settled(tabs.open(photos, refused=rf"{damaged}|q=color"))
    page.keyboard.press("/")
    page.keyboard.type("class:dog")
    page.keyboard.press("Enter")
    expect(page.locator("#count")).to_contain_text(f"{CLASSES['dog']} of")
    expect(page.locator("#tiles")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tile.active .facts")).to_contain_text(f"{CLASSES['cat'] + 1} ·dog")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("dog/d_001.jpg, 2 of 60")
    expect(page.locator("#tiles")).to_be_focused()  # so the arrow keys show the next record
    page.get_by_role("link", name="Open page").press("Enter")
    expect(page.locator("db-record h1")).to_be_focused()
    page.keyboard.press("Shift+Tab")  # moves the focus to the link before the heading
    assert focused(page) == "a"
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("dog/d_002.jpg, 3 of 60")
    assert page.evaluate("document.activeElement.textContent") == "Next →"
    page.keyboard.press("Escape")
    expect(page.locator("#tiles")).to_be_focused()
    expect(page.locator("#said")).to_have_text("dog/d_001.jpg, 2 of 60")  # open beside the grid, as before
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    expect(page.locator("#count")).to_have_text("180 records")
    expect(page.locator("#search")).to_have_value("")
    page.keyboard.press("/")
    page.keyboard.type("color:red")
    page.keyboard.press("Enter")
    expect(page.locator("#search-error")).to_contain_text("color")
    expect(page.locator("#search")).to_be_focused()  # so the user can correct the query


def test_colors_follow_the_system_until_the_user_chooses(tabs: Tabs, photos: Site, damaged: str) -> None:
    page = settled(tabs.open(photos, refused=damaged))

    def brightness() -> int:
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.partition("(")[2].rstrip(")").split(",")[:3])

    assert brightness() > 600
    page.emulate_media(color_scheme="dark")
    assert brightness() < 150
    page.locator("#theme").click()
    assert brightness() > 600
    page.reload()
    settled(page)
    assert brightness() > 600
