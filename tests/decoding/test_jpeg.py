"""A part of a JPEG is decoded from its tiles, from the upper rows, or at a fraction of its size."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate

from dbloader import LMDBDataset, convert
from dbloader.decoding import RandomResizedCrop
from dbloader.decoding.jpeg import open_jpeg, scale
from dbloader.errors import DamagedImageError
from dbloader.images.tiled import encode_tiled
from tests.support.jpegs import draw, encode

KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "gray": {"mode": "L"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_rows": 1},
    "a thumbnail before it": {"exif": b"Exif\0\0" + encode(draw(16, 16))},
}


def jpeg_of(kind: str, width: int = 75, height: int = 201) -> bytes:
    options = dict(KINDS[kind])
    return encode(draw(width, height, options.pop("mode", "RGB")), quality=90, **options)


@pytest.mark.slow
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("scaled", [False, True])
def test_crop_from_tiles_equals_the_crop_of_the_whole_image(subsampling: str, scaled: bool) -> None:
    for width, height in ((300, 200), (197, 300), (9, 9), (3, 5)):
        jpeg, lengths = encode_tiled(draw(width, height), quality=90, subsampling=subsampling)
        for size in ((17, 12), (2, 3)):
            decoder = RandomResizedCrop(size, (0.01, 1.0), scaled=scaled)
            for row in np.random.default_rng(width).random((40, decoder.draws)):
                assert torch.equal(decoder(jpeg, row, tiles=lengths), decoder(jpeg, row))


def test_only_tiles_of_the_crop_are_decoded() -> None:
    jpeg, lengths = encode_tiled(draw(300, 200), quality=90, subsampling="4:4:4")
    random_numbers = [0.0] * RandomResizedCrop.draws
    damaged = jpeg[:-300] + bytes(298) + jpeg[-2:]
    for scaled in (False, True):
        decoder = RandomResizedCrop(20, (0.2, 1.0), scaled=scaled)
        assert torch.equal(decoder(damaged, random_numbers, tiles=lengths), decoder(jpeg, random_numbers))


def test_tiles_of_an_untiled_image_are_ignored() -> None:
    for file in (encode(draw(60, 40)), encode(draw(60, 40, "CMYK")), encode(draw(60, 40), progressive=True)):
        decoder = RandomResizedCrop(8)
        random_numbers = [0.1] * decoder.draws
        assert torch.equal(decoder(file, random_numbers, tiles=b"\1\0"), decoder(file, random_numbers))


@pytest.mark.parametrize("scaled", [False, True])
def test_wrong_or_damaged_tiles_are_refused(scaled: bool) -> None:
    jpeg, lengths = encode_tiled(draw(300, 200), quality=90, subsampling="4:2:0")
    decoder = RandomResizedCrop(20, (0.6, 0.6), (1.5, 1.5), scaled=scaled)
    random_numbers = [0.0] * decoder.draws
    with pytest.raises(DamagedImageError, match="the lengths of the tiles do not belong to this JPEG"):
        decoder(jpeg, random_numbers, tiles=lengths[:-2])
    place = len(jpeg) // 2
    assert 0xFF not in jpeg[place - 2 : place + 6]
    damaged = jpeg[:place] + bytes(4) + jpeg[place + 4 :]
    with pytest.raises(DamagedImageError, match=r"^tiles of the JPEG do not decode: "):
        decoder(damaged, random_numbers, tiles=lengths)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_scaled_decoding_stays_close_to_the_picture(factor: int) -> None:
    ramp = np.add.outer(np.arange(320), np.arange(400)) / 719 * 255
    file = encode(Image.fromarray(ramp.astype(np.uint8)), quality=95)
    size = (320 // factor // 2, 400 // factor // 2)
    plain, scaled = (RandomResizedCrop(size, (0.3, 1.0), (1.25, 1.25), scaled=scaled) for scaled in (False, True))
    differences = []
    for row in np.random.default_rng(0).random((40, plain.draws)):
        crop = plain.choose_crop(row, 400, 320)
        assert crop == scaled.choose_crop(row, 400, 320)
        difference = (plain(file, row).int() - scaled(file, row).int()).abs()
        # The shift is at most one pixel of the smaller image, which is two levels of the ramp at a factor of 2.
        assert difference.max() <= 255 / 719 * factor * 2 + 3
        if min(crop.width / size[1], crop.height / size[0]) < 2:
            assert not difference.any(), "a crop less than twice as large as the output must not be scaled"
        differences.append(bool(difference.any()))
    assert any(differences)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_scaled_crop_equals_crop_of_the_smaller_image(factor: int) -> None:
    width, height, size = 403, 325, (34, 42)
    file = encode(draw(width, height), quality=90)
    with Image.open(io.BytesIO(file)) as image:
        image.draft("RGB", (width // factor, height // factor))
        smaller = np.array(image)
    assert smaller.shape[:2] == (-(-height // factor), -(-width // factor))
    share = (1.2 * factor) ** 2 * size[0] * size[1] / (width * height)
    decoder = RandomResizedCrop(size, (min(share, 0.9), min(share, 0.9)), (1.2, 1.25), flip=0, scaled=True)
    for row in np.random.default_rng(0).random((30, decoder.draws)):
        crop = decoder.choose_crop(row, width, height)
        left, right = (math.floor(edge / factor + 0.5) for edge in (crop.left, crop.left + crop.width))
        top, bottom = (math.floor(edge / factor + 0.5) for edge in (crop.top, crop.top + crop.height))
        part = torch.from_numpy(smaller[top:bottom, left:right].copy())[None].permute(0, 3, 1, 2)
        expected = interpolate(part, size, mode="bilinear", antialias=True)[0]
        assert torch.equal(decoder(file, row), expected)


def test_images_smaller_than_a_block_are_not_scaled() -> None:
    plain, scaled = (RandomResizedCrop((2, 3), (0.5, 1.0), scaled=scaled) for scaled in (False, True))
    for side in range(1, 8):
        file = encode(draw(side, side))
        for row in np.random.default_rng(side).random((10, plain.draws)):
            assert torch.equal(scaled(file, row), plain(file, row))


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_part_of_an_intact_file_equals_the_part_of_the_whole_image(kind: str, factor: int) -> None:
    data = jpeg_of(kind)
    least = {"min_width": -(-75 // factor), "min_height": -(-201 // factor), "min_factor": factor}
    whole = simplejpeg.decode_jpeg(data, "RGB", **least)
    assert whole.shape[:2] == (least["min_height"], least["min_width"])
    jpeg = open_jpeg(data, known_intact=True)
    assert jpeg is not None
    for bottom in range(1, 202):
        top = max(0, bottom - 9)
        expected = whole[scale(top, bottom - top, factor), scale(3, 60, factor)]
        assert np.array_equal(jpeg.part(3, top, 60, bottom - top, factor)(), expected), bottom


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"progressive"}))
def test_rows_below_the_crop_of_an_intact_file_are_not_decoded(kind: str, factor: int) -> None:
    data = jpeg_of(kind)
    cut = data[:-200] + data[-2:]
    sound, jpeg, strict = open_jpeg(data, known_intact=True), open_jpeg(cut, known_intact=True), open_jpeg(cut)
    assert sound is not None
    assert jpeg is not None
    assert strict is not None
    assert np.array_equal(jpeg.part(0, 0, 75, 60, factor)(), sound.part(0, 0, 75, 60, factor)())
    with pytest.raises(DamagedImageError, match=r"^the image (does not decode|has data left)"):
        strict.part(0, 0, 75, 60, factor)()


def test_small_image_is_decoded_whole_because_reading_its_header_takes_longer() -> None:
    data = encode(draw(64, 64), quality=90)
    jpeg = open_jpeg(data[:-200] + data[-2:], known_intact=True)
    assert jpeg is not None
    with pytest.raises(DamagedImageError):
        jpeg.part(0, 0, 64, 16, 1)()


@pytest.mark.parametrize(("check", "known"), [("decode", True), ("structure", False), ("none", False)])
def test_decoder_trusts_only_files_that_conversion_decoded(check: str, known: bool, tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    (folder / "one.jpg").write_bytes(jpeg_of("4:2:0"))
    convert(tmp_path / "images", tmp_path / "a.lmdb", check=check)
    trusted = []

    class Recording(RandomResizedCrop):
        def __call__(self, *arguments: Any, known_intact: bool = False, **options: Any) -> torch.Tensor:
            trusted.append(known_intact)
            return super().__call__(*arguments, known_intact=known_intact, **options)

    assert LMDBDataset(tmp_path / "a.lmdb", decode=Recording(8))[0][0].shape == (3, 8, 8)
    assert trusted == [known]
