"""A store's additional fields in the side bar, and every form of search, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader import Record
from tests.ext.browser.tabs import Site, Tabs
from tests.support.images import photo
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT = 120
SPLITS = ("train", "train", "val", "test")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    """The viewer of a store whose additional fields are numbers, texts and booleans."""
    place, image = tmp_path_factory.mktemp("own") / "own.lmdb", photo()
    records = []
    for n in range(COUNT):
        fields = {"score": n / COUNT, "caption": f'a car, "number" {n}', "split": SPLITS[n % 4], "is_test": n % 4 == 3}
        fields["of a kind"] = n % 5
        records.append(Record(f"{n}.jpg", n % 3, image, 40, 30, "JPEG", fields=fields))
    store_records(place, records, classes=["cat", "dog", "maine coon"])
    with viewer(place, "--no-open") as running:
        yield Site.entered(chromium, running.link)


@pytest.fixture
def page(tabs: Tabs, own: Site) -> Page:
    opened = tabs.open(own)
    counted(opened, COUNT)
    return opened


def counted(page: Page, count: int) -> None:
    expect(page.locator("#count")).to_have_text(re.compile(rf"^{count} records|^{count} of {COUNT} records"))


def search(page: Page, text: str) -> None:
    page.locator("#search").fill(text)
    page.locator("#search").press("Enter")


def chips(page: Page) -> list[str]:
    return [text[:-2] for text in page.locator("#finder .chips button").all_inner_texts()]


def test_second_click_takes_a_value_back_although_the_side_bar_has_no_new_counts(page: Page) -> None:
    value = page.locator("db-field[name=split]").get_by_role("button", name="val")
    value.evaluate("button => { button.click(); button.click(); }")
    assert "split" not in page.evaluate("location.search")


def test_side_bar_filters_and_sorts_by_additional_fields(page: Page) -> None:
    split, test = page.locator("db-field[name=split]"), page.locator("db-field[name=is_test]")
    expect(split.locator(".values button")).to_have_text(["train60", "test30", "val30"])
    split.get_by_role("button", name="val").click()
    counted(page, 30)
    assert chips(page) == ["split=val"]
    expect(split.get_by_role("button")).to_have_count(3)
    expect(split).not_to_contain_text("train0")  # the other values keep their counts
    split.get_by_role("button", name="val").click()
    counted(page, COUNT)
    test.get_by_role("button", name="true").click()
    counted(page, 30)
    search(page, "is_test")
    expect(test.get_by_role("button", name="true")).to_have_attribute("aria-pressed", "true")
    test.get_by_role("button", name="false").click()
    counted(page, 90)
    assert chips(page) == ["is_test=false"]
    caption = page.locator("db-field[name=caption]")
    expect(caption).to_contain_text(f"{COUNT} different values")
    caption.locator("input").fill('"number" 11')  # quotes become a part of the searched text
    caption.locator("input").press("Enter")
    counted(page, 7)
    expect(page.locator("#search-error")).to_be_empty()
    search(page, "")
    bars = page.locator("db-field[name=score] svg")
    names = [bar.get_attribute("aria-label") or "" for bar in bars.get_by_role("option").all()]
    assert names[-1].startswith("0.84 to 0.992: ")  # the ends are rounded alike
    bars.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#finder .chips button").first).to_contain_text("score>=")
    page.locator("db-field[name='of a kind'] svg").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#finder .chips button").last).to_contain_text('"of a kind">=4')
    expect(page.locator("#search-error")).to_be_empty()
    search(page, "")
    page.locator("#sort").select_option("score")
    page.locator("#direction").click()
    first = page.locator(".tile").first
    expect(first.locator(".number")).to_have_text("119 ·")
    expect(first.locator(".label")).to_have_text("maine coon")
    expect(first.locator(".value")).to_have_text("0.9917")


def test_each_chip_shows_one_whole_condition_of_a_search(page: Page) -> None:
    search(page, "score < 0.5 not is_test and -(class:cat or class:dog)")
    counted(page, 15)
    assert chips(page) == ["score<0.5", "not is_test", "-(class:cat or class:dog)"]
    page.locator("#finder .chips button").first.click()
    counted(page, 30)
    search(page, "class:cat or class:dog")
    counted(page, 80)
    assert chips(page) == ["(class:cat or class:dog)"]
    selected = page.locator(".class[aria-selected=true] .name")
    expect(selected).to_have_text(["cat", "dog"])
    page.locator(".class", has_text="dog").locator(".check").click()
    counted(page, 40)
    assert chips(page) == ["class:cat"]
    search(page, "split = val or class:cat is_test")
    counted(page, 40)
    page.locator("db-field[name=split]").get_by_role("button", name="train").click()
    counted(page, 0)
    assert chips(page) == ["(split=val or class:cat is_test)", "split=train"]
    page.locator("#finder .chips button").first.click()
    counted(page, 60)


@pytest.mark.parametrize(
    ("query", "conditions"),
    [
        ("width<64 or", ["(width<64 or )"]),
        ('"of a kind" == 3 name:"a b" "or" a-b', ['"of a kind"=3', 'name:"a b"', '"or"', "a-b"]),
        ('caption~"x (y" (a or (b c)) order', ['caption~"x (y"', "(a or (b c))", "order"]),
        ("not  not x -class:cat score!=1", ["not  not x", "-class:cat", "score!=1"]),
        ("(class:a", ["(class:a"]),
        ("a) b", ["a", ")", "b"]),
        ("a AND NOT b", ["a", "NOT b"]),
        ("a OR b", ["(a or b)"]),
        ('split="null" split<>"val"', ['split="null"', "split!=val"]),
    ],
)
def test_query_is_split_into_conditions(page: Page, query: str, conditions: list[str]) -> None:
    found = page.evaluate("async (text) => (await import('/static/query.js')).words(text)", query)
    assert found == conditions
