"""The interface of the libraries that decode JPEGs on a GPU, and the files they take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dbloader.errors import ImageError
from dbloader.images.markers import PROGRESSIVE, SEQUENTIAL
from dbloader.images.pillow import max_pixels
from dbloader.images.tiled.layout import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

# Sampling factors of luma where chroma has 1 and 1: those that nvJPEG names (https://docs.nvidia.com/cuda/nvjpeg, "JPEG
# options"). It takes Huffman-coded JPEGs, baseline, extended and progressive, but no arithmetic or lossless coding.
_LUMA = ((1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 2))


class HardwareDecoder(ABC):
    """Decodes JPEGs on a CUDA device.

    Its pixels are within a few levels of libjpeg-turbo's. It does not look for damage as a strict decoder does;
    conversion keeps no damaged files unless it is told to. The constructor, for a CUDA device with its index, raises
    ImportError if the library is not installed. If it does not work here, that and ``decode`` raise RuntimeError.
    """

    @abstractmethod
    def __init__(self, device: torch.device) -> None: ...

    @abstractmethod
    def decode(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Decode one or more files for which ``takes`` is true: uint8, shape (bytes,), on the CPU.

        Return for each: uint8, shape (3, height, width), RGB, on the device, ready for work queued on its current
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
    frame = header.frame
    if frame.process not in (*SEQUENTIAL, PROGRESSIVE) or frame.width * frame.height > max_pixels():
        return False
    if len(frame.sampling) == 1:
        return True
    if frame.identifiers == b"RGB" or header.adobe_transform not in (None, 1):  # YCbCr
        return False
    luma, *chroma = frame.sampling
    return luma in _LUMA and chroma == [(1, 1), (1, 1)]
