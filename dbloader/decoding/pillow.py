"""Images that Pillow decodes."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from PIL import UnidentifiedImageError

from dbloader.errors import DamagedImageError, NotAnImageError, OptionError, PixelRangeError
from dbloader.images.info import describe
from dbloader.images.pillow import open_pillow, scale_to_8_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from PIL import Image


def open_picture(data: bytes | memoryview) -> Image.Image:
    """Open an image file with Pillow; its pixels are not decoded yet.

    Raises:
        NotAnImageError: It is in no known format, or has more pixels than are allowed.
        DamagedImageError: Its header cannot be read.
    """
    try:
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
    except OptionError:
        raise
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"the header of the image cannot be read: {describe(error)}") from error


class PillowImage:
    """An image of Pillow's, of any mode whose values have a known range.

    Raises:
        DamagedImageError: It does not decode.
        PixelRangeError: Its values have no known range.
    """

    def __init__(self, image: Image.Image) -> None:
        with damage_told():
            image.load()  # before which a TIFF has its size as stored, and its orientation still to be applied
            image = scale_to_8_bits(image)
        self.image = image
        self.width, self.height = image.size

    def part(
        self, left: int, top: int, width: int, height: int, tiles: bytes | memoryview | None, factor: int
    ) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return what makes a part of the image, as Source does."""
        return functools.partial(self.crop, left, top, width, height)

    def crop(self, left: int, top: int, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Return a part of the image: uint8, shape (height, width, 3), RGB."""
        with damage_told():
            part = self.image
            if (width, height) != part.size:
                part = part.crop((left, top, left + width, top + height))
            # np.asarray would point into memory that may not be written.
            return np.array(part if part.mode == "RGB" else part.convert("RGB"))


@contextmanager
def damage_told() -> Iterator[None]:
    """Turn whatever Pillow raises inside into one error.

    Raises:
        DamagedImageError: Pillow raised something, but for a lack of memory or of a known range of values.
    """
    try:
        yield
    except (MemoryError, PixelRangeError):
        raise
    except Exception as error:  # a Pillow plugin raises whatever its parsing meets
        raise DamagedImageError(f"the image does not decode: {describe(error)}") from error


def decode_pil(data: bytes) -> Image.Image:
    """Decode an image file as torchvision's default loader does.

    Gray of 16 bits becomes the upper 8 of them, where torchvision's loader makes every value above 255 white. Opacity
    is dropped, and of several frames the first is taken.

    Args:
        data: The encoded file.

    Returns:
        An image of mode RGB; EXIF orientation is not applied.

    Raises:
        DamagedImageError: The image does not decode.
        NotAnImageError: It is in no known format, or has more pixels than are allowed; docs/loading.md says how to
            allow more.
        PixelRangeError: Its values are floats, signed or of 32 bits, so that their range is not known.
    """
    with open_picture(data) as image, damage_told():
        return scale_to_8_bits(image).convert("RGB")
