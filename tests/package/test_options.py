"""Checks of option values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dbloader._describe import short_repr
from dbloader._options import check_choice, check_path, checked_flag, real_number, whole_number
from dbloader.errors import OptionError


def test_valid_values_are_returned_as_python_types() -> None:
    assert [checked_flag("resume", kind(value)) for kind in (bool, np.bool_) for value in (0, 1)] == [False, True] * 2
    assert checked_flag("training", None, none=True) is None
    assert whole_number("workers", None, none=True) is None
    assert [whole_number("quality", value, 1, 100) for value in (1, np.int8(7), 100)] == [1, 7, 100]
    assert type(whole_number("workers", np.int64(3), 3)) is int
    assert type(real_number("share", np.float32(0.5), 0, 1)) is float


@pytest.mark.parametrize(
    ("check", "value", "options", "message"),
    [
        *((checked_flag, value, {}, f"must be True or False, got {value!r}") for value in ("no", "", 0, 1, None)),
        (checked_flag, "no", {"none": True}, "must be True, False or None, got 'no'"),
        *(
            (whole_number, value, {}, f"must be an int, got {value!r}")
            for value in ("2", 2.0, True, np.float64(2), [2])
        ),
        (whole_number, None, {}, "must be an int, got None"),
        (whole_number, 0, {"least": 1}, "must be at least 1, got 0"),
        *((whole_number, n, {"least": 1, "most": 100}, f"must be from 1 to 100, got {n}") for n in (0, 101)),
        (real_number, "1", {}, "must be a number, got '1'"),
        (real_number, True, {}, "must be a number, got True"),
        (real_number, 0.0, {"above": True}, "must be above 0 and finite, got 0.0"),
        (real_number, float("nan"), {"most": 1}, "must be at least 0 and at most 1, got nan"),
        (check_path, b"x", {}, "must be a str or a path, got bytes"),
        (check_choice, "c", {"choices": ("a", "b")}, "must be one of a, b, got 'c'"),
    ],
)
def test_other_values_are_refused(
    check: Callable[..., Any], value: object, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, OptionError), match=f"^name {re.escape(message)}$"):
        check("name", value, **options)


def test_long_repr_ends_in_an_ellipsis() -> None:
    assert short_repr("a" * 98) == repr("a" * 98)
    assert short_repr("a" * 99) == f"'{'a' * 98}…"
    assert len(short_repr("a" * 500, 50)) == 50
