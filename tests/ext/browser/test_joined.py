"""Joined predictions in a browser. The table of pairs and the loss reveal planted wrong labels."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader import Record
from tests.ext.browser.tabs import Site, Tabs
from tests.ext.browser.test_pages import check_page
from tests.support.images import photo
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT, PLANTED = 2_000, 50
CLASSES = ["cat", "dog", "fox", "maine coon"]
WRONG = {*random.Random(1).sample(range(COUNT), PLANTED)}  # records whose stored label is wrong


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    """The viewer of a store with wrong labels, joined with predictions that are right but for a few mistakes."""
    folder, image, rng = tmp_path_factory.mktemp("doubtful"), photo(), random.Random(2)
    classes = [n * 7 % len(CLASSES) for n in range(COUNT)]
    labels = [(one + 1 + n % 3) % len(CLASSES) if n in WRONG else one for n, one in enumerate(classes)]
    store_records(
        folder / "train.lmdb",
        (Record(f"{n:04}.jpg", label, image, 40, 30, "JPEG") for n, label in enumerate(labels)),
        classes=CLASSES,
    )
    lines = ["name,prediction,loss,top5,note"]
    for n in rng.sample(range(COUNT), COUNT - 100 + PLANTED):
        loss = rng.uniform(3, 9) if n in WRONG else rng.expovariate(2) % 2.9
        lines.append(f'{n:04}.jpg,{CLASSES[classes[n]]},{loss},true,"seed {n}, ""so"""')
    named = {line[:4] for line in lines}
    lines += [f"{n:04}.jpg,{CLASSES[classes[n]]},8,true,none" for n in WRONG if f"{n:04}" not in named]
    (folder / "predictions.csv").write_text("\n".join(lines))
    with viewer(folder / "train.lmdb", "--with", folder / "predictions.csv", "--no-open") as running:
        said = next(line for line in running.lines if "predictions.csv" in line)
        assert re.search(r"columns prediction, loss, top5, note, labels.differ; \d+ of 2,000 records have no row", said)
        yield Site.entered(chromium, running.link)


def tiles(page: Page) -> list[int]:
    """Return the indices of the shown tiles, in the order shown."""
    expect(page.locator("#tiles .tile:visible").last.locator(".number")).not_to_be_empty()
    numbers = page.locator("#tiles .tile:visible .number").all_inner_texts()
    return [int(text.removesuffix(" ·").replace(",", "")) for text in numbers if text]


def test_table_of_pairs_finds_planted_wrong_labels(tabs: Tabs, doubtful: Site) -> None:
    page = tabs.open(doubtful, "/?px=80", viewport={"width": 1440, "height": 900})
    page.get_by_role("link", name="Labels compared").click()
    status = page.locator("db-compare p[role=status]")
    expect(status).to_contain_text(f"differ in {PLANTED}")
    found, clicks = set[int](), 1
    pairs = page.locator(".confused .card")
    expect(pairs).to_have_count(12)
    for n in range(pairs.count()):
        expected = int(pairs.nth(n).locator("h3 b").inner_text())
        pairs.nth(n).locator("h3 a").click()
        expect(page.locator("#count")).to_contain_text(f"{expected} of 2,000")
        found |= {*tiles(page)}
        page.go_back()
        clicks += 1
        expect(status).to_contain_text("differ")
    assert found == WRONG
    assert clicks <= 13
    expect(page.locator(".matrix th")).to_have_count(2 * len(CLASSES))
    # The table shows the same numbers, and one search finds all these records.
    differing = page.locator(".matrix td.differs a").all_inner_texts()
    assert sum(map(int, differing)) == PLANTED
    page.locator(".matrix td.differs a").first.click()
    expect(page.locator("#count")).to_contain_text(f"{differing[0]} of 2,000")


@pytest.mark.parametrize("path", ["/?view=compare", "/?q=labels.differ&sort=-loss"])
def test_pages_are_accessible_and_fit_a_narrow_window(tabs: Tabs, doubtful: Site, axe: str, path: str) -> None:
    page = tabs.open(doubtful, path, reduced_motion="reduce")
    check_page(page, axe)


def test_planted_wrong_labels_are_first_when_sorted_by_loss(tabs: Tabs, doubtful: Site) -> None:
    page = tabs.open(doubtful, "/?px=80", viewport={"width": 1440, "height": 900})
    page.locator("#sort").select_option("loss")
    page.locator("#direction").click()
    first = page.locator("#tiles .tile:visible").first
    expect(first).to_have_attribute("title", re.compile(r"\nloss: \d.*\nprediction: "))
    expect(first.locator(".value")).to_have_text(re.compile(r"^\d+\.\d+$"))
    expect(first.locator(".label")).to_have_text(re.compile("|".join(CLASSES)))
    expect(first.locator(".guess.differs")).to_have_text(re.compile("^→ "))
    assert {*tiles(page)[:PLANTED]} == WRONG
    page.locator('db-field[name="labels.differ"]').get_by_role("button", name="true").click()
    expect(page.locator("#count")).to_contain_text(f"{PLANTED} of 2,000")
    assert {*tiles(page)} == WRONG


def test_captions_show_label_prediction_and_sorted_value_uncut(tabs: Tabs, doubtful: Site) -> None:
    page = tabs.open(doubtful, "/?q=labels.differ&sort=-loss", viewport={"width": 1440, "height": 900})
    tile = page.locator("#tiles .tile:visible").first
    expect(tile.locator(".label")).to_have_text(re.compile("|".join(CLASSES)))
    expect(tile.locator(".guess")).to_have_text(re.compile(f"^→ ({'|'.join(CLASSES)})$"))
    expect(tile.locator(".guess")).to_have_class("guess differs")
    expect(tile.locator(".value")).to_have_text(re.compile(r"^\d+(\.\d+)?$"))
    is_cut = "(parts) => parts.filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.outerHTML)"
    assert page.locator(".tile .caption > span > span").evaluate_all(is_cut) == []


def test_record_shows_its_joined_fields(tabs: Tabs, doubtful: Site) -> None:
    page = tabs.open(doubtful, f"/?view=record&index={min(WRONG)}")
    expect(page.locator("db-record")).to_contain_text("Joined")
    expect(page.locator("db-record tr", has_text="prediction")).to_contain_text(CLASSES[min(WRONG) * 7 % 4])
