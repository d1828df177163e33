"""Choose a library that decodes JPEGs on a GPU here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
import torch

from dbloader.device.decode.nvimagecodec import NvImageCodec
from dbloader.device.decode.torchvision import TorchvisionNvJPEG
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from dbloader.device.decode.backend import HardwareDecoder


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
