"""Images that a listing or the metadata of a folder names, with their labels and further fields, in their order.

docs/listings.md describes the formats and columns. The number of a row is the number of its first line, or in a
``.json`` the position of the item, counted from 1. A label is an integer or the name of a class. A name becomes its
position in the sorted list of all names. Null and empty text mean no label. In JSON, a label that is text is a name. In
a CSV or TSV, all labels are text: `labels.py` decides whether they are integers or names.
"""

from __future__ import annotations

import os
import posixpath
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.ext.sources.labels import label_of, number_labels, read_classes
from dbloader.ext.sources.listing_rows import is_text, read_header, read_rows
from dbloader.records.record import checked_field_name
from dbloader.sources.base import Entry, FieldFile, Problem, Source, Tally, checked_root, readable
from dbloader.sources.boxes import BOXES
from dbloader.sources.boxes import LABELS as BOX_LABELS
from dbloader.sources.folder import METADATA_FILES, SUFFIXES, describe_unused, first_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_COLUMNS = ("label", "class", "target")

# Columns of metadata. A column such as "mask_file_name" has the paths of the files in the field "mask".
FILE_NAME = "file_name"  # path of the image
_RECORD_COLUMNS = ("name", "resized_from")  # become attributes of the record
FILE_NAME_SUFFIX = "_file_name"


class _Rules(NamedTuple):
    """How to read the columns. Paths in metadata must stay below its folder, because strangers may have written it."""

    file_columns: tuple[str, ...] = ()  # columns that name files of further fields
    is_metadata: bool = False  # whether the listing is the metadata of a folder
    by_folder: bool = False  # labels are the first folders of the paths

    @property
    def path_columns(self) -> tuple[str, ...]:
        return (FILE_NAME,) if self.is_metadata else PATH_COLUMNS


class _Row(NamedTuple):
    number: int
    path: bytes
    label: int | str | None
    fields: dict[str, Any]
    files: dict[str, bytes | None]  # file field -> path of its file; ``fields`` has None for the field
    columns: tuple[str, ...]


class ListingSource(Source):
    """The images that a listing names, in its order, repeats included; made by ``read_listing``.

    Files may have any extension, and need not exist. The name of an entry is its normalized path (``./a//b`` becomes
    ``a/b``; ``../a`` stays), without the root if it is an absolute path below the root.
    """

    def __init__(
        self,
        root: Path,
        classes: tuple[str, ...],
        warnings: list[str],
        listing: Path,
        labels: dict[str, int],
        rules: _Rules,
        file_fields: tuple[str, ...],
    ) -> None:
        super().__init__(root, classes, warnings)
        self.file_fields = file_fields
        self.listing = listing
        self.labels = labels
        self._rules = rules

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        prefix = prefix_of(self.root)
        for row in _rows(self.listing, self._rules):
            if isinstance(row, Problem):
                yield row
                continue
            label = row.label
            if isinstance(label, str):
                label = label_of(self.labels, label, f"{readable(self.listing)}, row {row.number}")
            files = {name: FieldFile(name_below(path, prefix), (path,)) for name, path in row.files.items() if path}
            yield Entry(name_below(row.path, prefix), (row.path,), label, row.fields, files=files)
        return Tally()


def read_listing(
    listing: str | os.PathLike[str],
    root: str | os.PathLike[str],
    file_columns: Sequence[str] = (),
    make: Callable[..., ListingSource] = ListingSource,
    *,
    is_metadata: bool = False,
) -> ListingSource:
    """Return the source of the images that a listing names, whose paths start from the folder ``root``.

    The listing is read here, for its classes and for mistakes that concern more than one row, and again by each
    iteration. Memory holds one row and the distinct labels, or all of a ``.json``; for metadata, also 8 bytes for each
    path. ``make`` gets the arguments of ``ListingSource`` and returns a source, such as one for files in MongoDB.

    Metadata may have no column of labels. Then the first folder of each path is its class, if there are at least two
    such folders and each path has one.
    """
    listing, root = Path(listing), checked_root(root)
    rules, where = _Rules((*file_columns,), is_metadata), readable(listing)
    survey = _Survey(rules)
    for row in _rows(listing, rules):
        survey.add(row)
    if survey.first is None:
        raise SourceError(f"{where}: no row of it can be used: {': '.join(survey.problem or ['there are none'])}")
    column = next((name for name in (BOXES, BOX_LABELS) if name in survey.first.fields), None)
    if column and is_text(listing):
        raise SourceError(
            f"{where}: its column {column!r} is text, and boxes are lists of numbers: write a .jsonl, or use "
            "annotations of COCO, VOC or YOLO"
        )
    classes = read_classes(listing.parent) if is_metadata else None
    rules = rules._replace(by_folder=classes is None and survey.has_classes_in_folders())
    names = survey.folders if rules.by_folder else survey.names
    if survey.first_integer and names and not classes:
        name, number = next(iter(names.items()))
        raise SourceError(
            f"{where}: row {survey.first_integer.number} has the label {survey.first_integer.label}, and row {number} "
            f"has the label {name!r}: give every row an integer or every row a name"
        )
    warnings = [] if rules.by_folder else [*survey.warnings()]
    is_csv = is_text(listing) and not rules.by_folder and classes is None
    first_rows = {name: f"row {number}" for name, number in names.items()}
    classes, labels = number_labels(first_rows, where, classes, may_be_integers=is_csv)
    if rules.by_folder:
        warnings += first_warnings(root, classes)
    if is_metadata:
        warnings += _unused_warnings(root, survey.listed)
    return make(root, classes, warnings, listing, labels, rules, (*survey.file_fields,))


