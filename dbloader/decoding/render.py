"""Make a decoder's output from a part of an image: resize the part, cut out a window, and mirror the window.

Loaders decode in many threads, so no step may use further threads. Loaders limit torch to one intra-op thread in their
workers. Views of arrays are made with NumPy: torch would release the GIL for each view, and lose it to other threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    import numpy.typing as npt

TORCH_FILTERS = ("bilinear", "bicubic")  # torch resizes with these, four times faster than Pillow
FILTERS = (*TORCH_FILTERS, "nearest", "box", "hamming", "lanczos")


class Crop(NamedTuple):
    """Describes how a decoder makes its output from an image.

    A decoder decodes a part of the image, resizes it with antialiasing, cuts out a window, and mirrors the window, in
    this order. Pixels outside the part do not change the output.

    Attributes:
        left: Left edge of the part. ``left``, ``top``, ``width`` and ``height`` are in pixels of the image.
        top: Upper edge of the part.
        width: Width of the part, at least 1.
        height: Height of the part, at least 1.
        flip: Whether the output is mirrored from left to right.
        resized: Height and width in pixels to which the part is resized. None means the decoder's ``size``; if ``size``
            is None too, the part is not resized.
        window: Row and column of the resized part at which the output begins. Both may be negative: outside the
            resized part, the output is black.
        interpolation: The filter to resize with, one of `FILTERS`.
    """

    left: int
    top: int
    width: int
    height: int
    flip: bool = False
    resized: tuple[int, int] | None = None
    window: tuple[int, int] = (0, 0)
    interpolation: str = "bilinear"


def render(
    pixels: npt.NDArray[np.uint8], crop: Crop, size: tuple[int, int] | None, out: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """Return the output of a crop: uint8, shape (height, width, 3), contiguous, in ``out`` if given.

    ``pixels`` is the crop's part of the image: uint8, shape (height, width, 3), writable, with positive strides. The
    output may use this array. ``size`` is (height, width) of the output; None means the size of the resized part.
    """
    resized = crop.resized or size
    if resized is not None and resized != pixels.shape[:2]:
        pixels = resize_pixels(pixels, resized, crop.interpolation)
    if size is not None and size != pixels.shape[:2]:
        pixels = _cut(pixels, crop.window, size)
    if crop.flip:  # mirror last, because the output is usually smaller than the part
        pixels = mirror(pixels)
    if out is None:
        return np.ascontiguousarray(pixels)
    out[...] = pixels
    return out


def resize_pixels(pixels: npt.NDArray[np.uint8], size: tuple[int, int], interpolation: str) -> npt.NDArray[np.uint8]:
    """Resize to a height and width with antialiasing, unless the filter is "nearest".

    For a bilinear random-resized crop of 465 x 394 pixels to 224 x 224, torch's AVX2 kernel for bytes takes 104 us, and
    Pillow takes 490 us. Both change the width, round to bytes, change the height, and round again. So their results
    differ by at most 2 of 255 levels. But Pillow 13 begins with the height if that is less work. Then "bicubic" results
    differ by up to 26 levels for noise, and by up to 17 for photos (0.03 on average).
    """
    if interpolation not in TORCH_FILTERS:
        height, width = size
        return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling[interpolation.upper()]))
    # torch treats an image as channels-last only if the stride of the first axis is a whole image. Otherwise torch's
    # output is planar, and converting the output to channels-last takes half as long as resizing.
    image = torch.from_numpy(np.ascontiguousarray(pixels).reshape(1, *pixels.shape).transpose(0, 3, 1, 2))
    resized = interpolate(image, size=size, mode=interpolation, antialias=True)
    array: npt.NDArray[np.uint8] = resized.numpy()[0].transpose(1, 2, 0)
    return array


def mirror(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Mirror an image from left to right. torch takes a sixth of NumPy's time."""
    planes = torch.from_numpy(np.ascontiguousarray(pixels).transpose(2, 0, 1))
    return planes.flip(2).numpy().transpose(1, 2, 0)


def _cut(pixels: npt.NDArray[np.uint8], window: tuple[int, int], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return a window of ``size`` that begins at (row, column) ``window``. It is black where it has no ``pixels``."""
    inside, outside = [], []
    for first, length, full in zip(window, size, pixels.shape[:2], strict=True):
        start, stop = max(first, 0), min(first + length, full)
        inside.append(slice(start, stop))
        outside.append(slice(start - first, stop - first))
    result = np.zeros((*size, 3), np.uint8)
    result[outside[0], outside[1]] = pixels[inside[0], inside[1]]
    return result
