"""Fuzz targets: reading JPEG markers, checking images for conversion, and decoding for training."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dbloader.decoding.jpeg import open_jpeg
from dbloader.errors import DamagedImageError, ImageError, NotAnImageError
from dbloader.images.check import check_decodes
from dbloader.images.info import read_facts
from dbloader.images.jpeg import State, examine, find_warning, repair
from dbloader.images.tiled.decode import decode_crop, find_lengths


def jpeg(data: bytes, _: Path) -> None:
    found = examine(data)
    assert 0 <= max(found.end, found.last_scan_end) <= len(data)
    if found.state is State.NO_END:
        with suppress(DamagedImageError, NotAnImageError):
            whole = repair(data, found)
            assert (examine(whole).state, find_warning(whole)) == (State.COMPLETE, "")
    with suppress(DamagedImageError, NotAnImageError):
        facts = read_facts(data)
        check_decodes(data, facts)
        if found.state is State.COMPLETE and facts.format == "JPEG":
            _check_intact(data, facts.width, facts.height)
    with suppress(ImageError):
        width = height = 8
        assert decode_crop(data, find_lengths(data), 0, 0, width, height).shape == (height, width, 3)


def _check_intact(data: bytes, width: int, height: int) -> None:
    """Check that training decodes an image that conversion accepts, whole and in part."""
    image = open_jpeg(data)
    if image is not None:
        assert (image.width, image.height) == (width, height)
        assert image.part(0, 0, width, height, 1)().shape == (height, width, 3)
        assert image.part(width // 2, height // 2, 1, 1, 1)().shape == (1, 1, 3)
