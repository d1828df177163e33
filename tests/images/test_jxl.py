"""JPEG XL images are converted and decoded with pillow-jxl-plugin."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from dbloader import convert
from dbloader.decoding import decode_pil
from dbloader.errors import ImageError
from dbloader.images.check import check_image
from tests.support.children import from_child
from tests.support.conversion import records, report_lines
from tests.support.images import photo, plant
from tests.support.jpegs import draw

pytest.importorskip("pillow_jxl")


def jxl(mode: str = "RGB", *, lossless: bool = True) -> bytes:
    stream = io.BytesIO()
    draw(64, 48, mode, 1).save(stream, "JXL", lossless=lossless)
    return stream.getvalue()


def test_jpeg_xl_is_stored_unchanged_and_decoded_to_the_pixels_of_pillow(tmp_path: Path) -> None:
    root = plant(tmp_path / "images", {"cat/1.jxl": jxl(), "dog/2.JXL": jxl("L")})
    report = convert(root, tmp_path / "o.lmdb")
    first, second = records(tmp_path / "o.lmdb")
    assert (report.records, first.image, second.image) == (2, jxl(), jxl("L"))
    assert (first.format, first.width, first.height) == ("JXL", 64, 48)
    assert np.array_equal(np.asarray(decode_pil(jxl())), np.asarray(draw(64, 48, "RGB", 1)))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("lossless", [False, True])
def test_jpeg_xl_that_is_cut_short_is_rejected(mode: str, lossless: bool) -> None:
    data = jxl(mode, lossless=lossless)
    assert check_image(data, lambda _: None).data == data
    for length in {*range(0, len(data), 97), *range(len(data) - 9, len(data))}:
        with pytest.raises(ImageError, match=r"."):
            check_image(data[:length], lambda _: None)


def test_error_without_pillow_jxl_plugin_names_the_package(tmp_path: Path) -> None:
    root = plant(tmp_path / "images", {"cat/1.jxl": jxl(), "cat/2.jpg": photo()})

    def use() -> list[str]:
        sys.modules["pillow_jxl"] = None  # type: ignore[assignment] # importing it raises ImportError
        return [event["reason"] for event in report_lines(convert(root, tmp_path / "o.lmdb"))]

    assert from_child(use) == ["is JPEG XL, which needs pillow-jxl-plugin: pip install 'dbloader[jxl]'"]
