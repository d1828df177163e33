"""A listing: a file that says which images become records, in which order, with which label and further fields.

- ``.csv``, ``.tsv``: a header, then a row for each image; labels and fields are text. Read row by row.
- ``.jsonl``, ``.ndjson``: an object on each line, its keys being the columns. Read line by line.
- ``.json``: an array of objects; or a list for each column, ``{"path_list": [...], "label_list": [...]}``. Read whole.

All are UTF-8. One column is the path, below the root or absolute; one may be the label; each other one becomes a field
of the record. A row's number is that of the line it begins on (of the item, from 1, in a ``.json``).

Labels are either integers, kept as they are, or names, which make the classes: the label then is the position among
all names, sorted. Null, or an empty label, is no label. In JSON, text is a name whatever it looks like. A CSV or TSV
has nothing but text, so there

- labels are integers if each is written as one, in the plain form (``3``, ``-1``);
- they are names if none looks like a number (``3``, ``007``, `` 3``, ``3.0``), or if all are digits, equally many
  (``001`` to ``120``);
- anything else is an error, as either way some labels would not be what they were meant to be.

Two names that differ by the spaces around them only are an error too.
"""

from __future__ import annotations

import csv
import json
import os
import posixpath
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import SourceError, SourceNotFoundError
from dbloader.sources.base import Entry, Problem, Source, checked_root, readable
from dbloader.sources.labels import are_names, check_spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Reader = Callable[[Path], Iterator[tuple[int, Any] | Problem]]

PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_COLUMNS = ("label", "class", "target")
# The fields that every record has (dbloader.records.record; importing that would import numpy). A test compares.
RESERVED = {
    "_id",
    "index",
    "name",
    "label",
    "image",
    "width",
    "height",
    "format",
    "damaged",
    "resized_from",
    "crc32",
    "gridfs",
}
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # JSON can hold it, UTF-8 cannot
_NO_FIELD_NAME = re.compile(r"^$|^[$\s]|[.\0\ud800-\udfff]|\s$")


class _Row(NamedTuple):
    number: int
    path: bytes
    label: int | str | None
    fields: dict[str, Any]
    columns: tuple[str, ...]


def read_listing(listing: str | os.PathLike[str], root: str | os.PathLike[str]) -> ListingSource:
    """Return the source of the images that a listing names.

    It is read here, for its mistakes and its classes, and again by each iteration. Memory holds one row and the
    distinct labels, or a ``.json`` as a whole.

    Args:
        listing: The file; its extension tells the format.
        root: The folder that its paths start from.

    Raises:
        SourceNotFoundError: There is no such listing, or no such root.
        SourceError: The listing has a mistake that is not one row's only; the message names the row.
    """
    listing, root, where = Path(listing), checked_root(root), readable(listing)
    first_of: dict[str, int] = {}  # for each label that is text, the row that it is first in
    first = first_integer = first_problem = None
    rows = unlabelled = 0
    for row in _rows(listing):
        if isinstance(row, Problem):
            first_problem = first_problem or row
            continue
        rows += 1
        first = first or row
        if isinstance(row.label, str):
            first_of.setdefault(row.label, row.number)
        elif row.label is None:
            unlabelled += 1
        else:
            first_integer = first_integer or row
    if first is None:
        raise SourceError(f"{where}: no row of it can be used: {': '.join(first_problem or ['there are none'])}")
    if first_integer and first_of:
        name, number = next(iter(first_of.items()))
        both = f"the label of row {first_integer.number} is the integer {first_integer.label}, of row {number} {name!r}"
        raise SourceError(f"{where}: {both}: give every row an integer or every row a name")
    warnings = []
    if unlabelled == rows:
        warnings.append(f"no row has a label, {_why_unlabelled(first)}")
    elif unlabelled:
        warnings.append(f"{unlabelled} of {rows} rows have no label")
    if listing.suffix.lower() in _READ_TEXT and not are_names(first_of, where):
        return ListingSource(root, (), warnings, listing, {name: int(name) for name in first_of})
    check_spaces(first_of, where)
    classes = tuple(sorted(first_of))
    return ListingSource(root, classes, warnings, listing, {name: label for label, name in enumerate(classes)})


def _why_unlabelled(row: _Row) -> str:
    for column in row.columns:
        if column in LABEL_COLUMNS:
            return f"as the column {column!r} is empty"
    columns, names = (", ".join(map(repr, some)) for some in (row.columns, LABEL_COLUMNS))
    return f"as none of the columns {columns} is called one of {names}"


class ListingSource(Source):
    """The images that a listing names, in its order, repeats included; made by ``read_listing``.

    They may have any extension, and whether they are there is not looked at. The name of an entry is its path made
    plain (``./a//b`` becomes ``a/b``; ``../a`` stays); of an absolute path below the root, what follows the root.
    """

    def __init__(
        self, root: Path, classes: tuple[str, ...], warnings: list[str], listing: Path, labels: dict[str, int]
    ) -> None:
        super().__init__(root, classes, warnings)
        self.listing = listing
        self.labels = labels

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        below = posixpath.normpath(os.fsencode(self.root.absolute())).rstrip(b"/") + b"/"
        for row in _rows(self.listing):
            if isinstance(row, Problem):
                yield row
                continue
            label = self.labels.get(row.label) if isinstance(row.label, str) else row.label
            if (label is None) != (row.label is None):
                raise SourceError(f"{readable(self.listing)}, row {row.number}: was changed since it was first read")
            name = posixpath.normpath(row.path).removeprefix(below)
            yield Entry(readable(name), row.path, label, row.fields)


