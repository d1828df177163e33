"""The view of one record, and the report of the conversion, in a browser."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from dbloader import Record, convert
from tests.ext.browser.tabs import Site, Tabs
from tests.ext.browser.test_pages import check_page
from tests.support.damaged import flip
from tests.support.images import encoded, photo, plant
from tests.support.stores import store_records
from tests.support.viewer import viewer

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BOX = (40, 20, 100, 60)
TIMES = "\N{MULTIPLICATION SIGN}"
TIFF, BROKEN, EMPTY, SVG = 8, 9, 10, 11


def scene() -> Image.Image:
    image = Image.new("RGB", (160, 120), (0, 0, 250))
    image.paste((250, 0, 0), BOX)
    return image


def turned(orientation: int) -> Record:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = orientation, "Came\x1bra <b>"
    data = encoded(scene(), "JPEG", exif=exif, quality=95, restart_marker_rows=1)
    mask = Image.new("L", (160, 120))
    mask.paste(1, BOX)
    if orientation > 4:
        mask = mask.transpose(Image.Transpose.ROTATE_90)
    fields = {
        "boxes": np.array([BOX], np.float32), "box_labels": np.array([1]), "caption": "<i>red</i> on\nblue",
        "mask": encoded(mask, "PNG"), "score": 0.1 + 0.2, "vector": np.arange(100) / 7,
        "embedding": (np.arange(768) / 7).astype(np.float32),
    }  # fmt: skip
    return Record(f"cat/{orientation}.jpg", 0, data, 160, 120, "JPEG", fields=fields)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "kinds.lmdb"
    records = [
        *map(turned, range(1, 9)), Record("dog/a.tif", 1, encoded(scene(), "TIFF"), 160, 120, "TIFF"),
        Record("dog/broken.jpg", 1, photo(77)), Record("dog/text", 1, fields={"caption": "no image"}),
        Record("dog/x.svg", 1, b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
    ]  # fmt: skip
    store_records(path, records, classes=("cat", "a dog 🐕 of a class"), source={"file_fields": ["mask"]})
    flip(path, photo(77))
    return path


@pytest.fixture(scope="module")
def site(place: Path, chromium: Browser) -> Iterator[Site]:
    with viewer(place, "--no-open") as running:
        yield Site.entered(chromium, running.link)


def pixel(page: Page, x: float, y: float) -> tuple[int, ...]:
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return tuple(shot.getpixel((round(x), round(y))))  # type: ignore[arg-type] # of RGB it is a tuple


def red(color: tuple[int, ...]) -> bool:
    return color[0] > 200 and max(color[1:]) < 60


def test_boxes_are_drawn_in_place_for_every_orientation(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=0")
    assert page.locator("db-record rect").get_attribute("stroke") == "hsl(137.5, 95%, 60%)"
    for index in range(8):
        expect(page.locator("db-record h1")).to_have_text(f"cat/{index + 1}.jpg")
        box, frame = page.locator("db-record rect").bounding_box(), page.locator(".view .frame").bounding_box()
        expect(page.locator(".view img").first).to_have_js_property("complete", True)
        assert box
        assert frame
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        assert red(pixel(page, x, y)), index
        assert not red(pixel(page, 2 * frame["x"] + frame["width"] - x, 2 * frame["y"] + frame["height"] - y)), index
        assert (box["width"] > box["height"]) == (frame["width"] > frame["height"])
        page.keyboard.press("ArrowRight")


def test_fields_of_a_record_are_shown_as_text(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=0")
    expect(page.locator("db-record h1")).to_have_text("cat/1.jpg")
    rows = {
        row.locator("th").inner_text(): row.locator("td").inner_text()
        for row in page.locator("db-record tbody tr:has(th)").all()
    }
    first = ", ".join(f"{n / 7:.6g}" for n in range(8))
    expected = {
        "index": "0", "class": "cat", "label": "0", "pixels": f"160 {TIMES} 120", "format": "JPEG",
        "checksum": "CRC-32 verified", "caption": "<i>red</i> on\nblue", "Make": "Came\\u001bra <b>",
        "structure": "complete", "tile": f"160 {TIMES} 16 pixels", "boxes": "40, 20, 100, 60",
            "box_labels": "a dog 🐕 of a class",
        "score": "0.3", "vector": f"{first}, … (100 values) Similar images",
        "embedding": f"float32 array of shape (768,): {first}, … Similar images",
    }  # fmt: skip
    assert expected.items() <= rows.items()
    names = [*rows]
    assert names.index("mask") < min(map(names.index, ("boxes", "caption", "score")))
    expect(page.locator("td", has_text=re.compile(r"^0\.3$"))).to_have_attribute("title", "0.30000000000000004")


def test_url_contains_the_shown_layers(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=0")
    expect(page.locator("db-record rect")).to_have_count(1)
    page.get_by_label("1 box", exact=True).uncheck()
    page.get_by_label(f"1 {TIMES} 8 tiles").check()
    page.keyboard.press("m")
    for _ in range(2):
        expect(page.locator("db-record rect")).to_have_count(0)
        expect(page.locator("db-record path.tiles")).to_have_count(1)
        expect(page.locator("db-record img.mask")).to_be_visible()
        page.reload()
    expect(page.locator("db-record img.mask")).to_be_visible()
    expect(page.locator(".legend li")).to_have_text([re.compile(r"^ 0 \d+ %$"), re.compile(r"^ 1 [\d.]+ %$")])
    colors = page.locator(".legend i").evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert colors == ["rgba(0, 0, 0, 0)", "rgb(67, 151, 211)"]
    page.get_by_label("Opacity").fill("25")
    expect(page.locator("db-record img.mask")).to_have_css("opacity", "0.25")
    assert "opacity=25" in page.url
    page.get_by_label("side by side").check()
    image = page.locator(".frame img:first-child").bounding_box()
    mask = page.locator(".frame img.mask").bounding_box()
    assert image
    assert mask
    assert mask["x"] >= image["x"] + image["width"]
    assert mask["width"] == pytest.approx(image["width"], abs=1)
    page.get_by_label("side by side").uncheck()
    page.keyboard.press("z")
    expect(page.locator(".view .frame")).to_have_css("width", "160px")
    page.keyboard.press("z")
    expect(page.locator(".view .frame")).not_to_have_css("width", "160px")


def test_arrow_keys_go_through_the_records_of_the_search(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=6&q=class:cat")
    expect(page.get_by_text("7 of 8", exact=True)).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("8 of 8", exact=True)).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("db-record h1")).to_have_text("cat/7.jpg")
    page.get_by_role("link", name="← Previous").click()
    expect(page.locator("db-record h1")).to_have_text("cat/6.jpg")
    page.keyboard.press("Escape")
    expect(page.locator("db-grid")).to_contain_text("8 of 12 records")
    page.goto("/?view=record&index=9&q=class:cat")
    expect(page.get_by_text("not in this search", exact=True)).to_be_visible()


def test_damaged_record_shows_a_message_and_the_page_still_works(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, f"/?view=record&index={BROKEN}", refused="/record/12$")
    expect(page.get_by_role("alert").filter(has_text="record 9 (dog/broken.jpg)")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("This record has no image.")).to_be_visible()
    expect(page.get_by_role("cell", name="no image")).to_be_visible()
    page.goto("/?view=record&index=12")
    expect(page.get_by_role("alert").filter(has_text="no record 12 in")).to_be_visible()


def test_image_that_browsers_cannot_show_is_rendered_or_downloaded(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, f"/?view=record&index={TIFF}", refused=f"/thumb/0/{SVG}")
    expect(page.get_by_text("browsers do not show TIFF")).to_be_visible()
    expect(page.locator(".view img")).to_have_js_property("naturalWidth", 160)
    page.goto(f"/?view=record&index={SVG}")
    expect(page.get_by_role("alert").filter(has_text="in no known image format")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").first.click()
    assert download.value.suggested_filename == "x.svg"


def test_copied_code_reads_the_record(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=3", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy this code").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    names: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    assert names["record"].name == "cat/4.jpg"
    names["store"].close()


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("report")
    files = {f"cat/{n:03}.jpg": photo(n)[:-2] for n in range(210)}
    files |= {f"dog/{n:03}.jpg": f"<b>{n}</b>".encode() for n in range(20)}
    files["dog/half.jpg"] = photo(3, 200, 150)[:-800]
    convert(plant(folder / "images", {**files, "dog/whole.jpg": photo(1)}), folder / "a.lmdb", on_damaged="keep")
    with viewer(folder / "a.lmdb", "--no-open") as running:
        yield Site.entered(chromium, running.link)


def test_report_is_searched_and_links_to_records(tabs: Tabs, reported: Site) -> None:
    page = tabs.open(reported, "/?view=report")
    expect(page.get_by_text("1 to 200 of 231 lines")).to_be_visible()
    page.get_by_role("link", name="Next lines →").click()
    expect(page.get_by_text("201 to 231 of 231 lines")).to_be_visible()
    page.get_by_role("button", name="rejected 20").click()
    expect(page.get_by_text("1 to 20 of 20 lines")).to_be_visible()
    expect(page.locator("db-report tbody")).to_contain_text("b'<b>0'")
    expect(page.locator("db-report tbody a")).to_have_count(0)
    page.get_by_role("button", name="all 231").click()
    search = page.get_by_role("searchbox", name="Search names and reasons")
    search.fill("CAT/017")
    search.press("Enter")
    expect(page.get_by_text("1 to 1 of 1 lines")).to_be_visible()
    page.get_by_role("link", name="cat/017.jpg").click()
    expect(page.locator("db-record h1")).to_have_text("cat/017.jpg")
    page.get_by_role("link", name="This record in the report").click()
    expect(search).to_have_value("cat/017.jpg")
    expect(page.get_by_text("1 to 1 of 1 lines")).to_be_visible()
    page.go_back()
    page.go_back()
    expect(search).to_have_value("CAT/017")


def test_record_without_a_line_has_no_link_to_the_report(tabs: Tabs, reported: Site) -> None:
    for index, name, links in ((210, "dog/half.jpg", 1), (211, "dog/whole.jpg", 0)):
        page = tabs.open(reported, f"/?view=record&index={index}")
        expect(page.locator("db-record h1")).to_have_text(name)
        expect(page.locator("db-record .sheet")).to_be_visible()
        expect(page.get_by_role("link", name="This record in the report")).to_have_count(links)


def test_overview_tells_stored_damaged_images_from_rejected_files(tabs: Tabs, reported: Site) -> None:
    page = tabs.open(reported, "/?view=overview")
    card = page.locator(".card", has=page.get_by_role("heading", name="Damaged"))
    expect(card.locator("p.muted")).to_have_text("stored as they were; 20 more files rejected")


def test_image_kept_despite_damage_is_marked(tabs: Tabs, reported: Site) -> None:
    page = tabs.open(reported, "/?view=report&event=damaged")
    page.get_by_role("link", name="dog/half.jpg").click()
    expect(page.locator("db-record .damage")).to_have_text(
        re.compile("^The image was damaged before the conversion and is stored unchanged: (?!is damaged)")
    )


@pytest.mark.parametrize("path", ["/?q=index:0-7&px=160", "/?view=training&batch_size=4&q=index:0-7"])
def test_grid_and_training_view_draw_boxes_and_masks_on_request(tabs: Tabs, site: Site, path: str, axe: str) -> None:
    page = tabs.open(site, path, refused=r"/(seen|thumb)/", color_scheme="light", reduced_motion="reduce")
    picture = page.locator("main > :not([hidden]) img:visible").first
    expect(picture).not_to_have_attribute("src", re.compile("over="))
    page.get_by_label("boxes").check()
    expect(picture).to_have_attribute("src", re.compile("over=boxes&"))
    page.get_by_label("mask").check()
    expect(picture).to_have_attribute("src", re.compile("over=boxes%2C0&"))
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 0
    check_page(page, axe)
    page.get_by_label("boxes").uncheck()
    assert page.url.endswith("over=0")


def test_similar_images_are_shown_as_a_sorted_grid(tabs: Tabs, site: Site) -> None:
    page = tabs.open(site, "/?view=record&index=3", refused="/thumb/")
    page.locator("db-record tr", has_text="embedding").get_by_role("link", name="Similar images").click()
    expect(page.locator("#sort option:checked")).to_have_text("similar to 3 by embedding")
    expect(page.locator("#tiles .tile").first.locator(".facts")).to_contain_text("0 ·cat")
    page.locator("#direction").click()
    expect(page.locator("#sort option:checked")).to_have_text("similar to 3 by embedding")
    page.keyboard.press("g")
    page.get_by_label("index").fill("5")
    page.get_by_label("index").press("Enter")
    expect(page.locator("#tiles-5")).to_be_visible()


def test_two_numbers_choose_the_values_of_a_16_bit_image_that_are_shown(
    tmp_path: Path, chromium: Browser, tabs: Tabs, axe: str
) -> None:
    values = np.linspace(1000, 5000, 64).astype(np.uint16)[None].repeat(48, 0)
    records = [
        Record(f"{number}.x", 0, encoded(Image.fromarray(values), kind), 64, 48, kind, fields={"depth": depth})
        for number, (kind, depth) in enumerate(
            {"PNG": encoded(Image.fromarray(values * 2), "PNG"), "TIFF": None}.items()
        )
    ]
    store_records(tmp_path / "deep.lmdb", records, classes=("scan",), source={"file_fields": ["depth"]})
    with viewer(tmp_path / "deep.lmdb", "--no-open") as running:
        page = tabs.open(Site.entered(chromium, running.link), "/?view=record&index=0&draw=none")
        row, white = page.locator(".window").first, page.get_by_label("White in the image")
        expect(row).to_contain_text("Values of the image: 1,000 to 5,000.")
        expect(page.locator(".window").last).to_contain_text("Values of depth: 2,000 to 10,000.")
        frame = page.locator(".view .frame").bounding_box()
        assert frame

        def shown() -> list[int]:
            """Return the brightness at the left end, in the middle, and at the right end."""
            page.locator(".view img:not(.mask)").evaluate("image => image.decode()")
            y = frame["y"] + frame["height"] / 2
            return [pixel(page, frame["x"] + frame["width"] * part, y)[0] for part in (0.02, 0.5, 0.98)]

        assert shown() == pytest.approx([5, 128, 250], abs=12)
        white.fill("2000")
        white.press("Enter")
        expect(page).to_have_url(re.compile("window=1000%2C2000"))
        assert shown() == pytest.approx([20, 255, 255], abs=30)
        white.fill("900")
        white.press("Enter")
        expect(page.locator("#notice")).to_have_text("The value for black must be less than the value for white.")
        page.get_by_role("link", name="Next").click()  # the values stay, for slices of a scan
        expect(page.locator("db-record h1")).to_have_text("1.x")
        expect(white).to_have_value("2000")
        page.locator(".window button").click()
        expect(white).to_have_value("5000")
        assert shown() == pytest.approx([5, 128, 250], abs=12)
        check_page(page, axe)
