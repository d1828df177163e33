"""The further fields of a sample that lie over its image: masks, depth, partners of a pair, boxes.

``decode_field`` decodes the file of one as it is. ``crop_field`` and ``crop_boxes`` crop, resize and mirror it exactly
as a Decoder's plan does its image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps

from dbloader.decoding.exif import TURNS, read_orientation
from dbloader.decoding.jpeg import open_jpeg
from dbloader.decoding.open import open_image
from dbloader.decoding.pillow import decode_errors, open_file
from dbloader.decoding.unchanged import read_values
from dbloader.errors import OptionError, PixelRangeError
from dbloader.images.pillow import GRAY_16, MISREAD, value_depth

if TYPE_CHECKING:
    import numpy.typing as npt

    from dbloader.decoding.crop import Crop
    from dbloader.decoding.decoder import Plan

# What torch calculates with that holds all values of a mode; its uint16 lacks most operations.
_DTYPES = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I": np.int32, "F": np.float32}


def decode_field(data: bytes | memoryview) -> Image.Image:
    """Decode the file of a further field, such as a mask, to an image of the file's own mode.

    A palette is kept, and values of 16 or 32 bits are not scaled. Of several frames the first is taken.

    Raises:
        DamagedImageError: As from `decode_pil`, and NotAnImageError too.
        PixelRangeError: Pillow misreads values of this kind.
    """
    with open_file(data) as image:
        return _decoded(image, data)


def _decoded(image: Image.Image, data: bytes | memoryview) -> Image.Image:
    if image.mode in GRAY_16 or open_jpeg(data) is not None:  # Pillow hides warnings, and inverts no 16 bits
        decoded = Image.fromarray(read_values(data, image))
        decoded.info = image.info
        return decoded
    depth = value_depth(image)
    if depth in MISREAD:
        raise PixelRangeError(f"its values are {depth}, which Pillow reads as {MISREAD[depth]}")
    with decode_errors():
        image.load()
        return image.copy()  # without the file


def has_one_channel(image: Image.Image) -> bool:
    """Return whether an image holds one number for each pixel, as a mask does: a class, a palette's index, a depth."""
    return image.mode in _DTYPES or image.mode.startswith("I;16")


def values_of(image: Image.Image) -> npt.NDArray[Any]:
    """Return the values of an image of one channel: shape (height, width), uint8, int32 or float32 by its mode."""
    return np.array(image).astype(_DTYPES.get(image.mode, np.int32), copy=False)


def crop_field(data: bytes | memoryview, plan: Plan, *, exif_transpose: bool) -> torch.Tensor:
    """Decode the file of a further field, and crop, resize and mirror it as the plan does its image.

    The field has the size of the image, or exactly k times its width and height. Then its output is k times as large
    too.

    Args:
        data: The encoded file.
        plan: That of the sample's image.
        exif_transpose: Whether the field is turned upright as its own EXIF says.

    Returns:
        Of one channel: shape (height, width), each value that of the pixel in whose middle it is (nearest), 0 where the
        image is black beyond its edges; uint8 for the modes 1 (0 and 1), L and P (indices of the palette), int32 for I
        and I;16, float32 for F. Otherwise as an image: uint8, shape (3, height, width), RGB.

    Raises:
        OptionError: The field has another size. The errors of `decode_field` come too.
    """
    image = open_file(data)
    if has_one_channel(image):
        decoded = _decoded(image, data)
        if exif_transpose:
            with decode_errors():
                decoded = ImageOps.exif_transpose(decoded)
        crop, size = _enlarged(plan, decoded.width, decoded.height)
        return torch.from_numpy(_nearest(values_of(decoded), crop, size))
    source = open_image(data, None, exif_transpose=exif_transpose, known_intact=False)
    crop, size = _enlarged(plan, source.width, source.height)
    part = source.part(crop.left, crop.top, crop.width, crop.height, 1)
    return plan._replace(part=part, crop=crop, size=size).tensor()


