"""Every crop of a tiled JPEG has the exact pixels of the whole image. Other JPEGs are refused."""

import io
import random
import subprocess
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dbloader.errors import DamagedImageError, ImageError, NotAnImageError, NotTiledError, OptionError
from dbloader.images.jpeg import State, examine
from dbloader.images.tiled import decode_crop, encode_tiled, find_lengths, tile
from tests.support.jpegs import END, code_blocks, draw, encode, frame, needs_jpegtran, scan, segment, thumbnail_exif

SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
# Sampling factors of the components. In gray and in 4:4:4, equal factors such as 2 x 2 give the same pixels as 0x11.
FACTORS = {
    "gray": (0x11,),
    "gray of 2 x 2": (0x22,),
    "4:4:4": (0x11, 0x11, 0x11),
    "4:4:4 of 2 x 1": (0x21, 0x21, 0x21),
    "4:2:2": (0x21, 0x11, 0x11),
    "4:2:0": (0x22, 0x11, 0x11),
    "4:4:0": (0x12, 0x11, 0x11),
    "4:1:1": (0x41, 0x11, 0x11),
    "4:4:1": (0x14, 0x11, 0x11),
}


def decode(jpeg: bytes) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(jpeg, strict=True)
    return pixels


def by_pillow(jpeg: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.asarray(image.convert("RGB"))


def write(factors: tuple[int, ...], width: int, height: int, interval: int, seed: int = 0) -> bytes:
    """Return a JPEG with these sampling factors, random coefficients, and a restart marker every `interval` MCUs."""
    alone = len(factors) == 1
    across = 1 if alone else max(factor >> 4 for factor in factors)
    down = 1 if alone else max(factor & 15 for factor in factors)
    blocks = 1 if alone else sum((factor >> 4) * (factor & 15) for factor in factors)
    total = -(-width // (8 * across)) * -(-height // (8 * down))
    runs = [code_blocks(blocks * min(interval, total - start), seed + start) for start in range(0, total, interval)]
    # larger quantization factors give strong contrasts
    head = frame(0xC0, width, height, *factors).replace(bytes([1]) * 64, bytes([24]) * 64)
    numbers = list(range(1, len(factors) + 1))
    return head + segment(0xDD, interval.to_bytes(2, "big")) + scan(numbers, *runs) + END


def _edges(lengths: bytes) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *np.frombuffer(lengths, "<u2")])


def assert_crops(jpeg: bytes, lengths: bytes, generator: random.Random, crops: int) -> None:
    whole = decode(jpeg)
    height, width, _ = whole.shape
    for number in range(crops):
        # Thin crops and crops at the edge of a tile reveal missing neighbor pixels.
        most_wide, most_high = (min(width, 3), min(height, 3)) if number % 2 else (width, height)
        w, h = generator.randint(1, most_wide), generator.randint(1, most_high)
        x, y = generator.randint(0, width - w), generator.randint(0, height - h)
        crop = decode_crop(jpeg, lengths, x, y, w, h)
        assert crop.dtype == np.uint8
        assert crop.shape == (h, w, 3)
        np.testing.assert_array_equal(crop, whole[y : y + h, x : x + w], err_msg=f"{w} x {h} at ({x}, {y})")


