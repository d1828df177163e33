"""Check the rows of a listing, and find the path, the label, a box, and the fields of a record in each row."""

from __future__ import annotations

import math
import posixpath
import re
from ast import literal_eval
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from dbloader._describe import cut, short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.ext.sources.boxes import OWN_SIZE
from dbloader.ext.sources.class_folders import CLASS_FOLDERS
from dbloader.ext.sources.listed_boxes import take_box, take_boxes
from dbloader.ext.sources.listing_columns import (
    ALL,
    INTEGER,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    box_columns,
    field_name,
    is_certain,
    is_float,
    label_columns,
    path_columns,
    plain,
    size_columns,
)
from dbloader.ext.sources.listing_paths import encoded_path, name_below
from dbloader.ext.sources.listing_rows import EXPORT_COCO, is_text, read_rows
from dbloader.records.record import checked_field_name
from dbloader.sources.base import Problem, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from dbloader.ext.sources.listed_boxes import ListedBoxes
    from dbloader.ext.sources.listing_files import ListedFiles
    from dbloader.sources.base import Listing

# Columns of metadata. A column such as "mask_file_name" has paths of files. The files become the field "mask".
FILE_NAME = "file_name"  # path of the image
RECORD_COLUMNS = ("name", "resized_from")  # become attributes of the record
FILE_NAME_SUFFIX = "_file_name"
# ImageNet's boxes: for each box, a class and four numbers. A number does not match as a class: it may be a confidence.
_PREDICTIONS = re.compile(r"\s*(?:(?![\d.]+\s)\S+(?:\s+-?[\d.]+){4}(?:\s+|$))+")
_FLAGS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": -1, "-1.0": -1, "": 2}
_KNOWN_COLUMNS = 1000  # number of sets of columns to remember: in JSON, each row may have other columns


