"""RandomErasing erases rectangles like timm, with the random numbers of each image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dbloader.device import RandomErasing
from dbloader.errors import LoaderError, OptionError
from dbloader.ext.device.erasing import normal
from dbloader.sampling.rng import STEP, SampleRNG, scramble
from tests.device.test_normalize import check_images_only
from tests.device.test_streams import Placed
from tests.support.tensors import DTYPES, pixels, sevens

MODES = ("const", "rand", "pixel")
CPU = torch.device("cpu")


def rng_of(positions: Any) -> SampleRNG:
    return SampleRNG(1, 2, positions)


def reference_boxes(erasing: RandomErasing, given: SampleRNG, height: int, width: int) -> list[list[Any]]:
    """Return the rectangles of each image, drawn one after the other as in timm's code."""
    found: list[list[Any]] = []
    tries = 10
    count_of = erasing.max_count
    for (erased, counted), row in zip(
        given.uniform(2, "erasing"), given.uniform(count_of * (2 * tries + 2), "boxes"), strict=True
    ):
        boxes: list[Any] = []
        found.append(boxes)
        if erased >= erasing.probability:
            continue
        count = erasing.min_count + int(counted * (erasing.max_count - erasing.min_count + 1))
        for number in range(count):
            draws = row[number * (2 * tries + 2) :]
            for attempt in range(tries):
                share = erasing.min_area + draws[attempt] * (erasing.max_area - erasing.min_area)
                target = share * height * width / count
                low, high = np.log(erasing.min_aspect), np.log(erasing.max_aspect)
                aspect = np.exp(low + draws[tries + attempt] * (high - low))
                h, w = round(np.sqrt(target * aspect)), round(np.sqrt(target / aspect))
                if w < width and h < height:
                    top, left = int(draws[2 * tries] * (height - h + 1)), int(draws[2 * tries + 1] * (width - w + 1))
                    boxes.append((top, top + h, left, left + w, number))
                    break
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [(1, None), (2, None), (1, 4)])
@pytest.mark.parametrize("size", [(17, 23), (40, 8), (1, 1)])
def test_erasing_equals_a_loop_over_images_and_boxes(mode: Any, counts: Any, size: tuple[int, int]) -> None:
    erasing = RandomErasing(0.7, mode=mode, min_count=counts[0], max_count=counts[1], max_area=0.6)
    images, given = sevens(64, 3, *size), rng_of(range(100, 164))
    expected = images.clone()
    noise = normal(given.bits("pixels"), (3, *size), torch.float32, CPU)
    colors = torch.special.ndtri(torch.from_numpy(given.uniform(erasing.max_count * 3, "colors"))).float()
    for place, boxes in enumerate(reference_boxes(erasing, given, *size)):
        for top, bottom, left, right, number in boxes:
            inside = (place, slice(None), slice(top, bottom), slice(left, right))
            if mode == "const":
                expected[inside] = 0
            elif mode == "rand":
                expected[inside] = colors[place, 3 * number : 3 * number + 3, None, None]
            else:
                expected[inside] = noise[inside]
    assert torch.equal(erasing(images, rng=given), expected)
    if size == (17, 23):
        assert not torch.equal(expected, images)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_erasing_keeps_dtype_and_memory_format_and_leaves_its_input_unchanged(
    mode: Any, dtype: torch.dtype, layout: Any
) -> None:
    images = sevens(8, 3, 17, 23, dtype=dtype).contiguous(memory_format=layout)
    result = RandomErasing(1, mode=mode)(images, rng=rng_of(range(8)))
    assert (result.dtype, result.is_contiguous(memory_format=layout)) == (dtype, True)
    assert (images == 7).all()
    plain = RandomErasing(1, mode=mode)(sevens(8, 3, 17, 23, dtype=torch.float64), rng=rng_of(range(8)))
    assert torch.equal(result, plain.to(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_erasing_of_an_image_does_not_depend_on_its_batch(mode: Any) -> None:
    erasing = RandomErasing(0.6, mode=mode, max_count=3)
    images, order = sevens(60, 3, 16, 16), np.random.default_rng(0).permutation(60)
    whole = erasing(images, rng=rng_of(range(60)))
    for size in (1, 7, 60):
        parts = [erasing(images[: len(part)], rng=rng_of(part)) for part in np.split(order, range(size, 60, size))]
        assert torch.equal(torch.cat(parts), whole[torch.from_numpy(order)])


def test_erasing_without_an_rng_draws_from_the_torch_generator() -> None:
    erasing, images = RandomErasing(1, mode="pixel"), sevens(8, 3, 16, 16)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(erasing(images))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[2], erasing(images))
    assert not torch.equal(results[2][0], results[2][1])


def test_uint8_images_can_only_be_erased_with_zeros() -> None:
    erased = RandomErasing(1)(pixels(), rng=rng_of(range(4)))
    assert erased.dtype is torch.uint8
    assert (erased != pixels()).any(dim=(1, 2, 3)).all()
    with pytest.raises(TypeError, match=r"mode 'pixel' must come after Normalize, for float images, got torch.uint8"):
        RandomErasing(mode="pixel")(pixels())


def test_wrong_number_of_positions_is_refused() -> None:
    with pytest.raises(OptionError, match="rng must have one position for each of the 4 images, got 3"):
        RandomErasing()(pixels(), rng=rng_of(range(3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 1.5}, "probability must be at least 0 and at most 1, got 1.5"),
        ({"min_area": 0.5}, "max_area must be at least 0.5 and at most 1, got 0.333"),
        ({"min_aspect": 0}, "min_aspect must be above 0 and finite, got 0"),
        ({"min_aspect": 3}, "max_aspect must be at least 3 and finite, got 0.333"),
        ({"mode": "random"}, "mode must be one of const, rand, pixel, got 'random'"),
        ({"min_count": 0}, "min_count must be at least 1, got 0"),
        ({"min_count": 3, "max_count": 2}, "max_count must be at least 3, got 2"),
    ],
)
def test_wrong_option_of_erasing_is_refused(options: Any, message: str) -> None:
    with pytest.raises((OptionError, TypeError), match=message):
        RandomErasing(**options)


def test_noise_is_splitmix64_mapped_to_normal_quantiles() -> None:
    keys, shape = SampleRNG(1, 2, range(5)).bits("pixels"), (3, 5, 7)
    words = keys[:, None] + np.arange(1, 28, dtype=np.uint64) * np.uint64(STEP)
    scramble(words)
    chosen = words.astype("<u8").view("<i2")[:, :105].astype(np.int64) + 2**15
    quantiles = torch.special.ndtri((torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16).numpy()
    expected = quantiles[chosen].astype(np.float32).reshape(5, *shape)
    assert (normal(keys, shape, torch.float32, CPU).numpy() == expected).all()


def test_input_without_images_is_refused() -> None:
    check_images_only(RandomErasing())


def test_erasing_refuses_to_be_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    images = torch.zeros(2, 3, 8, 8).as_subclass(Placed)
    with pytest.raises(LoaderError, match="each replay of a CUDA graph would erase the same rectangles: call it befo"):
        RandomErasing(1.0)(images)
