"""Check the values of options. Each function takes the option's name, for error messages, and the value."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from dbloader._describe import short_repr
from dbloader.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence


@overload
def checked_flag(name: str, value: object, *, none: Literal[False] = False) -> bool: ...
@overload
def checked_flag(name: str, value: object, *, none: bool) -> bool | None: ...
def checked_flag(name: str, value: object, *, none: bool = False) -> bool | None:
    """Convert a bool of Python or NumPy to Python's bool. If ``none`` is true, None is allowed too.

    Any other value raises TypeError, because Python would treat the text ``"no"`` as true.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if none and value is None:
        return None
    raise TypeError(f"{name} must be True{', False or None' if none else ' or False'}, got {short_repr(value, 50)}")


@overload
def whole_number(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, none: Literal[False] = False
) -> int: ...
@overload
def whole_number(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, none: bool
) -> int | None: ...
def whole_number(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, none: bool = False
) -> int | None:
    """Check an int of Python or NumPy, and return it as int. If ``none`` is true, None is allowed too.

    An int below ``least`` or above ``most`` raises OptionError. Values of other types, such as text, 3.0 and True,
    raise TypeError.
    """
    if none and value is None:
        return None
    try:
        number = None if isinstance(value, bool) else index(value)  # index(True) is 1
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int{' or None' if none else ''}, got {short_repr(value)}")
    if (least is not None and number < least) or (most is not None and number > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise OptionError(f"{name} must be {wanted}, got {value}")
    return number


def real_number(name: str, value: Any, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> float:
    """Check a number, and return it as float. If ``above`` is true, ``least`` itself is not allowed.

    A number below ``least`` or above ``most``, infinity and NaN raise OptionError. Other values raise TypeError.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {short_repr(value)}")
    number = float(value)
    if not (least < number if above else least <= number) or not number <= most or math.isinf(number):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        upper = "finite" if math.isinf(most) else f"at most {most:g}"
        raise OptionError(f"{name} must be {lower} and {upper}, got {short_repr(value)}")
    return number


def check_path(name: str, value: object, *, none: bool = False) -> None:
    """Raise TypeError unless an option is a str or a path. If ``none`` is true, None is allowed too.

    The message shows only the type of the value, because the value may be large.
    """
    if not (isinstance(value, (str, os.PathLike)) or (none and value is None)):
        raise TypeError(f"{name} must be a str or a path{', or None' if none else ''}, got {type(value).__name__}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise OptionError unless an option is one of its choices."""
    if value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, got {short_repr(value)}")


def checked_names(option: str, names: object, example: str) -> tuple[str, ...]:
    """Return the names in an option as a tuple. Raise OptionError for anything else, such as a single str."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        names = tuple(names)
        if all(isinstance(name, str) for name in names):
            return names
    raise OptionError(f"{option} must be names, such as {example}, got {short_repr(names)}")
