"""Decoders choose and resize crops like torchvision, and refuse wrong options."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad

from dbloader.decoding import Crop, Decoder, DecodeTensor, RandomCrop, RandomResizedCrop, ResizeCenterCrop
from dbloader.decoding.render import FILTERS, TORCH_FILTERS, render
from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG
from tests.support.jpegs import draw, encode

DRAWS = RandomResizedCrop.draws
# (width, height) of the images
SIZES = ((500, 375), (375, 500), (1, 1), (1, 300), (300, 1), (900, 30), (30, 900), (64, 64), (13, 7))


def torchvision_resized_crop(
    random_numbers: list[float], width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Run torchvision's RandomResizedCrop.get_params with given random numbers. Return top, left, height and width."""
    top, left, *pairs = random_numbers
    for share, aspect in zip(pairs[::2], pairs[1::2], strict=True):
        target = height * width * (scale[0] + share * (scale[1] - scale[0]))
        logs = math.log(ratio[0]), math.log(ratio[1])
        stretch = math.exp(logs[0] + aspect * (logs[1] - logs[0]))
        w, h = int(round(math.sqrt(target * stretch))), int(round(math.sqrt(target / stretch)))  # noqa: RUF046
        if 0 < w <= width and 0 < h <= height:
            return math.floor(top * (height - h + 1)), math.floor(left * (width - w + 1)), h, w
    if width / height < min(ratio):
        w, h = width, int(round(width / min(ratio)))  # noqa: RUF046
    elif width / height > max(ratio):
        w, h = int(round(height * max(ratio))), height  # noqa: RUF046
    else:
        w, h = width, height
    w, h = max(w, 1), max(h, 1)  # torchvision would fail with an empty crop
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (1.0, 1.0)), ((0.2, 0.2), (0.3, 0.4)), ((0.2, 0.9), (3.0, 4.0))],
)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_random_resized_crop_equals_torchvision(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    decoder = RandomResizedCrop(8, scale, ratio, flip=0.3)
    for row in SampleRNG(0, 0, np.arange(300)).uniform(DRAWS, "decode"):
        crop = decoder.choose_crop(row, width, height)
        top, left, h, w = torchvision_resized_crop(row[1:].tolist(), width, height, scale, ratio)
        assert crop == Crop(left, top, w, h, row[0] < 0.3)
        assert 0 <= crop.left <= width - crop.width
        assert 0 <= crop.top <= height - crop.height


def test_flipped_output_equals_output_of_a_mirrored_image() -> None:
    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 120, (60, 2)).tolist():
        image = generator.integers(0, 256, (height, width, 3), np.uint8)
        size = tuple(generator.integers(1, 200, 2).tolist())
        random_numbers = [0.0] * DRAWS
        straight, mirrored = (RandomResizedCrop(size, (1, 1), (1e-9, 1e9), flip=flip) for flip in (0, 1))
        random_numbers[4::2] = [math.log(width / height * 1e9) / math.log(1e18)] * 10
        assert straight.choose_crop(random_numbers, width, height) == Crop(0, 0, width, height)
        assert torch.equal(mirrored(image, random_numbers), straight(image[:, ::-1], random_numbers))


def test_given_random_numbers_determine_the_output() -> None:
    decoder, file = RandomResizedCrop(16), encode(draw(90, 60))
    rows = SampleRNG(0, 0, [5, 6]).uniform(DRAWS, "decode")
    torch.manual_seed(1)
    first = decoder(file, rows[0])
    state = torch.get_rng_state()
    assert torch.equal(decoder(file, rows[0].tolist()), first)
    assert torch.equal(decoder(file, tuple(rows[0])), first)
    assert not torch.equal(decoder(file, rows[1]), first)
    assert torch.equal(torch.get_rng_state(), state)
    drawn = decoder(file)  # drawn from torch's generator
    torch.set_rng_state(state)
    assert torch.equal(decoder(file), drawn)
    assert not torch.equal(decoder(file), drawn)


# Width and height of the image, the options size and resize, height and width when resized, and the crop's first row
# and column.
CENTERS = [
    ((500, 375), (224, 224), 256, (256, 341), (16, 58)),  # (341 - 224) / 2 = 58.5, rounded to even
    ((375, 503), (224, 224), 256, (343, 256), (60, 16)),  # 59.5, rounded to even
    ((256, 256), (224, 224), 256, (256, 256), (16, 16)),
    ((500, 375), (300, 200), 256, (256, 341), (-22, 70)),
    ((1, 1), (5, 8), 2, (2, 2), (-1, -3)),
    ((1, 300), (4, 4), 4, (1200, 4), (598, 0)),
    ((30, 20), (7, 21), 4, (4, 6), (-1, -7)),
]


