"""Options are what they look like, or refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dbloader._options import checked_flag, whole_number
from dbloader.errors import OptionError


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_true_and_false_are_given_back(kind: type) -> None:
    assert checked_flag("resume", kind(True)) is True
    assert checked_flag("resume", kind(False)) is False


@pytest.mark.parametrize("value", ["no", "", 0, 1, None])
def test_what_only_counts_as_true_or_false_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"^resume must be True or False, got {value!r}$"):
        checked_flag("resume", value)


def test_none_is_taken_where_it_says_something() -> None:
    assert checked_flag("training", None, none=True) is None
    assert checked_flag("training", False, none=True) is False
    with pytest.raises(TypeError, match=r"^training must be True, False or None, got 'no'$"):
        checked_flag("training", "no", none=True)


def test_whole_numbers_are_given_back_as_pythons() -> None:
    assert whole_number("workers", None, none=True) is None
    assert whole_number("workers", -2) == -2
    assert type(whole_number("workers", np.int64(3), 3)) is int


@pytest.mark.parametrize("value", ["2", 2.0, True, np.float64(2), [2], None])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=f"^workers must be an int, got {re.escape(repr(value))}$"):
        whole_number("workers", value)


def test_a_number_below_the_least_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^workers must be at least 1, got 0$"):
        whole_number("workers", 0, 1)


def test_a_whole_number_has_a_least_and_a_greatest_value() -> None:
    assert [whole_number("quality", value, 1, 100) for value in (1, np.int8(7), 100)] == [1, 7, 100]
    for value in (0, 101):
        with pytest.raises(OptionError, match=f"^quality must be from 1 to 100, got {value}$"):
            whole_number("quality", value, 1, 100)
