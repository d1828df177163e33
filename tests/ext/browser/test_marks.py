"""Records are marked in a browser by mouse, keys and touch, and a copy applies the marks."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, expect

from dbloader import Record
from tests.ext.browser.tabs import Site, Tabs
from tests.ext.browser.test_pages import check_page
from tests.support.conversion import records
from tests.support.images import photo, run
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COUNT = 400
CLASSES = ["cat", "dog", "maine coon"]
WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 780}


class Marked(NamedTuple):
    """A viewer of a store, and the file with its marks."""

    site: Site
    place: Path
    file: Path


@pytest.fixture
def marked(tmp_path: Path, chromium: Browser) -> Iterator[Marked]:
    place, image = tmp_path / "train.lmdb", photo()
    store_records(place, (Record(f"{n:03}.jpg", n % 3, image, 40, 30, "JPEG") for n in range(COUNT)), classes=CLASSES)
    with viewer(place, "--no-open") as running:
        yield Marked(Site.entered(chromium, running.link), place, tmp_path / "train.lmdb.marks.jsonl")


def hold(page: Page, index: int) -> None:
    """Rest a finger on a record."""
    box = page.locator(f"#tiles-{index}").bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 40}
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [point]})
    expect(page.locator("#chosen")).to_be_visible()
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_fields_for_marks_take_what_is_typed(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?view=record&index=0", viewport=WIDE)
    for field, text in (("Tag to add", "blurry"), ("Class to set", "dog")):
        page.locator("db-record").get_by_label(field).click()
        page.keyboard.type(text)
        expect(page.locator("db-record").get_by_label(field)).to_have_value(text)
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("1 record labeled dog")


def test_right_click_on_a_record_opens_the_menu_of_the_browser(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, viewport=WIDE)
    click = "new PointerEvent('contextmenu', {bubbles: true, cancelable: true, pointerType: 'mouse'})"
    assert page.locator("#tiles-0 img").evaluate(f"image => image.dispatchEvent({click})")


def test_copy_applies_exactly_the_marks(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?px=80", viewport=WIDE)
    chosen, notice = page.locator("#chosen"), page.locator("#notice")
    # Mark 30 records: a range of 20 with the mouse, and a range of 10 with keys.
    page.locator("#tiles-2").click(modifiers=["Control"])
    page.locator("#tiles-21").click(modifiers=["Shift"])
    expect(chosen).to_contain_text("20 selected")
    page.locator("#tiles-30").click(modifiers=["Control"])
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("X")
    expect(chosen).to_contain_text("30 selected")
    page.get_by_role("button", name="Drop").click()
    expect(notice).to_contain_text("30 records marked to drop")
    expect(chosen).to_be_hidden()
    expect(page.locator(".tile .marks.drop")).to_have_count(30)
    # Mark every record of a search except one.
    page.goto("/?q=class:dog+index>=300&px=80")
    page.locator("#everything").click()
    expect(chosen).to_contain_text("33 selected")
    page.locator("#tiles-4").click(modifiers=["Control"])
    expect(chosen).to_contain_text("32 selected")
    expect(page.locator('.tile[aria-selected="true"]')).to_have_count(32)
    page.get_by_label("Class to set").fill("maine coon")
    page.get_by_role("button", name="Set label").click()
    expect(page.locator(".tile .marks").first).to_have_text("now maine coon")
    # Mark three records by touch on a phone.
    phone = tabs.open(marked.site, viewport=PHONE, has_touch=True)
    hold(phone, 0)
    phone.locator("#tiles-1").tap()
    phone.locator("#tiles-3").tap()
    expect(phone.locator("#chosen")).to_contain_text("3 selected")
    phone.get_by_label("Tag to add").fill("blurry")
    phone.get_by_label("Tag to add").press("Enter")
    expect(phone.locator("#tiles-3 .marks")).to_have_text("drop · blurry")
    phone.locator("#tiles-1").tap()
    expect(phone.locator("db-record tr", has_text="tags")).to_contain_text("blurry")
    # Marks can be searched like fields, and the page shows the command that copies.
    page.goto("/?q=mark.drop+or+mark.tags~blurry")
    expect(page.locator("#count")).to_have_text(f"32 of {COUNT} records")
    page.get_by_role("button", name=re.compile("changes$")).click()
    _, *words = shlex.split(page.locator("#changes code").inner_text())
    assert words == ["copy", str(marked.place), "clean.lmdb", "--marks", str(marked.file)]
    dropped = {*range(2, 22), *range(30, 40)}
    labelled = {n for n in range(300, COUNT) if n % 3 == 1} - {313}
    rows = [json.loads(line) for line in marked.file.read_text().splitlines()]
    assert [row["index"] for row in rows] == sorted({0, 1, 3} | dropped | labelled)
    assert run(*words, cwd=marked.place.parent).status == 0
    assert {record.name: record.label for record in records(marked.place.with_name("clean.lmdb"))} == {
        f"{n:03}.jpg": 2 if n in labelled else n % 3 for n in range(COUNT) if n not in dropped
    }


def test_page_shows_changes_and_mistakes_in_the_marks_file(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?view=record&index=5", refused="/api/0/marks")
    page.get_by_role("button", name="Drop").click()
    expect(page.locator("db-record tr", has_text="drop")).to_contain_text("true")
    marked.file.write_text('{"index": 6, "name": "007.jpg", "drop": true}\n')
    page.get_by_role("button", name="Drop").click()
    expect(page.locator("#notice")).to_contain_text("row 1: record 6 of")
    page.goto("/?selected=5")
    expect(page.locator("db-grid db-marks")).to_contain_text("Marks are off: ")
    expect(page.locator("db-grid db-marks")).to_contain_text("belongs to another store")
    expect(page.locator("db-grid db-marks").get_by_role("button", name="Drop")).to_be_disabled()
    marked.file.write_text('{"index": 6, "name": "006.jpg", "tags": ["by hand"]}\n')
    page.reload()
    expect(page.locator("#tiles-6 .marks")).to_have_text("by hand")
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#everything").click()
    page.get_by_role("button", name="Clear marks").click()
    expect(page.locator("#notice")).to_contain_text("1 record without marks")
    expect(page.locator("#changed")).to_have_accessible_name("0 changes")  # the change can be undone
    assert not marked.file.exists()


def test_selection_of_all_records_is_cleared_by_another_search(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?q=class:dog&selected=all,4", viewport=WIDE)
    expect(page.locator("#chosen")).to_contain_text("132 selected")
    page.locator(".class", has_text="cat").click()
    expect(page.locator("#count")).to_contain_text("134 of")
    expect(page.locator("#chosen")).to_be_hidden()
    assert "selected" not in page.url


HAND_MADE = [
    {"index": 3, "name": "003.jpg", "label": "maine coon"},
    {"index": 4, "name": "004.jpg", "drop": True, "tags": ["see, ann", "blurry"]},
    {"index": 399, "name": "399.jpg", "label": None},
]


@pytest.fixture
def hand_made(marked: Marked) -> list[dict[str, Any]]:
    """Marks that a person has made before."""
    marked.file.write_text("".join(f"{json.dumps(row)}\n" for row in HAND_MADE))
    return HAND_MADE


def rows(marked: Marked) -> list[dict[str, Any]]:
    return [json.loads(line) for line in marked.file.read_text().splitlines()]


def answer(page: Page, run: Callable[[], object], *, accept: bool = True) -> str:
    """Call ``run``, answer the question that the page asks, and return the question."""
    asked: list[str] = []

    def on_dialog(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept() if accept else dialog.dismiss()

    page.once("dialog", on_dialog)
    with page.expect_event("dialog"):
        run()
    return "".join(asked)


def label_all(page: Page, *, accept: bool = True) -> str:
    page.locator("#everything").click()
    page.get_by_label("Class to set").fill("dog")
    return answer(page, page.get_by_role("button", name="Set label").click, accept=accept)


def test_label_of_all_records_is_asked_backed_up_and_undone_after_a_reload(
    tabs: Tabs, marked: Marked, hand_made: list[dict[str, Any]]
) -> None:
    page = tabs.open(marked.site, viewport=WIDE)
    question = "400 records will be labeled dog.\n\nThis replaces the labels that 2 records got before."
    assert label_all(page, accept=False) == question
    assert rows(marked) == hand_made
    expect(page.locator("#chosen")).to_contain_text("400 selected")
    assert label_all(page) == question
    expect(page.locator("#notice")).to_contain_text("400 records labeled dog")
    expect(page.locator("#tiles-3 .marks")).to_have_text("now dog")
    assert {row["label"] for row in rows(marked)} == {"dog"}
    backup = marked.file.with_name("train.lmdb.marks.backup.jsonl")
    assert [json.loads(line) for line in backup.read_text().splitlines()] == hand_made
    page.reload()
    page.locator("#changed").click()
    undo = page.locator("#undo")
    expect(undo).to_have_attribute("title", "400 records labeled dog")
    undo.click()
    expect(page.locator("#notice")).to_contain_text("Undone: 400 records labeled dog")
    expect(undo).to_be_disabled()
    assert rows(marked) == hand_made
    page.locator("#redo").click()
    expect(undo).to_be_enabled()
    assert {row["label"] for row in rows(marked)} == {"dog"}
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("Control+z")
    expect(page.locator("#tiles-3 .marks")).to_have_text("now maine coon")
    assert rows(marked) == hand_made


def test_several_changes_are_undone_by_the_notice_and_by_key(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?px=80", viewport=WIDE)
    changed, notice = page.locator("#changed"), page.locator("#notice")
    expect(page.locator("#tiles-0 img")).to_be_visible()
    expect(changed).to_be_hidden()
    for count in (1, 2, 3):  # each key changes one record and is one step
        page.keyboard.press("d")
        expect(changed).to_have_accessible_name(f"{count} change{'s' if count > 1 else ''}")
        page.keyboard.press("ArrowRight")
    notice.get_by_role("button", name="Undo").click()
    expect(changed).to_have_accessible_name("2 changes")
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    expect(notice).to_contain_text("Undone: 1 record marked to drop")
    expect(page.locator(".tile .marks.drop")).to_have_count(0)
    page.keyboard.press("Control+Shift+Z")
    expect(changed).to_have_accessible_name("1 change")
    assert [row["index"] for row in rows(marked)] == [0]
    page.keyboard.press("Control+z")
    expect(page.locator(".tile .marks.drop")).to_have_count(0)
    page.keyboard.press("Control+z")
    expect(notice).to_contain_text("There is no change to undo")


def test_undo_in_two_tabs_takes_back_the_change_that_it_names(
    tabs: Tabs, marked: Marked, hand_made: list[dict[str, Any]]
) -> None:
    first = tabs.open(marked.site, viewport=WIDE, refused="/api/0/marks")
    second = tabs.open(marked.site, "/?view=record&index=4")
    label_all(first)
    expect(first.locator("#notice")).to_contain_text("400 records labeled dog")
    tag = second.locator("db-record").get_by_label("Tag to add")
    tag.fill("of the second tab")
    tag.press("Enter")
    expect(second.locator("#notice")).to_contain_text("1 record tagged of the second tab")
    first.keyboard.press("Control+z")
    expect(first.locator("#notice")).to_have_text("1 record of this change got other marks later: undo them first")
    assert len(rows(marked)) == COUNT
    first.keyboard.press("Control+z")
    expect(first.locator("#notice")).to_contain_text("Undone: 1 record tagged of the second tab")
    first.keyboard.press("Control+z")
    expect(first.locator("#notice")).to_contain_text("Undone: 400 records labeled dog")
    assert rows(marked) == hand_made


def test_drop_label_and_tag_of_a_record_are_toggles(
    tabs: Tabs, marked: Marked, hand_made: list[dict[str, Any]]
) -> None:
    page = tabs.open(marked.site, "/?view=record&index=4")
    marks, bar = page.locator("db-record section", has_text="Marks"), page.locator("db-record db-marks")
    expect(bar.get_by_role("button", name="Drop")).to_have_attribute("aria-pressed", "true")
    bar.get_by_role("button", name="Drop").click()
    expect(marks.locator("tr")).to_have_text(["tagssee, ann, blurry"])
    expect(bar.get_by_role("button", name="Drop")).to_have_attribute("aria-pressed", "false")
    bar.get_by_role("button", name="see, ann").click()
    expect(marks.locator("tr")).to_have_text(["tagsblurry"])
    page.keyboard.press("d")
    expect(marks.locator("tr")).to_have_text(["droptrue", "tagsblurry"])
    page.keyboard.press("d")
    expect(marks.locator("tr")).to_have_text(["tagsblurry"])
    page.goto("/?selected=3-4,399")
    tag = page.locator("db-grid").get_by_role("button", name="blurry")
    expect(tag).to_have_attribute("aria-pressed", "mixed")  # one of the three records has this tag
    page.locator("db-grid").get_by_role("button", name="Remove label").first.click()
    expect(page.locator("#notice")).to_contain_text("2 records with their old label")
    assert rows(marked) == [{"index": 4, "name": "004.jpg", "tags": ["blurry"]}]


def test_panel_shows_all_changes_with_pictures_and_takes_one_back(
    tabs: Tabs, marked: Marked, hand_made: list[dict[str, Any]], axe: str
) -> None:
    page = tabs.open(marked.site, "/?view=report", viewport=WIDE, reduced_motion="reduce")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#changed").click()
    panel = page.locator("#changes")
    expect(panel.locator("h2")).to_have_text("3 changes")
    expect(panel.locator("h3 .chip")).to_have_text(["Drop", "→ maine coon", "→ no label", "Tag see, ann", "Tag blurry"])
    expect(panel.locator(".thumbs img")).to_have_count(5)
    panel.get_by_role("button", name="Copy").click()  # the second click: copies the command from any page
    assert page.evaluate("navigator.clipboard.readText()").startswith("dbloader copy ")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(axe)
        found = page.evaluate("axe.run('#changes', {resultTypes: ['violations']})")["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
    panel.get_by_role("button", name="Take back the mark of record 4").first.click()
    expect(panel.locator("h3 .chip").first).to_have_text("→ maine coon")
    assert [row for row in rows(marked) if row["index"] == 4] == [
        {"index": 4, "name": "004.jpg", "tags": ["see, ann", "blurry"]}
    ]
    panel.get_by_role("link", name="Show").first.click()
    expect(page.locator("#count")).to_have_text(f"1 of {COUNT} records")
    expect(panel).to_be_hidden()


def test_new_class_is_named_as_new_before_it_is_set(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?selected=0-1")
    label = page.locator("db-grid").get_by_label("Class to set")
    label.fill("dog")
    expect(page.get_by_role("button", name="Set label")).to_be_visible()
    label.fill("siamese")
    page.get_by_role("button", name="Set new class").click()
    expect(page.locator("#tiles-1 .marks")).to_have_text("now siamese")
    assert [row["label"] for row in rows(marked)] == ["siamese", "siamese"]


def test_typed_tag_is_kept_while_the_server_changes_a_mark(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?view=record&index=5")
    held: list[Route] = []
    # Only the first change is held. Playwright sets an attribute on the function, so it must be one of Python's.
    page.route("**/marks", lambda route: held.append(route), times=1)
    with page.expect_request("**/marks"):
        page.get_by_role("button", name="Drop").click()
    tag = page.locator("db-record").get_by_label("Tag to add")
    tag.fill("blurry")
    held.pop().continue_()
    expect(page.locator("#notice")).to_contain_text("1 record marked to drop")
    expect(page.locator("db-record section", has_text="Marks").locator("tr")).to_have_text(["droptrue"])
    expect(tag).to_have_value("blurry")
    expect(tag).to_be_focused()
    tag.press("Enter")
    expect(page.locator("#notice")).to_contain_text("1 record tagged blurry")
    expect(tag).to_have_value("")


def test_question_is_not_asked_below_101_records(tabs: Tabs, marked: Marked) -> None:
    page = tabs.open(marked.site, "/?q=index:0-99", viewport=WIDE)
    page.locator("#everything").click()
    page.get_by_role("button", name="Drop").click()
    expect(page.locator("#notice")).to_contain_text("100 records marked to drop")
    page.goto("/?q=index:100-200")
    page.locator("#everything").click()
    drop = page.locator("db-grid").get_by_role("button", name="Drop")
    assert answer(page, drop.click) == "101 records will be marked to drop."


@pytest.mark.parametrize("path", ["/?selected=0-2", "/?view=record&index=0"])
def test_marks_bar_is_accessible_and_fits_a_narrow_window(tabs: Tabs, marked: Marked, axe: str, path: str) -> None:
    marks = [
        {"index": n, "name": f"{n:03}.jpg", "drop": n > 0, "label": "dog", "tags": ["blurry" * 20]} for n in (0, 1)
    ]
    marked.file.write_text("".join(f"{json.dumps(mark)}\n" for mark in marks))
    page = tabs.open(marked.site, path, color_scheme="light", reduced_motion="reduce")
    page.locator("#main > :not([hidden])").get_by_role("button", name="Drop").click()
    expect(page.locator("#notice")).to_contain_text("marked to drop")
    page.goto(path)
    check_page(page, axe)
