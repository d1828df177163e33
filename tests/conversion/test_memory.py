"""The memory of conversions: it grows neither with the folder nor with the number of large images."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from dbloader.conversion.transcode import ImageFormat
from dbloader.images.info import check_decodes, read_facts
from dbloader.images.pillow import decoding_bytes
from tests.support import jpegs
from tests.support.conversion import peak_memory, peak_of_conversion
from tests.support.images import encoded, plant

if TYPE_CHECKING:
    from pathlib import Path

MB = 10**6


def plant_links(tmp_path: Path, name: str, data: bytes, count: int) -> Path:
    """Make a folder in which one image has many names."""
    folder = plant(tmp_path, {f"images/cat/{name}": data}) / "images" / "cat"
    for number in range(1, count):
        (folder / f"{number} {name}").hardlink_to(folder / name)
    return folder.parent


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    data = jpegs.encode(jpegs.draw(480, 360), quality=90)
    assert 80_000 < len(data) < 120_000
    used = {}
    for count in (300, 1200):
        root = plant_links(tmp_path / f"{count}", "0.jpg", data, count)
        used[count] = peak_of_conversion(root, tmp_path / f"{count}.lmdb", workers=4)
    assert max(used.values()) < 300 * MB
    assert used[1200] - used[300] < 60 * MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image_format", "size", "count", "options", "most"),
    [
        ("PNG", (6000, 4000), 6, {}, 300),  # 96 MB of pixels
        ("WEBP", (3000, 2000), 8, {}, 250),  # 24 MB of pixels, which take 96 to be decoded
        ("JPEG", (3000, 2000), 16, {"images": ImageFormat(raw=True), "check": "none"}, 250),  # 18 MB of pixels
    ],
)
def test_memory_does_not_grow_with_the_number_of_large_images(
    tmp_path: Path, image_format: str, size: tuple[int, int], count: int, options: dict[str, Any], most: int
) -> None:
    speed: dict[str, Any] = {"PNG": {"compress_level": 1}, "WEBP": {"method": 0}}.get(image_format, {})
    data = encoded(Image.new("RGB", size), image_format, **speed)
    root = plant_links(tmp_path, f"0.{image_format.lower()}", data, count)
    assert peak_of_conversion(root, tmp_path / "out.lmdb", task_files=1, workers=12, **options) < most * MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "most"), [(ImageFormat(), 100), (ImageFormat(raw=True), 420), (ImageFormat(max_side=500), 150)]
)
def test_a_small_file_of_many_pixels_takes_what_its_pixels_are(tmp_path: Path, images: ImageFormat, most: int) -> None:
    data = encoded(Image.new("1", (8000, 8000)), "PNG")  # 64 megapixels, 192 MB in RGB
    root = plant(tmp_path / "images", {"cat/0.png": data})
    assert len(data) < 15_000
    assert peak_of_conversion(root, tmp_path / "out.lmdb", images=images) < most * MB


def draw(kind: str, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    if kind == "PGM":
        return b"P5\n%d %d\n65535\n" % size + b"\x12\x34" * (size[0] * size[1])
    if kind == "P":
        Image.new("P", size).save(file, "PNG", transparency=0)
    elif kind in ("RGB", "RGBA", "LA"):
        Image.new(kind, size).save(file, "PNG")
    elif kind == "one color is transparent":
        Image.new("RGB", size).save(file, "PNG", transparency=(0, 0, 0))
    elif kind == "JPEG":
        Image.new("RGB", size).save(file, "JPEG")
    elif kind in ("WebP", "WebP with alpha"):
        Image.new("RGBA" if "alpha" in kind else "RGB", size).save(file, "WEBP", method=0)
    elif kind == "JPEG 2000 with alpha":
        Image.new("RGBA", size).save(file, "JPEG2000")
    elif kind == "one strip":
        Image.new("RGBA", size).save(file, "TIFF", compression="tiff_adobe_deflate", strip_size=2**30)
    else:
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", size).save(file, "TIFF", compression="tiff_lzw", exif=exif)
    return file.getvalue()


FORMATS = [None, ImageFormat(max_side=500), ImageFormat(raw=True), ImageFormat(raw=True, max_side=500)]
HARDLY_SMALLER = ImageFormat(max_side=3950)
MEASURED = [
    *itertools.product(["PGM", "one strip"], FORMATS),
    *itertools.product(["P", "LA", "turned"], FORMATS[:3]),
    ("RGB", FORMATS[1]),
    *((kind, HARDLY_SMALLER) for kind in ("RGB", "RGBA", "one color is transparent", "JPEG")),
    *itertools.product(["WebP", "WebP with alpha"], [FORMATS[1], HARDLY_SMALLER]),
    ("JPEG 2000 with alpha", FORMATS[1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "images"), MEASURED, ids=str)
def test_an_image_takes_no_more_memory_than_it_asks_for(kind: str, images: ImageFormat | None) -> None:
    size = (5000, 3000) if kind.startswith("JPEG 2000") else (4000, 2500)  # OpenJPEG holds 16 MB beside the pixels
    data, small = draw(kind, size), draw(kind, (25, 15))
    image = read_facts(data)

    def work(data: bytes) -> None:
        if images is None:
            check_decodes(data, read_facts(data))
        else:
            images.transcode(data, read_facts(data))

    taken = peak_memory(lambda: work(data), lambda: work(small))
    allowed = sum(images.memory(image)) if images else decoding_bytes(image.format) * image.width * image.height
    assert taken < allowed + image.width * image.height / 2  # pieces
    if kind == "RGB":  # the commonest: to ask for much more would keep other files waiting
        assert allowed < 1.4 * taken