class ListingRules(NamedTuple):
    """How to read the columns. Metadata may come from a stranger, so a path in metadata must not leave the folder."""

    listing: Listing
    path: Path
    files: ListedFiles
    prefix: bytes  # absolute path of the root, with a final slash
    encoding: str | None = None
    file_columns: tuple[str, ...] = ()  # columns with paths of files that become fields
    is_metadata: bool = False  # whether the listing is the metadata of a folder
    is_export: bool = False  # whether an export wrote the metadata
    is_guess: bool = False  # whether columns of 0 and 1 were guessed to be classes
    by_folder: bool = False  # whether the first folder of a path is the label
    class_folder: str | None = None  # which folder of a path is the label, if the user has decided
    types: Mapping[str, Callable[[str], Any]] = MappingProxyType({})  # {column: function from text to value}
    target: str = ""  # the field for labels that are numbers or lists of classes
    has_lists: bool = False  # whether rows have lists of boxes
    is_fraction: bool = False  # whether boxes are fractions of the width and height

    def rows(self) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
        """Read the rows as they are."""
        return read_rows(self.path, self.encoding, are_numbered=any(map(str.isdecimal, self.listing.label)))

    def path_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that may name the images."""
        if self.is_metadata:
            return [column for column in columns if column == FILE_NAME]
        if self.listing.image is not None:
            return matching(self.listing.image, columns)
        return path_columns(columns)


class RowColumns(NamedTuple):
    """The meaning of the columns of a row."""

    path: str
    labels: tuple[str, ...]  # several if each class has a column
    corners: tuple[str, ...]  # four columns of a box; () without a box
    has_sides: bool  # whether the last two of the four are the width and height of the box
    size: tuple[str, ...]  # columns with the image's width and height; () without them
    renamed: dict[str, str]  # {column: its field} for columns whose name no field can have


class ListingRow(NamedTuple):
    """A row, checked, with the values that become fields of the record."""

    number: int
    path: bytes
    name: str  # of the record
    label: int | str | float | list[Any] | None
    fields: dict[str, Any]
    files: dict[str, bytes | None]  # {field: path of its file}; in ``fields``, these fields are None
    columns: tuple[str, ...]
    chosen: RowColumns
    box: tuple[float, ...] | None = None  # None if all its columns are empty
    size: tuple[int, int] = OWN_SIZE
    boxes: ListedBoxes | None = None  # None if the row has no list of boxes


def top_folder(path: bytes) -> str:
    """Return the first folder of a path; "" without one."""
    return readable(path.rpartition(b"/")[0].partition(b"/")[0])


def checked_rows(rules: ListingRules) -> Iterator[ListingRow | Problem]:
    """Check each row, and yield it or a Problem."""
    called = FILE_NAME if rules.is_metadata else rules.listing.image or " or ".join(PATH_COLUMNS)
    no_path = f"it has no path in a column called {called}"
    place = readable(rules.path)
    known: dict[tuple[str, ...], RowColumns | None] = {}
    for row in rules.rows():
        if isinstance(row, Problem):
            yield row
            continue
        number, values = row
        where = f"{place}, row {number}"
        columns = tuple(values)
        if columns not in known:
            if len(known) >= _KNOWN_COLUMNS:
                known.clear()
            known[columns] = _find_columns(columns, where, rules)
        chosen = known[columns]
        if chosen is None:
            yield Problem(f"row {number}", no_path + _after_no_path(values, rules))
            continue
        value = values.pop(chosen.path, None)
        if type(value) is int and not is_certain(chosen.path):
            value = str(value)  # an id in JSON
        path = _path(value, no_path, rules)
        label = _label_of(chosen, values, where, rules)
        if rules.class_folder and isinstance(path, bytes):
            if chosen.labels:
                way = "choose one of them: leave class_folder (--class-folder) out, or rename the column"
                raise SourceError(f"{where}: both {chosen.labels[0]!r} and a folder would be the label; {way}")
            label = CLASS_FOLDERS[rules.class_folder](posixpath.dirname(name_below(path, rules.prefix))) or None
        elif rules.by_folder and isinstance(path, bytes):
            label = top_folder(path)
        field_of = _find_file_columns([*values], rules, where)
        files: dict[str, bytes | None] = {}
        for column, field in field_of.items():
            if values[column] in (None, ""):
                files[field] = None
            elif isinstance(file := _path(values[column], "", rules), bytes):
                files[field] = file
            else:
                path = f"{file} (of its file {field!r})"
        try:
            box, size = None, OWN_SIZE
            if chosen.corners:
                box, size = take_box(values, chosen.corners, chosen.size, has_sides=chosen.has_sides)
            boxes = None if rules.is_export or is_text(rules.path) else take_boxes(values)
        except ValueError as error:
            path = str(error)
        if isinstance(path, str):
            yield Problem(f"row {number}", path)
            continue
        if chosen.renamed:
            values = {chosen.renamed.get(column, column): value for column, value in values.items()}
        for column, of in rules.types.items():
            if (value := values.get(column)) is not None and column not in field_of:
                try:
                    values[column] = None if value == "" else of(value)
                except (ValueError, KeyError) as error:
                    raise SourceError(f"{where}: was changed since it was first read") from error
        fields = {field_of.get(name, name): None if name in field_of else value for name, value in values.items()}
        name = name_below(path, rules.prefix)
        yield ListingRow(number, path, name, label, fields, files, columns, chosen, box, size, boxes)


def _after_no_path(values: dict[str, Any], rules: ListingRules) -> str:
    """Return what to say after "it has no path": the value that names no file, and how to choose the columns."""
    columns = [*values]
    like = next((name for name in rules.path_columns(columns) if values[name] not in (None, "")), None)
    wrong = f"; {short_repr(values[like], 50)} in {like!r} names no file" if like else ""
    if rules.is_metadata:
        return wrong
    ways = "--image-column (Listing(image=)) chooses one"
    if not (rules.listing.label or label_columns(columns)):
        ways += ", and --label-column (Listing(label=)) chooses the column of the labels"
    ways += "; if these are values, write the names of the columns above them"
    ways += EXPORT_COCO * any(isinstance(value, (dict, list)) for value in values.values())
    return f"{wrong}; the columns are {cut(', '.join(map(repr, columns)), 200)}: {ways}"


def _label_of(chosen: RowColumns, values: dict[str, Any], where: str, rules: ListingRules) -> Any:
    """Remove the label columns from the values of a row, and return the checked label."""
    label = _read_label(chosen, values, where, rules)
    as_text = is_text(rules.path)
    if not chosen.corners:
        if isinstance(label, list):
            _check_several(label, where, as_text=as_text)
        return label
    if isinstance(label, list) and len(label) < 2:
        label = label[0] if label else None
    if isinstance(label, list) or _is_fraction(label, as_text=as_text):
        raise SourceError(
            f"{where}: the label of a box must be an integer or a name, got {short_repr(label, 50)}: write a row for "
            "each class of a box"
        )
    return label


def _check_several(labels: list[Any], where: str, *, as_text: bool) -> None:
    """Raise SourceError for a list with a fraction or a repeated integer: its numbers are no classes."""
    if any(_is_fraction(label, as_text=as_text) for label in labels):
        raise SourceError(
            f"{where}: its label is {short_repr(labels, 50)}, but a list must have the names or integers of classes: "
            "write these, or rename the column if its numbers are no classes"
        )
    numbers = [label for label in labels if type(label) is int or (as_text and INTEGER.fullmatch(label))]
    if len({*numbers}) < len(numbers):
        raise SourceError(
            f"{where}: its label, {short_repr(labels, 50)}, repeats a number, and looks like 0/1 for each class: use "
            "columns (--label-column a,b,c), or list only the classes of the image"
        )


def _is_fraction(label: object, *, as_text: bool) -> bool:
    """Return whether a label is a number that is written with a fraction or an exponent."""
    if as_text and isinstance(label, str):
        return is_float(label) and math.isfinite(float(label))
    return isinstance(label, float)


def _read_label(chosen: RowColumns, values: dict[str, Any], where: str, rules: ListingRules) -> Any:
    """Remove the label columns from the values of a row, and return the label."""
    if len(chosen.labels) > 1:
        return [column for column in chosen.labels if _flag(values.pop(column, None), column, where)]
    label = values.pop(chosen.labels[0], None) if chosen.labels else None
    if isinstance(label, str) and chosen.labels and plain(chosen.labels[0]) == "predictionstring":
        values[chosen.labels[0]] = label
        found = [*dict.fromkeys(label.split()[::5])] if _PREDICTIONS.fullmatch(label) else [None]
        label = found[0] if len(found) == 1 else found
    elif isinstance(label, str) and (several := _list_in(label)) is not None and is_text(rules.path):
        label = several
    elif isinstance(label, str) and rules.listing.separator:
        label = [part.strip() for part in label.split(rules.listing.separator) if part.strip()]
    if isinstance(label, list):
        return [item for item in (_checked_label(item, where) for item in label) if item is not None]
    return _checked_label(label, where)


def _list_in(text: str) -> list[Any] | None:
    """Return the list in a text, as Python, JSON, or Label Studio's {"choices": [...]} write it; None without one."""
    if text[:1] not in ("[", "{"):
        return None
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        found = literal_eval(text)
        found = found.get("choices") if isinstance(found, dict) else found
        if isinstance(found, list) and all(type(item) in (str, int) for item in found):
            return found
    return None


