"""The filters that images are resized with, beside Pillow's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader.decoding import Crop, RandomResizedCrop, ResizeCenterCrop
from dbloader.decoding.crop import FILTERS, render
from dbloader.errors import OptionError
from dbloader.images.tiled import encode_tiled
from dbloader.sampling.rng import SampleRNG
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    import numpy.typing as npt

ALL = RandomResizedCrop.draws
# Height and width of the image, and of the output.
SIZES = [((90, 60), (32, 48)), ((24, 133), (40, 20)), ((61, 83), (64, 64)), ((5, 7), (1, 30)), ((200, 150), (56, 56))]


def noise(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def rows_then_columns(pixels: npt.NDArray[np.uint8], size: tuple[int, int], name: str) -> npt.NDArray[Any]:
    """Resize with Pillow, each axis for itself: alone it begins with the axis where that is less work."""
    resample = Image.Resampling[name.upper()]
    rows = Image.fromarray(pixels).resize((size[1], pixels.shape[0]), resample)
    return np.asarray(rows.resize(size[::-1], resample)).astype(int)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_torchs_filters_differ_from_pillows_by_two_levels_at_most(
    shape: tuple[int, int], size: tuple[int, int], name: str
) -> None:
    for pixels in (noise(*shape), np.array(draw(*shape[::-1]))):
        output = render(pixels, Crop(0, 0, shape[1], shape[0], interpolation=name), size)
        assert abs(output.astype(int) - rows_then_columns(pixels, size, name)).max() <= 2


@pytest.mark.parametrize("name", ["nearest", "box", "hamming", "lanczos"])
@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_the_other_filters_are_pillows(shape: tuple[int, int], size: tuple[int, int], name: str) -> None:
    pixels = noise(*shape)
    output = render(pixels, Crop(0, 0, shape[1], shape[0], True, interpolation=name), size)
    expected = Image.fromarray(pixels).resize(size[::-1], Image.Resampling[name.upper()])
    assert np.array_equal(output, np.asarray(expected)[:, ::-1])
    assert output.flags.c_contiguous


@pytest.mark.parametrize("decoder", [RandomResizedCrop, ResizeCenterCrop])
def test_decoders_resize_with_the_filter_that_they_are_given(decoder: Any) -> None:
    file, outputs = encode(draw(90, 60)), []
    for name in FILTERS:
        one = decoder(24, interpolation=name)
        row = [0.4] * one.draws
        crop = one.choose_crop(row, 90, 60)
        assert crop == decoder(24).choose_crop(row, 90, 60)._replace(interpolation=name)
        outputs.append(one(file, row))
    assert torch.equal(outputs[0], decoder(24)(file, [0.4] * decoder.draws)), "bilinear is the default"
    assert all(not torch.equal(one, other) for at, one in enumerate(outputs) for other in outputs[:at])


def test_a_random_filter_is_bilinear_or_bicubic_and_changes_nothing_else() -> None:
    decoder, plain = RandomResizedCrop(24, interpolation="random"), RandomResizedCrop(24)
    assert (decoder.draws, plain.draws) == (ALL + 1, ALL)
    chosen = []
    for row in SampleRNG(0, 0, np.arange(400)).uniform(ALL + 1, "decode"):
        crop = decoder.choose_crop(row, 90, 60)
        assert crop == plain.choose_crop(row[:-1], 90, 60)._replace(interpolation=crop.interpolation)
        chosen.append(crop.interpolation)
    assert {*chosen} == {"bilinear", "bicubic"}
    assert 160 < chosen.count("bicubic") < 240
    numbers = [0.3] * ALL
    assert decoder.choose_crop([*numbers, math.nextafter(0.5, 0)], 90, 60).interpolation == "bilinear"
    assert decoder.choose_crop([*numbers, 0.5], 90, 60).interpolation == "bicubic"


def test_a_crop_from_tiles_is_the_crop_of_the_whole_image_with_any_filter() -> None:
    tiled, lengths = encode_tiled(draw(300, 200), quality=90)
    for name in ("bicubic", "lanczos", "random"):
        decoder = RandomResizedCrop(48, interpolation=name)
        for row in SampleRNG(2, 0, np.arange(8)).uniform(decoder.draws, "decode"):
            assert torch.equal(decoder(tiled, row, tiles=lengths, known_intact=True), decoder(tiled, row))


@pytest.mark.parametrize("decoder", [RandomResizedCrop, ResizeCenterCrop])
def test_an_unknown_filter_is_an_error(decoder: Any) -> None:
    with pytest.raises(OptionError, match=r"^interpolation must be one of bilinear, bicubic, .*, got 'cubic'$"):
        decoder(24, interpolation="cubic")


def test_a_fixed_decoder_has_no_random_filter() -> None:
    with pytest.raises(OptionError, match=r"^interpolation must be one of .*lanczos, got 'random'$"):
        ResizeCenterCrop(24, interpolation="random")
