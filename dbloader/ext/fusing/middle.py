"""Run the steps of a transform that no Decoder can do. Each call gets one image."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from dbloader.batches.timed import now
from dbloader.errors import OptionError
from dbloader.ext.fusing.steps import find_step

if TYPE_CHECKING:
    from collections.abc import Sequence

_of_this_thread = threading.local()


class Middle:
    """Applies steps to the image of a sample.

    In a worker process, the global generators of torch, Python and NumPy are seeded for each sample. Worker threads
    share these generators with the training, so threads do not seed them.

    Args:
        steps: The steps.
        kind: Type to which a Decoder's tensor is converted for the first step: "PIL", "tensor" or "Image" (tv_tensor).
        to_tensor: Whether to make uint8 tensors of the results.
    """

    takes_seed = True

    def __init__(self, steps: Sequence[Any], kind: str, *, to_tensor: bool = False) -> None:
        self.steps = steps
        self.kind = kind
        self.to_tensor = to_tensor

    def __call__(self, image: Any, seed: int | None = None) -> Any:
        """Return what the steps make of a PIL image, or of a Decoder's tensor."""
        began = now()
        if seed is not None and get_worker_info() is not None:
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
        if isinstance(image, torch.Tensor) and self.kind == "PIL":
            image = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
            if not self.steps or find_step(self.steps[0])[1] not in ("ToTensor", "MaybeToTensor"):
                image = Image.fromarray(image)  # ToTensor also accepts the array
        elif isinstance(image, torch.Tensor) and self.kind == "Image":
            from torchvision.tv_tensors import Image as TensorImage  # the user's transform has imported torchvision

            image = TensorImage(image)
        for step in self.steps:
            image = step(image)
        if seed is not None:  # without a seed, nobody calls `take_seconds`
            _of_this_thread.seconds = getattr(_of_this_thread, "seconds", 0.0) + now() - began
        if not self.to_tensor or isinstance(image, torch.Tensor):
            return image
        pixels = np.array(image)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
            kind = getattr(image, "mode", type(image).__name__)
            raise OptionError(f"the steps before ToTensor should make 8-bit images, got {kind}: pass fuse=False")
        return torch.from_numpy(pixels[..., None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)

    def take_seconds(self) -> float:
        """Return for how many seconds this thread has run steps since it last called this method."""
        return float(vars(_of_this_thread).pop("seconds", 0.0))
