"""The training view in a browser: its crops, steps and pasted states."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from dbloader.sampling import ShuffleSampler
from tests.ext.browser.conftest import CLASSES, FLIPPED
from tests.ext.browser.tabs import Site, Tabs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LENGTH = sum(CLASSES.values())
PAGE = "/?view=training&batch_size=8&size=32"
REFUSED = rf"/thumb/0/{FLIPPED}\?|/api/0/training\?.*state=(wrong|%7B)"


@pytest.fixture
def page(tabs: Tabs, photos: Site) -> Page:
    opened = tabs.open(photos, PAGE, refused=REFUSED)
    at(opened, "Epoch 0, step 0")
    return opened


def at(page: Page, text: str) -> None:
    """Wait until a batch is shown."""
    expect(page.locator("db-training .where")).to_contain_text(text)


def asked(page: Page, path: str) -> Any:
    return page.evaluate("path => fetch(path).then((reply) => reply.json())", path)


def parameter(page: Page, name: str) -> str | None:
    found: str | None = page.evaluate("name => new URLSearchParams(location.search).get(name)", name)
    return found


def shown(page: Page) -> list[int]:
    """Return the indices of the records that are shown."""
    return [int(text) for text in page.locator(".samples li > div:nth-of-type(2) > b").all_inner_texts()]


def state_of(page: Page, **changes: Any) -> dict[str, Any]:
    digest = asked(page, "/api/stores")[0]["digest"]
    return {**ShuffleSampler(range(LENGTH), 1, 0, seed=9).state_after(48), "dataset": digest, **changes}


def test_rectangles_show_the_crops_of_the_batch(page: Page) -> None:
    batch = asked(page, "/api/0/training?batch_size=8&size=32")
    assert shown(page) == batch["indices"]
    for place, sample in enumerate(batch["samples"]):
        pair = page.locator(".samples li").nth(place)
        pair.scroll_into_view_if_needed()
        expect(pair.get_by_text("flipped", exact=True)).to_have_count(int(sample["flip"]))
        picture, box = (pair.locator(name).bounding_box() for name in (".original", ".crop"))
        assert picture is not None
        assert box is not None
        assert picture["width"] / picture["height"] == pytest.approx(sample["size"][0] / sample["size"][1], rel=0.02)
        left, top, width, height = sample["crop"]
        scale = picture["width"] / sample["size"][0]
        inside = [box["x"] - picture["x"], box["y"] - picture["y"], box["width"], box["height"]]
        assert inside == pytest.approx([left * scale, top * scale, width * scale, height * scale], abs=1)
        seen = pair.get_by_alt_text("Input of the neural network")
        expect(seen).to_be_visible()
        assert seen.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [32, 32]


def test_keys_and_buttons_go_through_steps_and_epochs(page: Page) -> None:
    page.keyboard.press("ArrowRight")
    at(page, "Epoch 0, step 1 ")
    assert parameter(page, "step") == "1"
    page.get_by_role("button", name="Next step").click()
    at(page, "Epoch 0, step 2 ")
    page.keyboard.press("Enter")  # the button still has the focus
    at(page, "Epoch 0, step 3 ")
    page.keyboard.press("ArrowLeft")
    at(page, "Epoch 0, step 2 ")
    page.goto(f"{PAGE}&step=21")
    at(page, "step 21 (0 to 21)")
    page.keyboard.press("ArrowRight")
    at(page, "Epoch 1, step 0 ")
    page.keyboard.press("ArrowLeft")
    at(page, "Epoch 0, step 21 ")
    page.go_back()
    at(page, "Epoch 1, step 0 ")


def test_form_can_be_filled_by_keyboard(page: Page) -> None:
    page.get_by_label("Seed").focus()
    page.keyboard.press("ArrowRight")  # moves the text cursor, and does not change the step
    page.keyboard.press("Backspace")
    page.keyboard.type("7")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Epoch", exact=True)).to_be_focused()
    expect(page.locator(".samples b").first).to_have_text(
        str(asked(page, "/api/0/training?seed=7&batch_size=8")["indices"][0])
    )
    assert (parameter(page, "seed"), parameter(page, "step")) == ("7", None)
    page.get_by_text("Several GPUs, the last batch, a saved state").click()
    page.get_by_label("Drop the last").press("Space")
    page.get_by_label("Step", exact=True).fill("22")
    page.keyboard.press("Enter")
    at(page, "step 22 (0 to 22): 4 images")


def test_pasted_state_shows_the_next_batches(page: Page) -> None:
    state = state_of(page)
    page.get_by_text("Several GPUs, the last batch, a saved state").click()
    page.get_by_label("A state_dict() of the loader").fill(str(state))  # in Python's syntax, as print() shows a dict
    page.get_by_role("button", name="Show").click()
    at(page, "Epoch 0, step 0 (0 to 15 after the state): 8 images")
    sampler = ShuffleSampler(range(LENGTH), 1, 0, seed=9)
    assert shown(page) == list(sampler)[48:56]
    expect(page.get_by_label("Seed")).to_have_value("9")
    expect(page.get_by_label("Seed")).to_be_disabled()
    page.reload()  # the state is in the URL
    page.get_by_label("Step", exact=True).fill("15")
    page.keyboard.press("Enter")
    at(page, "step 15 ")
    assert shown(page) == list(sampler)[168:176]
    page.keyboard.press("Escape")  # leave the field, where arrows move the cursor
    page.keyboard.press("ArrowRight")
    at(page, "Epoch 1, step 0 ")
    sampler.set_epoch(1)
    assert shown(page) == list(sampler)[:8]
    page.get_by_role("button", name="Remove the state").click()
    expect(page.get_by_label("Seed")).to_be_enabled()


def test_invalid_pasted_state_shows_an_error(page: Page) -> None:
    text = json.dumps(state_of(page, dataset="abc"))
    page.goto(f"{PAGE}&state={quote(text)}")
    error = "the state belongs to another dataset, with the digest abc: "
    expect(page.locator("db-training").get_by_role("alert")).to_contain_text(error)
    expect(page.locator(".samples")).to_have_count(0)
    expect(page.get_by_label("A state_dict() of the loader")).to_have_value(text)


def test_damaged_record_shows_an_error_only_in_its_own_cell(page: Page) -> None:
    position = [*ShuffleSampler(range(LENGTH), 1, 0)].index(FLIPPED)
    page.goto(f"{PAGE}&drop_last=0&step={position // 8}")
    at(page, f"step {position // 8} ")
    page.locator(f'[data-position="{position}"]').scroll_into_view_if_needed()
    expect(page.locator(f'[data-position="{position}"] .error')).to_contain_text("is damaged")
    expect(page.locator("db-training .error")).to_have_count(1)
