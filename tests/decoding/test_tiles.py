"""Decoding less than the whole: the tiles of a crop, and images at a part of their size."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from dbloader.decoding import RandomResizedCrop
from dbloader.errors import DamagedImageError
from dbloader.images.tiled import encode_tiled
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    from dbloader.images.tiled import TiledJPEG


def tiled(width: int, height: int, subsampling: str) -> TiledJPEG:
    return encode_tiled(draw(width, height), quality=90, subsampling=subsampling)


@pytest.mark.slow
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("scaled", [False, True])
def test_tiles_give_the_pixels_of_the_whole(subsampling: str, scaled: bool) -> None:
    for width, height in ((300, 200), (197, 300), (9, 9), (3, 5)):
        jpeg, lengths = tiled(width, height, subsampling)
        for size in ((17, 12), (2, 3)):
            decoder = RandomResizedCrop(size, (0.01, 1.0), scaled=scaled)
            for row in np.random.default_rng(width).random((40, decoder.draws)):
                assert torch.equal(decoder(jpeg, row, tiles=lengths), decoder(jpeg, row))


def test_of_a_tiled_image_only_the_tiles_of_the_crop_are_decoded() -> None:
    jpeg, lengths = tiled(300, 200, "4:4:4")
    random_numbers = [0.0] * RandomResizedCrop.draws
    damaged = jpeg[:-300] + bytes(298) + jpeg[-2:]
    for scaled in (False, True):
        decoder = RandomResizedCrop(20, (0.2, 1.0), scaled=scaled)
        assert torch.equal(decoder(damaged, random_numbers, tiles=lengths), decoder(jpeg, random_numbers))


def test_tiles_of_what_is_not_tiled_are_ignored() -> None:
    for file in (encode(draw(60, 40)), encode(draw(60, 40, "CMYK")), encode(draw(60, 40), progressive=True)):
        decoder = RandomResizedCrop(8)
        random_numbers = [0.1] * decoder.draws
        assert torch.equal(decoder(file, random_numbers, tiles=b"\1\0"), decoder(file, random_numbers))


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_scaled_decoding_stays_near_the_picture_and_above_the_output(factor: int) -> None:
    ramp = np.add.outer(np.arange(320), np.arange(400)) / 719 * 255
    file = encode(Image.fromarray(ramp.astype(np.uint8)), quality=95)
    size = (320 // factor // 2, 400 // factor // 2)
    plain, scaled = (RandomResizedCrop(size, (0.3, 1.0), (1.25, 1.25), scaled=scaled) for scaled in (False, True))
    differences = []
    for row in np.random.default_rng(0).random((40, plain.draws)):
        crop = plain.choose_crop(row, 400, 320)
        difference = (plain(file, row).int() - scaled(file, row).int()).abs()
        # A pixel of the smaller image at most, which here is two levels at a factor of 2.
        assert difference.max() <= 255 / 719 * factor * 2 + 3
        if min(crop.width / size[1], crop.height / size[0]) < 2:
            assert not difference.any(), "the crop is not twice the output"
        differences.append(bool(difference.any()))
    assert any(differences)
    assert plain.choose_crop(row, 400, 320) == scaled.choose_crop(row, 400, 320)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_scaled_crop_is_that_of_the_image_that_libjpeg_makes_smaller(factor: int) -> None:
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


@pytest.mark.parametrize("scaled", [False, True])
def test_tiles_that_are_not_those_of_the_image_are_an_error(scaled: bool) -> None:
    jpeg, lengths = tiled(300, 200, "4:2:0")
    decoder = RandomResizedCrop(20, (0.2, 0.3), scaled=scaled)
    random_numbers = [0.4] * decoder.draws
    with pytest.raises(DamagedImageError, match="the lengths of the tiles are not those of this JPEG"):
        decoder(jpeg, random_numbers, tiles=lengths[:-2])


@pytest.mark.parametrize("scaled", [False, True])
def test_tiles_that_are_damaged_are_an_error(scaled: bool) -> None:
    jpeg, lengths = tiled(300, 200, "4:2:0")
    decoder = RandomResizedCrop(20, (0.6, 0.6), (1.5, 1.5), scaled=scaled)
    place = len(jpeg) // 2
    assert 0xFF not in jpeg[place - 2 : place + 6]
    damaged = jpeg[:place] + bytes(4) + jpeg[place + 4 :]
    with pytest.raises(DamagedImageError, match=r"^tiles of the JPEG do not decode: "):
        decoder(damaged, [0.0] * decoder.draws, tiles=lengths)
