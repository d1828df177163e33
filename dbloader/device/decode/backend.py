"""The interface of the libraries that decode JPEGs on a GPU, and the files they take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dbloader.errors import ImageError
from dbloader.images.pillow import max_pixels
from dbloader.images.tiled.layout import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

# Second bytes of the markers of frames with Huffman codes: baseline, extended, progressive (T.81 table B.1). nvJPEG
# takes them (https://docs.nvidia.com/cuda/nvjpeg, "JPEG options"), but no arithmetic or lossless coding.
_HUFFMAN = (0xC0, 0xC1, 0xC2)
# Horizontal and vertical sampling factors of luma, if those of chroma are 1 and 1: the ones that nvJPEG names.
_LUMA = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 2))
_ADOBE = b"\xff\xee\x00\x0eAdobe"
_YCC = 1  # Adobe's transform, 11 bytes after the length: 0 is RGB


class HardwareDecoder(ABC):
    """Decodes JPEGs on a CUDA device.

    Its pixels are within a few levels of libjpeg-turbo's. It does not look for damage as a strict decoder does;
    conversion keeps no damaged files unless it is told to.

    Args:
        device: A CUDA device with its index.

    Raises:
        ImportError: The library is not installed.
        RuntimeError: It does not work here; ``decode`` may raise this too.
    """

    @abstractmethod
    def __init__(self, device: torch.device) -> None: ...

    @abstractmethod
    def decode(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Decode files for which ``takes`` is true.

        Args:
            files: uint8, shape (bytes,), on the CPU; at least one.

        Returns:
            For each file: uint8, shape (3, height, width), RGB, on the device, ready for work queued on its current
            stream; None if the library refuses the file. EXIF orientation is not applied.
        """


def takes(file: memoryview) -> bool:
    """Return whether a file, by its header, is a JPEG that a GPU decodes with the colors of libjpeg-turbo.

    Those are 8-bit Huffman-coded JPEGs that are gray or YCbCr with usual subsampling; not CMYK or RGB.
    """
    try:
        header = read_header(file)
    except (ImageError, ValueError):
        return False
    if header.process not in _HUFFMAN or header.width * header.height > max_pixels():
        return False
    joined = b"".join(header.parts)
    count = joined[header.size_at + 4]
    components = joined[header.size_at + 5 : header.size_at + 5 + 3 * count]  # id, factors and table of each
    if count == 1:
        return True
    adobe = joined.find(_ADOBE)
    if components[::3] == b"RGB" or (adobe >= 0 and joined[adobe + 15] != _YCC):
        return False
    luma, *chroma = components[1::3]
    return (luma >> 4, luma & 15) in _LUMA and chroma == [0x11, 0x11]
