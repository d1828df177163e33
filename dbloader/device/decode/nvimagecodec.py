"""NVIDIA's nvImageCodec, of the packages nvidia-nvimgcodec-cu12 and -cu13.

Written for its Python API from 0.5 to 0.9 (https://docs.nvidia.com/cuda/nvimagecodec/py_api.html).
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack
from typing_extensions import override

from dbloader.device.decode.backend import HardwareDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence


class NvImageCodec(HardwareDecoder):
    """Decodes with the JPEG engines of a GPU, its cores, or both."""

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
