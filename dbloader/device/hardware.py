"""The libraries that decode JPEGs on an NVIDIA GPU, and the files they take."""

from __future__ import annotations

import importlib
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
import torch
from torch.utils.dlpack import from_dlpack
from typing_extensions import override

from dbloader.errors import ImageError, OptionError
from dbloader.images.markers import PROGRESSIVE, SEQUENTIAL
from dbloader.images.pillow import max_pixels
from dbloader.images.tiled.layout import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class NvImageCodec(HardwareDecoder):
    """Decodes with the JPEG engines of a GPU, its cores, or both, through NVIDIA's nvImageCodec.

    Written for its Python API from 0.5 to 0.9 (https://docs.nvidia.com/cuda/nvimagecodec/py_api.html).
    """

    def __init__(self, device: torch.device) -> None:
        library: Any = importlib.import_module("nvidia.nvimgcodec")  # not at the top: it is optional
        kinds = library.BackendKind
        self._device = device
        self._new_stream = library.CodeStream
        # The default applies the EXIF orientation, which no other decoder here does.
        self._options = library.DecodeParams(apply_exif_orientation=False)
        # No CPU backend: our own decoder does that, and finds damage. Fancy upsampling is libjpeg's way to upsample
        # chroma; without it, edges of colors differ.
        self._decoder = library.Decoder(
            device_id=device.index,
            backends=[library.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)],
            options=":fancy_upsampling=1",
        )
        self._lock = threading.Lock()  # its documentation does not say that threads may share it

    @override
    def decode(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        streams: dict[int, Any] = {}
        for number, file in enumerate(files):
            try:
                streams[number] = self._new_stream(file.numpy())
            except RuntimeError:  # it cannot read the header
                continue
        result: list[torch.Tensor | None] = [None] * len(files)
        if not streams:
            return result
        # It waits for this stream, and the stream for it; its memory belongs to the stream too.
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with self._lock:
            images = self._decoder.decode(list(streams.values()), params=self._options, cuda_stream=stream)
        if len(images) != len(streams):
            return result  # old versions leave out images that they could not decode, and do not say which
        for number, image in zip(streams, images, strict=True):
            if image is not None:
                result[number] = from_dlpack(image).permute(2, 0, 1)  # it gives (height, width, 3)
        return result


class TorchvisionNvJPEG(HardwareDecoder):
    """Decodes with the JPEG engines of a GPU if it has any, else with its cores, through torchvision's CUDA wheels."""

    def __init__(self, device: torch.device) -> None:
        self._library: Any = importlib.import_module("torchvision.io")  # not at the top: it is optional
        self._device = device

    @override
    def decode(self, files: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        try:
            return self._decode(list(files))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:
            if len(files) == 1:
                return [None]
        # It refused a file, and so gave none.
        return [image for file in files for image in self.decode([file])]

    def _decode(self, files: list[torch.Tensor]) -> list[torch.Tensor | None]:
        # It allocates tensors on the current stream but fills them on another one, which does not wait. Without this,
        # it would overwrite memory that earlier work still uses.
        torch.cuda.current_stream(self._device).synchronize()
        mode = self._library.ImageReadMode.RGB
        images: list[torch.Tensor | None] = self._library.decode_jpeg(files, mode=mode, device=self._device)
        return images


def open_hardware(device: torch.device) -> HardwareDecoder:
    """Return the first library that decodes a JPEG on a device: nvImageCodec, else torchvision.

    Raises:
        OptionError: No library does; the message says what each lacks and what to install.
    """
    probe = torch.from_numpy(np.frombuffer(simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8)), np.uint8).copy())
    refused = []
    for library in (NvImageCodec, TorchvisionNvJPEG):
        try:
            hardware = library(device)
            if hardware.decode([probe])[0] is not None:
                return hardware
            refused.append(f"{library.__name__}: it decodes no JPEG, as without the nvJPEG library")
        except (ImportError, RuntimeError) as error:
            refused.append(f"{library.__name__}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    major = (torch.version.cuda or "12").partition(".")[0]
    raise OptionError(
        f"no library here decodes JPEGs on {device}: pip install 'nvidia-nvimgcodec-cu{major}[nvjpeg]', "
        f"or decode in the workers; got {'; '.join(refused)}"
    )
