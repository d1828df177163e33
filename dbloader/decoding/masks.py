"""Refuse masks and other fields that would keep the size of an image while a decoder crops it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from dbloader.decoding.decoder import Decoder
from dbloader.decoding.multi_crop import MultiCrop
from dbloader.errors import NotAnImageError, OptionError
from dbloader.images.info import read_facts
from dbloader.images.pillow import may_be_image

# How most masks begin; width and height follow (https://www.w3.org/TR/png-3/#11IHDR).
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def changes_size(decode: object) -> bool:
    """Return whether this decodes images to another size, so that a mask no longer fits them."""
    return isinstance(decode, MultiCrop) or (isinstance(decode, Decoder) and decode.size is not None)


def are_boxes(value: Any) -> bool:
    """Return whether this is an array or tensor with four numbers in each row, or a list of such rows."""
    if isinstance(value, list):
        return all(isinstance(row, list) and len(row) == 4 for row in value)
    return len(getattr(value, "shape", ())) == 2 and value.shape[1] == 4


def refuse_masks(image: Any, others: Mapping[str, Any], sample: str) -> None:
    """Raise OptionError if something beside an image that is about to be cropped has its size, or is its boxes.

    ``image`` is a file, an array (height, width, ...), a tensor (height, width, ...) or (..., height, width), or a PIL
    image. ``others`` are the other values of the sample, by name; dicts, lists and tuples are searched.
    """
    boxes = others.get("boxes")
    if are_boxes(boxes) or getattr(boxes, "shape", ())[-1:] == (4,):
        raise OptionError(
            f"'boxes' of {sample} are of the whole image, and only the image would be cropped: leave 'boxes' out, or "
            "let a Decoder crop both as decode= of the dataset or transform= of create_loader (docs/masks.md)"
        )
    suspects = {name: sizes for name, value in others.items() if (sizes := _sizes(value))}
    if not suspects:  # the usual case: finding the size of the image costs more
        return
    of_image = {image.shape[:2]} if isinstance(image, np.ndarray) and image.ndim == 3 else _sizes(image)
    for name, sizes in suspects.items():
        # The image may be turned by its EXIF, and the mask not.
        if any(size in sizes or size[::-1] in sizes for size in of_image):
            height, width = next(size for size in sizes if size in of_image or size[::-1] in of_image)
            raise OptionError(
                f"{name!r} of {sample} is as large as its image, {height} x {width} pixels, and only the image would "
                f"be cropped: leave {name!r} out, store it as an image file (file_fields, which are cropped with the "
                "image: docs/masks.md), or crop both yourself (transform=None and a collate_fn that does so)"
            )


def _sizes(value: Any) -> set[tuple[int, int]]:
    """Return each height and width in pixels that a value may have."""
    if isinstance(value, Image.Image):
        return {(value.height, value.width)}
    if isinstance(value, (bytes, memoryview)):
        return _size_of_file(value)
    if isinstance(value, Mapping):
        return set().union(*map(_sizes, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_sizes, value))
    shape = getattr(value, "shape", ())
    if not isinstance(shape, tuple) or len(shape) < 2:  # torch's is a tuple too
        return set()
    return {(shape[0], shape[1]), (shape[-2], shape[-1])}


def _size_of_file(data: bytes | memoryview) -> set[tuple[int, int]]:
    """Return the height and width in pixels of an image file, or nothing; fast, since each sample asks."""
    start = bytes(data[:24])
    if start.startswith(_PNG) and len(start) == 24:
        return {(int.from_bytes(start[20:], "big"), int.from_bytes(start[16:20], "big"))}
    try:
        facts = read_facts(bytes(data)) if may_be_image(data) else None
    except NotAnImageError:
        return set()
    return {(facts.height, facts.width)} if facts else set()
