"""torchvision's decode_jpeg, with nvJPEG, as in torchvision's wheels for CUDA."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from dbloader.device.decode.backend import HardwareDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchvisionNvJPEG(HardwareDecoder):
    """Decodes with the JPEG engines of a GPU if it has any, else with its cores."""

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
