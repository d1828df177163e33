"""Thumbnails have the pixels that Pillow decodes, for every kind of image, in bounded memory."""

from __future__ import annotations

import io
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import ExifTags, Image, ImageOps

from dbloader import Record, convert, open_store
from dbloader.errors import DamagedRecordError, ImageError, OptionError, RecordIndexError
from dbloader.ext.images.preview import legend_of, value_range
from dbloader.ext.viewing.record import SIDES, Thumbnails, show_record
from dbloader.stores.base import Store
from tests.support import jpegs
from tests.support.children import run_program
from tests.support.images import KINDS, STORED, encoded, large_png, photo, plant_kinds
from tests.support.lmdb_files import tamper_with_records
from tests.support.stores import store_records

WIDTH, HEIGHT = 700, 500


def store_of(place: str | Path, *images: Any, **fields: Any) -> Store:
    store_records(
        place,
        (Record(name=f"{n}.jpg", image=image, fields=fields) for n, image in enumerate(images)),
        source={"file_fields": list(fields)},
    )
    return open_store(place)


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def scene(mode: str = "RGB") -> Image.Image:
    """Return a smooth picture, for which every scaling method gives nearly the same pixels."""
    x, y = np.meshgrid(np.linspace(0, 255, WIDTH), np.linspace(0, 255, HEIGHT))
    return Image.fromarray(np.stack([x, y, (x + y) / 2], 2).astype(np.uint8)).convert(mode, dither=Image.Dither.NONE)


def difference(thumbnail: bytes, expected: Image.Image) -> float:
    """Return the mean difference between a thumbnail and a picture, in the channel where the mean is greatest."""
    found = opened(thumbnail).convert("RGBA")
    assert abs(found.width / found.height - expected.width / expected.height) < 0.02
    wanted = expected.convert("RGBA").resize(found.size, Image.Resampling.LANCZOS)
    return float(np.abs(np.asarray(found, float) - np.asarray(wanted, float)).mean((0, 1)).max())


def in_size(data: bytes, width: int, height: int) -> bytes:
    """Return a progressive JPEG whose header claims another size."""
    at = data.index(b"\xff\xc2") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


FILES: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(scene(), "JPEG", quality=95),
    "gray jpeg": lambda: encoded(scene("L"), "JPEG", quality=95),
    "progressive jpeg": lambda: encoded(scene(), "JPEG", quality=95, progressive=True),
    "cmyk jpeg": lambda: encoded(scene("CMYK"), "JPEG", quality=95),
    "png": lambda: encoded(scene(), "PNG"),
    "gray png": lambda: encoded(scene("L"), "PNG"),
    "one bit png": lambda: encoded(scene("1"), "PNG"),
    "palette png": lambda: encoded(scene().quantize(200), "PNG"),
    "palette with transparency": lambda: encoded(scene().quantize(200), "PNG", transparency=3),
    "rgba png": lambda: encoded(clear(), "PNG"),
    "gray with opacity": lambda: encoded(clear().convert("LA"), "PNG"),
    "gif": lambda: encoded(scene(), "GIF"),
    "webp": lambda: encoded(scene(), "WEBP", quality=95),
    "webp with opacity": lambda: encoded(clear(), "WEBP", lossless=True),
    "bmp": lambda: encoded(scene(), "BMP"),
    "tiff": lambda: encoded(scene(), "TIFF"),
    "cmyk tiff": lambda: encoded(scene("CMYK"), "TIFF"),
    "jpeg 2000": lambda: encoded(scene(), "JPEG2000"),
    "avif": lambda: encoded(scene(), "AVIF", quality=95),
    "heif": lambda: heif(scene()),
    "pcx": lambda: encoded(scene(), "PCX"),
    "gray png with a transparent color": lambda: encoded(scene("L"), "PNG", transparency=7) + bytes(20_000),
    "ppm": lambda: encoded(scene(), "PPM"),
    "tga": lambda: encoded(scene(), "TGA"),
}


def heif(image: Image.Image) -> bytes:
    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, quality=95)
    return file.getvalue()


