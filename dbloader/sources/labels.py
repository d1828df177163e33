"""The labels of a listing: integers, or the names of classes."""

from __future__ import annotations

import re

from dbloader._describe import short_repr
from dbloader.errors import SourceError

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # 18 digits fit into 64 bits; longer ones are identifiers
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.[0-9]*)?\s*")
_DIGITS = re.compile(r"[0-9]+")


def are_integers(rows: dict[str, int], where: str) -> bool:
    """Return whether the labels of a table, which has only text, are integers; SourceError if they may be either.

    They are integers if all are plain integers, and names if none looks like a number, or if all are digits of one
    length (``001`` to ``120``). ``rows`` has the first row of each label.
    """
    odd = [label for label in rows if not _INTEGER.fullmatch(label)]
    if not odd:
        return True
    numbers = [label for label in rows if _NUMBER.fullmatch(label)]
    if not numbers or (all(map(_DIGITS.fullmatch, rows)) and len({*map(len, rows)}) == 1):
        return False
    label = odd[0] if len(odd) < len(rows) else numbers[0]
    labels = [f"the label of row {rows[label]} is {short_repr(label, 50)}"]
    labels += [f"of row {rows[other]} {short_repr(other, 50)}" for other in [*rows] if other != label][:1]
    raise SourceError(
        f"{where}: {', '.join(labels)}: give every row a plain integer, such as 3, or every row a name that does not "
        "look like a number; in a .jsonl, text is always a name"
    )


def check_names(rows: dict[str, int], where: str) -> None:
    """Check that no name is blank, and that no two names differ only by the spaces around them."""
    stripped: dict[str, str] = {}
    for name, row in rows.items():
        if not name.strip():
            raise SourceError(f"{where}: the label of row {row} is {name!r}: give it a name, or leave it empty")
        other = stripped.setdefault(name.strip(), name)
        if other != name:
            raise SourceError(
                f"{where}: the label of row {rows[other]} is {other!r}, of row {row} {name!r}: "
                "they differ by spaces only; write them alike"
            )
