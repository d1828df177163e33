"""What the decoders choose of an image, and what they make of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader.decoding import Crop, DecodeTensor, RandomResizedCrop, ResizeCenterCrop, decode_pil
from dbloader.sampling.rng import SampleRNG
from tests.support.jpegs import draw, encode

if TYPE_CHECKING:
    import numpy.typing as npt

# Width and height.
SIZES = ((500, 375), (375, 500), (1, 1), (1, 300), (300, 1), (900, 30), (30, 900), (64, 64), (13, 7))


def torchvisions_crop(
    random_numbers: list[float], width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params as it draws, but for what it draws: top, left, height, width."""
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
    w, h = max(w, 1), max(h, 1)  # where torchvision would take an empty crop, and fail
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("scale", "ratio"),
    [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (1.0, 1.0)), ((0.2, 0.2), (0.3, 0.4)), ((0.2, 0.9), (3.0, 4.0))],
)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_random_crops_are_torchvisions(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    decoder = RandomResizedCrop(8, scale, ratio, flip=0.3)
    for row in SampleRNG(0, 0, np.arange(300)).uniform(decoder.draws, "decode"):
        crop = decoder.choose_crop(row, width, height)
        top, left, h, w = torchvisions_crop(row[1:].tolist(), width, height, scale, ratio)
        assert crop == Crop(left, top, w, h, row[0] < 0.3)
        assert 0 <= crop.left <= width - crop.width
        assert 0 <= crop.top <= height - crop.height


def test_random_crops_cover_what_the_options_allow() -> None:
    decoder = RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.5, 2.0), flip=0.25)
    random_numbers = SampleRNG(1, 0, np.arange(4000)).uniform(decoder.draws, "decode")
    crops = np.array([decoder.choose_crop(row, 1000, 1000)[:5] for row in random_numbers])
    shares, ratios = crops[:, 2] * crops[:, 3] / 1e6, np.log(crops[:, 2] / crops[:, 3])
    assert 0.199 < shares.min() < 0.21
    assert 0.59 < shares.max() < 0.601
    assert abs(shares.mean() - 0.395) < 0.01, "a little less than the middle, as what does not fit is drawn again"
    assert abs(ratios.mean()) < 0.02
    assert math.log(1.9) < ratios.max() <= math.log(2.01)
    assert abs(crops[:, 4].mean() - 0.25) < 0.03
    room = (crops[:, :2] + 0.5) / (1001 - crops[:, 2:4])
    assert np.allclose(room.mean(0), 0.5, atol=0.02)


def test_numbers_just_below_1_choose_no_place_outside() -> None:
    decoder = RandomResizedCrop(8, scale=(0.5, 0.5), ratio=(1, 1))
    for side in range(100, 400):
        crop = decoder.choose_crop([math.nextafter(1, 0)] * decoder.draws, side, side)
        assert (crop.left + crop.width, crop.top + crop.height, crop.flip) == (side, side, False)


# Width and height of the image; size, resize; height and width when resized; the center's first row and column.
CENTRES = [
    ((500, 375), (224, 224), 256, (256, 341), (16, 58)),  # (341 - 224) / 2 = 58.5, to the even
    ((375, 500), (224, 224), 256, (341, 256), (58, 16)),
    ((375, 503), (224, 224), 256, (343, 256), (60, 16)),  # 59.5, to the even
    ((256, 256), (224, 224), 256, (256, 256), (16, 16)),
    ((500, 375), (300, 200), 256, (256, 341), (-22, 70)),
    ((1, 1), (5, 8), 2, (2, 2), (-1, -3)),
    ((1, 300), (4, 4), 4, (1200, 4), (598, 0)),
    ((30, 20), (7, 21), 4, (4, 6), (-1, -7)),
]


