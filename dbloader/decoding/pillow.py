"""Open and decode images with Pillow."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from PIL import UnidentifiedImageError

from dbloader.errors import NotAnImageError, OptionError, PixelRangeError
from dbloader.images.pillow import open_pillow, scale_to_8_bits, to_rgb, translate_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from PIL import Image

decode_errors = functools.partial(translate_errors, "the image does not decode", MemoryError, PixelRangeError)


def open_file(data: bytes | memoryview) -> Image.Image:
    """Open an image file with Pillow, without decoding its pixels. Raise the errors of `decode_pil`."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"only the bytes of an image file can be decoded, got {type(data).__name__}: use it as it is")
    passed_on = (UnidentifiedImageError, NotAnImageError, OptionError)
    try:
        with translate_errors("the header of the image cannot be read", *passed_on):
            return open_pillow(data)
    except UnidentifiedImageError as error:
        if not len(data):
            raise NotAnImageError("the image is in no known format: it is empty") from error
        raise NotAnImageError(
            f"the image is in no known format: it begins with {bytes(data[:4])!r}; "
            "give the dataset a decode= of your own that reads it"
        ) from error
    except NotAnImageError as error:
        raise NotAnImageError(f"the image {error}") from error


class PillowImage:
    """An image that Pillow opened, in any mode whose values have a known range."""

    def __init__(self, image: Image.Image) -> None:
        with decode_errors():
            image.load()  # Pillow turns a TIFF upright, which may swap width and height
            image = scale_to_8_bits(image)
        self.image = image
        self.width, self.height = image.size

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that converts a part of the image to RGB. See the docstring of open.py."""
        return functools.partial(self.crop, left, top, width, height)

    def crop(self, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, 3), RGB."""
        with decode_errors():
            part = self.image
            if (width, height) != part.size:
                part = part.crop((left, top, left + width, top + height))
            return np.array(part if part.mode == "RGB" else to_rgb(part))  # an array from np.asarray would be read-only
