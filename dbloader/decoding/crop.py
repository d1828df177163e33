"""Crops of images: what part of an image is decoded, and how that becomes the output.

``random_crop.py`` and ``center_crop.py`` choose the crop. ``jpeg.py`` decodes it, from the tiles that it touches if the
file is tiled (``images/tiled/join.py``).

Each step must run on the calling thread alone, since loaders run many threads. Loaders limit torch to one intra-op
thread in their workers. Elsewhere torch would divide copies of more than 32,768 values between a team of threads for
each calling thread: with teams of 8 on two cores, resizing a view took twice the CPU time, and mirroring ten times.

NumPy makes the views: torch releases the GIL for each of its own, and another thread may take it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    import numpy.typing as npt

TORCH_FILTERS = ("bilinear", "bicubic")
FILTERS = (*TORCH_FILTERS, "nearest", "box", "hamming", "lanczos")
"""What an image is resized with: torch's kernels, which are four times faster, or Pillow's."""

_SERIAL = 32768  # values that torch does not divide between threads (at::internal::GRAIN_SIZE)


class Crop(NamedTuple):
    """What becomes of an image: a part of it is resized, and a window on that is the output.

    A decoder on any device does four things, in this order: take the part, resize it (with antialiasing, over the part
    alone), cut out the window, mirror it.

    Attributes:
        left: Left edge of the part, in pixels of the image as the next three.
        top: Its upper edge.
        width: Its width, at least 1.
        height: Its height, at least 1.
        flip: Whether left and right of the output are exchanged.
        resized: Height and width in pixels to which the part is resized; None for the decoder's ``size``, or, where
            that is None too, for no resizing.
        window: First row and column of the resized part that the output shows. They may be negative: the output is
            black where the window leaves the part.
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
    pixels: npt.NDArray[np.uint8],
    crop: Crop,
    size: tuple[int, int] | None,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Return the output for a crop, of height and width ``size`` if that is given.

    ``pixels`` are the crop's part of the image: uint8, shape (height, width, 3), of any positive strides, writable, and
    may become the output. That is uint8, shape (height, width, 3), one block of memory: ``out``, if that is given.
    """
    resized = crop.resized or size
    if resized is not None and resized != pixels.shape[:2]:
        pixels = resize_pixels(pixels, resized, crop.interpolation)
    if size is not None and size != pixels.shape[:2]:
        pixels = _cut(pixels, crop.window, size)
    if crop.flip:  # the small output: the bytes are the same as if the part were mirrored
        pixels = mirror(pixels)
    if out is None:
        return np.ascontiguousarray(pixels)
    out[...] = pixels  # torch would divide even so small a copy between threads
    return out


def resize_pixels(pixels: npt.NDArray[np.uint8], size: tuple[int, int], interpolation: str) -> npt.NDArray[np.uint8]:
    """Resize to a height and width with antialiasing, unless the filter is "nearest".

    torch's AVX2 kernel for bytes takes 104 us where Pillow takes 490 (bilinear, random-resized crops of 465 x 394
    pixels to 224 x 224, one core of an EPYC), and differs by at most 2 levels. Both resize rows first and round to
    bytes before the columns; but Pillow 13 begins with the columns where that is less work. With "bicubic", which
    overshoots, the order matters: up to 26 levels in noise, 17 in photos, 0.03 on average. torch treats an image as
    channels-last only if the stride of the axis N is that of a whole image too. Otherwise the output is planar, and
    packing it takes half as long again.
    """
    if interpolation not in TORCH_FILTERS:
        height, width = size
        return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling[interpolation.upper()]))
    image = torch.from_numpy(np.ascontiguousarray(pixels).reshape(1, *pixels.shape).transpose(0, 3, 1, 2))
    resized = interpolate(image, size=size, mode=interpolation, antialias=True)
    array: npt.NDArray[np.uint8] = resized.numpy()[0].transpose(1, 2, 0)
    return array


def _cut(pixels: npt.NDArray[np.uint8], window: tuple[int, int], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return a window on pixels, black where it leaves them: shape (*size, 3)."""
    inside, outside = [], []
    for first, length, full in zip(window, size, pixels.shape[:2], strict=True):
        start, stop = max(first, 0), min(first + length, full)
        inside.append(slice(start, stop))
        outside.append(slice(start - first, stop - first))
    result = np.zeros((*size, 3), np.uint8)
    result[outside[0], outside[1]] = pixels[inside[0], inside[1]]
    return result


def mirror(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Exchange left and right.

    torch takes a sixth of NumPy's time, or a third where it must go a few rows at a time to stay on one thread.
    """
    rows = np.ascontiguousarray(pixels).transpose(2, 0, 1)
    step = len(pixels) if torch.get_num_threads() == 1 else max(1, _SERIAL // (3 * pixels.shape[1]))
    parts = [torch.from_numpy(rows[:, at : at + step]).flip(2).numpy() for at in range(0, len(pixels), step)]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).transpose(1, 2, 0)
