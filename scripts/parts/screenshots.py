"""Write screenshots of the viewer, in a real browser, on stores of photographs.

python scripts/parts/screenshots.py FOLDER [NAME ...]
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

HERE = Path(__file__).resolve().parents[2]
MOST_BYTES = 150_000  # limit for a picture, because a page with several pictures must load fast
CHROMIUM = os.environ.get("DBLOADER_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
QUIET = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
DESK, PHONE = (1280, 800), (390, 760)


class Shot(NamedTuple):
    """A picture: what comes after the address of the page, the size in CSS pixels, and "light" or "dark"."""

    query: str
    size: tuple[int, int] = DESK
    scheme: Literal["light", "dark"] = "light"
    stores: tuple[str, ...] = ("train.lmdb", "val.lmdb")


KEPT = {"viewer": Shot("?view=overview")}  # in docs/images
SHOTS = {  # only for the site
    "viewer-dark": Shot("?q=width%3E%3D400+-class%3Acat&px=140&sort=-loss", scheme="dark"),
    "viewer-phone": Shot("?px=120&sort=-loss", PHONE),
    "viewer-record": Shot("?view=record&index=8&draw=boxes,tiles", stores=("objects.lmdb",)),
    "viewer-training": Shot("?view=training&batch_size=16&seed=0&epoch=0&step=3"),
}


def make_stores(folder: Path) -> None:
    """Make train.lmdb and val.lmdb, and objects.lmdb, which has boxes."""

    def run(*words: str | Path) -> None:
        # The exit status is 1, because a few files are damaged.
        assert subprocess.run([sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL).returncode in (0, 1)

    run(HERE / "scripts" / "parts" / "photographs.py", "photographs")
    options: dict[str, tuple[str, ...]] = {
        "train": (),
        "val": (),
        "objects": ("--listing", "photographs/objects.jsonl"),
    }
    for name, more in options.items():
        run("-m", "dbloader", "convert", f"photographs/{name}", f"{name}.lmdb", "--tile", "--quiet", *more)


@contextmanager
def viewer(folder: Path, stores: tuple[str, ...]) -> Iterator[str]:
    """Run the viewer, and yield its link."""
    more = ["--with", "photographs/predictions.csv"] if "train.lmdb" in stores else []
    program = [sys.executable, "-m", "dbloader", "view", *stores, "--no-open", *more]
    process = subprocess.Popen(
        program,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the viewer prints "Interrupted"
        text=True,
        env={**os.environ, "DISPLAY": ":0"},
    )
    assert process.stdout is not None
    try:
        yield next(line for line in process.stdout if line.startswith("Open ")).removeprefix("Open ").strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def take(browser: Browser, address: str, cookies: Any, shot: Shot) -> Image.Image:
    width, height = shot.size
    scale = 1.5 if shot.size == DESK else 2
    context = browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale, color_scheme=shot.scheme
    )
    context.add_cookies(cookies)
    page = context.new_page()
    page.on("console", lambda message: print(shot, message.text) if message.type == "error" else None)
    page.goto(address + shot.query)
    page.wait_for_load_state("networkidle")
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    context.close()
    return picture


def save(picture: Image.Image, path: Path) -> None:
    for quality in (90, 80, 70, 60, 50, 40):
        picture.save(path, quality=quality, method=6)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{path} has {path.stat().st_size:,} bytes")


def take_all(folder: Path, shots: dict[str, Shot], target: Path) -> None:
    """Take pictures of the stores in a folder."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for name, shot in shots.items():
            with viewer(folder, shot.stores) as link, browser.new_context() as first:
                first.new_page().goto(link)
                save(take(browser, link.partition("?")[0], first.cookies(), shot), target / f"{name}.webp")
        browser.close()


def main(target: Path, names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="dbloader-") as folder:
        make_stores(Path(folder))
        take_all(Path(folder), {name: (KEPT | SHOTS)[name] for name in names or SHOTS}, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
