"""Open images for decoders: files, arrays and PIL images.

Each opened image has a ``width`` and ``height`` in pixels, and a method ``part``. The method's arguments are the left
edge, upper edge, width and height of a part of the image in pixels, and ``factor``. ``part`` does the work that needs
Python, and returns a function that decodes the part. With ``factor`` 2, 4 or 8, the decoded part may be smaller by this
factor.

The returned function is called at most once. It returns a new writable array: uint8, shape (height, width, 3), RGB, 0
to 255, with positive strides. Both functions raise DamagedImageError if the image does not decode, or decodes only with
a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from dbloader.decoding.codecs import open_codec
from dbloader.decoding.jpeg import open_jpeg
from dbloader.decoding.pillow import PillowImage, decode_errors, open_file
from dbloader.errors import OptionError, PixelRangeError
from dbloader.images.info import UPRIGHT, orientation_of, read_facts
from dbloader.images.pillow import EIGHT_BITS, TURNS, scale_to_8_bits, to_rgb, translate_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from dbloader.decoding.codecs import CodecImage
    from dbloader.decoding.jpeg import JPEG

OpenedImage: TypeAlias = "ArrayImage | JPEG | CodecImage | PillowImage | UprightImage"


def open_image(
    image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
    tiles: bytes | memoryview | None,
    *,
    exif_transpose: bool,
    known_intact: bool,
) -> OpenedImage:
    """Open an image for a Decoder, without decoding JPEGs. Raise the errors of ``Decoder.__call__``."""
    if isinstance(image, np.ndarray):
        return ArrayImage(image)
    opened: JPEG | CodecImage | None = None
    if isinstance(image, (bytes, bytearray, memoryview)):
        opened = open_jpeg(image, tiles, known_intact=known_intact) or (open_codec(image) if known_intact else None)
        if opened is not None and not exif_transpose:
            return opened
        image = open_file(image)
    elif not isinstance(image, Image.Image):
        raise TypeError(
            "an image must be the bytes of a file, an array or a PIL image to be decoded, got "
            f"{type(image).__name__}: if a dataset returns tensors, pass transform=None to leave them as they are"
        )
    stored = opened or PillowImage(image)
    orientation = read_orientation(image) if exif_transpose else UPRIGHT
    return stored if orientation == UPRIGHT else UprightImage(stored, orientation)


def decode_pil(data: bytes | memoryview) -> Image.Image:
    """Decode an image file like torchvision's default loader.

    One difference: dbloader keeps the upper 8 bits of 16-bit gray, but torchvision makes all values above 255 white.
    Opacity is dropped. Only the first of several frames is decoded.

    Args:
        data: The encoded file.

    Returns:
        An image of mode RGB; EXIF orientation is not applied.

    Raises:
        DamagedImageError: The image does not decode, or it is a JPEG and libjpeg warns of wrong pixels.
        NotAnImageError: The format is unknown, or there are more pixels than are allowed (docs/reliability.md).
        PixelRangeError: The image's values are floats, signed or of 32 bits, so their range is not known.
    """
    with open_file(data) as image:
        jpeg = open_jpeg(data)
        if jpeg is None:
            with decode_errors():
                return to_rgb(scale_to_8_bits(image))
        # If a JPEG is cut short, Pillow shows the missing pixels as gray. simplejpeg warns, and takes no longer.
        decoded = Image.fromarray(jpeg.part(0, 0, jpeg.width, jpeg.height, 1)())
        decoded.info = image.info
        return decoded


def decode_gray(data: bytes | memoryview) -> Image.Image:
    """Decode an image file to gray.

    Colors become their brightness, ``0.299 R + 0.587 G + 0.114 B``, as in torchvision's Grayscale. Opacity is dropped.

    Args:
        data: The encoded file.

    Returns:
        An image of mode L, 0 (black) to 255; EXIF orientation is not applied.

    Raises:
        DamagedImageError: As in `decode_pil`.
        NotAnImageError: As in `decode_pil`.
        PixelRangeError: The image's values have more than 8 bits, or their range is not known.
    """
    gray = decode_pil(data).convert("L")
    depth = read_facts(bytes(data)).depth
    if depth != EIGHT_BITS:
        raise PixelRangeError(
            f"its values are {depth}, which gray of 8 bits cannot hold: decode_unchanged keeps them all, and "
            "decode_pil takes the upper 8 of 16 bits"
        )
    return gray


def read_orientation(image: bytes | memoryview | Image.Image) -> int:
    """Return the EXIF orientation of an image file or an opened image, like `orientation_of`."""
    if not isinstance(image, Image.Image):
        image = open_file(image)
    message = "the EXIF of the image, which contains its orientation, cannot be read; exif_transpose=False ignores it"
    with translate_errors(message):
        return orientation_of(image)


class ArrayImage:
    """An array of pixels, RGB or gray."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        gray_or_rgb = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
        if array.dtype != np.uint8 or not gray_or_rgb or not array.size:
            raise OptionError(
                "an array must be uint8 of the shape (height, width, 3) or (height, width), with at least one pixel, "
                f"got {array.dtype} of the shape {array.shape}; transform=None and normalize=None leave arrays as is"
            )
        self.array = array
        self.height, self.width = array.shape[:2]

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that copies a part of the image. See the docstring of this module."""
        part = self.array[top : top + height, left : left + width]
        if part.ndim == 2:
            part = np.broadcast_to(part[..., None], (height, width, 3))
        return part.copy  # torch refuses read-only memory, and the output must not share memory with the image


class UprightImage:
    """The upright view of an image that is stored rotated or mirrored."""

    def __init__(self, stored: JPEG | CodecImage | PillowImage, orientation: int) -> None:
        self.stored = stored
        self.turns = TURNS[orientation]
        self.width, self.height = stored.width, stored.height
        if self.turns[0]:
            self.width, self.height = self.height, self.width

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return a function that decodes a part of the upright image. See the docstring of this module."""
        exchanged, mirrored, inverted = self.turns
        if mirrored:
            left = self.width - left - width
        if inverted:
            top = self.height - top - height
        box = (top, left, height, width) if exchanged else (left, top, width, height)
        part = self.stored.part(*box, factor)

        def decode() -> npt.NDArray[np.uint8]:
            pixels = part().transpose(1, 0, 2) if exchanged else part()
            return pixels[:: -1 if inverted else 1, :: -1 if mirrored else 1].copy()

        return decode
