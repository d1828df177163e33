"""One person cleans a data set in the browser. The copy is compared with the faults that were planted."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from dbloader import Record
from tests.browser.tabs import Site, Tabs
from tests.browser.test_joined import tiles
from tests.browser.test_marks import hold
from tests.browser.test_pages import settled
from tests.support.conversion import records
from tests.support.images import encoded, run, scene
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT, WRONG, EXTRAS = 500, 50, 16
CLASSES = ["cat", "dog", "fox", "maine coon"]
WIDE = {"width": 1440, "height": 900}


class Planted(NamedTuple):
    """A running viewer, the right label of each record, and the planted faults."""

    site: Site
    place: Path
    labels: list[int]
    stored: list[int]
    captions: list[str]
    scores: list[float]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Planted]:
    """Plant 50 wrong labels, and append 16 duplicates: half have the same bytes, half are encoded again."""
    folder, rng = tmp_path_factory.mktemp("cleaning"), random.Random(5)
    images = [encoded(scene(n), "JPEG", quality=90) for n in range(COUNT)]
    labels = [rng.randrange(4) for _ in range(COUNT)]
    wrong = {*rng.sample(range(COUNT), WRONG)}
    stored = [(label + 1) % 4 if n in wrong else label for n, label in enumerate(labels)]
    for extra, n in enumerate(rng.sample(sorted({*range(COUNT)} - wrong), EXTRAS)):
        images.append(images[n] if extra % 2 else encoded(scene(n), "JPEG", quality=60))
        labels.append(labels[n])
        stored.append(stored[n])
    captions = [f"a {rng.choice(('red', 'blue'))} {rng.choice(('car', 'house'))}" for _ in images]
    scores = [rng.random() for _ in images]
    store_records(
        folder / "train.lmdb",
        (
            Record(
                f"{n:03}.jpg", stored[n], image, 240, 180, "JPEG",
                fields={"caption": captions[n], "score": scores[n], "boxes": [[9.0, 9.0, 99.0, 99.0]]},
            )
            for n, image in enumerate(images)
        ),
        classes=CLASSES,
    )  # fmt: skip
    rows = [
        {"name": f"{n:03}.jpg", "prediction": CLASSES[label], "loss": rng.random()} for n, label in enumerate(labels)
    ]
    (folder / "predictions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with viewer(folder / "train.lmdb", "--with", folder / "predictions.jsonl", "--no-open") as running:
        yield Planted(Site.entered(chromium, running.link), folder / "train.lmdb", labels, stored, captions, scores)


def test_copy_of_a_cleaned_data_set_contains_no_planted_fault(tabs: Tabs, planted: Planted) -> None:
    place, labels, stored = planted.place, planted.labels, planted.stored
    page = tabs.open(planted.site, "/?px=80", viewport=WIDE)
    count, chosen, notice = page.locator("#count"), page.locator("#chosen"), page.locator("#notice")
    # Correct the wrong labels: open each pair of label and prediction, and select its records.
    page.get_by_role("link", name="Labels compared").click()
    status, clicks, found = page.locator("db-compare p[role=status]"), 1, set[int]()
    expect(status).to_contain_text(f"differ in {WRONG}.")
    pairs = page.locator(".pairs-list tbody tr")
    names = [pair.locator("td").all_inner_texts() for pair in pairs.all()]
    for number, (_, prediction, records_of_pair) in enumerate(names):
        pairs.nth(number).locator("a").click()
        expect(count).to_contain_text(f"{records_of_pair} of {len(labels)}")
        found |= {*tiles(page)}
        page.locator("#everything").click()
        page.get_by_label("Class to set").fill(prediction)
        page.get_by_role("button", name="Set label").click()
        expect(notice).to_contain_text(f": {prediction}")
        page.get_by_role("link", name="Labels compared").click()
        expect(status).to_contain_text(f"differ in {records_of_pair} among")
        page.get_by_title("Remove this condition").first.click()
        page.get_by_title("Remove this condition").first.click()
        expect(status).to_contain_text(f"differ in {WRONG}.")
        clicks += 6
    assert found == {n for n, label in enumerate(labels) if label != stored[n]}
    assert clicks <= 25
    # Search for duplicates, and drop the extra copies.
    page.get_by_role("link", name="Duplicates").click()
    page.get_by_role("button", name="Search for duplicates").click()
    expect(page.locator("db-duplicates [role=status]")).to_contain_text(f"{EXTRAS} duplicates of {EXTRAS} images")
    # Only copies with the same bytes are checked: a person looks at the others first.
    boxes = page.get_by_label("drop", exact=True)
    expect(boxes).to_have_count(EXTRAS)
    assert [box.is_checked() for box in boxes.all()].count(True) == EXTRAS // 2
    for box in boxes.all():
        box.check()
    page.get_by_role("button", name="Drop the checked images").click()
    expect(notice).to_have_text(f"{EXTRAS} records: drop")
    page.get_by_role("link", name="Show all duplicates in the grid").click()
    expect(count).to_contain_text(f"{EXTRAS} of {len(labels)}")
    expect(page.locator('db-field[name="duplicates.differ"]')).to_be_visible()
    # Search by caption and score, then by two classes.
    page.locator("#search").fill('caption~"red car" score>=0.5')
    page.locator("#search").press("Enter")
    wanted = [n for n, text in enumerate(planted.captions) if text == "a red car" and planted.scores[n] >= 0.5]
    expect(count).to_contain_text(f"{len(wanted)} of {len(labels)}")
    assert tiles(page) == wanted[: len(tiles(page))]
    page.locator("#search").press("Escape")
    page.locator(".class", has_text="dog").click()
    page.locator(".class", has_text="fox").click(modifiers=["Control"])
    both = [n for n, label in enumerate(stored) if label in (1, 2)]
    expect(count).to_contain_text(f"{len(both)} of {len(labels)}")
    # Select and drop 30 records with Shift, and 3 by touch.
    page.locator("#tiles-0").click(modifiers=["Control"])
    page.locator("#tiles-29").click(modifiers=["Shift"])
    expect(chosen).to_contain_text("30 selected")
    page.locator("db-grid").get_by_role("button", name="Drop").click()
    expect(notice).to_have_text("30 records: drop")
    phone = tabs.open(planted.site, "/?q=class:cat", viewport={"width": 390, "height": 780}, has_touch=True)
    hold(phone, 0)
    phone.locator("#tiles-1").tap()
    phone.locator("#tiles-2").tap()
    expect(phone.locator("#chosen")).to_contain_text("3 selected")
    phone.locator("db-grid").get_by_role("button", name="Drop").tap()
    expect(phone.locator("#tiles-2 .marks")).to_contain_text("drop")
    # Run the command that the page shows, which makes the copy.
    page.reload()
    line = page.locator("#marks code").inner_text()
    done = run(*shlex.split(line)[1:], cwd=place.parent)
    assert (done.status, line.split()[:2]) == (0, ["dbloader", "copy"])
    cats = [n for n, label in enumerate(stored) if label == 0]
    dropped = {*range(COUNT, COUNT + EXTRAS), *both[:30], *cats[:3]}
    assert {record.name: record.label for record in records(place.with_name("clean.lmdb"))} == {
        f"{n:03}.jpg": label for n, label in enumerate(labels) if n not in dropped
    }


PAGES = {
    "grid": "/?over=boxes&selected=0-2", "search": '/?q=caption~"red car" (class:dog or class:fox)&sort=-loss',
    "record": "/?view=record&index=1", "compare": "/?view=compare", "duplicates": "/?view=duplicates",
    "training": "/?view=training&batch_size=8&over=boxes",
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible_at_every_width(tabs: Tabs, planted: Planted, axe: str, name: str) -> None:
    for width in (1440, 1024, 390):
        page = tabs.open(
            planted.site,
            PAGES[name],
            viewport={"width": width, "height": 900},
            color_scheme="light",
            reduced_motion="reduce",
        )
        assert violations(page, axe) == []
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        assert violations(page, axe) == []
        assert page.evaluate("document.querySelector('#main').scrollWidth") <= width


def violations(page: Page, axe: str) -> list[str]:
    settled(page)
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {re.sub(chr(10), ' ', each['nodes'][0]['html'])}" for each in found]
