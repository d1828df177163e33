"""A user's own transform, and its results as pictures."""

from __future__ import annotations

import importlib
import inspect
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dbloader._describe import short_repr
from dbloader.errors import OptionError


def load_transform(name: str) -> Any:
    """Return the transform that ``module:name`` says; the current directory is searched first, as by ``python -m``.

    A function or class that can be called without arguments is called, and returns the transform.

    Raises:
        OptionError: It cannot be imported, is not there, or cannot be called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise OptionError(f"a transform must be MODULE:NAME, such as train:make_transform, got {name!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
        if inspect.isfunction(found) or inspect.isclass(found):
            parameters = inspect.signature(found).parameters.values()
            if all(parameter.default is not parameter.empty for parameter in parameters):
                found = found()
    except Exception as error:  # the module is the user's
        raise OptionError(f"the transform {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise OptionError(f"the transform {name} must be a callable, or a function that returns one, got {found!r}")
    return found


def to_png(value: Any) -> tuple[bytes, str]:
    """Return an image of any kind as PNG, and what was done to its values; empty if nothing.

    Args:
        value: A PIL image; a tensor, shape (channels, height, width); an array, shape (height, width, channels); either
            of shape (height, width); or a list of these, which are shown side by side. Bytes are shown as they are,
            floats from 0 to 1 as black to white, and all others from their least to their greatest value.

    Raises:
        OptionError: It is something else.
    """
    notes: dict[str, None] = {}
    pictures = [_picture(one, notes) for one in (value if isinstance(value, (list, tuple)) and value else [value])]
    picture = pictures[0]
    if len(pictures) > 1:
        lefts = np.cumsum([0, *(one.width for one in pictures)]).tolist()
        picture = Image.new("RGB", (lefts[-1], max(one.height for one in pictures)))
        for one, left in zip(pictures, lefts, strict=False):
            picture.paste(one, (left, 0))
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return file.getvalue(), "; ".join(notes)


def _picture(value: Any, notes: dict[str, None]) -> Image.Image:
    """Return an image of one of the modes L, RGB and RGBA."""
    if isinstance(value, Image.Image):
        if not value.mode.startswith(("F", "I")):
            return value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB")
        value = np.asarray(value)
    elif hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu()
        value = np.asarray(value.float() if value.is_floating_point() else value)  # NumPy has no bfloat16
        value = value.transpose(1, 2, 0) if value.ndim == 3 else value
    drawn = isinstance(value, np.ndarray) and value.ndim in (2, 3) and value.size and value.dtype.kind in "buif"
    if not drawn:
        kind = f"{value.dtype} of shape {value.shape}" if hasattr(value, "shape") else short_repr(value, 50)
        raise OptionError(f"a transform must return an image to be shown: PIL, tensor or array, got {kind}")
    if value.ndim == 3 and value.shape[2] not in (3, 4):
        if value.shape[2] != 1:
            notes[f"only {'channels 1 to 3' if value.shape[2] > 4 else 'channel 1'} of {value.shape[2]}"] = None
        value = value[..., :3] if value.shape[2] > 4 else value[..., 0]
    if value.dtype != np.uint8:
        finite = np.isfinite(value)
        numbers = np.where(finite, value, 0).astype(np.float64)
        low, high = float(numbers.min()), float(numbers.max())
        if value.dtype.kind in "bf" and 0 <= low <= high <= 1:
            low, high = 0.0, 1.0
        notes[f"{low:.4g} to {high:.4g} shown as black to white"] = None
        if not finite.all():
            notes[f"{value.size - finite.sum()} values are not finite, shown as 0"] = None
        value = np.rint((numbers - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(value))
