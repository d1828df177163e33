"""Image files as PIL images of other modes than RGB, for transforms that take these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.decoding.open import decode_pil
from dbloader.decoding.pillow import decode_errors, open_file
from dbloader.errors import OptionError, PixelRangeError
from dbloader.images.info import read_facts
from dbloader.images.pillow import EIGHT_BITS, scale_to_8_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHITE = (255, 255, 255)


def decode_gray(data: bytes | memoryview) -> Image.Image:
    """Decode an image file to gray.

    Colors become their brightness, ``0.299 R + 0.587 G + 0.114 B``, as in torchvision's Grayscale. Opacity is dropped.

    Args:
        data: The encoded file.

    Returns:
        An image of mode L, 0 (black) to 255; EXIF orientation is not applied.

    Raises:
        DamagedImageError: The image does not decode, or a JPEG only with a warning that pixels are wrong.
        NotAnImageError: It is in no known format, or has more pixels than are allowed.
        PixelRangeError: Its values have more than 8 bits, or their range is not known.
    """
    gray = decode_pil(bytes(data)).convert("L")
    depth = read_facts(bytes(data)).depth
    if depth != EIGHT_BITS:
        raise PixelRangeError(
            f"its values are {depth}, which gray of 8 bits cannot hold: decode_unchanged keeps them all, and "
            "decode_pil takes the upper 8 of 16 bits"
        )
    return gray


class DecodeOpaque:
    """Decodes image files with opacity onto a background of one color.

    `decode_pil` and the Decoders drop the opacity, and show colors that were meant to be invisible. Images without
    opacity are those of `decode_pil`, with its errors. Opacity is that of an alpha channel, of a palette, or of the one
    color that a PNG or GIF declares transparent.

    Args:
        background: Red, green and blue of the background, each 0 to 255.

    Raises:
        OptionError: ``background`` is not three numbers from 0 to 255.
    """

    def __init__(self, background: Sequence[int] = _WHITE) -> None:
        try:
            red, green, blue = (whole_number("background", value, 0, 255) for value in background)
        except (TypeError, ValueError):
            wanted = "(red, green, blue), each 0 to 255"
            raise OptionError(f"background must be {wanted}, got {short_repr(background)}") from None
        self.background = (red, green, blue)

    def __call__(self, data: bytes | memoryview) -> Image.Image:
        """Decode an image file to an image of mode RGB; EXIF orientation is not applied."""
        with open_file(data) as image:
            # Pillow's has_transparency_data fails for missing palettes.
            if "transparency" not in image.info and not {"A", "a"} & {*image.getbands()}:
                return decode_pil(bytes(data))
            with decode_errors():
                colors = scale_to_8_bits(image).convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, (*self.background, 255)), colors).convert("RGB")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(background={self.background})"
