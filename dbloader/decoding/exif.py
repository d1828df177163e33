"""EXIF orientation: turn images upright.

EXIF's tag 0x0112 (CIPA DC-008, 4.6.5.1) says, as a number from 1 to 8, which edges of the upright image the first row
and the first column of the stored one are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import ExifTags, Image

from dbloader.decoding.pillow import open_file
from dbloader.errors import DamagedImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from dbloader.decoding.jpeg import JPEG
    from dbloader.decoding.pillow import PillowImage

UPRIGHT = 1

# Whether rows and columns are exchanged in the stored image, and after that left and right, and top and bottom.
TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


def read_orientation(image: bytes | memoryview | Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of an image file or opened image; `UPRIGHT` if it has none of these.

    Pillow reads it, as for its ImageOps.exif_transpose: from EXIF or, where there is none, from XMP. This takes 17 us.
    """
    if not isinstance(image, Image.Image):
        image = open_file(image)
    if image.format == "TIFF":
        return UPRIGHT  # Pillow turns it where it loads it
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
    except Exception as error:  # Pillow raises whatever its parsing meets
        raise DamagedImageError(
            "the EXIF of the image, which says which side is up, cannot be read; exif_transpose=False ignores it: "
            f"{error}"
        ) from error
    return value if value in TURNS else UPRIGHT


class UprightImage:
    """The upright view of an image that is stored turned."""

    def __init__(self, stored: JPEG | PillowImage, orientation: int) -> None:
        self.stored = stored
        self.turns = TURNS[orientation]
        self.width, self.height = stored.width, stored.height
        if self.turns[0]:
            self.width, self.height = self.height, self.width

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> Callable[[], npt.NDArray[np.uint8]]:
        """Return what decodes a part of the upright image, as open.py says."""
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
