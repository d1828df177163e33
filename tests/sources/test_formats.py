"""Files of all formats that Pillow opens safely are taken from folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

from dbloader import LMDBDataset
from dbloader.conversion.convert import convert
from dbloader.images.pillow import FORMATS
from dbloader.sources.folder import EXTENSIONS, IMAGE_EXTENSIONS
from tests.support import jpegs
from tests.support.conversion import events, records
from tests.support.images import encoded, multi_picture, plant

if TYPE_CHECKING:
    from pathlib import Path


def test_each_extension_is_of_a_format_that_is_opened_and_no_format_is_left_out() -> None:
    Image.init()
    formats = {Image.EXTENSION.get(extension, "HEIF") for extension in IMAGE_EXTENSIONS}
    assert formats == {*FORMATS, "MPO", "HEIF"}
    assert IMAGE_EXTENSIONS[: len(EXTENSIONS)] == EXTENSIONS


@pytest.mark.parametrize("name", ["GIF", "AVIF", "JPEG2000", "TGA", "ICO", "QOI", "PCX"])
def test_a_folder_of_a_format_becomes_a_store_that_is_decoded(tmp_path: Path, name: str) -> None:
    extensions = [extension for extension in IMAGE_EXTENSIONS if Image.EXTENSION.get(extension) == name]
    data = encoded(jpegs.draw(24, 18), name)
    plant(tmp_path / "images", {f"cat/1{extension.upper()}": data for extension in extensions})
    report = convert(tmp_path / "images", tmp_path / "out.lmdb")
    assert (report.records, report.rejected, report.skipped) == (len(extensions), 0, {})
    assert {(record.format, record.image) for record in records(report.place)} == {(name, data)}
    with LMDBDataset(tmp_path / "out.lmdb") as dataset:
        image, label = dataset[0]
    assert (image.size, label) == ((24, 18) if name != "ICO" else image.size, 0)


def test_of_an_animation_the_first_frame_is_taken_with_a_remark(tmp_path: Path) -> None:
    frames = [jpegs.draw(24, 18, seed=seed).quantize() for seed in range(3)]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    plant(tmp_path / "images", {"cat/1.gif": animation, "cat/2.mpo": multi_picture()})
    report = convert(tmp_path / "images", tmp_path / "out.lmdb")
    assert events(report.place) == [
        {"name": "cat/1.gif", "event": "frames", "reason": "has several frames or pages: decoded is the first"}
    ]
    assert report.warnings[0].startswith("1 file has several frames or pages, of which the first is decoded")