def crop_boxes(boxes: npt.NDArray[Any], plan: Plan, image: Any, *, exif_transpose: bool) -> npt.NDArray[np.float32]:
    """Return boxes in pixels of the plan's output, clipped to it: float32, shape (n, 4), x_min, y_min, x_max, y_max.

    A box without width or height lies outside, or at the edge. ``boxes`` are in pixels of the stored ``image``, before
    its EXIF turns it.
    """
    turned = np.asarray(boxes, np.float64).reshape(-1, 4)
    if exif_transpose and isinstance(image, (bytes, memoryview)):
        exchanged, mirrored, inverted = TURNS[read_orientation(image)]
        if exchanged:
            turned = turned[:, [1, 0, 3, 2]]
        if mirrored:
            turned = _mirror(turned, 0, plan.width)
        if inverted:
            turned = _mirror(turned, 1, plan.height)
    crop, (height, width) = plan.crop, _output_size(plan)
    resized = crop.resized or (height, width)
    scale = (resized[1] / crop.width, resized[0] / crop.height)
    within = np.clip(turned - [crop.left, crop.top] * 2, 0, [crop.width, crop.height] * 2)
    placed = np.clip(within * (scale * 2) - [*crop.window[::-1]] * 2, 0, [width, height] * 2)
    return (_mirror(placed, 0, width) if crop.flip else placed).astype(np.float32)


def _mirror(boxes: npt.NDArray[np.float64], axis: int, length: int) -> npt.NDArray[np.float64]:
    mirrored = boxes.copy()
    mirrored[:, axis], mirrored[:, axis + 2] = length - boxes[:, axis + 2], length - boxes[:, axis]
    return mirrored


def _output_size(plan: Plan) -> tuple[int, int]:
    """Return height and width of a plan's output."""
    return plan.size or plan.crop.resized or (plan.crop.height, plan.crop.width)


def _enlarged(plan: Plan, width: int, height: int) -> tuple[Crop, tuple[int, int]]:
    """Return the crop of a field of this size, and the height and width of its output."""
    k = width // plan.width
    if not k or (width, height) != (k * plan.width, k * plan.height):
        raise OptionError(
            f"it has {width} x {height} pixels and its image {plan.width} x {plan.height}, so they cannot be cropped "
            "together: it must have the size of the image, or 2, 3, 4 ... times its width and height"
        )
    rows, columns = _output_size(plan)
    crop = plan.crop
    enlarged = crop._replace(
        left=k * crop.left,
        top=k * crop.top,
        width=k * crop.width,
        height=k * crop.height,
        resized=crop.resized and (k * crop.resized[0], k * crop.resized[1]),
        window=(k * crop.window[0], k * crop.window[1]),
    )
    return enlarged, (k * rows, k * columns)


def _nearest(pixels: npt.NDArray[Any], crop: Crop, size: tuple[int, int]) -> npt.NDArray[Any]:
    """Return the output of a crop without mixing values: shape ``size``."""
    resized = crop.resized or size
    rows = _sources(crop.top, crop.height, resized[0], crop.window[0], size[0])
    columns = _sources(crop.left, crop.width, resized[1], crop.window[1], size[1])
    if crop.flip:
        columns = columns[::-1]
    taken = pixels.take(rows, 0).take(columns, 1)
    taken[rows < 0] = 0
    taken[:, columns < 0] = 0
    return taken


def _sources(first: int, length: int, resized: int, window: int, count: int) -> npt.NDArray[np.int64]:
    """Return the row or column that each one of the output shows; -1 where the window leaves the part."""
    at = np.arange(window, window + count)
    # The middle of a pixel, at + 1/2, is (at + 1/2) * length / resized in the part; in whole numbers it is exact.
    return np.where((at >= 0) & (at < resized), first + (2 * at + 1) * length // (2 * resized), -1)
