"""Search, filters, classes and histograms, in a browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.ext.browser.conftest import CLASSES
from tests.ext.browser.tabs import Site, Tabs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ALL = sum(CLASSES.values())
# Requests fail for the damaged record and for invalid searches.
REFUSED = r"/thumb/0/3\?|/(select|summary)\?q=(width|color)"


@pytest.fixture
def page(tabs: Tabs, photos: Site) -> Page:
    opened = tabs.open(photos, refused=REFUSED)
    counted(opened, ALL)
    return opened


def counted(page: Page, count: int) -> None:
    """Wait until the page shows this number of records."""
    text = f"{count} records" if count == ALL else re.compile(f"^{count} of {ALL} records")
    expect(page.locator("#count")).to_have_text(text)


def query(page: Page) -> str:
    return str(page.evaluate("new URLSearchParams(location.search).get('q') ?? ''"))


def test_click_on_a_class_filters_and_a_second_click_undoes_it(page: Page) -> None:
    for name, count in CLASSES.items():
        expect(page.locator(".class", has_text=name)).to_have_text(f"{name}{count}")
    page.locator(".class", has_text="maine coon").click()
    counted(page, CLASSES["maine coon"])
    assert query(page) == 'class:"maine coon"'
    for name, count in CLASSES.items():  # the other classes keep their counts, so one sees where else to look
        expect(page.locator(".class", has_text=name)).to_have_text(f"{name}{count}")
    page.locator(".class", has_text="dog").click()
    counted(page, CLASSES["dog"])
    page.locator(".class", has_text="dog").click()
    counted(page, ALL)


def test_several_classes_can_be_selected_at_once(page: Page) -> None:
    row = page.locator(".class")
    row.filter(has_text="cat").click()
    counted(page, CLASSES["cat"])
    row.filter(has_text="maine coon").click(modifiers=["Control"])
    counted(page, CLASSES["cat"] + CLASSES["maine coon"])
    assert query(page) == '(class:cat or class:"maine coon")'
    expect(row.filter(has_text="cat")).to_have_attribute("aria-selected", "true")
    expect(row.filter(has_text="dog")).to_have_attribute("aria-selected", "false")
    expect(page.locator("#finder .chips button")).to_have_count(1)
    row.filter(has_text="cat").locator(".check").click()
    counted(page, CLASSES["maine coon"])
    assert query(page) == 'class:"maine coon"'
    row.filter(has_text="dog").click(modifiers=["Shift"])
    counted(page, ALL)
    assert query(page) == '(class:"maine coon" or class:cat or class:dog)'
    row.filter(has_text="dog").click()
    counted(page, CLASSES["dog"])
    page.locator("#classes").focus()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    counted(page, CLASSES["cat"] + CLASSES["dog"])
    drag = page.locator("db-bars[name=width] svg")
    drag.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#finder .chips button")).to_have_count(2)
    page.locator("#finder .chips button").first.click()
    assert query(page).startswith("width>=")


def test_list_of_classes_keeps_its_active_row_after_a_selection(page: Page) -> None:
    page.locator("#classes").focus()
    page.keyboard.press("End")
    page.keyboard.press(" ")
    counted(page, CLASSES["maine coon"])
    expect(page.locator(".class.active")).to_contain_text("maine coon")
    expect(page.locator("#classes")).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press(" ")
    counted(page, CLASSES["dog"] + CLASSES["maine coon"])


def test_list_of_classes_can_be_searched_and_sorted_by_count(page: Page) -> None:
    page.locator("#find-class").fill("o")
    expect(page.locator(".class:visible .name")).to_have_text(["dog", "maine coon"])
    page.locator("#find-class").fill("")
    page.locator("#order").click()
    expect(page.locator(".class:visible .name")).to_have_text(["cat", "dog", "maine coon"])
    page.locator("#classes").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    counted(page, CLASSES["maine coon"])


def test_drag_over_a_histogram_shows_the_records_of_that_range(page: Page) -> None:
    bars = page.locator("db-bars[name=width] svg")
    expect(bars).to_be_visible()
    box = bars.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle)
    shown = page.locator("db-bars[name=width] .range").inner_text()
    page.mouse.up()
    low, high, count = map(int, re.findall(r"\d+", shown))
    counted(page, count)
    assert query(page) == f"width>={low} width<{high + 1}"
    assert count == sum(low <= 40 + seed % 60 <= high for seed in range(ALL))


def test_histogram_of_a_search_is_drawn_over_the_histogram_of_all_records(page: Page) -> None:
    bars, heights = page.locator("db-bars[name=width]"), [30 + seed % 20 for seed in range(ALL)]
    expect(bars.locator("rect.all")).to_have_count(0)
    page.locator(".class", has_text="maine coon").click()
    counted(page, 30)
    expect(bars.locator("rect.all")).to_have_count(bars.locator("rect[role=option]").count())
    widths = [40 + seed % 60 for seed in range(150, 180)]
    expect(bars.locator(".range")).to_have_text(f"{min(widths)} to {max(widths)}")
    expect(page.locator("db-bars[name=height] .ends").last).to_have_text(f"{min(heights)}{max(heights)}")


def test_logarithmic_histogram_says_so(page: Page) -> None:
    for name, said in (("width", ""), ("bytes", "logarithmic")):
        expect(page.locator(f"db-bars[name={name}] .ends").last.locator("span").nth(1)).to_have_text(said)


def test_handles_of_a_histogram_change_one_end_of_the_searched_range(page: Page) -> None:
    least, greatest = (page.get_by_role("slider", name=f"{word} width") for word in ("Least", "Greatest"))
    least.press("ArrowRight")
    expect(least).to_have_attribute("aria-valuenow", "1")
    low = query(page)
    assert re.fullmatch(r"width>=\d+", low)
    greatest.press("ArrowLeft")
    page.wait_for_url("**width%3C**")
    assert re.fullmatch(low + r" width<\d+", query(page))
    outside = page.locator("db-bars[name=width] rect.out")
    expect(outside).to_have_count(2)  # the bars outside of the range keep their counts
    for handle, key in ((least, "ArrowLeft"), (greatest, "ArrowRight")):
        handle.press(key)
    counted(page, ALL)
    expect(outside).to_have_count(0)


@pytest.mark.parametrize("search", ["width>99", "width>=5000", "width<40"])
def test_search_outside_of_a_histogram_selects_no_bar(page: Page, search: str) -> None:
    page.locator("#search").fill(search)
    page.locator("#search").press("Enter")
    counted(page, 0)
    bars = page.locator("db-bars[name=width]")
    expect(bars.locator(".range")).to_have_text("no such value")
    expect(bars.locator("rect.out")).to_have_count(bars.locator("rect[role=option]").count())
    expect(bars.get_by_role("slider")).to_have_count(0)


def test_class_that_is_not_found_is_named_and_rarest_classes_come_first(page: Page) -> None:
    page.locator("#find-class").fill("zebra")
    expect(page.locator("db-sidebar")).to_contain_text("No class contains “zebra”")
    page.locator("#find-class").fill("")
    for _ in range(2):
        page.locator("#order").click()
    expect(page.locator("#order")).to_have_text("rarest first")
    expect(page.locator(".class:visible .name")).to_have_text(["maine coon", "dog", "cat"])


def test_search_completes_classes_fields_and_values(page: Page) -> None:
    def offers(typed: str) -> list[str]:
        page.locator("#search").fill(typed)
        return [str(each.get_attribute("value")) for each in page.locator("#words option").all()]

    assert offers("coo") == ['class:"maine coon"']
    assert offers('class:"maine coon" wid') == ['class:"maine coon" width<']
    assert offers("-(class:d") == ["-(class:dog"]
    assert offers("class:dog ") == []


def test_side_bar_filters_only_where_a_search_applies(page: Page) -> None:
    for name, shown in (("Review", True), ("Report of the conversion", False), ("Duplicates", False), ("Images", True)):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#find-class")).to_be_visible(visible=shown)


@pytest.mark.parametrize("width", [1280, 390])
def test_wrong_search_covers_nothing_and_offers_one_action(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#search").fill("color:red")
    page.locator("#search").press("Enter")
    expect(page.locator("#search-error strong")).to_have_text("No field 'color'")
    expect(page.locator("#search-error .muted")).to_contain_text("a condition begins with one of width, height")
    expect(page.locator("#sort")).to_be_hidden()
    message = page.locator("#search-error").bounding_box()
    field, below = (page.locator(selector).bounding_box() for selector in ("#search", ".empty:visible"))
    assert message
    assert field
    assert below
    assert field["y"] + field["height"] <= message["y"]
    assert message["y"] + message["height"] <= below["y"]
    expect(page.locator("#main .empty:visible strong")).to_have_text("This search has a mistake")
    page.locator("db-sidebar nav a", has_text="Review").dispatch_event("click")  # it is in a drawer of a phone
    expect(page.locator("#main .empty:visible strong")).to_have_text("This search has a mistake")
    page.locator("#main .empty:visible button").click()
    expect(page.locator("#search-error")).to_be_empty()
    expect(page.locator("#search")).to_have_value("")


def test_invalid_search_shows_a_message_and_back_undoes_it(page: Page) -> None:
    page.locator("#search").fill("color:red")
    page.locator("#search").press("Enter")
    expect(page.locator("#search-error")).to_contain_text("color:")
    expect(page.locator("#count")).to_contain_text("this store has no field")
    for name, count in CLASSES.items():  # the side bar stays, with the counts of all records
        expect(page.locator(".class", has_text=name)).to_have_text(f"{name}{count}")
    expect(page.locator("db-bars[name=width] svg")).to_be_visible()
    page.go_back()
    counted(page, ALL)
    expect(page.locator("#search-error")).to_be_empty()
    page.locator("#search").fill("name:nowhere")
    page.locator("#search").press("Enter")
    counted(page, 0)
