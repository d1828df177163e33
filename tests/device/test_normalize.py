"""Normalize computes exact floats, and refuses inputs that are not images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dbloader.device import Normalize
from dbloader.errors import OptionError
from tests.support.tensors import DTYPES, MEAN, STD, pixels


def every_value() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)


@pytest.mark.parametrize("dtype", DTYPES)
def test_uint8_images_equal_float64_arithmetic(dtype: torch.dtype) -> None:
    result = Normalize(MEAN, STD, dtype=dtype)(every_value())
    exact = (np.arange(256) / 255 - np.array(MEAN)[:, None]) / np.array(STD)[:, None]
    assert (result.dtype, result.shape) == (dtype, (1, 3, 1, 256))
    # Half a unit in the last place, plus the earlier rounding to float32.
    allowed = torch.finfo(dtype).eps / 2 * np.abs(exact) + 5e-7
    assert (np.abs(result[0, :, 0].double().numpy() - exact) <= allowed).all()


@pytest.mark.parametrize("given", [*DTYPES, torch.float64])
def test_float_images_range_from_0_to_1(given: torch.dtype) -> None:
    images = (pixels() / 255).to(given)
    exact = (images.double() - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    for dtype in DTYPES:
        result = Normalize(MEAN, STD, dtype=dtype)(images)
        assert result.dtype is dtype
        assert torch.allclose(result.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=5e-7)


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels_last", [False, True])
def test_normalize_sets_the_memory_format(given: Any, channels_last: bool) -> None:
    images = pixels().contiguous(memory_format=given)
    for dtype in DTYPES:
        result = Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)(images)
        assert result.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        assert torch.equal(result, Normalize(MEAN, STD, dtype=dtype)(pixels()))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_batches_have_the_bits_of_single_images(dtype: torch.dtype, channels_last: bool) -> None:
    images = pixels(5, height=300, width=301)
    normalize = Normalize(MEAN, STD, dtype=dtype, channels_last=channels_last)
    result = normalize(images)
    assert torch.equal(result, torch.cat([normalize(image) for image in torch.split(images, 1)]))
    mean, std = (255 * torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    assert torch.equal(result, ((images - mean.float()) * (1 / std).float()).to(dtype))


def test_memory_of_a_dropped_result_is_reused() -> None:
    normalize, images = Normalize(MEAN, STD), pixels(2)
    first, second = normalize(images), normalize(images)
    address = first.data_ptr()
    assert second.data_ptr() != address
    del first
    assert normalize(images).data_ptr() == address


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mean": (123.7, 116.3, 103.5)},
            r"mean \(on the scale 0 to 1, not 0 to 255\) must be at least 0 and at most 1, got 123.7",
        ),
        ({"std": (0.5, 0.0, 0.5)}, r"std \(on the scale 0 to 1, not 0 to 255\) must be above 0 and at most 1, got 0.0"),
        ({"std": (0.5, 0.5)}, "mean and std must have one number for each channel, got 3 and 2"),
        ({"mean": (), "std": ()}, "mean and std must have one number for each channel, got 0 and 0"),
        ({"dtype": torch.uint8}, "dtype must be one of torch.float32, .*, got torch.uint8"),
        ({"mean": 0.5}, "mean must be a sequence of numbers, one for each channel, got 0.5"),
        ({"channels_last": "no"}, "^channels_last must be True or False, got 'no'$"),
    ],
)
def test_wrong_option_of_normalize_is_refused(options: Any, message: str) -> None:
    with pytest.raises((OptionError, TypeError), match=message):
        Normalize(**{"mean": MEAN, "std": STD, **options})


def test_input_without_images_is_refused() -> None:
    check_images_only(Normalize(MEAN, STD))
    with pytest.raises(OptionError, match="each of the 1 channels of the images, got 3"):
        Normalize(MEAN, STD)(pixels(channels=1))


def check_images_only(module: torch.nn.Module) -> None:
    with pytest.raises(TypeError, match="images must be a tensor, got ndarray"):
        module(np.zeros((1, 3, 4, 4)))
    with pytest.raises(ValueError, match=r"images must have the shape \(N, C, H, W\), got \(3, 4, 4\)"):
        module(torch.zeros(3, 4, 4))
    with pytest.raises(TypeError, match=r"images must be uint8 \(0 to 255\) or float \(0 to 1\), got torch.int64"):
        module(torch.zeros(1, 3, 4, 4, dtype=torch.int64))


def test_clips_are_normalized_frame_by_frame() -> None:
    clips = torch.arange(2 * 4 * 3 * 5 * 6).reshape(2, 4, 3, 5, 6).to(torch.uint8)
    for channels_last in (False, True):
        normalize = Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), channels_last=channels_last)
        assert torch.equal(normalize(clips), torch.stack([normalize(clip) for clip in clips]))


class Devices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the devices of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.add(result.device.type)
        return result


def test_normalizing_on_a_device_copies_nothing_from_the_cpu() -> None:
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8, device="meta")
    with Devices() as devices:
        Normalize(MEAN, STD)(images)
    assert devices.seen == {"meta"}
