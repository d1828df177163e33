"""Measure the viewer's page in Chromium on a store of many records: its start, the End key, the heap over many scrolls.

python scripts/bench/many_records.py PLACE      makes such a store
python scripts/bench/viewer_browser.py PLACE [--scrolls 10000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Page

TRIALS = 10
EACH = 500  # number of scrolls between two measurements of the heap
# Milliseconds from a key press to the picture of the active record, by the page's own clock.
PRESS = """(key) => new Promise((resolve) => {
    const begin = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    const look = () => {
        const image = document.querySelector(".tile.active:not([hidden]) img");
        if (image?.complete && image.naturalWidth) resolve(performance.now() - begin);
        else requestAnimationFrame(look);
    };
    look();
})"""
# The Content Security Policy of the page forbids wait_for_function.
SHOWN = """() => new Promise((resolve) => {
    const look = () => document.querySelector(".tile img")?.naturalWidth
        ? resolve() : requestAnimationFrame(look);
    look();
})"""
SCROLL = """async (count) => {
    const list = document.querySelector("#tiles");
    for (let n = 0; n < count; n++) {
        list.scrollTop = Math.random() * list.scrollHeight;
        await new Promise(requestAnimationFrame);
    }
}"""


def start_s(page: Page, address: str) -> tuple[float, float]:
    """Return the seconds from asking for the page to its first picture, and to the counts of the side bar."""
    begin = time.perf_counter()
    page.goto(address)
    page.evaluate(SHOWN)
    first = time.perf_counter() - begin
    page.locator(".class").first.wait_for()
    return first, time.perf_counter() - begin


def heap(page: Page, session: Any) -> str:
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return f"{found['JSHeapUsedSize'] / 1e6:.2f} MB, {found['Nodes']:.0f} nodes"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the viewer's page in Chromium.")
    parser.add_argument("place")
    parser.add_argument("--scrolls", type=int, default=10_000)
    parser.add_argument("--chromium", default=os.environ.get("DBLOADER_CHROMIUM", "/usr/bin/chromium"))
    options = parser.parse_args()
    command = [sys.executable, "-m", "dbloader", "view", options.place, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            measure(server, options.chromium, options.scrolls)
        finally:
            server.terminate()


def measure(server: subprocess.Popen[str], executable: str, most: int) -> None:
    with sync_playwright() as playwright:
        assert server.stdout is not None
        link = next(line.split()[1] for line in server.stdout if line.startswith("Open "))
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        address = link.partition("?")[0]
        print("from asking for the page to its first picture, and to the counts of the side bar:")
        print("first start {:.2f} s, {:.2f} s".format(*start_s(page, f"{link}&view=grid")))
        print("next start  {:.2f} s, {:.2f} s".format(*min(start_s(page, address) for _ in range(3))))
        first = page.evaluate(PRESS, "End")
        times = []
        for trial in range(TRIALS):
            page.goto(f"{address}?q=height>{trial + 1}")  # pictures and rows of another search are asked for again
            page.evaluate(SHOWN)
            times.append(page.evaluate(PRESS, "End"))
        print(f"End to the last picture: first {first:.0f} ms, then median {statistics.median(times):.0f} ms")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.goto(address)
        page.evaluate(SHOWN)
        for scrolls in range(0, most + 1, EACH):
            print(f"heap after {scrolls:6,} scrolls: {heap(page, session)}")
            if scrolls < most:
                page.evaluate(SCROLL, EACH)
        browser.close()


if __name__ == "__main__":
    main()