@given(
    mode=st.sampled_from(["RGB", "RGB", "L"]),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    width=st.integers(1, 200),
    height=st.integers(1, 120),
    tile_width=st.sampled_from([1, 8, 16, 32, 64, 1000]),
    quality=st.integers(5, 100),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_crop_equals_the_crop_of_the_whole_image(
    mode: str, subsampling: str, width: int, height: int, tile_width: int, quality: int, seed: int
) -> None:
    image = draw(width, height, mode, seed)
    options: dict[str, Any] = {"quality": quality, "subsampling": subsampling, "tile_width": tile_width}
    jpeg, lengths = encode_tiled(image, **options)
    assert encode_tiled(np.asarray(image), **options) == (jpeg, lengths)
    np.testing.assert_array_equal(decode(jpeg), by_pillow(jpeg))
    assert_crops(jpeg, lengths, random.Random(seed), crops=12)


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("seed", range(4))
def test_crop_of_any_subsampling_equals_the_crop_of_the_whole_image(factors: tuple[int, ...], seed: int) -> None:
    generator = random.Random(seed)
    width, height = generator.randint(1, 80), generator.randint(1, 60)
    mcu = 8 if len(factors) == 1 else 8 * max(factor >> 4 for factor in factors)
    row = -(-width // mcu)
    interval = generator.choice([count for count in range(1, row + 1) if row % count == 0])
    jpeg = write(factors, width, height, interval, seed)
    assert examine(jpeg).state is State.COMPLETE
    assert_crops(jpeg, find_lengths(jpeg), generator, crops=40)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("over", range(1, 6))
def test_crop_in_a_narrow_last_tile_equals_crop_of_whole_image(subsampling: str, over: int) -> None:
    image = draw(32 + over, 32 + over, seed=over)
    jpeg, lengths = encode_tiled(image, quality=90, subsampling=subsampling, tile_width=8)
    whole = decode(jpeg)
    for x in range(28, 32 + over):
        for width in range(1, 33 + over - x):
            np.testing.assert_array_equal(
                decode_crop(jpeg, lengths, x, x, width, width), whole[x : x + width, x : x + width]
            )


def test_encoded_image_has_pixels_metadata_and_markers() -> None:
    exif = thumbnail_exif(b"\xff\xd0\xff\xd9")
    jpeg, lengths = encode_tiled(draw(160, 60), quality=85, subsampling="4:2:2", exif=exif, icc_profile=b"profile")
    assert examine(jpeg).state is State.COMPLETE
    np.testing.assert_array_equal(decode(jpeg), decode(encode(draw(160, 60), quality=85, subsampling=1)))
    with Image.open(io.BytesIO(jpeg)) as image:
        assert image.info["icc_profile"] == b"profile"
        assert image.info["exif"] == exif
    parts = np.split(np.frombuffer(jpeg, np.uint8), jpeg.index(b"\xff\xda") + 14 + _edges(lengths))
    assert len(parts) == 1 + 5 * 8 + 1  # five tiles in each row
    assert [bytes(part[-2:]) for part in parts[1:-2]] == [bytes((0xFF, 0xD0 + number % 8)) for number in range(39)]
    assert bytes(parts[-2][-2:]) == END
    assert not len(parts[-1])


SOURCES = {
    "gray": encode(draw(100, 61, "L"), quality=70),
    "4:4:4": encode(draw(101, 61), quality=90, subsampling=0),
    "4:2:2": encode(draw(101, 61), quality=90, subsampling=1),
    "4:2:0": encode(draw(130, 61), quality=70, subsampling=2),
    "4:4:0": simplejpeg.encode_jpeg(np.array(draw(101, 61)), 85, colorsubsampling="440"),
    "4:1:1": simplejpeg.encode_jpeg(np.array(draw(101, 61)), 85, colorsubsampling="411"),
    "tiny": encode(draw(1, 1), quality=70),
    "progressive": encode(draw(101, 61), quality=70, progressive=True),
    "progressive gray": encode(draw(101, 61, "L"), quality=70, progressive=True),
    "restart rows": encode(draw(101, 61), quality=70, restart_marker_rows=1),
    "RGB": encode(draw(101, 61), quality=70, keep_rgb=True),
    "gray of 2 x 2": write((0x22,), 70, 50, 9),
    "scans of their own": frame(0xC0, 40, 29, 0x22, 0x11, 0x11)
    + scan([1], code_blocks(20))
    + scan([2], code_blocks(6, seed=1))
    + scan([3], code_blocks(6, seed=2))
    + END,
    "trailing": encode(draw(50, 50), quality=70) + b"more" + END,
    "fill bytes": b"\xff\xd8\xff\xff" + encode(draw(50, 50), quality=70)[2:],
}


@needs_jpegtran
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_tiling_changes_no_pixel(source: bytes) -> None:
    jpeg, lengths = tile(source)
    structure = examine(jpeg)
    assert structure.state is State.COMPLETE
    assert not structure.coefficient_bytes
    np.testing.assert_array_equal(by_pillow(jpeg), by_pillow(source))
    np.testing.assert_array_equal(decode(jpeg), by_pillow(source))
    assert_crops(jpeg, lengths, random.Random(0), crops=20)
    assert tile(jpeg) == (jpeg, lengths)


@needs_jpegtran
def test_tiling_keeps_metadata_and_optimizes_codes() -> None:
    exif = thumbnail_exif(encode(draw(16, 16), quality=20))
    source = encode(draw(90, 40), quality=60, exif=exif, icc_profile=b"profile", comment=b"comment", dpi=(72, 72))
    with Image.open(io.BytesIO(source)) as before, Image.open(io.BytesIO(tile(source).jpeg)) as after:
        assert after.info == before.info
    assert len(tile(source).jpeg) < len(source)  # optimized Huffman codes make the file smaller
    arithmetic = subprocess.run(["jpegtran", "-arithmetic"], input=source, capture_output=True, check=True).stdout
    assert by_pillow(tile(arithmetic).jpeg).tobytes() == by_pillow(source).tobytes()


@needs_jpegtran
def test_tiling_a_truncated_image_raises_damaged_image_error() -> None:
    source = encode(draw(90, 40), quality=60)
    with pytest.raises(DamagedImageError, match="jpegtran: Premature end"):
        tile(source[: len(source) // 2])


@needs_jpegtran
def test_tiling_refuses_an_image_that_would_change() -> None:
    # Decoders smooth a progressive image that lacks its last scans, but not a baseline image with the same
    # coefficients.
    source = encode(draw(90, 40), quality=95, progressive=True)
    cut = source[: source.index(b"\xff\xda", source.index(b"\xff\xda") + 2)]
    cut = cut[: cut.rindex(b"\xff\xc4")] if cut.rindex(b"\xff\xc4") > cut.index(b"\xff\xda") else cut
    with pytest.raises(ImageError, match="its pixels change"):
        tile(cut + END)


UNTILED = {
    "no restart markers": (SOURCES["4:4:4"], "restart interval of 0 MCUs"),
    "rows that are not divided": (
        encode(draw(101, 61), quality=70, restart_marker_blocks=5, subsampling=0),
        "restart interval of 5 MCUs does not divide a row of 13 MCUs",
    ),
    "progressive": (encode(draw(40, 40), progressive=True, restart_marker_blocks=1), "process is SOF2"),
    "CMYK": (encode(draw(40, 40, "CMYK"), restart_marker_blocks=1), "4 components of 8 bits"),
    "12 bits": (frame(0xC1, 8, 8, 0x11, precision=12) + scan([1], "") + END, "1 components of 12 bits"),
    "lossless": (frame(0xC3, 8, 8, 0x11) + scan([1], "") + END, "process is SOF3"),
    "arithmetic": (frame(0xC9, 8, 8, 0x11) + scan([1], "") + END, "process is SOF9"),
    "height in DNL": (frame(0xC0, 8, 0, 0x11) + scan([1], code_blocks(1)) + END, "header gives no height"),
    "scans of their own": (SOURCES["scans of their own"], "in separate scans"),
    "several frames": (frame(0xC0, 8, 8, 0x11) + frame(0xC0, 8, 8, 0x11)[2:] + scan([1], "") + END, "several frames"),
    "hierarchical": (b"\xff\xd8" + segment(0xDE, b"\x08\x00\x08\x00\x08\x01\x01\x11\x00"), "segment FFDE"),
    "stray bytes": (b"\xff\xd8\xff\xe0\x00\x02stray" + SOURCES["gray"][2:], "no marker begins at byte 6"),
}


@pytest.mark.parametrize(("jpeg", "why"), UNTILED.values(), ids=UNTILED)
def test_jpeg_without_tiles_is_refused(jpeg: bytes, why: str) -> None:
    for function in (find_lengths, lambda data: decode_crop(data, bytes(8), 0, 0, 1, 1)):
        with pytest.raises(ImageError, match=f"cannot be decoded by tiles: .*{why}") as caught:
            function(jpeg)
        assert type(caught.value) is NotTiledError  # this error does not report damage


def test_data_that_is_not_a_jpeg_is_refused() -> None:
    for data in (b"", b"\xff", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(NotAnImageError, match="do not begin as a JPEG"):
            find_lengths(data)
        with pytest.raises(NotAnImageError, match="do not begin as a JPEG"):
            decode_crop(data, b"", 0, 0, 1, 1)


def test_jpeg_truncated_anywhere_is_damaged() -> None:
    jpeg, lengths = encode_tiled(draw(64, 20), quality=70)
    for length in range(2, len(jpeg)):
        with pytest.raises(DamagedImageError):
            find_lengths(jpeg[:length])
        with pytest.raises(DamagedImageError):
            decode_crop(jpeg[:length], lengths, 63, 19, 1, 1)


def test_restart_markers_out_of_order_are_damage() -> None:
    jpeg, lengths = encode_tiled(draw(64, 64), quality=70)
    place = jpeg.index(b"\xff\xd2") + 1  # the restart marker after the first tile of the second row
    damaged = jpeg[:place] + b"\xd7" + jpeg[place + 1 :]
    with pytest.raises(DamagedImageError, match="missing or out of order"):
        find_lengths(damaged)
    for crop in ((0, 0, 64, 64), (40, 20, 4, 4)):
        with pytest.raises(DamagedImageError, match="a tile does not begin or end at a marker"):
            decode_crop(damaged, lengths, *crop)


def test_wrong_tile_lengths_raise_or_change_no_pixel() -> None:
    jpeg, lengths = encode_tiled(draw(200, 100), quality=70, subsampling="4:4:4")
    whole = decode(jpeg)
    generator = random.Random(0)
    errors = 0
    for number in range(1500):
        wrong = np.frombuffer(lengths, "<u2").astype(np.int64)
        one, other, by = generator.randrange(len(wrong)), generator.randrange(len(wrong)), generator.randint(1, 30)
        if number % 4 == 0:
            wrong[one] = generator.randrange(2**16)
        elif number % 4 == 1:
            wrong[one] += generator.choice([by, -by])
        elif number % 4 == 2:
            wrong[one] += by
            wrong[other] -= by
        else:
            wrong[[one, other]] = wrong[[other, one]]
        w, h = generator.randint(1, 200), generator.randint(1, 100)
        x, y = generator.randint(0, 200 - w), generator.randint(0, 100 - h)
        try:
            crop = decode_crop(jpeg, wrong.astype("<u2").tobytes(), x, y, w, h)
        except DamagedImageError:
            errors += 1
        else:
            np.testing.assert_array_equal(crop, whole[y : y + h, x : x + w])
    assert errors > 375
    strange = encode_tiled(draw(200, 100, seed=1), quality=70, subsampling="4:4:4").lengths
    for bytes_of_others in (strange, b"", lengths[:-1], lengths[:-2], lengths + bytes(2), b"\xff" * len(lengths)):
        with pytest.raises(DamagedImageError, match="lengths of the tiles do not belong to this JPEG"):
            decode_crop(jpeg, bytes_of_others, 70, 20, 100, 30)


def test_tile_above_65535_bytes_is_refused() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5000, 3), np.uint8)
    with pytest.raises(ImageError, match=r"one of its tiles has [0-9,]+ bytes, more than 65,535"):
        encode_tiled(pixels, quality=100, subsampling="4:4:4", tile_width=5000)


@pytest.mark.parametrize(
    "crop", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (0, 0, 51, 5), (0, 0, 5, 41), (46, 0, 5, 5)]
)
def test_crop_outside_the_image_is_refused(crop: tuple[int, int, int, int]) -> None:
    jpeg, lengths = encode_tiled(draw(50, 40), quality=70)
    with pytest.raises(OptionError, match="must lie within the image of 50 x 40 pixels"):
        decode_crop(jpeg, lengths, *crop)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(({"quality": n}, OptionError, f"quality must be from 1 to 100, got {n}") for n in (0, 101)),
        ({"quality": 90.5}, TypeError, r"quality must be an int, got 90\.5"),
        ({"subsampling": "4:1:1"}, OptionError, "subsampling must be one of 4:4:4, 4:2:2, 4:2:0, got '4:1:1'"),
        ({"tile_width": 0}, OptionError, "tile_width must be at least 1 pixel, got 0"),
        ({"image": draw(50, 40, "CMYK")}, NotTiledError, "its mode is CMYK"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        encode_tiled(**{"image": draw(50, 40), "quality": 90, **options})
