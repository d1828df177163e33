"""Whole images in their own size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader.decoding.decoder import Crop, Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class DecodeTensor(Decoder):
    """Decodes whole images, each to a tensor of its own size.

    Args:
        exif_transpose: Whether images are turned upright as their EXIF says.
    """

    @override
    def choose(self, numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        self._check_numbers(numbers)
        return Crop(0, 0, width, height)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exif_transpose={self.exif_transpose})"
