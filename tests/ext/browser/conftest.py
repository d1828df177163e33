"""A real browser, and a running viewer."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from dbloader.conversion.convert import convert
from tests.ext.browser.tabs import WAIT_MS, Site, Tabs, needing_a_browser, skip_or_fail
from tests.support.damaged import flip
from tests.support.images import photo, plant, plant_photos
from tests.support.viewer import viewer

CLASSES = {"cat": 90, "dog": 60, "maine coon": 30}
FLIPPED = 3  # index of the damaged record


@pytest.hookimpl(tryfirst=True)  # runs before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of this folder in one process, so they share one browser."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of this folder.

    It is closed after them, because Playwright's event loop disturbs other tests.
    """
    executable = needing_a_browser()
    expect.set_options(timeout=WAIT_MS)
    quiet = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", *quiet])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def photos(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    """A viewer of two stores.

    One has 180 photographs in three classes, one repaired and one damaged; the other has six.
    """
    folder = tmp_path_factory.mktemp("photos")
    number = iter(range(1000))
    files = {
        f"{name}/{name[0]}_{index:03}.jpg": photo(seed, 40 + seed % 60, 30 + seed % 20)
        for name, count in CLASSES.items()
        for index, seed in zip(range(count), number, strict=False)
    }
    files["dog/d_005.jpg"] = files["dog/d_005.jpg"][:-2]
    convert(plant(folder / "files", files), folder / "photos.lmdb")
    flip(folder / "photos.lmdb", files[f"cat/c_{FLIPPED:03}.jpg"])
    convert(plant_photos(folder / "other files", 6), folder / "other.lmdb")
    with viewer(folder / "photos.lmdb", folder / "other.lmdb", "--no-open") as running:
        yield Site.entered(chromium, running.link)


@pytest.fixture
def tabs(chromium: Browser) -> Iterator[Tabs]:
    """Opens pages. The test fails if a page reports an error or sends a request to another host."""
    opened = Tabs(chromium)
    yield opened
    opened.close()
    assert not opened.complaints


@pytest.fixture(scope="package")
def axe() -> str:
    if find_spec("axe_playwright_python") is None:
        skip_or_fail("axe-playwright-python is not installed: it checks the accessibility of the pages")
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


@pytest.fixture
def damaged() -> str:
    """Pattern of the requests that fail because a picture is damaged."""
    return rf"/thumb/0/{FLIPPED}\?"
