"""What all decoders to tensors do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import torch
    from PIL import Image


class Crop(NamedTuple):
    """The part of an image that becomes the whole output, in pixels of the image, and whether it is mirrored."""

    left: int
    top: int
    width: int
    height: int
    flip: bool = False


class Decoder(ABC):
    """Gives an image as a uint8 tensor, shape (3, height, width), RGB, 0 to 255.

    A decoder is small, is pickled with its options, and keeps nothing from one call to the next; threads may share it.

    Its randomness is outside of it: a call takes ``draws`` numbers, which decide all. So a dataset or loader that makes
    them of (seed, epoch, position) gets the same tensor in any process, and a decoder for a GPU can do the same thing.

    Attributes:
        draws: Random numbers that a sample takes; 0 if nothing is random.
        size: Height and width in pixels of every output, or None if they differ.
    """

    draws: int = 0
    size: tuple[int, int] | None = None

    @abstractmethod
    def __call__(
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
    ) -> torch.Tensor:
        """Decodes one image.

        Args:
            image: An encoded file; or pixels, uint8, shape (height, width, 3) RGB or (height, width) gray; or a PIL
                image of any mode.
            numbers: ``draws`` numbers in [0, 1); None draws them from torch's global generator.
            tiles: Lengths of the tiles, where the file is a tiled JPEG.

        Returns:
            uint8, shape (3, height, width), in memory (height, width, 3).

        Raises:
            DamagedImageError: The image does not decode, or only with a warning.
            NotAnImageError: It is in no known format.
        """
