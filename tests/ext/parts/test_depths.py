"""Appending deep images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dbloader import ImageFormat, convert
from tests.conversion.test_depths import root  # noqa: F401 - a fixture
from tests.ext.parts.test_shards import Here
from tests.support.images import plant_photos


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("raw", [False, True])
def test_append_warns_of_its_own_deep_images(
    root: Path,  # noqa: F811
    tmp_path: Path,
    place: Path,
    shards: int | None,
    raw: bool,
) -> None:
    base, images = (ImageFormat(raw=True), None) if not raw else (None, ImageFormat(raw=True))
    convert(plant_photos(tmp_path / "old", 3), place, shards=1, images=base, executor=Here())
    report = convert(root, place, append=True, shards=shards, images=images, executor=Here())
    lost = r"^2 images have more than 8 bits per value, and only the upper 8 bits are stored: leave out raw"
    kept = r"^3 images have values of more than 8 bits"
    assert re.match(lost if raw else kept, report.warnings[-1])
