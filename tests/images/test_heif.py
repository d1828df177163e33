"""HEIC photos are converted and decoded with pillow-heif."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest

from dbloader import LMDBDataset
from dbloader.conversion.convert import convert
from dbloader.conversion.transcode import ImageFormat
from dbloader.decoding.open import decode_pil, read_orientation
from dbloader.errors import NotAnImageError
from dbloader.images.info import read_facts
from tests.support import jpegs
from tests.support.children import from_child
from tests.support.conversion import events, records
from tests.support.images import photo, plant


def heic(seed: int = 0, images: int = 1, exif: bytes | None = None) -> bytes:
    file: Any = pillow_heif.HeifFile()  # type: ignore[no-untyped-call]
    for number in range(images):
        file.add_from_pillow(jpegs.draw(64, 48, seed=seed + number))
    out = io.BytesIO()
    file.save(out, quality=100, chroma=444, exif=exif)
    return out.getvalue()


def deep() -> bytes:
    out = io.BytesIO()
    pillow_heif.encode("RGB;16", (8, 6), np.full((6, 8, 3), 2**15, "<u2").tobytes(), out)
    return out.getvalue()


def test_photos_are_stored_byte_for_byte(tmp_path: Path) -> None:
    files = {"cat/1.heic": heic(1), "cat/2.HEIF": heic(2), "cat/3.hif": heic(3), "cat/4.jpg": photo()}
    plant(tmp_path / "images", files)
    report = convert(tmp_path / "images", tmp_path / "out.lmdb")
    stored = records(report.place)
    assert {record.name: record.image for record in stored} == files
    assert [(record.format, record.width, record.height) for record in stored[:3]] == [("HEIF", 64, 48)] * 3
    small = convert(tmp_path / "images", tmp_path / "small.lmdb", images=ImageFormat(max_side=32))
    assert [(record.width, record.height, record.resized_from) for record in records(small.place)[:3]] == [
        (32, 24, (64, 48))
    ] * 3


def test_report_names_photos_with_several_images_or_deep_values(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"cat/1.heic": heic(images=2), "cat/2.heic": deep()})
    report = convert(tmp_path / "images", tmp_path / "out.lmdb")
    assert [(event["name"], event["event"]) for event in events(report.place)] == [
        ("cat/1.heic", "frames"),
        ("cat/2.heic", "deep"),
    ]
    assert read_facts(deep()).depth == "10-bit"


@pytest.mark.parametrize("cut", [400, 900, -5])
def test_truncated_photo_is_rejected(tmp_path: Path, cut: int) -> None:
    plant(tmp_path / "images", {"cat/1.heic": heic()[:cut], "cat/2.heic": heic()})
    report = convert(tmp_path / "images", tmp_path / "out.lmdb")
    assert (report.records, report.rejected) == (1, 1)
    with pytest.raises(NotAnImageError, match="is in no known image format"):
        read_facts(b"\0\0\0\x18ftypheic" + bytes(100))


def test_photo_is_decoded_upright() -> None:
    turned = heic(exif=jpegs.turned_exif().tobytes())
    assert read_facts(turned)[1:3] == (48, 64)
    assert read_orientation(turned) == 1
    upright = np.asarray(decode_pil(heic()).rotate(-90, expand=True)).astype(int)
    assert np.abs(np.asarray(decode_pil(turned)).astype(int) - upright).mean() < 3


def test_error_without_pillow_heif_names_the_package(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"cat/1.heic": heic(), "cat/2.jpg": photo()})
    convert(tmp_path / "images", tmp_path / "out.lmdb")

    def use() -> tuple[int, str]:
        sys.modules["pillow_heif"] = None  # type: ignore[assignment] # importing it raises ImportError
        with LMDBDataset(tmp_path / "out.lmdb") as dataset, pytest.raises(NotAnImageError) as caught:
            dataset[0]
        return convert(tmp_path / "images", tmp_path / "other.lmdb").rejected, str(caught.value)

    reason = "is HEIF (HEIC), which needs pillow-heif: pip install 'dbloader[heif]'"
    assert from_child(use) == (1, f"the image {reason}")
    assert events(tmp_path / "other.lmdb") == [{"name": "cat/1.heic", "event": "rejected", "reason": reason}]
