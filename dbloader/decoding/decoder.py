"""Define the base class of decoders, and the decoder of whole images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader._options import checked_flag, whole_number
from dbloader.decoding.open import open_image
from dbloader.decoding.render import Crop, render
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    from PIL import Image


class Plan(NamedTuple):
    """An image that is ready to be decoded."""

    part: Callable[[], npt.NDArray[np.uint8]]  # decodes the part of the image that the crop shows
    crop: Crop
    size: tuple[int, int] | None  # height and width of the output; None means the size of the resized part
    width: int  # of the whole image in pixels; of the upright image if ``exif_transpose`` is true
    height: int

    def decode(self, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """Return the output, in ``out`` if given: uint8, shape (height, width, 3), RGB, contiguous.

        Raises:
            DamagedImageError: The image does not decode, or decodes only with a warning.
        """
        return render(self.part(), self.crop, self.size, out)

    def tensor(self) -> torch.Tensor:
        """Return the output as a tensor: uint8, shape (3, height, width), with the channels last in memory."""
        return torch.from_numpy(self.decode().transpose(2, 0, 1))


class Decoder(ABC):
    """Decodes images to uint8 tensors, shape (3, height, width), RGB, 0 to 255.

    A decoder has no state besides its options. Threads may share a decoder, and it can be pickled.

    Each call takes ``draws`` random numbers, which decide everything that is random. A dataset or loader derives these
    numbers from (seed, epoch, position). So a sample is the same tensor in every process.

    Before resizing, the pixels equal the pixels of `decode_pil`, unless an option says otherwise.

    Args:
        exif_transpose: Whether to turn images upright according to their EXIF. Crops then refer to the upright image.

    Attributes:
        draws: Number of random numbers for one sample; 0 if nothing is random.
        size: Height and width in pixels of every output; None if the outputs have different sizes.
    """

    draws: int = 0
    size: tuple[int, int] | None = None

    @property
    def changes_size(self) -> bool:
        """Whether an output may differ in size from its image. If so, a mask of the image would not fit the output."""
        return self.size is not None

    def __init__(self, *, exif_transpose: bool = False) -> None:
        self.exif_transpose = checked_flag("exif_transpose", exif_transpose)

    @abstractmethod
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        """Choose which part of an image is decoded, and how it is resized and mirrored.

        Args:
            random_numbers: ``draws`` numbers in [0, 1), for example a row of ``SampleRNG.uniform``.
            width: Width of the image in pixels; of the upright image if ``exif_transpose`` is true.
            height: Height of the image in pixels.

        Raises:
            OptionError: The number of random numbers is not ``draws``, or one is out of range.
        """

    def __call__(
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        random_numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
        known_intact: bool = False,
    ) -> torch.Tensor:
        """Decode one image.

        Decoding a JPEG and resizing release the GIL.

        Args:
            image: An encoded file; or pixels, uint8, shape (height, width, 3) RGB or (height, width) gray; or a PIL
                image of any mode. The image may be in a store's memory, because the output shares no memory with it.
            random_numbers: ``draws`` numbers in [0, 1); None draws them from torch's global generator.
            tiles: Lengths in bytes of a tiled JPEG's tiles, from ``find_lengths``. Only the tiles that the crop touches
                are decoded. The lengths are ignored if the image must be decoded whole.
            known_intact: Whether the file is known to decode without a warning, for example because conversion decoded
                it and its CRC is right. Decoding then stops below the crop. Otherwise the whole file is decoded, and
                libjpeg's warnings about wrong pixels are errors.

        Returns:
            uint8, shape (3, height, width), with the channels last in memory.

        Raises:
            DamagedImageError: The image does not decode, or decodes only with a warning. Or ``tiles`` belongs to
                another image. Warnings about JPEGs in CMYK or with a rare chroma subsampling are not found.
            NotAnImageError: The image's format is unknown, or the image has more pixels than are allowed.
            PixelRangeError: The image's values are floats, signed or of 32 bits, so their range is not known.
            OptionError: The number of random numbers is not ``draws``, or one is not in [0, 1). Or the array ``image``
                has a wrong dtype or shape.
        """
        return self.plan(image, random_numbers, tiles=tiles, known_intact=known_intact).tensor()

    def plan(
        self,
        image: bytes | memoryview | npt.NDArray[Any] | Image.Image,
        random_numbers: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        tiles: bytes | memoryview | None = None,
        known_intact: bool = False,
    ) -> Plan:
        """Do all work of decoding that needs Python. The returned plan decodes in libraries, which release the GIL.

        A loader plans all images of a batch before it decodes them. If a thread decoded each image right after its
        plan, decoding would push Python out of the CPU's caches, and threads would often wait for the GIL.

        Arguments and errors are as in ``__call__``. Keep the image until the plan has decoded it.
        """
        source = open_image(image, tiles, exif_transpose=self.exif_transpose, known_intact=known_intact)
        if random_numbers is None:
            random_numbers = torch.rand(self.draws, dtype=torch.float64).tolist() if self.draws else ()
        crop = self.choose_crop(random_numbers, source.width, source.height)
        part = source.part(crop.left, crop.top, crop.width, crop.height, self.reduction(crop))
        return Plan(part, crop, self.size, source.width, source.height)

    @property
    def can_plan(self) -> bool:
        """Whether ``plan`` may be used instead of ``__call__``; False if a subclass overrides ``__call__``."""
        return type(self).__call__ is Decoder.__call__

    def reduction(self, crop: Crop) -> int:
        """Return the factor by which a JPEG may be made smaller while it is decoded: 1, 2, 4 or 8."""
        return 1

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if name != "draws" and not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in options.items())})"

    def check_random_numbers(self, random_numbers: Sequence[float] | npt.NDArray[Any]) -> list[float]:
        """Check random numbers. Return them as Python's floats, which are several times faster to read than NumPy's."""
        values: list[float] = random_numbers.tolist() if hasattr(random_numbers, "tolist") else list(random_numbers)
        if len(values) != self.draws:
            raise OptionError(f"random_numbers must have {self.draws} values for each image, got {len(values)}")
        # min() and max() may miss a NaN, but with a NaN the sum is NaN.
        if values and not (min(values) >= 0 and max(values) < 1 and sum(values) >= 0):
            raise OptionError(f"random_numbers must be at least 0 and below 1, got {min(values)} to {max(values)}")
        return values


def check_size(size: int | Sequence[int], name: str = "size") -> tuple[int, int]:
    """Check a size in pixels, (height, width) or one number for both. Return the size as (height, width)."""
    try:
        height, width = size if isinstance(size, Sequence) else (size, size)
        return whole_number(name, height, 1), whole_number(name, width, 1)
    except (TypeError, ValueError):
        wanted = "a number of pixels or a (height, width), each at least 1"
        raise OptionError(f"{name} must be {wanted}, got {short_repr(size, 50)}") from None


class DecodeTensor(Decoder):
    """Decodes whole images, each to a tensor of its own size.

    Args:
        exif_transpose: Whether to turn images upright according to their EXIF.
    """

    @override
    def choose_crop(self, random_numbers: Sequence[float] | npt.NDArray[Any], width: int, height: int) -> Crop:
        self.check_random_numbers(random_numbers)
        return Crop(0, 0, width, height)
