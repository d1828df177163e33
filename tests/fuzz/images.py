"""Fuzz targets: reading JPEG markers, checking images for conversion, and decoding for training."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dbloader.decoding.jpeg import open_jpeg
from dbloader.errors import DamagedImageError, ImageError, NotAnImageError
from dbloader.images.info import check_decodes, read_facts
from dbloader.images.jpeg import State, examine, find_warning, repair
from dbloader.images.tiled.decode import decode_crop, find_lengths
from dbloader.images.tiled.encode import encode_tiled
from tests.support import jpegs
from tests.support.images import picture


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


def jpeg_seeds() -> list[bytes]:
    drawn, gray = jpegs.draw(24, 16), jpegs.draw(9, 9, "L")
    files = [
        jpegs.encode(drawn, quality=5),
        jpegs.encode(drawn, quality=5, progressive=True),
        jpegs.encode(drawn, quality=5, restart_marker_blocks=1),
        jpegs.encode(gray, quality=5),
        jpegs.encode(gray, exif=jpegs.thumbnail_exif(jpegs.encode(gray, quality=1))),
        jpegs.exotic(0x21, 0x11, 0x11),
        jpegs.exotic(0x41, 0x11, 0x11),
        encode_tiled(jpegs.draw(40, 24), quality=5, tile_width=16).jpeg,
    ]
    return [*files, *(file[:-2] for file in files), *(picture(kind) for kind in ("PNG", "GIF", "TIFF", "WEBP"))]
