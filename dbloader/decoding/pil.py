"""From the bytes of an image to what a transform takes."""

from __future__ import annotations

import io

from PIL import Image


def decode_pil(data: bytes) -> Image.Image:
    """Decodes an image file as torchvision's default loader does.

    Args:
        data: The encoded file.

    Returns:
        An image of mode RGB; EXIF orientation is not applied.

    Raises:
        OSError: The image does not decode; other exceptions of Pillow for damaged headers.
    """
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")
