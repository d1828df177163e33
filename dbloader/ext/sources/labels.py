"""Labels in text: integers, or names of classes."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.sources.base import readable

if TYPE_CHECKING:
    from pathlib import Path

# Files that an export writes. They have JSON lists: the class names in the order of their labels, the file fields, and
# a list with only the target field.
CLASSES, FIELDS_FILE, TARGET_FILE = "classes.json", "file_fields.json", "target.json"

# Usual names of columns. The most usual names come first.
IMAGE_NAMES = (
    "image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes", "pixel_values", "images",
)  # fmt: skip
LABEL_NAMES = ("label", "labels", "class", "target", "cls")

# Advice for labels such as 1.0: pandas and others write all integers as floats if one integer is missing.
_WHOLE = "; the numbers are all whole: if they are classes, write them as integers, such as 1 for 1.0"

_LEAVE_OUT = "; write one for each, or leave them out of the training: where='-label:none'"
_MAX_BYTES = 2**26
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # 18 digits fit into 64 bits; longer numbers are identifiers
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?:\.[0-9]*)?\s*")
_ANY_INTEGER = re.compile(r"-?[0-9]{1,19}")


def number_labels(
    first: dict[str, str], where: str, classes: tuple[str, ...] | None = None, *, may_be_integers: bool = True
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the classes, and the label of each text.

    ``first`` maps a text to the place where it occurs first, such as "row 3". ``classes`` is the list in ``CLASSES``.
    If it is None, names are the sorted texts, or () if all are integers. Without ``may_be_integers``, "3" is a name.
    """
    if classes is not None:
        return classes, _look_up(first, where, classes, may_be_integers=may_be_integers)
    if may_be_integers and _are_integers(first, where):
        return (), {text: int(text) for text in first}
    _check_names(first, where)
    classes = tuple(sorted(first))
    return classes, {name: label for label, name in enumerate(classes)}


def read_classes(folder: Path, file: str = CLASSES) -> tuple[str, ...] | None:
    """Return the list of names in a folder's JSON file; None without the file."""
    path = folder / file
    try:
        with path.open("rb") as opened:
            names = json.loads(opened.read(_MAX_BYTES))
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            "".join(names).encode()  # raises a ValueError if JSON has a lone surrogate
            return tuple(names)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{readable(path)}: cannot be read: {error}; mend it, or move it away") from error
    what = f"must be a list of names, got {short_repr(names, 50)}"
    raise SourceError(f"{readable(path)}: {what}; mend it, or move it away")


def read_numbered(path: Path) -> tuple[str, ...] | None:
    """Return the names in a JSON object of numbers and names, such as {"0": "cat"} or {"cat": 0}; else None.

    The numbers must be 0, 1, 2, and so on.
    """
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_bytes()[:_MAX_BYTES])
        pairs = [*content.items()] if isinstance(content, dict) else []
        names = {value if type(value) is int else key: key if type(value) is int else value for key, value in pairs}
        numbered = {int(number): name for number, name in names.items()}
        if sorted(numbered) == [*range(len(pairs))] and all(isinstance(name, str) for name in numbered.values()):
            return tuple(numbered[number] for number in range(len(pairs)))
    return None


def read_target(folder: Path) -> str:
    """Return the target field that an export has stored; "" if training predicts the label."""
    return "".join((read_classes(folder, TARGET_FILE) or ())[:1])


def no_label(*, are_numbers: bool = False, are_whole: bool = False) -> str:
    """Return advice for missing labels. The other labels may be numbers, even whole numbers such as 1.0."""
    return _WHOLE if are_whole else "; write one for each" if are_numbers else _LEAVE_OUT


def label_of(labels: dict[str, int], text: str, where: str) -> int:
    """Return the label of a text; SourceError if the source did not have this text when it was opened."""
    if text not in labels:
        raise SourceError(f"{where}: was changed since it was first read")
    return labels[text]


def _look_up(first: dict[str, str], where: str, classes: tuple[str, ...], *, may_be_integers: bool) -> dict[str, int]:
    """Return the label of each text: the position of a name in ``classes``, or an integer."""
    known = {name: label for label, name in enumerate(classes)}
    labels = {}
    for text, place in first.items():
        label = int(text) if may_be_integers and _ANY_INTEGER.fullmatch(text) else known.get(text)
        if label is None or not (0 <= label < len(classes) if classes else abs(label) < 2**63):
            wrong = f"which is not in {CLASSES}: add it"
            if may_be_integers and not classes:  # the list is empty, as in an export of integer labels
                wrong = f"but {CLASSES} allows only 64-bit integers"
            elif label is not None:
                wrong = f"but {CLASSES} allows only integers from 0 to {len(classes) - 1}"
            raise SourceError(f"{where}: the label of {place} is {short_repr(text, 50)}, {wrong}")
        labels[text] = label
    return labels


def _are_integers(first: dict[str, str], where: str) -> bool:
    """Return whether all labels of a CSV or TSV are plain integers. Otherwise, all must be names.

    Raises:
        SourceError: Some labels look like numbers, but not all labels are plain integers.
    """
    odd = [label for label in first if not _INTEGER.fullmatch(label)]
    if not odd:
        return True
    numbers = [label for label in first if _NUMBER.fullmatch(label)]
    if not numbers:
        return False
    several = next((found[1] for text in odd if (found := re.fullmatch(r"[0-9]+(?:([ ,;|])[0-9]+)+", text))), "")
    way = f"; --separator {several!r} (Listing(separator=)) makes several classes of each" * bool(several)
    labels = [f"the label of {first[text]} is {short_repr(text, 50)}" for text in {numbers[0]: None, odd[0]: None}]
    raise SourceError(
        f"{where}: {' and '.join(labels)}: write only plain integers, such as 3, or only names that do not "
        f"look like numbers; in a .jsonl, text is always a name{way}"
    )


def _check_names(first: dict[str, str], where: str) -> None:
    """Check that no name is blank, and that no two names differ only by the spaces around them."""
    stripped: dict[str, str] = {}
    for name, where_first in first.items():
        if not name.strip():
            raise SourceError(f"{where}: the label of {where_first} is {name!r}: write a name, or nothing")
        other = stripped.setdefault(name.strip(), name)
        if other != name:
            raise SourceError(
                f"{where}: the label {other!r} of {first[other]} and the label {name!r} of {where_first} "
                "differ by spaces only: write them alike"
            )