@pytest.mark.parametrize(("image", "size", "resize", "resized", "window"), CENTERS)
def test_center_crop_equals_torchvision(
    image: tuple[int, int], size: tuple[int, int], resize: int, resized: tuple[int, int], window: tuple[int, int]
) -> None:
    decoder = ResizeCenterCrop(size, resize=resize)
    assert decoder.choose_crop((), *image) == Crop(0, 0, *image, resized=resized, window=window)
    # torchvision pads with black, then cuts.
    whole = np.array(draw(*image))
    padded = torch.from_numpy(whole)[None].permute(0, 3, 1, 2)
    if resized != padded.shape[2:]:
        padded = interpolate(padded, resized, mode="bilinear", antialias=True)
    missing = [max(length - full, 0) for length, full in zip(size, resized, strict=True)]
    ends = [(less // 2, (less + 1) // 2) for less in missing]
    padded = pad(padded, (*ends[1], *ends[0]))
    top, left = (round((full - length) / 2) for full, length in zip(padded.shape[2:], size, strict=True))
    assert torch.equal(decoder(whole), padded[0, :, top : top + size[0], left : left + size[1]])


def torchvision_random_crop(pixels: Any, decoder: RandomCrop, row: Any) -> Any:
    """Run torchvision's RandomCrop.forward and RandomHorizontalFlip with given random numbers."""
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
def test_random_crop_equals_torchvision(decoder: RandomCrop) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, (32, 32, 3), np.uint8)
    for row in SampleRNG(0, 0, np.arange(60)).uniform(3, "decode"):
        crop = decoder.choose_crop(row, 32, 32)
        assert 0 <= crop.left < crop.left + crop.width <= 32
        assert 0 <= crop.top < crop.top + crop.height <= 32
        output = decoder(pixels, row)
        assert output.shape == (3, *decoder.size)
        assert np.array_equal(output.permute(1, 2, 0).numpy(), torchvision_random_crop(pixels, decoder, row))


def pillow_resize(pixels: npt.NDArray[np.uint8], size: tuple[int, int], name: str) -> npt.NDArray[Any]:
    """Resize rows first, then columns, like torch. Pillow itself starts with the cheaper axis."""
    resample = Image.Resampling[name.upper()]
    if name not in TORCH_FILTERS:
        return np.asarray(Image.fromarray(pixels).resize(size[::-1], resample)).astype(int)
    rows = Image.fromarray(pixels).resize((size[1], pixels.shape[0]), resample)
    return np.asarray(rows.resize(size[::-1], resample)).astype(int)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("shape", "size"),
    [((90, 60), (32, 48)), ((24, 133), (40, 20)), ((61, 83), (64, 64)), ((5, 7), (1, 30)), ((200, 150), (56, 56))],
)
def test_resizing_differs_from_pillow_by_at_most_two_levels(
    shape: tuple[int, int], size: tuple[int, int], name: str
) -> None:
    noise = np.random.default_rng(shape[0]).integers(0, 256, (*shape, 3), np.uint8)
    for pixels in (noise, np.array(draw(*shape[::-1]))):
        output = render(pixels, Crop(0, 0, shape[1], shape[0], True, interpolation=name), size)
        assert output.flags.c_contiguous
        difference = abs(output.astype(int) - pillow_resize(pixels, size, name)[:, ::-1]).max()
        assert difference <= (2 if name in TORCH_FILTERS else 0)


@pytest.mark.parametrize("decoder", [RandomResizedCrop, ResizeCenterCrop])
def test_decoder_resizes_with_given_filter(decoder: Any) -> None:
    file, outputs = encode(draw(90, 60)), []
    for name in FILTERS:
        one = decoder(24, interpolation=name)
        row = [0.4] * one.draws
        assert one.choose_crop(row, 90, 60) == decoder(24).choose_crop(row, 90, 60)._replace(interpolation=name)
        outputs.append(one(file, row))
    assert torch.equal(outputs[0], decoder(24)(file, [0.4] * decoder.draws)), "bilinear is the default"
    assert all(not torch.equal(one, other) for at, one in enumerate(outputs) for other in outputs[:at])


def test_random_filter_is_bilinear_or_bicubic_and_keeps_the_crop() -> None:
    decoder, plain = RandomResizedCrop(24, interpolation="random"), RandomResizedCrop(24)
    assert (decoder.draws, plain.draws) == (DRAWS + 1, DRAWS)
    chosen = []
    for row in SampleRNG(0, 0, np.arange(400)).uniform(DRAWS + 1, "decode"):
        crop = decoder.choose_crop(row, 90, 60)
        assert crop == plain.choose_crop(row[:-1], 90, 60)._replace(interpolation=crop.interpolation)
        chosen.append(crop.interpolation)
    assert {*chosen} == {"bilinear", "bicubic"}
    assert 160 < chosen.count("bicubic") < 240
    numbers = [0.3] * DRAWS
    assert decoder.choose_crop([*numbers, math.nextafter(0.5, 0)], 90, 60).interpolation == "bilinear"
    assert decoder.choose_crop([*numbers, 0.5], 90, 60).interpolation == "bicubic"


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
def test_pickled_decoder_keeps_its_options(decoder: Decoder) -> None:
    copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301 - it was pickled here
    assert repr(copy) == repr(decoder)
    assert repr(decoder).startswith(f"{type(decoder).__name__}(")
    random_numbers, image = [0.3] * decoder.draws, draw(40, 30)
    assert torch.equal(copy(image, random_numbers), decoder(image, random_numbers))