def _rows(listing: Path) -> Iterator[_Row | Problem]:
    """Yield each row, checked, or why it cannot be used."""
    extension = listing.suffix.lower()
    if extension not in _READ:
        raise SourceError(f"{readable(listing)}: a listing is one of {', '.join(_READ)}, got {extension!r}")
    for row in _READ[extension](listing):
        if isinstance(row, Problem):
            yield row
            continue
        number, values = row
        where = f"{readable(listing)}, row {number}"
        if not isinstance(values, dict):
            raise SourceError(f"{where}: must be an object that has a path, got {short_repr(values, 50)}")
        columns = tuple(values)
        path_column, label_column = _checked_columns(columns, where)
        path = _encoded(values.pop(path_column, None))
        label = _checked_label(values.pop(label_column, None), where)
        yield Problem(f"row {number}", path) if isinstance(path, str) else _Row(number, path, label, values, columns)


def _read_csv(listing: Path, delimiter: str = ",") -> Iterator[tuple[int, Any] | Problem]:
    lines = csv.reader(_lines(listing), delimiter=delimiter, strict=True)
    header: list[str] = []
    number = 1
    try:
        for values in lines:
            if not header:
                header = values  # empty where the line is
                _check_header(header, f"{readable(listing)}, row {number}")
            elif len(values) == len(header):
                yield number, dict(zip(header, values, strict=True))
            elif values:
                yield Problem(f"row {number}", f"the header has {len(header)} fields, it has {len(values)}")
            number = lines.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{readable(listing)}, row {number}: cannot be read: {error}") from error


def _read_jsonl(listing: Path) -> Iterator[tuple[int, Any] | Problem]:
    for number, line in enumerate(_lines(listing), 1):
        if line.strip():
            yield number, _parsed(line, f"{readable(listing)}, row {number}")


def _read_json(listing: Path) -> Iterator[tuple[int, Any] | Problem]:
    rows = _parsed("".join(_lines(listing)), readable(listing))
    if isinstance(rows, dict):
        for name, values in rows.items():
            if not isinstance(values, list):
                raise SourceError(f"{readable(listing)}: {name} must be a list, got {short_repr(values, 50)}")
        if len({*map(len, rows.values())}) > 1:
            lengths = ", ".join(f"{name} has {len(values)} items" for name, values in rows.items())
            raise SourceError(f"{readable(listing)}: its lists must be equally long: {lengths}")
        columns = [name.removesuffix("_list") for name in rows]
        _check_header(columns, readable(listing))
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*rows.values(), strict=True))
    elif not isinstance(rows, list):
        raise SourceError(
            f"{readable(listing)}: must be an object of lists or an array of objects, got {short_repr(rows, 50)}"
        )
    yield from enumerate(rows, 1)


_READ_TEXT: dict[str, _Reader] = {".csv": _read_csv, ".tsv": partial(_read_csv, delimiter="\t")}
_READ: dict[str, _Reader] = {**_READ_TEXT, ".json": _read_json, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl}


def _lines(listing: Path) -> Iterator[str]:
    """Yield the lines as text, each decoded by itself, so that an error can name the row."""
    try:
        file = listing.open("rb")
    except OSError as error:
        kind = SourceNotFoundError if isinstance(error, FileNotFoundError) else SourceError
        raise kind(f"{readable(listing)}: the listing cannot be read: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                reason = f"is not UTF-8 ({error.reason}); save the listing as UTF-8"
                raise SourceError(f"{readable(listing)}, row {number}: {reason}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: is not JSON: {error}") from error


def _check_header(columns: list[str], where: str) -> None:
    names = ", ".join(map(repr, columns))
    if len({*columns}) < len(columns):
        raise SourceError(f"{where}: two of the columns {names} have the same name; rename or drop one")
    if columns and not {*columns} & {*PATH_COLUMNS}:
        raise SourceError(f"{where}: none of the columns {names} is the path; call one of them 'path'")
    _checked_columns(tuple(columns), where)


def _checked_columns(columns: tuple[str, ...], where: str) -> tuple[str, str]:
    """Return the names of the columns of path and label, there or not."""
    chosen = []
    for what, names in (("path", PATH_COLUMNS), ("label", LABEL_COLUMNS)):
        found = [column for column in columns if column in names]
        if len(found) > 1:
            raise SourceError(f"{where}: {found[0]!r} and {found[1]!r} may both be the {what}; rename or drop one")
        chosen.append(found[0] if found else names[0])
    for column in (column for column in columns if column not in chosen):
        if column in RESERVED or _NO_FIELD_NAME.search(column):
            rule = "be one that every record has, be empty, hold '.' or NUL, begin with '$' or be padded with spaces"
            raise SourceError(f"{where}: a field's name may not {rule}, got {column!r}; rename the column")
    return chosen[0], chosen[1]


def _checked_label(label: object, where: str) -> int | str | None:
    if label is None or label == "":
        return None
    # A record's label fits into 64 bits, and the least of these integers stands for none.
    if (isinstance(label, str) and not _SURROGATE.search(label)) or (type(label) is int and abs(label) < 2**63):
        return label
    raise SourceError(f"{where}: a label is a 64-bit integer, a name or null, got {short_repr(label, 50)}")


def _encoded(path: object) -> bytes | str:
    """Return the bytes of a path, or a reason why it cannot be one."""
    if path is None or path == "":
        return "it has no path"
    with suppress(UnicodeEncodeError):
        if isinstance(path, str) and "\0" not in path:
            return path.encode("utf-8", "surrogateescape")  # a JSON may hold a name that is not UTF-8 like this
    return f"its path cannot be that of a file: {short_repr(path, 50)}"
