"""The memory of a conversion does not grow with the number of files or of large images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dbloader._parallel import MEMORY_LIMIT
from dbloader.conversion.transcode import ImageFormat, transcode, transcoding_bytes
from dbloader.images.check import check_decodes
from dbloader.images.info import read_facts
from dbloader.images.pillow import decoding_bytes
from tests.support import jpegs
from tests.support.children import run_program
from tests.support.conversion import peak_memory, peak_of_conversion
from tests.support.images import encoded, plant

ROOT = Path(__file__).parents[2]
MB = 10**6


# What the process's memory may exceed MEMORY_LIMIT by, for blocks that are too small to be reserved. All bounds are
# relative to the peak of a conversion of one file in the same run, so they hold with any allocator and Python.
SMALL_BLOCKS = 40 * MB


def plant_links(tmp_path: Path, name: str, data: bytes, count: int) -> Path:
    """Make a folder with many hard links to one image."""
    folder = plant(tmp_path, {f"images/cat/{name}": data}) / "images" / "cat"
    for number in range(1, count):
        (folder / f"{number} {name}").hardlink_to(folder / name)
    return folder.parent


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    data = jpegs.encode(jpegs.draw(480, 360), quality=90)
    assert 80_000 < len(data) < 120_000
    used = {}
    for count in (1, 200, 800):
        root = plant_links(tmp_path / f"{count}", "0.jpg", data, count)
        used[count] = peak_of_conversion(root, tmp_path / f"{count}.lmdb", workers=4)
    assert used[200] - used[1] < MEMORY_LIMIT
    assert used[800] - used[200] < 40 * MB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image_format", "saved", "size", "count", "options"),
    [
        ("PNG", {"compress_level": 1}, (4000, 3000), 8, {}),  # 48 MB of pixels
        ("WEBP", {"method": 0}, (3000, 2000), 6, {}),  # 24 MB of pixels; decoding takes 96 MB
        ("JPEG", {"progressive": True}, (4000, 3000), 8, {}),  # 72 MB of coefficients
        ("PNG", {"compress_level": 1}, (4000, 3000), 8, {"images": ImageFormat(max_side=500), "check": "none"}),
        # 18 MB of pixels per image. A task holds all the pixels that it stores, and a commit holds some of them again.
        ("JPEG", {}, (3000, 2000), 24, {"images": ImageFormat(raw=True), "check": "none"}),
    ],
    ids=["PNG", "WebP", "progressive", "smaller", "raw"],
)
def test_memory_does_not_grow_with_the_number_of_large_images(
    tmp_path: Path, image_format: str, saved: dict[str, Any], size: tuple[int, int], count: int, options: dict[str, Any]
) -> None:
    data = encoded(Image.new("RGB", size), image_format, **saved)
    used = {}
    for number in (1, count):
        root = plant_links(tmp_path / f"{number}", f"0.{image_format.lower()}", data, number)
        used[number] = peak_of_conversion(root, tmp_path / f"{number}.lmdb", task_files=1, workers=12, **options)
    # The oldest task never waits, so it holds its image beside the limit.
    assert used[count] - used[1] < MEMORY_LIMIT + SMALL_BLOCKS


@pytest.mark.slow
def test_memory_of_a_small_file_with_many_pixels_is_reserved(tmp_path: Path) -> None:
    used = {}
    for side in (8, 8000):
        data = encoded(Image.new("1", (side, side)), "PNG")
        root = plant(tmp_path / f"{side}", {"cat/0.png": data})
        assert len(data) < 15_000
        used[side] = peak_of_conversion(root, tmp_path / f"{side}.lmdb")
    assert used[8000] - used[8] < 1.25 * 8000**2, "a pixel takes one byte"


# Mode, format and options of the images that take the most memory per pixel.
DRAWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "RGB": ("RGB", "PNG", {"compress_level": 1}),
    "RGBA": ("RGBA", "PNG", {"compress_level": 1}),
    "palette": ("P", "PNG", {"transparency": 0}),
    "one color is transparent": ("RGB", "PNG", {"transparency": (0, 0, 0)}),
    "JPEG": ("RGB", "JPEG", {}),
    "WebP": ("RGB", "WEBP", {"method": 0}),
    "WebP with alpha": ("RGBA", "WEBP", {"method": 0}),
    "JPEG 2000 with alpha": ("RGBA", "JPEG2000", {}),
    "one strip": ("RGBA", "TIFF", {"compression": "tiff_adobe_deflate", "strip_size": 2**30}),
    "turned": ("RGB", "TIFF", {"compression": "tiff_lzw", "exif": jpegs.turned_exif()}),
}
SMALL, RAW = ImageFormat(max_side=500), ImageFormat(raw=True)
HARDLY_SMALLER = ImageFormat(max_side=3150)
MEASURED = [
    ("PGM", SMALL), ("PGM", RAW), ("one strip", None), ("turned", None), ("turned", RAW), ("palette", SMALL),
    ("RGB", SMALL), ("JPEG", HARDLY_SMALLER), ("RGBA", HARDLY_SMALLER), ("one color is transparent", HARDLY_SMALLER),
    ("WebP", SMALL), ("WebP with alpha", HARDLY_SMALLER), ("JPEG 2000 with alpha", None),
]  # fmt: skip


def draw(kind: str, size: tuple[int, int]) -> bytes:
    if kind == "PGM":
        return b"P5\n%d %d\n65535\n" % size + b"\x12\x34" * (size[0] * size[1])
    mode, image_format, options = DRAWN[kind]
    return encoded(Image.new(mode, size), image_format, **options)


def memory_of(number: int) -> int:
    """Return the peak memory of an entry of ``MEASURED``, in bytes."""
    kind, images = MEASURED[number]

    def work(data: bytes) -> None:
        if images is None:
            check_decodes(data, read_facts(data))
        else:
            transcode(data, read_facts(data), images)

    data, small = draw(kind, size_of(kind)), draw(kind, (25, 15))
    return peak_memory(lambda: work(data), lambda: work(small))


def size_of(kind: str) -> tuple[int, int]:
    # OpenJPEG needs 16 MB in addition to the pixels
    return (5000, 3000) if kind.startswith("JPEG 2000") else (3200, 2000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(at, id=f"{kind}-{images}", marks=[] if kind in ("RGB", "turned") else pytest.mark.nightly)
        for at, (kind, images) in enumerate(MEASURED)
    ],
)
def test_image_takes_no_more_memory_than_reserved(number: int) -> None:
    kind, images = MEASURED[number]
    image = read_facts(draw(kind, size_of(kind)))
    # Use a new process, because other tests leave fragmented memory, which costs many MB.
    script = f"from tests.conversion.test_memory import memory_of; print(memory_of({number}))"
    taken = int(run_program(sys.executable, "-c", script, cwd=ROOT)[0])
    pixels = image.width * image.height
    allowed = sum(transcoding_bytes(image, images)) if images else decoding_bytes(image.format) * pixels
    assert taken < allowed + pixels / 2  # allowance for small allocations
    if kind == "RGB":  # for the most common kind, reserving much more would delay other files
        assert allowed < 1.4 * taken