class _Survey:
    """What the rows of a listing have in common. ``names`` and ``folders`` give the first row of each label."""

    def __init__(self, rules: _Rules) -> None:
        self._rules = rules
        self._rows = self._unlabelled = 0
        self._has_labels = False  # whether metadata have a column of labels
        self.first: _Row | None = None
        self.first_integer: _Row | None = None  # the first row whose label is an integer
        self.problem: Problem | None = None  # the first row that cannot be used
        self.names: dict[str, int] = {}
        self.folders: dict[str, int] = {}  # the first folders of the paths in metadata
        self.listed = array("q")  # hashes of the paths in metadata, to find images that no row names
        self.file_fields: dict[str, None] = {}

    def add(self, row: _Row | Problem) -> None:
        """Take a row into account."""
        if isinstance(row, Problem):
            self.problem = self.problem or row
            return
        self._rows += 1
        self.first = self.first or row
        self.file_fields.update(dict.fromkeys(row.files))
        if self._rules.is_metadata:
            self.listed.extend(hash(path) for path in (row.path, *row.files.values()) if path)
            self._has_labels = self._has_labels or not {*row.columns}.isdisjoint(LABEL_COLUMNS)
            if not self._has_labels:
                self.folders.setdefault(_top_folder(row.path), row.number)
        if isinstance(row.label, str):
            self.names.setdefault(row.label, row.number)
        elif row.label is None:
            self._unlabelled += 1
        else:
            self.first_integer = self.first_integer or row

    def has_classes_in_folders(self) -> bool:
        """Return whether the first folders of the paths can be the classes."""
        return not self._has_labels and len(self.folders) > 1 and "" not in self.folders

    def warnings(self) -> Iterator[str]:
        """Yield a warning if rows have no label."""
        if self.first and self._unlabelled == self._rows:
            names, columns = (", ".join(map(repr, columns)) for columns in (LABEL_COLUMNS, self.first.columns))
            yield f"no row has a label: the column of labels is one of {names}, and the columns are {columns}"
        elif self._unlabelled:
            yield f"{self._unlabelled} of {self._rows} rows have no label"