def flag_of(value: object) -> int | None:
    """Return 1 if a value means that an image has a class, 0 or -1 if not, 2 if it is empty; otherwise None."""
    return _FLAGS.get("" if value is None else str(value).strip().lower())


def _flag(value: object, column: str, where: str) -> bool:
    """Return whether an image has the class of a column."""
    flag = flag_of(value)
    if flag is None:
        way = "leave other numbers in their fields: LMDBDataset(place, fields=('image', ...)) reads them"
        got = f"but {column!r} has {short_repr(value, 50)}"
        raise SourceError(f"{where}: a column of a class has only 1, 0 or -1, {got}; {way}")
    return flag == 1


def _path(value: object, no_path: str, rules: ListingRules) -> bytes | str:
    """Return the bytes of a path, or a reason why the path cannot be used."""
    path = encoded_path(value, no_path)
    if isinstance(path, bytes):
        path = rules.files.find(path)
    if not rules.is_metadata or isinstance(path, str):
        return path
    path = posixpath.normpath(path)
    if path.startswith((b"/", b"../")) or path in (b".", b".."):
        return f"its path leaves the folder: {short_repr(readable(path), 50)}; only a listing (--listing) may do that"
    return path


def matching(name: str, columns: Sequence[str]) -> list[str]:
    """Return [column] for the column that the user has named; [] without one. Ignore capitals, spaces, - and _."""
    if name in columns:
        return [name]
    found = [column for column in columns if plain(column) == plain(name)]
    return found if len(found) == 1 else []


