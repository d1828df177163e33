"""What the modules ask of their options and their images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch

from dbloader.errors import OptionError


def number(name: str, value: Any, low: float = 0.0, high: float = math.inf, *, above: bool = False) -> float:
    """Return an option that is a number of ``low`` (or, with ``above``, more) to ``high`` as a float.

    Raises:
        TypeError: It is no number.
        OptionError: It is out of its range, infinite or not a number.
    """
    if type(value) is bool or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    result = float(value)
    if not (low < result if above else low <= result) or not result <= high or math.isinf(result):
        least = f"above {low:g}" if above else f"at least {low:g}"
        most = "finite" if math.isinf(high) else f"at most {high:g}"
        raise OptionError(f"{name} must be {least} and {most}, got {value!r}")
    return result


def shares(name: str, values: Any, *, above: bool = False) -> tuple[float, ...]:
    """Return an option that has a number of 0 (or, with ``above``, more) to 1 for each channel as floats.

    Raises:
        TypeError: It is no sequence of numbers.
        OptionError: One is out of its range.
    """
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of numbers, one for each channel, got {values!r}")
    return tuple(number(f"{name} (on the scale 0 to 1, not 0 to 255)", value, 0, 1, above=above) for value in values)


def images(given: Any) -> None:
    """Check that something is a batch of images: a uint8 or float tensor, shape (N, C, H, W).

    Raises:
        TypeError: It is no tensor, or of another dtype.
        ValueError: It has another number of axes.
    """
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"images must be a tensor, got {type(given).__name__}")
    if given.ndim != 4:
        raise ValueError(f"images must have the shape (N, C, H, W), got {tuple(given.shape)}")
    if given.dtype is not torch.uint8 and not given.dtype.is_floating_point:
        raise TypeError(f"images must be uint8 (0 to 255) or float (0 to 1), got {given.dtype}")
