"""Check the options of decoders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from dbloader.errors import OptionError


def check_size(size: Any, name: str = "size") -> tuple[int, int]:
    """Return an option that is a (height, width) in pixels, or one number for both, as (height, width)."""
    sides = (size, size) if _is_length(size) else size
    if not (isinstance(sides, Sequence) and len(sides) == 2 and all(map(_is_length, sides))):
        raise OptionError(f"{name} must be a number of pixels or a (height, width), each at least 1, got {size!r}")
    return int(sides[0]), int(sides[1])


def check_length(name: str, value: Any) -> int:
    """Return an option that is a number of pixels, at least 1."""
    if not _is_length(value):
        raise OptionError(f"{name} must be a number of pixels, at least 1, got {value!r}")
    return int(value)


def check_share(name: str, value: Any, *, above: bool = False) -> float:
    """Return an option that is a number from 0, or with ``above`` from above 0, to 1."""
    if not _is_number(value) or not 0 <= value <= 1 or (above and not value):
        raise OptionError(
            f"{name} must be a number {'above' if above else 'of at least'} 0 and at most 1, got {value!r}"
        )
    return float(value)


def check_range(name: str, value: Any, most: float = math.inf) -> tuple[float, float]:
    """Return an option that is a (least, greatest), above 0 and at most ``most``."""
    pair = isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value))
    if not pair or not 0 < value[0] <= value[1] <= most or math.isinf(value[1]):
        limit = "finite" if math.isinf(most) else f"at most {most:g}"
        raise OptionError(f"{name} must be a (least, greatest), above 0 and {limit}, got {value!r}")
    return float(value[0]), float(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_length(value: Any) -> bool:
    # NumPy's integers are welcome, 224.5 is not.
    return _is_number(value) and value >= 1 and math.isfinite(value) and value == int(value)
