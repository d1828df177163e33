"""The site builds without warnings, shows all pages and public names, and loads nothing from other sites."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Request, sync_playwright

import dbloader
from tests.ext.browser.tabs import needing_a_browser
from tests.support.children import run_program

pytestmark = pytest.mark.xdist_group("site")

HERE = Path(__file__).resolve().parents[2]
# Options of a browser that sends requests only to the site.
QUIET = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
# Public modules other than dbloader itself, as docs/design.md lists them.
PUBLIC = ["decoding", "device", "images.tiled", "sampling", "errors", "loading.compat"]


def write_pages(folder: Path) -> None:
    run_program(sys.executable, HERE / "scripts" / "parts" / "site_pages.py", folder)


def build(folder: Path, status: int = 0) -> str:
    """Build the site of the pages in ``folder/site/pages``, and return what is printed to stderr."""
    shutil.copy(HERE / "mkdocs.yml", folder)
    program = [Path(sys.executable).parent / "zensical", "build", "--strict"]
    return run_program(*program, status=status, cwd=folder)[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_pages(folder / "site" / "pages")
    assert build(folder) == "No issues found\n"
    return folder / "site" / "html"


def navigation() -> set[str]:
    return set(re.findall(r"(\S+\.md)$", (HERE / "mkdocs.yml").read_text(), re.MULTILINE))


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert navigation() == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}


@pytest.mark.slow
def test_broken_link_stops_the_build(tmp_path: Path) -> None:
    write_pages(tmp_path / "site" / "pages")
    with (tmp_path / "site" / "pages" / "index.md").open("a") as page:
        page.write("[a heading that is not there](quickstart.md#nowhere)")
    assert "anchor does not exist" in build(tmp_path, status=1)


@pytest.mark.slow
def test_every_public_name_is_documented(site: Path) -> None:
    public = {f"dbloader.{name}" for name in dbloader.__all__ if name != "__version__"}
    for module in PUBLIC:
        exports = import_module(f"dbloader.{module}")
        own = [name for name, value in vars(exports).items() if getattr(value, "__module__", "") == exports.__name__]
        public |= {f"dbloader.{module}.{name}" for name in getattr(exports, "__all__", own)}
    described = {anchor for page in (site / "api").glob("*.html") for anchor in anchors(page)}
    # A name that dbloader also exports is documented on dbloader's page.
    missing = {name for name in public - described if f"dbloader.{name.rpartition('.')[2]}" not in described}
    assert missing == set()


def anchors(page: Path) -> list[str]:
    return re.findall(r'<h[23] id="([^"]+)"', page.read_text())


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Address of a local server that serves the built site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *message: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_site_loads_nothing_from_elsewhere_and_can_be_searched(address: str) -> None:
    executable = needing_a_browser()
    asked: list[str] = []
    problems: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=QUIET)
        page = browser.new_page()
        page.on("request", note)
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        for name in ("index.html", "benchmarks.html", "api/lmdbdataset.html"):
            page.goto(address + name)
            page.wait_for_load_state("networkidle")
        page.keyboard.press("/")
        page.keyboard.type("readahead")
        page.get_by_role("link", name="Design").last.wait_for()
        browser.close()
    assert problems == []
    assert {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()
