"""Send batches of images to a device, and prepare them there.

The preparations are small torch modules without parameters, buffers or other state. For images on a GPU,
preparations only queue work and never wait for the GPU, so a CUDA stream can run them in parallel with the training.
Preparations do not change their input. ``train()`` and ``eval()`` have no effect on preparations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports

if TYPE_CHECKING:
    from dbloader.device.normalize import Normalize as Normalize
    from dbloader.device.preparation import Preparation as Preparation
    from dbloader.ext.device.erasing import RandomErasing as RandomErasing

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {"Normalize": "device.normalize", "Preparation": "device.preparation", "RandomErasing": "ext.device.erasing"},
)
