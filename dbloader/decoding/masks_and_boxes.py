"""Crop other fields of a sample with its image: masks, depth maps, second images of a pair, and boxes.

``decode_field`` keeps a field's values and size. ``crop_field`` and ``crop_boxes`` crop, resize and mirror a
field exactly as a Decoder's plan does with the image. ``refuse_masks`` refuses fields that would keep their size while
the image is cropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps

from dbloader.decoding.codecs import is_bare, open_codec
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.jpeg import open_jpeg
from dbloader.decoding.open import open_image, read_orientation
from dbloader.decoding.pillow import decode_errors, open_file
from dbloader.decoding.unchanged import read_values
from dbloader.errors import OptionError, PixelRangeError
from dbloader.images.info import find_facts
from dbloader.images.pillow import GRAY_16, MISREAD, turn_boxes, value_depth

if TYPE_CHECKING:
    import numpy.typing as npt

    from dbloader.decoding.decoder import Plan
    from dbloader.decoding.render import Crop

# The dtype for each of Pillow's modes with one channel. uint16 is avoided: torch has few operations for it.
_DTYPES = {"1": np.uint8, "L": np.uint8, "P": np.uint8, "I": np.int32, "F": np.float32}

_MIRRORED = 2  # EXIF orientation of an image that is mirrored from left to right


def decode_field(data: bytes | memoryview, *, known_intact: bool = False) -> Image.Image:
    """Decode the file of a field, such as a mask, to an image of the file's own mode.

    Palettes are kept, and values of 16 or 32 bits are not scaled. Only the first of several frames is decoded.
    ``known_intact`` is as in ``Decoder.__call__``.

    Raises:
        DamagedImageError: As in `decode_pil`.
        NotAnImageError: As in `decode_pil`.
        PixelRangeError: Pillow misreads the kind of values in the file, such as signed 8-bit values.
    """
    gray = open_codec(data) if known_intact and is_bare(data) else None
    if gray is not None and gray.is_gray:
        return Image.fromarray(gray.decode(0, 0, gray.width, gray.height)[..., 0])
    with open_file(data) as image:
        return _decode(image, data)


def _decode(image: Image.Image, data: bytes | memoryview) -> Image.Image:
    # `read_values` reports libjpeg's warnings, and inverts 16-bit values in which 0 is white. Pillow does neither.
    if image.mode in GRAY_16 or open_jpeg(data) is not None:
        decoded = Image.fromarray(read_values(data, image))
        decoded.info = image.info
        return decoded
    depth = value_depth(image)
    if depth in MISREAD:
        raise PixelRangeError(f"its values are {depth}, which Pillow reads as {MISREAD[depth]}")
    with decode_errors():
        image.load()
        return image.copy()  # a copy does not keep the file open


def has_one_channel(image: Image.Image) -> bool:
    """Return whether an image has one number for each pixel, such as a class, an index of a palette or a depth."""
    return image.mode in _DTYPES or image.mode.startswith("I;16")


def values_of(image: Image.Image) -> npt.NDArray[Any]:
    """Return the values of an image of one channel: shape (height, width), uint8, int32 or float32 by its mode."""
    return np.array(image).astype(_DTYPES.get(image.mode, np.int32), copy=False)


def crop_field(
    data: bytes | memoryview, plan: Plan, *, exif_transpose: bool, known_intact: bool = False
) -> torch.Tensor:
    """Decode the file of a field, and crop, resize and mirror it as the plan does with the image.

    The field must have the size of the image, or exactly k times the image's width and height. The output of the field
    is then k times as large as the output of the image. With ``exif_transpose``, the field is first turned upright
    according to its own EXIF. ``known_intact`` is as in ``Decoder.__call__``.

    Returns:
        For one channel: shape (height, width), resized by nearest-neighbor interpolation, 0 outside the image. The
        dtype is uint8 for the modes 1 (values 0 and 1), L and P (indices of the palette), int32 for I and I;16, and
        float32 for F. For colors: uint8, shape (3, height, width), RGB.

    Raises:
        OptionError: The size of the field does not fit the size of the image.
        ImageError: As in `decode_field`.
    """
    gray = open_codec(data) if known_intact and not exif_transpose else None
    if gray is not None and gray.is_gray:
        crop, size = _enlarge(plan, gray.width, gray.height)
        values = gray.decode(crop.left, crop.top, crop.width, crop.height)[..., 0]
        return torch.from_numpy(_nearest(values, crop._replace(left=0, top=0), size))
    image = open_file(data)
    if has_one_channel(image):
        decoded = _decode(image, data)
        if exif_transpose:
            with decode_errors():
                decoded = ImageOps.exif_transpose(decoded)
        crop, size = _enlarge(plan, decoded.width, decoded.height)
        return torch.from_numpy(_nearest(values_of(decoded), crop, size))
    source = open_image(data, None, exif_transpose=exif_transpose, known_intact=known_intact)
    crop, size = _enlarge(plan, source.width, source.height)
    part = source.part(crop.left, crop.top, crop.width, crop.height, 1)
    return plan._replace(part=part, crop=crop, size=size).tensor()


def crop_boxes(boxes: npt.NDArray[Any], plan: Plan, image: Any, *, exif_transpose: bool) -> npt.NDArray[np.float32]:
    """Crop, resize and mirror boxes as the plan does with the image, and clip them to the output.

    ``boxes`` are in pixels of the stored image, before its EXIF turns it. The result is in pixels of the output:
    float32, shape (n, 4), x_min, y_min, x_max, y_max. A box outside the output gets a width or height of 0.
    """
    turned = np.asarray(boxes, np.float64).reshape(-1, 4)
    if exif_transpose and isinstance(image, (bytes, memoryview)):
        turned = turn_boxes(turned, read_orientation(image), plan.width, plan.height)
    crop, (height, width) = plan.crop, _output_size(plan)
    resized = crop.resized or (height, width)
    scale = (resized[1] / crop.width, resized[0] / crop.height)
    within = np.clip(turned - [crop.left, crop.top] * 2, 0, [crop.width, crop.height] * 2)
    placed = np.clip(within * (scale * 2) - [*crop.window[::-1]] * 2, 0, [width, height] * 2)
    return (turn_boxes(placed, _MIRRORED, width, height) if crop.flip else placed).astype(np.float32)


def _output_size(plan: Plan) -> tuple[int, int]:
    return plan.size or plan.crop.resized or (plan.crop.height, plan.crop.width)


def _enlarge(plan: Plan, width: int, height: int) -> tuple[Crop, tuple[int, int]]:
    """Return the crop for a field of ``width`` x ``height`` pixels, and the height and width of the field's output."""
    k = width // plan.width
    if not k or (width, height) != (k * plan.width, k * plan.height):
        raise OptionError(
            f"it has {width} x {height} pixels, but its image has {plan.width} x {plan.height}, so they cannot be "
            "cropped together: its size must be 1, 2, 3, 4 ... times the image's (exif_transpose=True turns the image)"
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
    """Cut a crop out of ``pixels``, and resize the crop to ``size`` by nearest-neighbor interpolation."""
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
    """Return the image row that each of ``count`` output rows shows; -1 outside the crop. Also use this for columns."""
    at = np.arange(window, window + count)
    # The middle of output pixel ``at`` lies at (at + 1/2) * length / resized in the crop. Integers make this exact.
    return np.where((at >= 0) & (at < resized), first + (2 * at + 1) * length // (2 * resized), -1)


def changes_size(decode: object) -> bool:
    """Return whether a decoder changes the size of images. If so, masks would no longer fit the images."""
    return isinstance(decode, Decoder) and decode.changes_size


def refuse_masks(image: Any, others: Mapping[str, Any], sample: str) -> None:
    """Raise OptionError if a sample has boxes or a mask, because only the image would be cropped.

    A value counts as a mask if it is as large as the image. Image and mask may be files, PIL images, arrays (height,
    width, ...), or tensors (height, width, ...) or (..., height, width). ``others`` has the other values of the sample
    by name; values in dicts, lists and tuples count too. ``sample`` is the sample's name in the message.
    """
    boxes = others.get("boxes")
    listed = isinstance(boxes, list) and all(isinstance(row, list) and len(row) == 4 for row in boxes)
    if listed or getattr(boxes, "shape", ())[-1:] == (4,):
        raise OptionError(
            f"'boxes' of {sample} would not be cropped with the image: leave 'boxes' out, or crop both with a Decoder "
            "(decode= of the dataset, or transform= of create_loader; docs/masks.md)"
        )
    suspects = {name: sizes for name, value in others.items() if (sizes := _sizes(value))}
    if not suspects:  # the usual case; the image need not be examined
        return
    of_image = {image.shape[:2]} if isinstance(image, np.ndarray) and image.ndim == 3 else _sizes(image)
    for name, sizes in suspects.items():
        # Also compare the turned size, because EXIF may turn the image but not the mask.
        if any(size in sizes or size[::-1] in sizes for size in of_image):
            height, width = next(size for size in sizes if size in of_image or size[::-1] in of_image)
            raise OptionError(
                f"{name!r} of {sample} seems to be a mask, because it is as large as the image, {height} x {width} "
                f"pixels; only the image would be cropped: leave {name!r} out; or store the mask as an image file "
                "(file_fields, docs/masks.md); or pass transform=None, and crop both in your own collate_fn"
            )


def _sizes(value: Any) -> set[tuple[int, int]]:
    """Return (height, width) of each image in a value, in pixels. An array has two: channels may be first or last."""
    if isinstance(value, Image.Image):
        return {(value.height, value.width)}
    if isinstance(value, (bytes, memoryview)):
        facts = find_facts(bytes(value))
        return {(facts.height, facts.width)} if facts else set()
    if isinstance(value, Mapping):
        return set().union(*map(_sizes, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_sizes, value))
    shape = getattr(value, "shape", ())
    if not isinstance(shape, tuple) or len(shape) < 2:  # torch.Size is a tuple
        return set()
    return {(shape[0], shape[1]), (shape[-2], shape[-1])}
