"""Preparing batches of images where the training wants them: on a GPU as on the CPU.

Small torch modules, which hold no parameters, buffers or other state, so that they need not be moved to a device: they
work where the images are. None waits for the device, so a CUDA stream can run them beside the training. All leave their
input as it is. ``train()`` and ``eval()`` make no difference to them, as to torchvision's transforms.
"""

from dbloader.preparation.compose import Preparation
from dbloader.preparation.erasing import RandomErasing
from dbloader.preparation.mixup import CutMix, Mixup
from dbloader.preparation.normalize import Normalize

__all__ = ["CutMix", "Mixup", "Normalize", "Preparation", "RandomErasing"]
