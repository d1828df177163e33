"""``ImageFormat`` makes images smaller, and refuses options that exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import ImageFormat
from dbloader.conversion.convert import convert
from dbloader.decoding import decode_pil
from dbloader.errors import OptionError
from dbloader.stores.open import open_store
from tests.support import jpegs
from tests.support.conversion import records, report_lines
from tests.support.images import encoded, photo, plant


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_side": "2"}, r"^max_side \(--max-side\) must be an int or None, got '2'$"),
        ({"short_side": -1}, r"short_side \(--short-side\) must be at least 1, got -1"),
        ({"max_side": 9, "short_side": 9}, "both limit the size of an image: choose one"),
        ({"quality": 90}, r"give max_side .*, short_side .* or tile \(--tile\) too"),
        ({"quality": 0, "max_side": 9}, r"quality \(--quality\) must be from 1 to 100, got 0"),
        ({"tile_width": 32}, r"tile_width \(--tile-width\) affects only tiled JPEGs: give tile \(--tile\) too"),
        ({"tile": True, "raw": True}, "stores pixels, and tile .* stores JPEGs: choose one"),
        ({"raw": True, "quality": 90, "max_side": 9}, "stores pixels, which have no quality: leave out quality"),
    ],
)
def test_image_format_refuses_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((OptionError, TypeError), match=message):
        ImageFormat(**options)


def test_resized_images_are_reported_and_others_stay_unchanged(root: Path, place: Path) -> None:
    plant(
        root,
        {
            "cat/0 wide.jpg": photo(width=400, height=100),
            "cat/1 small.jpg": photo(width=64, height=48),
            "cat/2 high.png": encoded(jpegs.draw(100, 300), "PNG"),
            "cat/3 no end.jpg": photo(width=65, height=65)[:-2],
            "cat/4 trailing.jpg": photo(width=64, height=64) + b"more",
        },
    )
    report = convert(root, place, images=ImageFormat(max_side=64))
    wide, small, high, no_end, trailing = records(place)
    assert (wide.width, wide.height, wide.resized_from) == (64, 16, (400, 100))
    assert (high.width, high.height, high.format, high.resized_from) == (21, 64, "PNG", (100, 300))
    assert (no_end.width, no_end.height, no_end.resized_from) == (64, 64, (65, 65))
    for record in (small, trailing):
        assert record.name is not None
        assert record.image == (root / record.name).read_bytes()
        assert record.resized_from is None
    for record in (wide, high, no_end):
        assert isinstance(record.image, bytes)
        assert decode_pil(record.image).size == (record.width, record.height)
    assert (report.resized, report.repaired, report.rejected) == (3, 1, 0)
    with open_store(place) as store:
        assert store.manifest.outcome == {"repaired": 1, "resized": 3}
        assert store.manifest.source["max_side"] == 64


def test_image_that_cannot_be_resized_is_marked_damaged(root: Path, place: Path) -> None:
    data = encoded(jpegs.draw(24, 18), "PNG")[:-60]  # the header and so the structure are intact
    plant(root, {"cat/0.jpg": photo(), "cat/1.png": data})
    report = convert(root, place, check="structure", on_damaged="keep", images=ImageFormat(max_side=10))
    (event,) = report_lines(report)
    assert (event["name"], event["event"]) == ("cat/1.png", "damaged")
    assert event["reason"].startswith("cannot be resized: ")
    kept = records(place)[1]
    assert (kept.image, kept.width, kept.height, kept.resized_from) == (data, 24, 18, None)
    assert kept.damaged is not None
    assert report.resized == 1
