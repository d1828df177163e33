"""A running viewer of two small stores, for the tests that attack it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from dbloader import convert
from tests.support.images import plant, plant_photos
from tests.support.viewer import ask, viewer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.viewer import Answer, Viewer


class Opened(NamedTuple):
    """A viewer whose link was opened, and the cookie that the browser got."""

    viewer: Viewer
    cookie: str

    def ask(self, target: str | bytes = "/", *lines: str, method: str = "GET", known: bool = True) -> Answer:
        """Ask as the page does; as another browser, if it is not ``known``."""
        cookies = [f"Cookie: {self.cookie}"] if known else []
        return ask(self.viewer.port, target, *cookies, *lines, method=method, host=f"127.0.0.1:{self.viewer.port}")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("viewed")
    plant(plant_photos(folder / "images", 4), {"cat/page.svg": b"<svg/>"})
    convert(folder / "images", folder / "a.lmdb")
    convert(folder / "images", folder / "b.lmdb")
    return folder / "a.lmdb", folder / "b.lmdb"


@pytest.fixture(scope="module")
def opened(stores: tuple[Path, Path]) -> Iterator[Opened]:
    with viewer(*stores, "--port", "0", DISPLAY="", WAYLAND_DISPLAY="") as running:
        at = f"127.0.0.1:{running.port}"
        first = ask(running.port, running.link.partition(at)[2], host=at)
        cookie, *attributes = first.headers["set-cookie"].split("; ")
        assert (first.status, sorted(attributes)) == (303, ["HttpOnly", "Path=/", "SameSite=Strict"])
        yield Opened(running, cookie)
