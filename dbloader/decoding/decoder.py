"""What all decoders to tensors do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dbloader.decoding.open import open_image
from dbloader.decoding.resize import render
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt
    from PIL import Image


class Crop(NamedTuple):
    """What becomes of an image: a part of it is resized, and a window on that is the output.

    That is all that a decoder on another device must do, in this order: take the part, resize it (bilinear with
    antialiasing, over the part alone), cut out the window, mirror it.

    Attributes:
        left: Of the part's left edge, in pixels of the image, as the next three.
        top: Of its upper edge.
        width: Of the part, at least 1.
        height: Of the part, at least 1.
        flip: Whether the output is mirrored, left and right exchanged.
        resized: Height and width in pixels to which the part is resized; None for those of the output, which are the
            decoder's ``size``, or the part's own where that is None.
        window: Row and column of the resized part that become the output's first. The output is black where the window
            leaves the part, so they may be negative.
    """

    left: int
    top: int
    width: int
    height: int
    flip: bool = False
    resized: tuple[int, int] | None = None
    window: tuple[int, int] = (0, 0)


class Plan(NamedTuple):
    """The decoding of one image, still to be done.

    Attributes:
        part: Decodes the part that the crop takes.
        crop: What becomes of the image.
        size: Height and width of the output; None for all that is resized.
    """

    part: Callable[[], npt.NDArray[np.uint8]]
    crop: Crop
    size: tuple[int, int] | None

    def decode(self, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """Return the output: uint8, shape (height, width, 3), RGB, one block of memory.

        Args:
            out: Where to write it; new memory if None.

        Raises:
            DamagedImageError: The image does not decode, or only with a warning.
        """
        crop = self.crop
        return render(self.part(), crop.resized or self.size, crop.window, self.size, flip=crop.flip, out=out)


class Decoder(ABC):
    """Gives an image as a uint8 tensor, shape (3, height, width), RGB, 0 to 255.

    A decoder is small, is pickled with its options, and keeps nothing from one call to the next; threads may share it.

    Its randomness is outside of it: a call takes ``draws`` numbers, which decide all. So a dataset or loader that makes
    them of (seed, epoch, position) gets the same tensor in any process, and a decoder for a GPU can do the same thing:
    ``choose`` tells it what, of the numbers and the image's size alone.

    The pixels, before they are resized, are those of `decode_pil`, bit for bit, unless an option says otherwise.

    Args:
        exif_transpose: Whether an image whose EXIF says so is turned upright. Its size is then that of the upright
            image.

    Attributes:
        draws: Random numbers that a sample takes; 0 if nothing is random.
        size: Height and width in pixels of every output, or None if they differ.
    """

    draws: int = 0
    size: tuple[int, int] | None = None

    def __init__(self, *, exif_transpose: bool = False) -> None:
        self.exif_transpose = exif_transpose

    @abstractmethod
    def choose(self, numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        """Choose what becomes of an image.

        Args:
            numbers: ``draws`` numbers in [0, 1), such as a row of what SampleRNG gives.
            width: Of the image in pixels, upright if ``exif_transpose`` is true.
            height: Of the image.

        Raises:
            OptionError: They are not as many numbers, or not in that range.
        """

    def __call__(
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
        checked: bool = False,
    ) -> torch.Tensor:
        """Decode one image.

        The GIL is released while a JPEG is decoded and while pixels are resized.

        Args:
            image: An encoded file; or pixels, uint8, shape (height, width, 3) RGB or (height, width) gray; or a PIL
                image of any mode. Its memory may be a store's, lent for this call: nothing that points into it is kept.
            numbers: ``draws`` numbers in [0, 1); None draws them from torch's global generator.
            tiles: Lengths of the tiles, where the file is a tiled JPEG: then only those that are needed are decoded.
                They are ignored where the image must be decoded whole.
            checked: Whether the file is known to decode without a warning, as one that was decoded when it was
                converted, and of which the CRC is right. Then it is not decoded below what is needed of it. Else it is,
                for the warnings of libjpeg, each of which is an error.

        Returns:
            uint8, shape (3, height, width), in memory (height, width, 3). It shares no memory with the image.

        Raises:
            DamagedImageError: The image does not decode, or only with a warning; or the tiles are not its own. Of the
                few kinds of JPEG that only Pillow decodes (CMYK, rare chroma subsamplings), warnings are not told.
            NotAnImageError: It is in no known format, or has more pixels than are allowed.
            PixelRangeError: Its values are floats, signed or of 32 bits, so that their range is not known.
            OptionError: The numbers are not ``draws``, or not in [0, 1); or an array has another dtype or shape.
        """
        output = self.plan(image, numbers, tiles=tiles, checked=checked).decode()
        return torch.from_numpy(output.transpose(2, 0, 1))

    def plan(
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
        checked: bool = False,
    ) -> Plan:
        """Do what Python does of a call, and return what libraries do of it, which hold no lock.

        Who decodes many images does the first of all of them at once, while the code and data of Python are in the
        processor's caches, from which decoding drives them; and so threads seldom wait for Python's lock.

        Arguments and errors are those of a call; of the errors, each comes here or where the plan is carried out.

        Returns:
            The plan, which may point into the image.
        """
        source = open_image(image, exif_transpose=self.exif_transpose, checked=checked)
        if numbers is None:
            numbers = torch.rand(self.draws, dtype=torch.float64).tolist() if self.draws else ()
        crop = self.choose(numbers, source.width, source.height)
        part = source.part(crop.left, crop.top, crop.width, crop.height, tiles, self._reduction(crop))
        return Plan(part, crop, self.size)

    def _reduction(self, crop: Crop) -> int:
        """Return by what factor, 1, 2, 4 or 8, a JPEG may be decoded smaller."""
        return 1

    def _checked(self, numbers: Sequence[float] | npt.NDArray[Any]) -> list[float]:
        """Return the numbers as Python's own, with which single computations are several times faster."""
        values: list[float] = numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)
        if len(values) != self.draws:
            raise OptionError(f"numbers must be {self.draws} for each image, got {len(values)}")
        # Only the sum tells of NaN.
        if values and not (min(values) >= 0 and max(values) < 1 and sum(values) >= 0):
            raise OptionError(f"numbers must be at least 0 and below 1, got {min(values)} to {max(values)}")
        return values
