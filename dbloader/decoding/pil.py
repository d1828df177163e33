"""From the bytes of an image to what a transform takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader.decoding.pictures import damage_told, open_picture
from dbloader.pillow import scale_to_8_bits

if TYPE_CHECKING:
    from PIL import Image


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
