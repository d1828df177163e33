"""Options and numbers of the decoders, and what pickling keeps of them."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dbloader.decoding import DecodeTensor, RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.errors import OptionError
from tests.support.jpegs import draw

if TYPE_CHECKING:
    from dbloader.decoding import Decoder


@pytest.mark.parametrize(
    "random_numbers", [[0.5] * 22, [], [0.5] * 22 + [1.0], [0.5] * 22 + [-0.1], [0.5] * 22 + [math.nan]]
)
def test_other_numbers_are_refused(random_numbers: list[float]) -> None:
    decoder = RandomResizedCrop(16)
    with pytest.raises(OptionError, match=r"random_numbers must be (23 for each image|at least 0 and below 1), got "):
        decoder.choose_crop(random_numbers, 20, 20)
    with pytest.raises(OptionError, match=r"random_numbers must be 0 for each image, got 1"):
        ResizeCenterCrop(16).choose_crop([0.5], 20, 20)


@pytest.mark.parametrize(
    "decoder",
    [
        DecodeTensor(exif_transpose=True),
        RandomResizedCrop((9, 8), [0.2, 1], ratio=(0.5, 2), flip=0.1, scaled=True, interpolation="random"),
        RandomCrop((9, 8), (1, 2, 3, 4), pad_if_needed=True, flip=0.2),
        ResizeCenterCrop((9, 8), resize=12, interpolation="lanczos"),
    ],
    ids=repr,
)
def test_a_decoder_is_pickled_with_its_options(decoder: Decoder) -> None:
    copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - it was pickled here
    assert repr(copy) == repr(decoder)
    assert repr(decoder).startswith(f"{type(decoder).__name__}(")
    random_numbers, image = [0.3] * decoder.draws, draw(40, 30)
    assert torch.equal(copy(image, random_numbers), decoder(image, random_numbers))


@pytest.mark.parametrize("size", [0, -1, (8, 0), 2.5, True, "8", None, (8,), (8, 8, 8), math.inf])
def test_a_size_must_be_pixels(size: Any) -> None:
    for decoder in (RandomResizedCrop, ResizeCenterCrop):
        with pytest.raises(
            OptionError, match=r"^size must be a number of pixels or a \(height, width\), each at least 1"
        ):
            decoder(size)


@pytest.mark.parametrize(
    ("decoder", "options", "kind", "message"),
    [
        (RandomResizedCrop, {"scale": (0, 1)}, OptionError, "^scale must be above 0 and at most 1, got 0$"),
        (
            RandomResizedCrop,
            {"scale": (0.5, 1.1)},
            OptionError,
            r"^scale must be at least 0\.5 and at most 1, got 1\.1$",
        ),
        (
            RandomResizedCrop,
            {"scale": (0.5, 0.4)},
            OptionError,
            r"^scale must be at least 0\.5 and at most 1, got 0\.4$",
        ),
        (RandomResizedCrop, {"scale": 0.5}, TypeError, r"^scale must be a \(least, greatest\), got 0\.5$"),
        (RandomResizedCrop, {"scale": (0.5, "1")}, TypeError, "^scale must be a number, got '1'$"),
        (RandomResizedCrop, {"ratio": (0, 1)}, OptionError, "^ratio must be above 0 and finite, got 0$"),
        (RandomResizedCrop, {"ratio": (1, math.inf)}, OptionError, "^ratio must be at least 1 and finite, got inf$"),
        (RandomResizedCrop, {"ratio": (math.nan, 1)}, OptionError, "^ratio must be above 0 and finite, got nan$"),
        (RandomResizedCrop, {"ratio": (1, 2, 3)}, TypeError, r"^ratio must be a \(least, greatest\), got"),
        (RandomResizedCrop, {"flip": 1.5}, OptionError, r"^flip must be at least 0 and at most 1, got 1\.5$"),
        (RandomResizedCrop, {"flip": True}, TypeError, "^flip must be a number, got True$"),
        (RandomResizedCrop, {"scaled": "no"}, TypeError, "^scaled must be True or False, got 'no'$"),
        (ResizeCenterCrop, {"exif_transpose": 1}, TypeError, "^exif_transpose must be True or False, got 1$"),
        (ResizeCenterCrop, {"crop_pct": 0}, OptionError, "^crop_pct must be above 0 and at most 1, got 0$"),
        (ResizeCenterCrop, {"crop_pct": 1.1}, OptionError, r"^crop_pct must be above 0 and at most 1, got 1\.1$"),
        (ResizeCenterCrop, {"resize": 0}, OptionError, "^resize must be at least 1, got 0$"),
        (ResizeCenterCrop, {"resize": (3, 3)}, TypeError, "^resize must be an int, got"),
        (
            ResizeCenterCrop,
            {"crop_pct": 0.5, "resize": 9},
            OptionError,
            "^crop_pct and resize exclude .* got 0.5 and 9",
        ),
        (ResizeCenterCrop, {"size": (8, 9)}, OptionError, r"^resize must be given where .* got size=\(8, 9\)"),
    ],
)
def test_options_are_checked(decoder: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        decoder(**{"size": 8, **options})
