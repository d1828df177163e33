"""Options and numbers of the decoders, and what pickling keeps of them."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dbloader.decoding import DecodeTensor, RandomResizedCrop, ResizeCenterCrop
from dbloader.errors import OptionError
from tests.support.jpegs import draw

if TYPE_CHECKING:
    from dbloader.decoding import Decoder


@pytest.mark.parametrize("numbers", [[0.5] * 22, [], [0.5] * 22 + [1.0], [0.5] * 22 + [-0.1], [0.5] * 22 + [math.nan]])
def test_other_numbers_are_refused(numbers: list[float]) -> None:
    decoder = RandomResizedCrop(16)
    with pytest.raises(OptionError, match=r"numbers must be (23 for each image|at least 0 and below 1), got "):
        decoder.choose(numbers, 20, 20)
    with pytest.raises(OptionError, match=r"numbers must be 0 for each image, got 1"):
        ResizeCenterCrop(16).choose([0.5], 20, 20)


@pytest.mark.parametrize(
    "decoder",
    [
        DecodeTensor(exif_transpose=True),
        RandomResizedCrop((9, 8), [0.2, 1], ratio=(0.5, 2), flip=0.1, scaled=True),
        ResizeCenterCrop((9, 8), resize=12),
    ],
    ids=repr,
)
def test_a_decoder_is_pickled_with_its_options(decoder: Decoder) -> None:
    copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - it was pickled here
    assert repr(copy) == repr(decoder)
    assert repr(decoder).startswith(f"{type(decoder).__name__}(")
    numbers, image = [0.3] * decoder.draws, draw(40, 30)
    assert torch.equal(copy(image, numbers), decoder(image, numbers))


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8", None, (8,), (8, 8, 8), (8, 0), math.inf, (8, math.nan)])
def test_a_size_must_be_pixels(size: Any) -> None:
    for decoder in (RandomResizedCrop, ResizeCenterCrop):
        with pytest.raises(OptionError, match=r"^size must be a number of pixels or a \(height, width\).*, got "):
            decoder(size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0, 1)}, r"^scale must be a \(least, greatest\), above 0 and at most 1, got \(0, 1\)"),
        ({"scale": (0.5, 1.1)}, "^scale must be .*, got"),
        ({"scale": (0.5, 0.4)}, "^scale must be .*, got"),
        ({"scale": 0.5}, "^scale must be .*, got 0.5"),
        ({"scale": (0.5, "1")}, "^scale must be .*, got"),
        ({"ratio": (0, 1)}, r"^ratio must be a \(least, greatest\), above 0 and finite, got \(0, 1\)"),
        ({"ratio": (1, math.inf)}, "^ratio must be .* finite, got"),
        ({"ratio": (math.nan, 1)}, "^ratio must be .*, got"),
        ({"ratio": (1, 2, 3)}, "^ratio must be .*, got"),
        ({"flip": 1.5}, "^flip must be a number of at least 0 and at most 1, got 1.5"),
        ({"flip": True}, "^flip must be .*, got True"),
    ],
)
def test_options_of_random_crops_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RandomResizedCrop(8, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop_pct": 0}, "^crop_pct must be a number above 0 and at most 1, got 0"),
        ({"crop_pct": 1.1}, "^crop_pct must be .*, got 1.1"),
        ({"resize": 0}, "^resize must be a number of pixels, at least 1, got 0"),
        ({"resize": (3, 3)}, "^resize must be .*, got"),
        ({"crop_pct": 0.5, "resize": 9}, "^crop_pct and resize exclude each other, got 0.5 and 9"),
        ({"size": (8, 9)}, r"^resize must be given where the output is not square, got size=\(8, 9\)"),
    ],
)
def test_options_of_centres_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ResizeCenterCrop(**{"size": 8, **options})
