"""A folder of images and a store converted from it, for tests with the real torchvision.

``scripts/frameworks torchvision`` makes an environment with torchvision, timm and others, and runs these tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import convert
from tests.support import jpegs

LENGTH = 12


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of three classes, which torchvision and timm sort differently."""
    folder = tmp_path_factory.mktemp("images") / "folder"
    for number in range(LENGTH):
        place = folder / ("2", "10", "cats")[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        jpegs.draw(60 + number, 50, seed=number).save(place / f"{number}.jpg", quality=90)
    return folder


@pytest.fixture(scope="session")
def place(folder: Path) -> Path:
    place = folder.with_name("store.lmdb")
    convert(folder, place)
    return place
