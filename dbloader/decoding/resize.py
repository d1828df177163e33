"""From a part of an image to the output: resized, cut and mirrored.

Each step runs on the calling thread alone, as loaders run many at a time. In a loader's workers torch has been told so;
elsewhere its copies would not: it divides those of more than 32,768 values between threads, of which every calling
thread gets a team of its own. With teams of 8 on two cores, resizing a view took twice the processor's time, and
mirroring ten times.

Views are made by NumPy. torch lets go of Python's lock for each of its own, and another thread may take it meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    import numpy.typing as npt

_SERIAL = 32768  # values that torch leaves to one thread (at::internal::GRAIN_SIZE)


def render(
    pixels: npt.NDArray[np.uint8],
    resized: tuple[int, int] | None,
    window: tuple[int, int],
    size: tuple[int, int] | None,
    *,
    flip: bool,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Return the output that a part of an image becomes; Crop says how.

    Args:
        pixels: uint8, shape (height, width, 3), of any positive strides, writable. It may become the output.
        resized: Height and width in pixels to make of it; None for its own.
        window: Row and column of the resized part that become the output's first.
        size: Height and width of the output; None for all that is resized.
        flip: Whether left and right are exchanged. Mirroring the small output comes to the same bytes as mirroring
            the part.
        out: Where to write the output; new memory if None.

    Returns:
        uint8, shape (height, width, 3), one block of memory: ``out``, if that is given.
    """
    if resized is not None and resized != pixels.shape[:2]:
        pixels = _resize(pixels, resized)
    if size is not None and size != pixels.shape[:2]:
        pixels = _cut(pixels, window, size)
    if flip:
        pixels = _mirror(pixels)
    if out is None:
        return np.ascontiguousarray(pixels)
    out[...] = pixels  # by NumPy, as torch would divide so small a copy among threads of its own
    return out


def _resize(pixels: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Resize bilinearly with antialiasing.

    torch's kernel for bytes with AVX2 takes 104 us for what takes Pillow 490 (random-resized crops of 465 x 394 pixels
    to 224 x 224, one core of an EPYC), and differs from it by at most 2 levels. It takes an image to be channels-last
    by the stride of the axis N too, which must be that of a whole image: else the output is planar, and packing it
    takes half as long again.
    """
    image = torch.from_numpy(np.ascontiguousarray(pixels).reshape(1, *pixels.shape).transpose(0, 3, 1, 2))
    resized = interpolate(image, size=size, mode="bilinear", antialias=True)
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


def _mirror(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Exchange left and right.

    torch does it in a sixth of NumPy's time, or, some rows at a time, a third.
    """
    rows = np.ascontiguousarray(pixels).transpose(2, 0, 1)
    step = len(pixels) if torch.get_num_threads() == 1 else max(1, _SERIAL // (3 * pixels.shape[1]))
    parts = [torch.from_numpy(rows[:, at : at + step]).flip(2).numpy() for at in range(0, len(pixels), step)]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).transpose(1, 2, 0)
