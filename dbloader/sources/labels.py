"""The labels of a table, which has nothing but text: integers or names."""

from __future__ import annotations

import re

from dbloader._describe import short_repr
from dbloader.errors import SourceError

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # 18 digits fit into 64 bits; what is longer is an identifier
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.[0-9]*)?\s*")
_DECIMAL = re.compile(r"-?[0-9]+\.0*")


def are_names(first_of: dict[str, int], where: str) -> bool:
    """Return whether the labels of a table are names, not integers.

    Args:
        first_of: For each label, the row that it is first in, in the order of these rows.
        where: The listing, for the message.

    Raises:
        SourceError: They may be either.
    """
    other = next((label for label in first_of if not _INTEGER.fullmatch(label)), None)
    if other is None:
        return False
    number = next(filter(_NUMBER.fullmatch, first_of), None)
    if number is None or (all(map(_DIGITS.fullmatch, first_of)) and len({*map(len, first_of)}) == 1):
        return True

    def told(label: str) -> str:
        return f"of row {first_of[label]} is {short_repr(label, 50)}"

    integer = next(filter(_INTEGER.fullmatch, first_of), None)
    name = next((label for label in first_of if not _NUMBER.fullmatch(label)), None)
    remedy = "give every row an integer in its plain form, such as 3, or every row a name"
    if integer is not None:
        what = f"the label of row {first_of[integer]} is the integer {integer}, that {told(other)}"
    elif name is not None:
        what = f"the label {told(number)}, which is a number, that {told(name)}"
    elif all(map(_DECIMAL.fullmatch, first_of)):
        what = f"the labels are integers written as decimals, that {told(number)}"
        remedy = f"write them as integers, such as {int(number.partition('.')[0])}"
    else:
        what = f"the label {told(number)}, no integer in its plain form (digits are names if all labels have as many)"
    raise SourceError(f"{where}: {what}: {remedy}")


def check_spaces(first_of: dict[str, int], where: str) -> None:
    """Make sure that no two names differ by the spaces around them only, and that none is nothing but spaces."""
    stripped: dict[str, str] = {}
    for name, number in first_of.items():
        other = stripped.setdefault(name.strip(), name)
        if other != name:
            both = f"the label of row {first_of[other]} is {other!r}, of row {number} {name!r}"
            raise SourceError(f"{where}: {both}: they differ by spaces only; write them alike")
        if not name.strip():
            raise SourceError(f"{where}: the label of row {number} is {name!r}: give it a name, or leave it empty")
