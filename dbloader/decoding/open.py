"""Open whatever a decoder is given: files, arrays and PIL images.

Each opened image has a ``width`` and ``height`` in pixels, and a method ``part`` for a part of it in pixels. The method
does what only Python can do, and returns a function that decodes the part. With ``factor`` 2, 4 or 8 the part may come
so many times smaller, if that is faster.

The function is called at most once. It returns uint8, shape (height, width, 3), RGB, 0 to 255; writable, without
negative strides, shared with nothing else. Both may raise DamagedImageError: the image does not decode, or only with a
warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from dbloader.decoding.exif import UPRIGHT, UprightImage, read_orientation
from dbloader.decoding.jpeg import open_jpeg
from dbloader.decoding.pillow import PillowImage, decode_errors, open_file
from dbloader.errors import OptionError
from dbloader.images.pillow import scale_to_8_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from dbloader.decoding.jpeg import JPEG

OpenedImage: TypeAlias = "ArrayImage | JPEG | PillowImage | UprightImage"


def open_image(
    image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
    tiles: bytes | memoryview | None,
    *,
    exif_transpose: bool,
    known_intact: bool,
) -> OpenedImage:
    """Open the image that a Decoder is called with; a JPEG is not decoded yet. The errors are those of a call."""
    if isinstance(image, np.ndarray):
        return ArrayImage(image)
    jpeg = None
    if isinstance(image, (bytes, bytearray, memoryview)):
        jpeg = open_jpeg(image, tiles, known_intact=known_intact)
        if jpeg is not None and not exif_transpose:
            return jpeg
        image = open_file(image)
    elif not isinstance(image, Image.Image):
        raise TypeError(
            "an image must be the bytes of a file, an array or a PIL image to be decoded, got "
            f"{type(image).__name__}: where a dataset gives tensors, pass transform=None to leave them as they are"
        )
    stored = PillowImage(image) if jpeg is None else jpeg
    orientation = read_orientation(image) if exif_transpose else UPRIGHT
    return stored if orientation == UPRIGHT else UprightImage(stored, orientation)


def decode_pil(data: bytes) -> Image.Image:
    """Decode an image file as torchvision's default loader does.

    Gray of 16 bits becomes its upper 8 bits; torchvision's loader makes every value above 255 white. Opacity is
    dropped, and of several frames the first is taken.

    Args:
        data: The encoded file.

    Returns:
        An image of mode RGB; EXIF orientation is not applied.

    Raises:
        DamagedImageError: The image does not decode, or a JPEG only with a warning that pixels are wrong.
        NotAnImageError: It is in no known format, or has more pixels than are allowed; docs/loading.md says how to
            allow more.
        PixelRangeError: Its values are floats, signed or of 32 bits, so that their range is not known.
    """
    with open_file(data) as image:
        jpeg = open_jpeg(data)
        if jpeg is None:
            with decode_errors():
                return scale_to_8_bits(image).convert("RGB")
        # Pillow would make gray of what is missing; libjpeg-turbo's warnings tell, and it takes no longer.
        decoded = Image.fromarray(jpeg.part(0, 0, jpeg.width, jpeg.height, 1)())
        decoded.info = image.info
        return decoded


class ArrayImage:
    """An array of pixels, RGB or gray."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        gray_or_rgb = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
        if array.dtype != np.uint8 or not gray_or_rgb or not array.size:
            raise OptionError(
                "an array must be uint8 of the shape (height, width, 3) or (height, width), at least a pixel, "
                f"got {array.dtype} of the shape {array.shape}"
            )
        self.array = array
        self.height, self.width = array.shape[:2]

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return what copies a part of the image, as open.py says."""
        part = self.array[top : top + height, left : left + width]
        if part.ndim == 2:
            part = np.broadcast_to(part[..., None], (height, width, 3))
        return part.copy  # torch takes no read-only memory, and the output must share none with the image