def _find_columns(columns: tuple[str, ...], where: str, rules: ListingRules) -> RowColumns | None:
    """Return which columns have the path, the labels and a box; None without a path."""
    paths = [column for column in rules.path_columns(columns) if column not in rules.file_columns]
    is_chosen = rules.is_metadata or rules.listing.image or (paths and is_certain(paths[0]))
    if not (is_chosen or (len(paths) == 1 and rules.files.is_unknown)) or not paths:
        return None
    rest = [column for column in columns if column not in (paths[0], *rules.file_columns)]
    has_boxes = not rules.is_export and (not rules.is_metadata or label_columns(rest))
    corners, has_sides = box_columns(rest) if has_boxes else ((), False)
    size = size_columns([column for column in rest if column not in corners]) if corners else ()
    if ALL in rules.listing.label:
        labels = rest
    elif rules.listing.label:
        labels = [column for name in rules.listing.label for column in matching(name, rest)]
    elif rules.is_metadata and LABEL_COLUMNS[0] in columns:
        labels = [LABEL_COLUMNS[0]]  # the columns ``class`` and ``target`` become fields
    else:
        labels = label_columns(rest)
        if not labels and is_text(rules.path) and not rules.is_metadata:
            labels = [column for column in rest if plain(column) == "labels"]
    for what, option, names in (("path", "image", paths), ("label", "label", [] if rules.listing.label else labels)):
        if len(names) > 1:
            way = f"rename or drop one, or choose with --{option}-column (Listing({option}=))"
            raise SourceError(f"{where}: {names[0]!r} and {names[1]!r} may both be the {what}; {way}")
    taken = {paths[0], *labels, *corners, *size, *(RECORD_COLUMNS if rules.is_metadata else ())}
    renamed: dict[str, str] = {}
    for column in (column for column in columns if column not in taken or column in rules.file_columns):
        try:
            is_fixed = rules.is_export or column in rules.file_columns
            field = checked_field_name(column) if is_fixed else field_name(column, columns)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}: {error}") from error
        if column != column.strip():
            raise SourceError(f"{where}: rename the column {column!r}: it is padded with spaces")
        if field != column:
            renamed[column] = field
    return RowColumns(paths[0], tuple(labels), corners, has_sides, size, renamed)


def _checked_label(label: object, where: str) -> int | str | float | None:
    if label is None or label == "":
        return None
    if type(label) is int and abs(label) < 2**63:  # the least integer of 64 bits means no label
        return label
    if type(label) is float and math.isfinite(label):
        return label
    if isinstance(label, str):
        with suppress(UnicodeEncodeError):  # JSON may contain a lone surrogate
            label.encode()
            return label
    way = EXPORT_COCO * isinstance(label, dict)
    what = "a label is a 64-bit integer, a number, a name, a list of these or null"
    raise SourceError(f"{where}: {what}, got {short_repr(label, 50)}{way}")


def _find_file_columns(columns: Sequence[str], rules: ListingRules, where: str) -> dict[str, str]:
    """Return {column: field} for the columns that name files."""
    found = {column: column for column in columns if column in rules.file_columns}
    if not rules.is_metadata:
        return found
    for column in columns:
        field = column.removesuffix(FILE_NAME_SUFFIX)
        if field in ("", column) or column in found:
            continue
        try:
            found[column] = checked_field_name(field)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}, which names files: {error}") from error
        if field in columns:
            raise SourceError(f"{where}: {column!r} and {field!r} would be the same field; rename or drop one")
    return found
