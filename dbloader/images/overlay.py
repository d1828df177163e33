"""Draw boxes and masks over a small picture of an image."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from dbloader.images.pillow import open_pillow, translate_errors
from dbloader.images.preview import TURNS, shown_orientation, thumbnail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OPACITY = 0.6  # of a mask
_BOX_PX = 120  # the lines of boxes have one pixel of width for every 120 pixels of the picture's longer side


def draw_over(
    picture: bytes, image: Any, size: tuple[int, int], boxes: Iterable[tuple[Sequence[float], str]], masks: list[bytes]
) -> tuple[bytes, str]:
    """Return a picture of an image with boxes and masks drawn over it, and its media type.

    Args:
        picture: A thumbnail of the image.
        image: The stored image.
        size: Width and height of the stored image in pixels, both positive.
        boxes: Left, top, right and bottom of each box in pixels of the stored image, and Pillow's name of its color.
        masks: Image files, which are drawn as `thumbnail` shows them.

    Raises:
        ImageError: The picture or a mask cannot be decoded.
    """
    with translate_errors("the image does not decode", MemoryError), open_pillow(picture) as opened:
        shown = opened.convert("RGB")
    if (turned := shown_orientation(picture)) > 1:  # true only if the stored file is its own thumbnail
        shown = shown.transpose(TURNS[turned])
    for mask in masks:
        drawn, _ = thumbnail(mask, max(shown.size), is_field=True)
        with translate_errors("the mask does not decode", MemoryError), open_pillow(drawn) as opened:
            layer = opened.convert("RGBA").resize(shown.size, Image.Resampling.NEAREST)
        shown.paste(layer, mask=layer.getchannel("A").point(lambda alpha: round(alpha * _OPACITY)))
    orientation = shown_orientation(image)
    layer = Image.new("RGBA", shown.size[::-1] if orientation > 4 else shown.size)
    pen, scales = ImageDraw.Draw(layer), [side / whole for side, whole in zip(layer.size, size, strict=True)] * 2
    for box, color in boxes:
        left, top, right, bottom = (part * scale for part, scale in zip(box, scales, strict=True))
        if left <= right and top <= bottom:
            pen.rectangle((left, top, right, bottom), outline=color, width=max(2, max(shown.size) // _BOX_PX))
    layer = layer.transpose(TURNS[orientation]) if orientation > 1 else layer
    shown.paste(layer, mask=layer)
    file = io.BytesIO()
    shown.save(file, "JPEG", quality=85, subsampling=0)  # subsampling would remove the colors of thin lines
    return file.getvalue(), "image/jpeg"
