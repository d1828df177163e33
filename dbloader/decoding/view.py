"""Parts of an image's pixels, decoded when they are asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from PIL import Image

from dbloader.decoding.jpeg import JPEG
from dbloader.decoding.open import ArrayImage
from dbloader.decoding.pillow import PillowImage

if TYPE_CHECKING:
    import numpy.typing as npt


class Pixels:
    """The pixels of an image, decoded as they are asked for. Threads may share it."""

    def __init__(self, image: JPEG | PillowImage | ArrayImage) -> None:
        self.image = image
        self._whole = image.array if isinstance(image, ArrayImage) else None
        self._spent = 0.0  # what crops have cost so far, as a share of decoding the whole
        self._lock = threading.Lock()

    def part(self, left: int, top: int, width: int, height: int, factor: int) -> npt.NDArray[np.uint8]:
        """Return a part: uint8, shape (height, width, 3), RGB; not to be written to.

        With ``factor`` 2, 4 or 8 it may be so many times smaller.
        """
        with self._lock:
            box = (left, top, width, height)
            if self._whole is None and isinstance(self.image, JPEG):
                image = self.image
                size = (image.height, image.width, 3)
                share = (top + height) / image.height if image.tiles is None else width * height / (size[0] * size[1])
                self._spent += share if factor == 1 else share / 2
                if self._spent > 1 and share < 1:  # many crops of one image must not cost more than the whole
                    box, factor = (0, 0, image.width, image.height), 1
                pixels = image.part(*box, factor)()
                whole = pixels.base if isinstance(pixels.base, np.ndarray) else pixels
                if whole.shape != size:
                    return pixels
                self._whole = whole  # it was decoded, for whatever reason
            if self._whole is not None:
                return self._whole[top : top + height, left : left + width]
            return self.image.part(*box, 1)()


class View(NamedTuple):
    """A part of an image's pixels."""

    pixels: Pixels
    left: int
    top: int
    width: int
    height: int

    def decode(self, factor: int = 1) -> npt.NDArray[np.uint8]:
        """Return the pixels as `Pixels.part` does."""
        return self.pixels.part(*self[1:], factor)

    def to_pil(self) -> Image.Image:
        """Return the pixels as an ordinary image, which is the caller's."""
        image = self.pixels.image
        if isinstance(image, PillowImage):
            return image.image.crop((self.left, self.top, self.left + self.width, self.top + self.height))
        pixels = self.decode()
        height, width, _ = pixels.shape
        stride = pixels.strides[0]  # Image.fromarray would copy the rows together first
        memory = as_strided(pixels, (stride * (height - 1) + 3 * width,), (1,), writeable=False)
        return Image.frombuffer("RGB", (width, height), memory, "raw", "RGB", stride, 1)
