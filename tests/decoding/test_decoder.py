"""Decoders return the pixels of Pillow, and refuse damaged files."""

from __future__ import annotations

import io
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps

from dbloader.decoding import Decoder, DecodeTensor, RandomResizedCrop, ResizeCenterCrop, decode_pil
from dbloader.errors import DamagedImageError, NotAnImageError, OptionError
from dbloader.images.tiled import encode_tiled
from dbloader.records.decode import decode
from dbloader.records.record import Record, encode
from tests.support import jpegs
from tests.support.images import encoded
from tests.support.jpegs import draw, turned_exif

SIZES = ((1, 1), (1, 40), (40, 1), (7, 5), (67, 45))


def jpeg_with(*factors: int, process: int = 0xC0) -> bytes:
    """Return a JPEG of 40 x 40 pixels with these sampling factors of its components."""
    across, down = 8 * max(factor >> 4 for factor in factors), 8 * max(factor & 15 for factor in factors)
    blocks = sum((factor >> 4) * (factor & 15) for factor in factors) if len(factors) > 1 else 1
    across, down = (across, down) if len(factors) > 1 else (8, 8)
    codes = jpegs.code_blocks(-(-40 // across) * -(-40 // down) * blocks)
    return jpegs.frame(process, 40, 40, *factors) + jpegs.scan([*range(1, len(factors) + 1)], codes) + jpegs.END


def files_of_each_kind() -> dict[str, bytes]:
    files = {}
    for mode, sub in (("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0), ("CMYK", 0), ("CMYK", 2)):
        for progressive in (False, True):
            for size in SIZES:
                image = draw(*size, mode)
                options = {"quality": 85, "subsampling": sub, "progressive": progressive}
                files[f"jpeg {mode} {sub} {progressive} {size}"] = encoded(image, "JPEG", **options)
    # 4:4:0, 4:1:1, 4:1:0, 4:4:1, and two combinations without a name.
    for factors in ((0x12, 17, 17), (0x41, 17, 17), (0x42, 17, 17), (0x14, 17, 17), (0x31, 17, 17), (0x22, 0x21, 0x12)):
        files[f"jpeg of factors {factors}"] = jpeg_with(*factors)
    files["jpeg extended"] = jpeg_with(0x11, process=0xC1)
    files["jpeg with bytes after its end"] = encoded(draw(67, 45), "JPEG") + b"more"
    files["jpeg without JFIF header, RGB"] = encoded(draw(67, 45), "JPEG", keep_rgb=True)
    files["jpeg with two pictures"] = encoded(draw(67, 45), "MPO", save_all=True, append_images=[draw(9, 9)])
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        files[f"png {mode}"] = encoded(draw(67, 45).convert(mode), "PNG")
    files["png transparent palette"] = encoded(draw(67, 45).convert("P"), "PNG", transparency=3)
    deep = np.random.default_rng(0).integers(0, 2**16, (45, 67)).astype(np.uint16)
    files["png 16 bits"] = encoded(Image.fromarray(deep), "PNG")
    files["tiff 16 bits"] = encoded(Image.fromarray(deep), "TIFF")
    files["pgm 16 bits"] = encoded(Image.fromarray(deep), "PPM")
    files["tiff CMYK"] = encoded(draw(67, 45, "CMYK"), "TIFF")
    files["gif"] = encoded(draw(67, 45).convert("P"), "GIF")
    files["bmp"] = encoded(draw(67, 45), "BMP")
    files["webp"] = encoded(draw(67, 45), "WEBP", lossless=True)
    return files


FILES = files_of_each_kind()


def pixels(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Check the layout of an output. Return the output as an array of shape (height, width, 3)."""
    assert tensor.dtype is torch.uint8
    assert tensor.shape[0] == 3
    array = tensor.permute(1, 2, 0)
    assert array.is_contiguous()
    return array.numpy()


@pytest.mark.parametrize("kind", FILES)
def test_whole_image_equals_pillow(kind: str) -> None:
    expected = np.asarray(decode_pil(FILES[kind]))
    for given in (FILES[kind], memoryview(FILES[kind])):
        assert np.array_equal(pixels(DecodeTensor()(given)), expected)


@pytest.mark.parametrize("kind", FILES)
def test_crops_of_file_array_and_image_are_equal(kind: str) -> None:
    decoder = RandomResizedCrop((9, 14))
    random_numbers = np.random.default_rng(1).random((6, decoder.draws))
    image = decode_pil(FILES[kind])
    with Image.open(io.BytesIO(FILES[kind])) as raw:
        for row in random_numbers:
            expected = pixels(decoder(np.array(image), row))
            for given in (FILES[kind], image, raw):
                assert np.array_equal(pixels(decoder(given, row)), expected)


@pytest.mark.parametrize("decoder", [DecodeTensor(), RandomResizedCrop(20), ResizeCenterCrop(20)], ids=repr)
def test_gray_read_only_and_strided_arrays_are_decoded_unchanged(decoder: Decoder) -> None:
    gray = np.random.default_rng(0).integers(0, 256, (50, 60), dtype=np.uint8)
    rgb = np.repeat(gray[..., None], 3, -1)
    random_numbers = np.random.default_rng(1).random(decoder.draws)
    expected = pixels(decoder(rgb, random_numbers)).copy()
    kept = Record(image=rgb, label=0)
    read_only = decode(encode(kept).document(0, 0), 0, 0).image
    assert read_only is not None
    backwards = np.ascontiguousarray(rgb[::-1, ::-1])[::-1, ::-1]
    for given in (gray, read_only, backwards, np.asfortranarray(rgb)):
        output = decoder(given, random_numbers)
        assert np.array_equal(pixels(output), expected)
        output.zero_()
    decoder(rgb, random_numbers).zero_()
    assert np.array_equal(rgb[..., 0], gray), "the output must not share memory with the image"


@pytest.mark.parametrize(
    "array",
    [np.zeros((4, 4), np.int64), np.zeros((4, 4, 4), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 4, 3), np.uint8)],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_array_of_other_dtype_or_shape_is_refused(array: npt.NDArray[Any]) -> None:
    with pytest.raises(OptionError, match=r"must be uint8 of the shape .*, got \w+ of the shape \("):
        DecodeTensor()(array)


def oriented(orientation: int, name: str, size: tuple[int, int] = (67, 45), mode: str = "RGB") -> bytes:
    return encoded(draw(*size, mode), name, exif=turned_exif(orientation))


@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientation_is_applied_only_on_request(orientation: int, name: str) -> None:
    for mode in ("RGB", "CMYK") if name == "JPEG" else ("RGB",):
        file = oriented(orientation, name, mode=mode)
        assert np.array_equal(pixels(DecodeTensor()(file)), np.asarray(decode_pil(file)))
        with Image.open(io.BytesIO(file)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
            assert np.array_equal(pixels(DecodeTensor(exif_transpose=True)(image)), expected)
        assert np.array_equal(pixels(DecodeTensor(exif_transpose=True)(file)), expected)
        decoder = RandomResizedCrop((9, 14), exif_transpose=True)
        for row in np.random.default_rng(orientation).random((5, decoder.draws)):
            assert torch.equal(decoder(file, row), decoder(expected.copy(), row))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crop_of_tiles_is_turned_upright(orientation: int) -> None:
    jpeg, lengths = encode_tiled(draw(150, 90), quality=85, exif=turned_exif(orientation).tobytes())
    with Image.open(io.BytesIO(jpeg)) as image:
        upright = np.array(ImageOps.exif_transpose(image).convert("RGB"))
    decoder = RandomResizedCrop(20, scale=(0.05, 0.3), exif_transpose=True)
    for row in np.random.default_rng(orientation).random((10, decoder.draws)):
        assert torch.equal(decoder(jpeg, row, tiles=lengths), decoder(upright, row))


@pytest.mark.parametrize("file", [FILES["jpeg RGB 2 False (67, 45)"], FILES["jpeg CMYK 2 False (67, 45)"]])
def test_image_truncated_anywhere_is_refused(file: bytes) -> None:
    for length in random.Random(0).sample(range(3, len(file) - 2), 40):
        with pytest.raises((DamagedImageError, NotAnImageError), match=r"^the (image|header of the image) "):
            DecodeTensor()(file[:length])


def test_zeros_before_the_end_marker_are_not_damage() -> None:
    file = encoded(draw(67, 45), "JPEG")
    padded = file[:-2] + bytes(5) + file[-2:]
    with pytest.raises(DamagedImageError, match="the image has data left when all pixels are decoded"):
        DecodeTensor()(file[:-2] + b"\x12\x34\x56\x78\x9a" + file[-2:])
    assert np.array_equal(pixels(DecodeTensor()(padded)), np.asarray(decode_pil(file)))
    scaled, plain = (RandomResizedCrop(8, scale=(0.5, 1), scaled=scaled) for scaled in (True, False))
    random_numbers = np.random.default_rng(0).random(plain.draws)
    assert not torch.equal(scaled(file, random_numbers), plain(file, random_numbers))
    assert torch.equal(scaled(padded, random_numbers), plain(file, random_numbers)), "Pillow must decode at full size"


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8\xff", jpeg_with(0x11, 0x11)])
def test_unknown_format_is_refused(data: bytes) -> None:
    with pytest.raises(NotAnImageError, match=r"^the image is in no known format: it (is empty|begins with b)"):
        DecodeTensor()(data)


def test_threads_share_a_decoder() -> None:
    decoder = RandomResizedCrop(32)
    random_numbers = np.random.default_rng(0).random((64, decoder.draws))
    files = [encoded(draw(90 + n % 7, 70, seed=n), "JPEG") for n in range(64)]
    expected = [decoder(file, row) for file, row in zip(files, random_numbers, strict=True)]
    barrier = threading.Barrier(4)

    def part(first: int) -> list[torch.Tensor]:
        barrier.wait(60)
        return [decoder(file, row) for file, row in zip(files[first::4], random_numbers[first::4], strict=True)]

    with ThreadPoolExecutor(4) as threads:
        for first, outputs in enumerate(threads.map(part, range(4))):
            assert all(map(torch.equal, outputs, expected[first::4]))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 5}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_truncated_inside_a_scan_is_refused(mode: str, options: dict[str, Any]) -> None:
    file = encoded(draw(67, 45).convert(mode), "JPEG", **options)
    cut = file[: len(file) * 3 // 4] + file[-2:]
    with Image.open(io.BytesIO(cut)) as image:
        image.load()  # Pillow itself raises no error and fills the missing part with gray
    for decoder in (decode_pil, DecodeTensor()):
        with pytest.raises(DamagedImageError, match="the image does not decode"):
            decoder(cut)


def test_decode_pil_keeps_pixels_and_info_of_pillow() -> None:
    file = encoded(draw(67, 45), "JPEG", exif=turned_exif(), icc_profile=b"profile")
    decoded = decode_pil(file)
    with Image.open(io.BytesIO(file)) as image:
        assert np.array_equal(np.asarray(decoded), np.asarray(image))
    assert decoded.info["icc_profile"] == b"profile"
    assert ImageOps.exif_transpose(decoded).size == (45, 67)
