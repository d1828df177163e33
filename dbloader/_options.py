"""Checks of options that several parts of the library take alike."""

from __future__ import annotations

from operator import index
from typing import Any, Literal, overload

import numpy as np

from dbloader._describe import shown
from dbloader.errors import OptionError


@overload
def checked_flag(name: str, value: object, *, none: Literal[False] = False) -> bool: ...
@overload
def checked_flag(name: str, value: object, *, none: bool) -> bool | None: ...
def checked_flag(name: str, value: object, *, none: bool = False) -> bool | None:
    """Return an option that is either on or off.

    Python counts the text ``"no"`` as true; it is refused, as numbers are.

    Args:
        name: Of the option, for the message.
        value: What was given: True or False, also NumPy's.
        none: Whether None, for "not said", may be given too.

    Raises:
        TypeError: It is anything else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if none and value is None:
        return None
    raise TypeError(f"{name} must be True{', False or None' if none else ' or False'}, got {shown(value, 50)}")


@overload
def whole_number(name: str, value: Any, least: int | None = None, *, none: Literal[False] = False) -> int: ...
@overload
def whole_number(name: str, value: Any, least: int | None = None, *, none: bool) -> int | None: ...
def whole_number(name: str, value: Any, least: int | None = None, *, none: bool = False) -> int | None:
    """Return an option that is an int.

    Args:
        name: Of the option, for the message.
        value: What was given: an int, also NumPy's.
        least: The least that it may be; None for any.
        none: Whether None, for "not said", may be given too.

    Raises:
        TypeError: It is anything else, such as text, 3.0 or True.
        OptionError: It is less.
    """
    if none and value is None:
        return None
    try:
        number = None if isinstance(value, bool) else index(value)  # Python takes a bool for 0 or 1
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int{' or None' if none else ''}, got {shown(value)}")
    if least is not None and number < least:
        raise OptionError(f"{name} must be at least {least}, got {value}")
    return number