@pytest.mark.parametrize(("image", "size", "resize", "resized", "window"), CENTRES)
def test_centres_are_where_torchvision_has_them(
    image: tuple[int, int], size: tuple[int, int], resize: int, resized: tuple[int, int], window: tuple[int, int]
) -> None:
    decoder = ResizeCenterCrop(size, resize=resize)
    crop = decoder.choose_crop((), *image)
    assert crop == Crop(0, 0, *image, resized=resized, window=window)
    # As torchvision does it: pad with black, then cut.
    whole = np.array(draw(*image))
    padded = torch.from_numpy(whole)[None].permute(0, 3, 1, 2)
    if resized != padded.shape[2:]:
        padded = torch.nn.functional.interpolate(padded, resized, mode="bilinear", antialias=True)
    missing = [max(length - full, 0) for length, full in zip(size, resized, strict=True)]
    ends = [(less // 2, (less + 1) // 2) for less in missing]
    padded = torch.nn.functional.pad(padded, (*ends[1], *ends[0]))
    top, left = (round((full - length) / 2) for full, length in zip(padded.shape[2:], size, strict=True))
    assert torch.equal(decoder(whole), padded[0, :, top : top + size[0], left : left + size[1]])


def test_the_share_of_the_centre_gives_the_shorter_side() -> None:
    assert [ResizeCenterCrop(224).resize, ResizeCenterCrop(224, 0.95).resize, ResizeCenterCrop(8, 1).resize] == [
        256,
        235,
        8,
    ]


def test_a_whole_image_needs_no_choice() -> None:
    assert DecodeTensor().choose_crop((), 30, 20) == Crop(0, 0, 30, 20)
    assert DecodeTensor().size is None


def by_pillow(image: Image.Image, crop: Crop, size: tuple[int, int]) -> npt.NDArray[Any]:
    part = image.crop((crop.left, crop.top, crop.left + crop.width, crop.top + crop.height))
    part = part.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else part).astype(int)


@pytest.mark.parametrize("size", [(32, 48), (1, 1), (200, 3)])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_outputs_differ_from_pillows_by_two_levels_at_most(width: int, height: int, size: tuple[int, int]) -> None:
    decoder, image = RandomResizedCrop(size), draw(width, height)
    for row in np.random.default_rng(width).random((8, decoder.draws)):
        output = decoder(image, row).permute(1, 2, 0)
        assert output.shape == (*size, 3)
        expected = by_pillow(image, decoder.choose_crop(row, width, height), size)
        assert abs(output.numpy().astype(int) - expected).max() <= 2


def test_a_crop_of_the_outputs_size_is_not_resized() -> None:
    image = draw(40, 40)
    for flip in (0, 1):
        decoder = RandomResizedCrop(20, (0.25, 0.25), (1, 1), flip)
        output = decoder(encode(image, quality=100, subsampling=0), [0.5] * decoder.draws).permute(1, 2, 0)
        assert output.is_contiguous()
        crop = Crop(10, 10, 20, 20, bool(flip))
        assert decoder.choose_crop([0.5] * decoder.draws, 40, 40) == crop
        decoded = decode_pil(encode(image, quality=100, subsampling=0))
        assert np.array_equal(output.numpy(), by_pillow(decoded, crop, (20, 20)))


@pytest.mark.parametrize("threads", [1, 4])
def test_mirroring_the_output_is_mirroring_the_image(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 120, (60, 2)).tolist():
        image = generator.integers(0, 256, (height, width, 3), np.uint8)
        size = tuple(generator.integers(1, 200, 2).tolist())
        random_numbers = [0.0] * RandomResizedCrop.draws
        straight, mirrored = (RandomResizedCrop(size, (1, 1), (1e-9, 1e9), flip=flip) for flip in (0, 1))
        random_numbers[4::2] = [math.log(width / height * 1e9) / math.log(1e18)] * 10
        assert straight.choose_crop(random_numbers, width, height) == Crop(0, 0, width, height)
        assert torch.equal(mirrored(image, random_numbers), straight(image[:, ::-1], random_numbers))


def test_numbers_decide_everything() -> None:
    decoder, file = RandomResizedCrop(16), encode(draw(90, 60))
    rows = SampleRNG(0, 0, [5, 6]).uniform(decoder.draws, "decode")
    first = decoder(file, rows[0])
    torch.manual_seed(1)
    assert torch.equal(decoder(file, rows[0].tolist()), first)
    assert torch.equal(decoder(file, tuple(rows[0])), first)
    assert not torch.equal(decoder(file, rows[1]), first)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), drawn), "the decoder drew nothing"


def test_without_numbers_torchs_generator_draws_them() -> None:
    decoder, file = RandomResizedCrop(16), encode(draw(90, 60))
    torch.manual_seed(3)
    outputs = [decoder(file) for _ in range(4)]
    torch.manual_seed(3)
    assert all(torch.equal(decoder(file), output) for output in outputs)
    assert not torch.equal(outputs[0], outputs[1])
