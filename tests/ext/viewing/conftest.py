"""A running viewer of two small stores, the second of which is hostile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dbloader import Record, convert
from tests.support.images import photo, plant_photos
from tests.support.stores import store_records
from tests.support.viewer import Answer, Viewer, ask, viewer

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
HTML = b"<!doctype html><script>alert(1)</script>"


class Opened(NamedTuple):
    """A viewer whose link was opened, and the cookie of the browser."""

    viewer: Viewer
    cookie: str

    def ask(self, target: str | bytes = "/", *lines: str, method: str = "GET", known: bool = True) -> Answer:
        """Send a request, with the cookie if the browser is ``known``."""
        cookies = [f"Cookie: {self.cookie}"] if known else []
        return ask(self.viewer.port, target, *cookies, *lines, method=method, host=f"127.0.0.1:{self.viewer.port}")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("viewed")
    convert(plant_photos(folder / "images", 4), folder / "a.lmdb")
    hostile = (Record(image=SVG, name="drawing.svg"), Record(image=HTML, name='x"\r\nSet-Cookie: a=b\r\n\r\n.html'))
    store_records(folder / "b.lmdb", (Record(image=photo(), name="a.jpg"), Record(image=None), *hostile))
    return folder / "a.lmdb", folder / "b.lmdb"


@pytest.fixture(scope="module")
def opened(stores: tuple[Path, Path]) -> Iterator[Opened]:
    with viewer(*stores, "--port", "0", DISPLAY="", WAYLAND_DISPLAY="") as running:
        at = f"127.0.0.1:{running.port}"
        first = ask(running.port, running.link.partition(at)[2], host=at)
        cookie, *attributes = first.headers["set-cookie"].split("; ")
        assert (first.status, sorted(attributes)) == (303, ["HttpOnly", "Path=/", "SameSite=Strict"])
        yield Opened(running, cookie)