def clear() -> Image.Image:
    image = scene("RGBA")
    image.putalpha(scene("L").rotate(180))
    return image


@pytest.mark.parametrize("kind", FILES)
def test_thumbnail_shows_the_whole_image_scaled(kind: str, tmp_path: Path) -> None:
    data = FILES[kind]()
    with store_of(tmp_path / "a.lmdb", data) as store:
        for px in SIDES:
            thumbnail, media_type = Thumbnails().get(store, 0, px)
            small = opened(thumbnail)
            assert max(small.size) == min(px, WIDTH) or thumbnail == data
            assert Image.MIME[small.format or ""] == media_type
            assert small.format in ("JPEG", "PNG") or thumbnail == data
            assert difference(thumbnail, opened(data)) < 4
            clear = any(word in kind for word in ("opacity", "transparen", "rgba"))
            assert clear == ("A" in small.getbands() or "transparency" in small.info)


def test_small_file_that_browsers_can_show_is_sent_as_the_thumbnail(tmp_path: Path) -> None:
    root = tmp_path / "images"
    plant_kinds(root, *(kind for kind in KINDS if KINDS[kind].decode == STORED))
    convert(root, tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as store:
        for index, record in enumerate(store):
            thumbnail, media_type = Thumbnails().get(store, index, 160)
            shown = record.format in ("JPEG", "PNG", "WEBP")
            assert (thumbnail == record.image) == shown, record.name
            assert media_type == (f"image/{record.format.lower()}" if shown and record.format else "image/jpeg")


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF"])  # Chromium ignores EXIF in WebP files
@pytest.mark.parametrize("orientation", range(1, 9))
def test_thumbnail_is_turned_like_the_image_in_browsers(image_format: str, orientation: int, tmp_path: Path) -> None:
    options = {"quality": 95} if image_format in ("JPEG", "WEBP") else {}
    data = encoded(scene(), image_format, exif=jpegs.turned_exif(orientation), **options) + bytes(20_000)
    with store_of(tmp_path / "a.lmdb", data) as store:
        thumbnail = Thumbnails().get(store, 0, 160)[0]
    upright = opened(data)  # Pillow has already turned a TIFF
    assert difference(thumbnail, upright if image_format == "WEBP" else ImageOps.exif_transpose(upright)) < 4


RAMP = np.linspace(0, 1, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH)
DEEP: dict[str, Callable[[], Any]] = {
    "16-bit png": lambda: encoded(Image.fromarray((RAMP * 900 + 100).astype(np.uint16)), "PNG"),
    "16-bit tiff": lambda: encoded(Image.fromarray((RAMP * 65_000).astype(np.uint16)), "TIFF"),
    "32-bit tiff": lambda: encoded(Image.fromarray((RAMP * 1e9 - 5e8).astype(np.int32)), "TIFF"),
    "float tiff": lambda: encoded(Image.fromarray((RAMP / 1000).astype(np.float32)), "TIFF"),
    "float array": lambda: RAMP * 1e30,
    "half float array": lambda: (RAMP[..., None] * 100).astype(np.float16),
    "int array": lambda: (RAMP * 1000 - 500).astype(np.int64),
    "uint16 array of three planes": lambda: np.stack([RAMP * 65_535] * 3).astype(np.uint16),
}


@pytest.mark.parametrize("kind", DEEP)
def test_values_of_more_than_8_bits_are_scaled_from_black_to_white(kind: str, tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", DEEP[kind]()) as store:
        thumbnail, media_type = Thumbnails().get(store, 0, 320)
    assert media_type == "image/png"
    assert difference(thumbnail, Image.fromarray((RAMP * 255).astype(np.uint8))) < 2


@pytest.mark.parametrize("kind", DEEP)
def test_window_makes_its_two_values_black_and_white(kind: str, tmp_path: Path) -> None:
    image = DEEP[kind]()
    least, greatest = value_range(image) or (0, 0)
    window = least + (greatest - least) / 4, least + (greatest - least) / 2
    with store_of(tmp_path / "a.lmdb", image) as store:
        shown = Thumbnails().get(store, 0, 320, window=window)[0]
    assert difference(shown, Image.fromarray((np.clip(RAMP * 4 - 1, 0, 1) * 255).astype(np.uint8))) < 2


def test_range_of_values_is_that_of_all_pixels() -> None:
    values = np.full((300, 400), 1000, np.uint16)
    values[17, 301], values[299, 0] = 3, 65_535
    for image in (values, encoded(Image.fromarray(values), "PNG"), encoded(Image.fromarray(values), "TIFF")):
        assert value_range(image) == (3, 65_535)
    assert value_range(np.array([[np.nan, 2.5], [-1, np.inf]])) == (-1, 2.5)
    for image in (photo(), np.asarray(scene()), b"no image", np.full((2, 2), np.nan)):
        assert value_range(image) is None


@pytest.mark.parametrize(
    "values",
    [[np.nan] * 4, [np.inf, -np.inf, np.nan, 5], [0, 0, 0, 0], [1e300, -1e300, 0, 1], [3e38, -3e38, 0, 1]],
    ids=str,
)
def test_values_without_a_range_become_a_picture(values: list[float], tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", np.array(values).reshape(2, 2)) as store:
        shown = np.asarray(opened(Thumbnails().get(store, 0, 160)[0]))
    assert shown.shape == (2, 2)
    assert not shown.reshape(-1)[~np.isfinite(values)].any()


def test_arrays_of_uint8_are_shown_unchanged(tmp_path: Path) -> None:
    colors = np.asarray(scene())
    arrays = (colors, np.asarray(scene("L")), np.asarray(clear()), colors.transpose(2, 0, 1), RAMP > 0.5)
    with store_of(tmp_path / "a.lmdb", *arrays) as store:
        for index, expected in enumerate((scene(), scene("L"), clear(), scene(), Image.fromarray(RAMP > 0.5))):
            assert difference(Thumbnails().get(store, index, 320)[0], expected) < 2


@pytest.mark.parametrize(
    "array", [np.zeros((3,)), np.zeros((2, 2, 2, 2)), np.zeros((2, 5, 7)), np.zeros((0, 4)), np.array([[1j]])], ids=repr
)
def test_array_that_is_not_an_image_is_refused_with_its_shape(array: Any, tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", array) as store, pytest.raises(ImageError, match=r"shape \(.*cannot be drawn"):
        Thumbnails().get(store, 0, 160)


def test_masks_keep_their_palette_and_gray_labels_get_colors(tmp_path: Path) -> None:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[100:, 100:], labels[200:, 300:], labels[300:, 400:] = 1, 2, 20
    palette = Image.fromarray(labels)
    palette.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0] + [9, 9, 9] * 17 + [0, 0, 250])
    masks = {"palette": encoded(palette, "PNG"), "gray": encoded(Image.fromarray(labels), "PNG")}
    masks |= {"brightness": encoded(scene("L"), "PNG"), "partner": photo(), "bit": encoded(scene("1"), "PNG")}
    with store_of(tmp_path / "a.lmdb", photo(), **masks) as store:
        thumbnails = Thumbnails()
        first, second, third, fourth, bit = (opened(thumbnails.get(store, 0, 160, field)[0]) for field in range(5))
        assert thumbnails.get(store, 0, 160, 3)[0] == masks["partner"]
    assert {color for _, color in first.convert("RGB").getcolors() or ()} == {
        (0, 0, 0), (250, 0, 0), (0, 250, 0), (0, 0, 250)
    }  # fmt: skip
    shown = np.asarray(second.convert("RGB")).astype(int)
    colors = {tuple(color) for color in shown.reshape(-1, 3).tolist()}
    assert len(colors) == 4
    assert all(max(color) > 60 for color in colors - {(0, 0, 0)})
    assert third.mode == "L"
    assert len(np.unique(np.asarray(bit.convert("RGB")).reshape(-1, 3), axis=0)) == 2
    assert fourth.format == "JPEG"


def test_legend_has_the_colors_of_the_thumbnail(tmp_path: Path) -> None:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[: HEIGHT // 2, : WIDTH // 2] = 7
    mask = encoded(Image.fromarray(labels), "PNG")
    legend = legend_of(mask)
    assert [(value, round(share, 2)) for value, _, share in legend] == [(0, 0.75), (7, 0.25)]
    with store_of(tmp_path / "a.lmdb", photo(), mask=mask) as store:
        shown = np.asarray(opened(Thumbnails().get(store, 0, 160, 0)[0]).convert("RGBA"))
    assert [legend[0][1], legend[1][1]] == ["", "#{:02x}{:02x}{:02x}".format(*shown[3, 3, :3])]
    assert shown[-3, -3, 3] == 0
    many = np.arange(HEIGHT * WIDTH, dtype=np.int64).reshape(HEIGHT, WIDTH) % 65
    assert legend_of(encoded(Image.fromarray(many.astype(np.uint8)), "PNG")) == []
    assert legend_of(encoded(Image.fromarray(labels.astype(np.uint16)), "PNG")) == legend_of(photo()) == []


def test_depth_map_gets_colors_of_increasing_brightness(tmp_path: Path) -> None:
    depth = np.linspace(1000, 60_000, WIDTH, dtype=np.uint16)[None].repeat(HEIGHT, 0)
    with store_of(tmp_path / "a.lmdb", photo(), depth=encoded(Image.fromarray(depth), "PNG")) as store:
        shown = opened(Thumbnails().get(store, 0, 160, 0)[0]).convert("RGB")
    row = np.asarray(shown)[5].astype(int)
    assert row[0].tolist() == [13, 8, 135]
    assert row[-1, 0] > 200 < row[-1, 1]
    assert (np.diff(np.asarray(shown.convert("L"))[5].astype(int)) >= -1).all()


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "record 0 has no image"),
        (b"", "the image is empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "in no known image format"),
        (b"<html><script>alert(1)</script></html>", "in no known image format"),
        (encoded(scene(), "PNG")[:5000] + bytes(30_000), "the image does not decode"),
        (large_png(60_000, 60_000) + bytes(30_000), "is too large to be decoded"),
        (large_png(12_000, 12_000), "too large for a preview: decoding its 12,000 x 12,000 pixels takes 576 MB"),
        (in_size(photo(progressive=True), 13_000, 12_000), "its 13,000 x 12,000 pixels takes 945 MB, and 400 MB are"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_image_that_cannot_be_shown_is_an_error_with_its_reason(image: Any, reason: str, tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", image) as store, pytest.raises(ImageError, match=reason):
        Thumbnails().get(store, 0, 160)


def test_intact_part_of_a_truncated_jpeg_is_shown(tmp_path: Path) -> None:
    data = encoded(scene(), "JPEG", quality=95)
    with store_of(tmp_path / "a.lmdb", data[: len(data) * 3 // 4]) as store:
        thumbnail = opened(Thumbnails().get(store, 0, 160)[0])
    upper = (0, 0, 160, 55)
    assert difference(encoded(thumbnail.crop(upper), "PNG"), scene().resize(thumbnail.size).crop(upper)) < 4


def test_wrong_size_field_or_index_is_refused(tmp_path: Path) -> None:
    with store_of(tmp_path / "a.lmdb", photo(), mask=photo()) as store:
        with pytest.raises(OptionError, match="px must be one of 160, 240, 320, 480, 640, 1600, got 161"):
            Thumbnails().get(store, 0, 161)
        with pytest.raises(OptionError, match="has 1 file fields, numbered from 0; got field=1"):
            Thumbnails().get(store, 0, 160, 1)
        with pytest.raises(OptionError, match="over must be boxes, or numbers of file fields, got '1'"):
            Thumbnails().get(store, 0, 160, None, ("boxes", "0", "1"))
        with pytest.raises(RecordIndexError, match="no record 1 in"):
            Thumbnails().get(store, 1, 160)


@pytest.mark.parametrize("padding", [0, 20_000], ids=["small file", "large file"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_and_masks_are_drawn_over_their_objects(orientation: int, padding: int, tmp_path: Path) -> None:
    box = (40, 20, 100, 60)
    image, mask = Image.new("RGB", (160, 120)), Image.new("L", (160, 120))
    image.paste((250, 250, 250), box)
    mask.paste(1, box)
    mask.getexif()[ExifTags.Base.Orientation] = orientation
    upright = ImageOps.exif_transpose(mask)
    fields = {"boxes": np.array([box]), "box_labels": np.array([1]), "mask": encoded(upright, "PNG")}
    data = encoded(image, "JPEG", exif=jpegs.turned_exif(orientation), quality=95) + bytes(padding)
    store_records(
        tmp_path / "a.lmdb",
        [Record("a", 0, data, 160, 120, "JPEG", fields=fields), Record("b", 0, data)],
        classes=["cat", "dog"],
        source={"file_fields": ["mask"]},
    )
    with open_store(tmp_path / "a.lmdb") as store:

        def drawn(*over: str, index: int = 0) -> Any:
            return np.asarray(opened(Thumbnails().get(store, index, 160, None, over)[0]).convert("RGB")).astype(int)

        rows, columns = np.nonzero(np.asarray(upright))
        left, top, right, bottom = columns.min(), rows.min(), columns.max(), rows.max()
        boxes, masks = drawn("boxes"), drawn("0")
        inner = np.s_[top + 6 : bottom - 6, left + 6 : right - 6]
        colored = np.ptp(boxes, axis=2) > 100
        edges = np.zeros_like(colored)
        edges[top - 3 : bottom + 5, left - 3 : right + 5] = True
        edges[inner] = False
        inside = np.asarray(upright) > 0
        assert (boxes[inner] > 200).all()  # the bright object
        assert colored[[top, bottom], left:right].all()
        assert colored[top:bottom, [left, right]].all()
        assert not colored[~edges].any()
        assert (np.ptp(masks[inner], axis=2) > 50).all()
        assert not (np.ptp(masks, axis=2) > 50)[~edges & ~inside].any()
        assert (drawn("boxes", "0", index=1) == drawn(index=1)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_of_a_tiff_are_in_pixels_of_the_upright_image(orientation: int, tmp_path: Path) -> None:
    data = encoded(Image.new("RGB", (160, 120)), "TIFF", exif=jpegs.turned_exif(orientation))
    size, box = opened(data).size, (20, 10, 90, 110)
    store_records(tmp_path / "a.lmdb", [Record("a", 0, data, *size, "TIFF", fields={"boxes": np.array([box])})])
    with open_store(tmp_path / "a.lmdb") as store:
        drawn = np.asarray(opened(Thumbnails().get(store, 0, 160, None, ("boxes",))[0]))
        assert show_record(store, 0)["orientation"] == 1
    rows, columns = np.nonzero(np.ptp(drawn.astype(int), axis=2) > 100)
    assert np.allclose((columns.min(), rows.min(), columns.max(), rows.max()), box, atol=3)


def test_damaged_copy_does_not_show_pictures_of_the_intact_store(tmp_path: Path) -> None:
    thumbnails = Thumbnails()
    with store_of(tmp_path / "a.lmdb", encoded(jpegs.draw(400, 300), "PNG")) as store:
        shutil.copyfile(store.place, tmp_path / "b.lmdb")
        tamper_with_records(tmp_path / "b.lmdb", {0: None})
        assert thumbnails.get(store, 0, 160)
        with open_store(tmp_path / "b.lmdb") as damaged, pytest.raises(DamagedRecordError):
            thumbnails.get(damaged, 0, 160)


@pytest.mark.slow
def test_large_jpeg_is_decoded_with_little_memory(tmp_path: Path) -> None:
    """At full size, the 132 megapixels would need 400 MB."""
    store_of(tmp_path / "a.lmdb", encoded(Image.new("RGB", (12_000, 11_000), (200, 30, 90)), "JPEG")).close()
    program = """
import resource, sys
from dbloader import open_store
from dbloader.ext.viewing.record import Thumbnails
from tests.support.stores import store_records
with open_store(sys.argv[1]) as store:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Thumbnails().get(store, 0, 160)[0]
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    printed, _ = run_program(sys.executable, "-W", "ignore", "-c", program, tmp_path / "a.lmdb")
    assert int(printed) < 60
