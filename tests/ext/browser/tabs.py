"""Open pages in a browser, and collect their errors and requests."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, NamedTuple, NoReturn

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, StorageState

WAIT_MS = 30_000  # on an idle machine every wait ends within a second


def needing_a_browser() -> str:
    """Return Chromium's executable. Without one, skip the test, or fail it in CI."""
    names = (os.environ.get("DBLOADER_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        skip_or_fail("no Chromium: install it (Debian: apt install chromium), or name it in DBLOADER_CHROMIUM")
    return found


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test because something is missing, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Site(NamedTuple):
    """A running viewer, and the cookies of a browser that has opened its link."""

    address: str
    cookies: StorageState

    @classmethod
    def entered(cls, chromium: Browser, link: str) -> Site:
        context = chromium.new_context()
        context.new_page().goto(link, wait_until="commit")
        site = cls(link.partition("/?")[0], context.storage_state())
        context.close()
        return site


class Tabs:
    """Opens pages, each with its own cookies, and collects their errors."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def open(self, site: Site, path: str = "/", *, refused: str = "(?!)", script: str = "", **options: Any) -> Page:
        """Open a page, and run ``script`` first. Requests that match ``refused`` may be answered by errors."""
        context = self._chromium.new_context(storage_state=site.cookies, base_url=site.address, **options)
        self._contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(script)
        page = context.new_page()

        def on_message(message: ConsoleMessage) -> None:
            # on_response() checks failed requests.
            if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
                self.complaints.append(f"{message.type}: {message.text}")

        def on_response(response: Response) -> None:
            if response.status >= 400 and not re.search(refused, response.url):
                self.complaints.append(f"{response.status}: {response.url}")

        def on_request(request: Request) -> None:
            if not request.url.startswith((f"{site.address}/", "blob:")):
                self.complaints.append(f"request to {request.url}")

        page.on("console", on_message)
        page.on("pageerror", lambda error: self.complaints.append(f"{error.name}: {error.message}\n{error.stack}"))
        page.on("response", on_response)
        page.on("request", on_request)
        page.goto(path)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
