"""Several crops of one image, for self-supervised training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import whole_number
from dbloader.decoding.decoder import Decoder
from dbloader.decoding.jpeg import scale
from dbloader.decoding.open import open_image
from dbloader.decoding.render import render
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    from dbloader.decoding.open import OpenedImage
    from dbloader.decoding.render import Crop


class MultiCrop(Decoder):
    """Decodes an image once, and returns several crops as a list of tensors, for methods such as DINO and SwAV.

    ``MultiCrop([(2, RandomResizedCrop(224, scale=(0.4, 1.0))), (6, RandomResizedCrop(96, scale=(0.05, 0.4)))])``
    returns a list of 8 tensors. In a batch, the image is a list of 8 tensors of shape (N, 3, height, width).
    The loader's normalization and ``preparation`` apply to each of these tensors.

    Each crop equals, bit for bit, what its Decoder alone returns for the same random numbers. A Decoder with ``scaled``
    is an exception, because the image is decoded at the largest size that any crop needs. Only the box around all crops
    is decoded: from a tiled JPEG, the tiles of the box; from other JPEGs, the rows down to the box's lower edge.

    A call takes the random numbers for the first crop, followed by the random numbers for the second crop, and so on.

    Args:
        crops: (count, Decoder) pairs, in the order of the returned tensors. Each Decoder has outputs of one size, and
            all have the same ``exif_transpose``.

    Raises:
        OptionError: A count is below 1, there are no crops, a Decoder's outputs differ in size, or ``exif_transpose``
            differs.
        TypeError: ``crops`` are not pairs of a number and a Decoder.
    """

    def __init__(self, crops: Sequence[tuple[int, Decoder]]) -> None:
        if not isinstance(crops, Sequence):
            raise TypeError(f"crops must be pairs such as (2, RandomResizedCrop(224)), got {short_repr(crops)}")
        self.crops = tuple(map(_checked_pair, crops))
        if not self.crops:
            raise OptionError("crops must have at least one (count, Decoder), got none")
        self._decoders = [decoder for count, decoder in self.crops for _ in range(count)]
        if len({decoder.exif_transpose for decoder in self._decoders}) > 1:
            raise OptionError(f"the Decoders of crops must have the same exif_transpose, got {short_repr(self, 300)}")
        super().__init__(exif_transpose=self._decoders[0].exif_transpose)
        self.draws = sum(decoder.draws for decoder in self._decoders)

    @property
    @override
    def changes_size(self) -> bool:
        return True

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> NoReturn:
        raise OptionError(f"{type(self).__name__} takes several crops of an image, but one crop is needed here")

    @override
    def __call__(  # type: ignore[override] # several tensors
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        random_numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
        known_intact: bool = False,
    ) -> list[torch.Tensor]:
        """Decode the crops of one image. Arguments and errors are as in ``Decoder``.

        Returns:
            One tensor for each crop: uint8, shape (3, height, width). The tensors share no memory.
        """
        source = open_image(image, tiles, exif_transpose=self.exif_transpose, known_intact=known_intact)
        if random_numbers is None:
            random_numbers = torch.rand(self.draws, dtype=torch.float64).numpy()
        values = self.check_random_numbers(random_numbers)
        crops, first = [], 0
        for decoder in self._decoders:
            crops.append(decoder.choose_crop(values[first : first + decoder.draws], source.width, source.height))
            first += decoder.draws
        factor = min(decoder.reduction(crop) for decoder, crop in zip(self._decoders, crops, strict=True))
        outputs = []
        for decoder, crop, part in zip(self._decoders, crops, _decode(source, crops, factor), strict=True):
            output = torch.empty((*decoder.size, 3), dtype=torch.uint8)  # type: ignore[misc] # it has a size
            render(part, crop, decoder.size, output.numpy())
            outputs.append(output.permute(2, 0, 1))
        return outputs


def _decode(source: OpenedImage, crops: list[Crop], factor: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Decode the box around all crops, up to ``factor`` times smaller. Yield the part of the box for each crop."""
    left, top = min(crop.left for crop in crops), min(crop.top for crop in crops)
    if factor > 1:  # start at the image's corner, because `scale` rounds edges to pixels that begin there
        left = top = 0
    width = max(crop.left + crop.width for crop in crops) - left
    height = max(crop.top + crop.height for crop in crops) - top
    pixels = source.part(left, top, width, height, factor)()
    if pixels.shape[:2] == (height, width):
        factor = 1
    for crop in crops:
        rows, columns = scale(crop.top - top, crop.height, factor), scale(crop.left - left, crop.width, factor)
        yield pixels[rows, columns]


def _checked_pair(pair: Any) -> tuple[int, Decoder]:
    """Check a (count, Decoder) pair of the option ``crops``, and return it."""
    if not isinstance(pair, Sequence) or len(pair) != 2 or not isinstance(pair[1], Decoder):
        raise TypeError(f"crops must be pairs such as (2, RandomResizedCrop(224)), got {short_repr(pair)}")
    if pair[1].size is None or not pair[1].can_plan:
        raise OptionError(f"each Decoder of crops must have outputs of one size, got {short_repr(pair[1])}")
    return whole_number("the count of crops", pair[0], 1), pair[1]
