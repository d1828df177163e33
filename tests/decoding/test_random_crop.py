"""Random crops that keep the scale: which part of an image, and what is black."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dbloader.decoding import Crop, RandomCrop, decode_pil
from dbloader.errors import OptionError
from dbloader.images.tiled import encode_tiled
from dbloader.sampling.rng import SampleRNG
from tests.support.jpegs import draw


def torchvisions_crop(pixels: Any, decoder: RandomCrop, row: Any) -> Any:
    """RandomCrop.forward and RandomHorizontalFlip, but for what they draw."""
    (height, width), (left, top, right, bottom) = decoder.size, decoder.padding
    image = np.pad(pixels, ((top, bottom), (left, right), (0, 0)))
    if decoder.pad_if_needed and image.shape[1] < width:
        image = np.pad(image, ((0, 0), (width - image.shape[1],) * 2, (0, 0)))
    if decoder.pad_if_needed and image.shape[0] < height:
        image = np.pad(image, ((height - image.shape[0],) * 2, (0, 0), (0, 0)))
    i = int(row[1] * (image.shape[0] - height + 1))
    j = int(row[2] * (image.shape[1] - width + 1))
    part = image[i : i + height, j : j + width]
    return part[:, ::-1] if row[0] < decoder.flip else part


@pytest.mark.parametrize(
    "decoder",
    [
        RandomCrop(8),
        RandomCrop((13, 5), flip=0),
        RandomCrop(32, padding=4),
        RandomCrop(8, (3, 7)),
        RandomCrop((8, 16), (1, 2, 15, 0), flip=1),
        RandomCrop(48, 5, pad_if_needed=True),
        RandomCrop((3, 48), pad_if_needed=True),
        RandomCrop(32, 31),
    ],
    ids=repr,
)
def test_crops_and_black_are_where_torchvision_has_them(decoder: RandomCrop) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, (32, 32, 3), np.uint8)
    for row in SampleRNG(0, 0, np.arange(60)).uniform(3, "decode"):
        crop = decoder.choose_crop(row, 32, 32)
        assert 0 <= crop.left < crop.left + crop.width <= 32
        assert 0 <= crop.top < crop.top + crop.height <= 32
        output = decoder(pixels, row)
        assert output.shape == (3, *decoder.size)
        assert np.array_equal(output.permute(1, 2, 0).numpy(), torchvisions_crop(pixels, decoder, row))


def test_all_positions_are_drawn_alike() -> None:
    decoder = RandomCrop(32, 4, flip=0.25)
    rows = SampleRNG(1, 0, np.arange(9000)).uniform(3, "decode")
    crops = [decoder.choose_crop(row, 32, 32) for row in rows]
    for at in (0, 1):
        first = np.array([(crop.top, crop.left)[at] + crop.window[at] for crop in crops])
        counts = np.bincount(first + 4)
        assert len(counts) == 9
        assert counts.min() > 880, "of 1,000 each"
        assert counts.max() < 1120
    assert abs(np.mean([crop.flip for crop in crops]) - 0.25) < 0.02


def test_a_crop_from_tiles_is_the_crop_of_the_whole_image() -> None:
    tiled, lengths = encode_tiled(draw(300, 200), quality=90)
    whole = np.array(decode_pil(tiled))
    decoder = RandomCrop(64, 20)
    for row in SampleRNG(2, 0, np.arange(12)).uniform(3, "decode"):
        output = decoder(tiled, row, tiles=lengths, known_intact=True)
        assert np.array_equal(output.permute(1, 2, 0).numpy(), torchvisions_crop(whole, decoder, row))


def test_an_image_that_is_too_small_is_an_error() -> None:
    with pytest.raises(
        OptionError, match=r"^size must be at most .* got \(48, 32\) .* 32 x 40 pixels .* pad_if_needed"
    ):
        RandomCrop((48, 32), (0, 7)).choose_crop((0.5,) * 3, 40, 32)
    assert RandomCrop((48, 32), (0, 8)).choose_crop((0.5,) * 3, 32, 32) == Crop(
        0, 0, 32, 32, resized=(32, 32), window=(-8, 0)
    )


@pytest.mark.parametrize(
    ("padding", "kind", "message"),
    [
        (8, OptionError, r"^padding must be less than size=\(8, 9\), or a crop may show nothing, got 8$"),
        ((9, 0), OptionError, r"^padding must be less than .* got \(9, 0\)$"),
        (-1, OptionError, "^padding must be at least 0, got -1$"),
        ((1, 2, 3), TypeError, r"^padding must be an int, got \(1, 2, 3\)$"),
        ("2", TypeError, "^padding must be an int, got '2'$"),
    ],
)
def test_paddings_are_checked(padding: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        RandomCrop((8, 9), padding)