def find_metadata(folder: Path) -> Path | None:
    """Return the metadata file in a folder that has the column ``file_name``; None without one."""
    found = [path for name in METADATA_FILES if (path := folder / name).is_file() and FILE_NAME in _columns(path)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise SourceError(f"{readable(folder)}: {names} both name the images: move one away")
    return found[0] if found else None


def _columns(path: Path) -> tuple[str, ...]:
    if path.suffix != ".jsonl":
        return read_header(path)
    return tuple(next((row[1] for row in read_rows(path)), ()))


def _unused_warnings(root: Path, listed: array[int]) -> Iterator[str]:
    """Yield warnings about images in a folder that no row of the metadata names, and about further metadata files."""
    found, unused, top = array("q"), "", os.fsencode(root)
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        below = posixpath.relpath(folder, top) if folder != top else b""
        for name in files:
            path = posixpath.join(below, name)
            if name.lower().endswith(SUFFIXES) and not name.startswith(b"."):
                found.append(hash(path))
            elif below and readable(name) in METADATA_FILES:
                unused = unused or readable(path)
    missing = len(np.setdiff1d(np.frombuffer(found, np.int64), np.frombuffer(listed, np.int64)))
    if missing:
        images = f"{missing:,} image{' is' if missing == 1 else 's are'}"
        yield f"{images} in the folder, but in no row of the metadata: left out"
    if unused:
        yield describe_unused(unused)


def _top_folder(path: bytes) -> str:
    """Return the first folder of a path; "" without one."""
    return readable(path.rpartition(b"/")[0].partition(b"/")[0])


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(listing: Path, rules: _Rules) -> Iterator[_Row | Problem]:
    """Yield each row, checked, or why it cannot be used."""
    no_path = f"it has no path in a column called {' or '.join(rules.path_columns)}"
    for row in read_rows(listing):
        if isinstance(row, Problem):
            yield row
            continue
        number, values = row
        where = f"{readable(listing)}, row {number}"
        columns = tuple(values)
        if not {*columns} & {*rules.path_columns}:  # do not show the columns: without a header, they are values
            yield Problem(f"row {number}", no_path)
            continue
        path_column, label_column = _checked_columns(columns, where, rules)
        path = _path(values.pop(path_column, None), no_path, rules)
        label = _checked_label(values.pop(label_column, None), where)
        if rules.by_folder and isinstance(path, bytes):
            label = _top_folder(path)
        field_of = _find_file_columns([*values], rules, where)
        files: dict[str, bytes | None] = {}
        for column, field in field_of.items():
            if values[column] in (None, ""):
                files[field] = None
            elif isinstance(file := _path(values[column], "", rules), bytes):
                files[field] = file
            else:
                path = f"{file} (of its file {field!r})"
        if isinstance(path, str):
            yield Problem(f"row {number}", path)
        else:
            fields = {field_of.get(name, name): None if name in field_of else value for name, value in values.items()}
            yield _Row(number, path, label, fields, files, columns)


def _path(value: object, no_path: str, rules: _Rules) -> bytes | str:
    """Return the bytes of a path, or a reason why the path cannot be used."""
    path = encoded_path(value, no_path)
    if not rules.is_metadata or isinstance(path, str):
        return path
    path = posixpath.normpath(path)
    if path.startswith((b"/", b"../")) or path in (b".", b".."):
        return f"its path leaves the folder: {short_repr(readable(path), 50)}; only a listing (--listing) may do that"
    return path


def _checked_columns(columns: tuple[str, ...], where: str, rules: _Rules) -> tuple[str, str]:
    """Return the names of the path and label columns; a default name for a missing column."""
    chosen = []
    # If metadata has a column ``label``, a column ``class`` or ``target`` is a further field.
    labels = LABEL_COLUMNS[:1] if rules.is_metadata and LABEL_COLUMNS[0] in columns else LABEL_COLUMNS
    for what, names in (("path", rules.path_columns), ("label", labels)):
        found = [column for column in columns if column in names and column not in rules.file_columns]
        if len(found) > 1:
            raise SourceError(f"{where}: {found[0]!r} and {found[1]!r} may both be the {what}; rename or drop one")
        chosen.append(found[0] if found else names[0])
    known = (*chosen, *_RECORD_COLUMNS) if rules.is_metadata else chosen
    for column in (column for column in columns if column not in known):
        try:
            checked_field_name(column)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}: {error}") from error
        if column != column.strip():
            raise SourceError(f"{where}: rename the column {column!r}: it is padded with spaces")
    return chosen[0], chosen[1]


def _checked_label(label: object, where: str) -> int | str | None:
    if label is None or label == "":
        return None
    if type(label) is int and abs(label) < 2**63:  # the least integer of 64 bits means no label
        return label
    if isinstance(label, str):
        with suppress(UnicodeEncodeError):  # JSON may contain a lone surrogate
            label.encode()
            return label
    raise SourceError(f"{where}: a label is a 64-bit integer, a name or null, got {short_repr(label, 50)}")


def _find_file_columns(columns: Sequence[str], rules: _Rules, where: str) -> dict[str, str]:
    """Return the field of each column that names files."""
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


# --- paths ------------------------------------------------------------------------------------------------------------


def prefix_of(root: Path) -> bytes:
    """Return the bytes that each absolute path below a folder begins with, for ``name_below``."""
    return posixpath.normpath(os.fsencode(root.absolute())).rstrip(b"/") + b"/"


def name_below(path: bytes, prefix: bytes) -> str:
    """Return the name of a file's record: the normalized path of the file, without the prefix."""
    return readable(posixpath.normpath(path).removeprefix(prefix))


def encoded_path(path: object, no_path: str = "it has no path") -> bytes | str:
    """Return the bytes of a path, or a reason why it cannot be one."""
    if path is None or path == "":
        return no_path
    with suppress(UnicodeEncodeError):
        if isinstance(path, str) and "\0" not in path:
            return path.encode("utf-8", "surrogateescape")  # JSON may have lone surrogates for other bytes
    return f"its path is not valid for a file: {short_repr(path, 50)}"