SIZE = r"^size must be a number of pixels or a \(height, width\), each at least 1"


@pytest.mark.parametrize(
    ("decoder", "options", "kind", "message"),
    [
        *((RandomResizedCrop, {"size": size}, OptionError, SIZE) for size in (0, (8, 0), 2.5, (8,))),
        (RandomResizedCrop, {"scale": (0, 1)}, OptionError, "^scale must be above 0 and at most 1, got 0$"),
        (RandomResizedCrop, {"scale": (0.5, 1.1)}, OptionError, r"^scale must be at least 0\.5 and at most 1, got 1"),
        (
            RandomResizedCrop,
            {"scale": (1, 0.08)},
            OptionError,
            r"^scale must be .* got \(1, .*: write scale=\(0\.08, 1\)$",
        ),
        (
            RandomResizedCrop,
            {"ratio": [2, 0.5]},
            OptionError,
            r"^ratio must be .* got \[2, .*: write ratio=\(0\.5, 2\)$",
        ),
        (RandomResizedCrop, {"scale": (0.5, 0)}, OptionError, r"^scale must be at least 0\.5 and at most 1, got 0$"),
        (RandomResizedCrop, {"scale": 0.5}, TypeError, r"^scale must be a pair \(least, greatest\), got 0\.5$"),
        (RandomResizedCrop, {"scale": (0.5, "1")}, TypeError, "^scale must be a number, got '1'$"),
        (RandomResizedCrop, {"ratio": (1, math.inf)}, OptionError, "^ratio must be at least 1 and finite, got inf$"),
        (RandomResizedCrop, {"ratio": (math.nan, 1)}, OptionError, "^ratio must be above 0 and finite, got nan$"),
        (RandomResizedCrop, {"flip": 1.5}, OptionError, r"^flip must be at least 0 and at most 1, got 1\.5$"),
        (RandomResizedCrop, {"scaled": "no"}, TypeError, "^scaled must be True or False, got 'no'$"),
        (RandomResizedCrop, {"interpolation": "cubic"}, OptionError, "^interpolation must be one of .* got 'cubic'$"),
        (ResizeCenterCrop, {"interpolation": "random"}, OptionError, "^interpolation must be one .* got 'random'$"),
        (ResizeCenterCrop, {"exif_transpose": 1}, TypeError, "^exif_transpose must be True or False, got 1$"),
        (ResizeCenterCrop, {"crop_pct": 0}, OptionError, "^crop_pct must be above 0 and at most 1, got 0$"),
        (ResizeCenterCrop, {"resize": 0}, OptionError, "^resize must be at least 1, got 0$"),
        (ResizeCenterCrop, {"crop_pct": 0.5, "resize": 9}, OptionError, "^crop_pct and resize exclude .* 0.5 and 9"),
        (ResizeCenterCrop, {"size": (8, 9)}, OptionError, r"^resize must be given if .* got size=\(8, 9\)"),
        (RandomCrop, {"padding": 8}, OptionError, r"^padding must be less than size=\(8, 8\), otherwise .* got 8$"),
        (RandomCrop, {"padding": (9, 0)}, OptionError, r"^padding must be less than .* got \(9, 0\)$"),
        (RandomCrop, {"padding": -1}, OptionError, "^padding must be at least 0, got -1$"),
        (RandomCrop, {"padding": (1, 2, 3)}, TypeError, r"^padding must be an int, got \(1, 2, 3\)$"),
    ],
)
def test_wrong_option_is_refused(decoder: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        decoder(**{"size": 8, **options})


@pytest.mark.parametrize(
    ("decoder", "numbers", "message"),
    [
        (RandomResizedCrop(16), [0.5] * 22, "^random_numbers must have 23 values for each image, got 22$"),
        (RandomResizedCrop(16), [0.5] * 22 + [1.0], r"^random_numbers must be at least 0 and below 1, got 0\.5 to 1"),
        (RandomResizedCrop(16), [0.5] * 22 + [math.nan], "^random_numbers must be at least 0 and below 1"),
        (ResizeCenterCrop(16), [0.5], "^random_numbers must have 0 values for each image, got 1$"),
        (RandomCrop((48, 32), (0, 3)), [0.5] * 3, r"^size must not exceed .* got \(48, 32\) .* 40 x 40 .* pad_if_need"),
    ],
)
def test_choose_crop_refuses_wrong_numbers_and_sizes(decoder: Decoder, numbers: list[float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        decoder.choose_crop(numbers, 40, 40)
