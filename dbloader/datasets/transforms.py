"""Apply transforms to images and samples, including transforms of albumentations.

Transforms of albumentations take arrays as keyword arguments and return a dict. Each transform has its own random
generator. If transforms kept it, all forked workers would draw the same numbers, and resuming a training would change
the numbers. So each call gets a new generator, seeded with a random number of the sample.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from dbloader._describe import short_repr
from dbloader.decoding.decoder import Decoder
from dbloader.errors import OptionError
from dbloader.sampling.rng import SampleRNG, SeededIndices

if TYPE_CHECKING:
    from collections.abc import Sequence


_of_this_thread = threading.local()  # each thread has its own copies of transforms, because a call changes a transform


def is_albumentations(transform: Any) -> bool:
    """Return whether a transform is from albumentations, single or composed."""
    module: Any = sys.modules.get("albumentations")
    return module is not None and isinstance(transform, (module.BaseCompose, module.BasicTransform))


def random_numbers_for(decode: Any, indices: Sequence[int], transform: Any = None) -> np.ndarray[Any, Any] | None:
    """Return random numbers in [0, 1): float64, shape (len(indices), n). None if nothing is random.

    A row has ``decode.draws`` numbers, and one more if ``transform`` is from albumentations or takes a seed.
    """
    draws = decode.draws if isinstance(decode, Decoder) else 0
    is_seeded = is_albumentations(transform) or getattr(transform, "takes_seed", False)
    if not draws and not is_seeded:
        return None
    rng = indices.rng if isinstance(indices, SeededIndices) else SampleRNG.from_torch(len(indices))
    numbers = rng.uniform(draws, "decode")
    return np.hstack([numbers, rng.uniform(1, "transform")]) if is_seeded else numbers


def apply_transform(transform: Any, value: Any, row: np.ndarray[Any, Any] | None) -> Any:
    """Apply a transform to an image, or to a sample that is a dict.

    In a dict, albumentations changes the fields whose names it knows, such as ``"image"`` and ``"mask"``. Images and
    masks may be PIL images, arrays (height, width, channels), or tensors of a Decoder (channels, height, width).

    Args:
        transform: Any callable.
        value: The image or dict.
        row: A row of ``random_numbers_for``. With None, albumentations draws from its own generators.

    Raises:
        OptionError: Albumentations gets a dict without ``"image"``.
    """
    if getattr(transform, "takes_seed", False):  # the steps that create_loader did not fuse
        return transform(value, None if row is None else int(row[-1] * 2**53))
    if not is_albumentations(transform):
        return transform(value)
    sample = value if isinstance(value, dict) else {"image": value}
    if "image" not in sample:
        raise OptionError(f"albumentations needs a field that is named 'image', got a sample of {', '.join(sample)}")
    if threading.current_thread() is not threading.main_thread():
        copies = vars(_of_this_thread).setdefault("copies", weakref.WeakKeyDictionary())
        if transform not in copies:
            copies[transform] = copy.deepcopy(transform)
        transform = copies[transform]
    if row is not None:
        seed = int(row[-1] * 2**53)
        transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
    result = transform(**{name: _as_array(part) for name, part in sample.items()})
    return result if isinstance(value, dict) else result["image"]


def apply_to_pair(transforms: Any, image: Any, label: Any) -> tuple[Any, Any]:
    """Apply a transform to an image and a label. Raise TypeError if the transform does not return two values."""
    pair = transforms(image, label)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"transforms= must return the image and the label, (image, label), got {short_repr(pair)}")
    return pair[0], pair[1]


def _as_array(value: Any) -> Any:
    if isinstance(value, Image.Image):
        return np.array(value)  # a copy, because some transforms work in place
    return value.permute(1, 2, 0).numpy() if isinstance(value, torch.Tensor) and value.ndim == 3 else value
