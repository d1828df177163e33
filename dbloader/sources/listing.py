"""A listing: a file that says which images become records, in which order, with which label and further fields.

- ``.csv``, ``.tsv``: a header, then a row for each image; labels and fields are text. Read row by row.
- ``.jsonl``, ``.ndjson``: an object on each line, with the columns as keys. Read line by line.
- ``.json``: an array of objects, or a list for each column, ``{"path_list": [...], "label_list": [...]}``. Read whole.

All are UTF-8. One column is the path, below the root or absolute. One column may be the label. All others become
fields of the record. A row's number is that of the line it begins on, and of the item, from 1, in a ``.json``.

A label is an integer, or the name of a class; then the label is the class's position among all names, sorted. Null or
an empty label is no label. In JSON text is a name. In a CSV or TSV, which has only text, `labels.py` decides.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.records.record import checked_field_name
from dbloader.sources.base import Entry, FieldFile, Problem, Source, Tally, checked_root, readable
from dbloader.sources.boxes import BOXES
from dbloader.sources.boxes import LABELS as BOX_LABELS
from dbloader.sources.folder import EXTENSIONS, first_warnings
from dbloader.sources.labels import CLASSES, number_labels, read_classes
from dbloader.sources.metadata import FILE_NAME, RECORD_COLUMNS, SUFFIX, Listed, top_folder
from dbloader.sources.paths import encoded_path, name_below, path_below, prefix_of
from dbloader.sources.rows import is_text, read_header, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_COLUMNS = ("label", "class", "target")


class Kind(NamedTuple):
    """What is different between a listing and the metadata of a folder, which strangers may have made."""

    paths: tuple[str, ...]  # names of the column with the path
    kept: tuple[str, ...] = ()  # columns that are no further fields, but parts of the record
    is_metadata: bool = False  # no path may leave the folder; of columns for labels, the first name comes first
    by_folder: bool = False  # labels are the first folders of the paths
    file_columns: tuple[str, ...] = ()  # further columns that name files, beside those of `SUFFIX` in metadata


LISTING, METADATA = Kind(PATH_COLUMNS), Kind((FILE_NAME,), RECORD_COLUMNS, is_metadata=True)


class _Row(NamedTuple):
    number: int
    path: bytes
    label: int | str | None
    fields: dict[str, Any]
    files: dict[str, bytes | None]  # paths of the fields that are files, whose value in ``fields`` is None
    columns: tuple[str, ...]


def read_listing(
    listing: str | os.PathLike[str],
    root: str | os.PathLike[str],
    kind: Kind = LISTING,
    make: Callable[..., ListingSource] | None = None,
) -> ListingSource:
    """Return the source of the images that a listing names, whose paths start from the folder ``root``.

    It is read here, for mistakes that concern more than one row and for its classes, and again by each iteration.
    Memory holds one row and the distinct labels, or all of a ``.json``. In ``METADATA`` without a column for the label,
    the first folders of the paths are the classes, if there are several. ``make`` makes the source of files that are
    elsewhere, of the arguments of ``ListingSource``.
    """
    listing, root, where = Path(listing), checked_root(root), readable(listing)
    first_of: dict[str, int] = {}  # for each label that is text, the first row that has it
    first = first_integer = first_problem = None
    rows = unlabelled = 0
    listed, has_labels = Listed() if kind.is_metadata else None, not kind.is_metadata
    file_fields: dict[str, None] = {}
    folders: dict[str, int] = {}  # for each first folder of a path without a label, the first row that has it
    for row in _rows(listing, kind):
        if isinstance(row, Problem):
            first_problem = first_problem or row
            continue
        rows += 1
        first = first or row
        file_fields.update(dict.fromkeys(row.files))
        if listed is not None:
            listed.add(row.path, *row.files.values())
            has_labels = has_labels or not {*row.columns}.isdisjoint(LABEL_COLUMNS)
            if not has_labels:
                folders.setdefault(top_folder(row.path), row.number)
        if isinstance(row.label, str):
            first_of.setdefault(row.label, row.number)
        elif row.label is None:
            unlabelled += 1
        else:
            first_integer = first_integer or row
    if first is None:
        if first_problem is None:
            _check_header(read_header(listing), where, kind)
        raise SourceError(f"{where}: no row of it can be used: {': '.join(first_problem or ['there are none'])}")
    for column in {BOXES, BOX_LABELS} & first.fields.keys() if is_text(listing) else ():
        raise SourceError(
            f"{where}: its column {column!r} is text, and boxes are lists of numbers: write a .jsonl, or use "
            "annotations of COCO, VOC or YOLO"
        )
    if make is None:
        _check_extension(first, root, where)
    classes = read_classes(listing.parent) if kind.is_metadata else None
    if classes is None and not has_labels and len(folders) > 1 and "" not in folders:
        kind, first_of, unlabelled = kind._replace(by_folder=True), folders, 0
    if first_integer and first_of and not classes:
        name, number = next(iter(first_of.items()))
        both = f"the label of row {first_integer.number} is the integer {first_integer.label}, of row {number} {name!r}"
        raise SourceError(f"{where}: {both}: give every row an integer or every row a name")
    warnings = []
    if unlabelled == rows:
        warnings.append(f"no row has a label, {_why_unlabelled(first)}")
    elif unlabelled:
        warnings.append(f"{unlabelled} of {rows} rows have no label")
    first_rows = {name: f"row {number}" for name, number in first_of.items()}
    if classes is None:
        classes, labels = number_labels(first_rows, where, may_be_integers=is_text(listing) and not kind.by_folder)
    else:
        labels = {name: label for label, name in enumerate(classes)}
        for name in first_of.keys() - labels.keys():
            raise SourceError(
                f"{where}: the label of {first_rows[name]} is {name!r}, which is not in {CLASSES}: add it"
            )
    if listed is not None:
        warnings += [*(first_warnings(root, classes) if kind.by_folder else ()), *listed.warnings(root)]
    return (make or ListingSource)(root, classes, warnings, listing, labels, kind, (*file_fields,))


def _check_extension(first: _Row, root: Path, where: str) -> None:
    """Raise SourceError if the file of the first row is there only with an extension, which its path lacks."""
    path = os.path.join(os.fsencode(root), first.path)  # noqa: PTH118 - bytes
    found = next((end for end in EXTENSIONS if os.path.exists(path + end.encode())), None)  # noqa: PTH110 - bytes
    if found and not os.path.exists(path):  # noqa: PTH110
        name = readable(first.path)
        raise SourceError(
            f"{where}, row {first.number}: there is no file {name!r} in {readable(root)}, but {name + found!r}: write "
            "the paths with their extensions"
        )


def _why_unlabelled(row: _Row) -> str:
    for column in row.columns:
        if column in LABEL_COLUMNS:
            return f"as the column {column!r} is empty"
    columns, names = (", ".join(map(repr, some)) for some in (row.columns, LABEL_COLUMNS))
    binary = sum(value in ("0", "1") for value in row.fields.values())
    way = "; columns of 0 and 1 are fields: write the class of each row into a column 'label'" if binary > 1 else ""
    return f"as none of the columns {columns} is called one of {names}{way}"


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
        kind: Kind = LISTING,
        file_fields: tuple[str, ...] = (),
    ) -> None:
        super().__init__(root, classes, warnings)
        self.file_fields = file_fields
        self.listing = listing
        self.labels = labels
        self._kind = kind

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        prefix = prefix_of(self.root)
        for row in _rows(self.listing, self._kind):
            if isinstance(row, Problem):
                yield row
                continue
            label = self.labels.get(row.label) if isinstance(row.label, str) else row.label
            if (label is None) != (row.label is None):
                raise SourceError(f"{readable(self.listing)}, row {row.number}: was changed since it was first read")
            files = {name: FieldFile(name_below(path, prefix), (path,)) for name, path in row.files.items() if path}
            yield Entry(name_below(row.path, prefix), (row.path,), label, row.fields, files=files)
        return Tally()


def _rows(listing: Path, kind: Kind) -> Iterator[_Row | Problem]:
    """Yield each row, checked, or why it cannot be used."""
    no_path = f"it has no path in a column called {' or '.join(kind.paths)}"
    for row in read_rows(listing):
        if isinstance(row, Problem):
            yield row
            continue
        number, values = row
        where = f"{readable(listing)}, row {number}"
        columns = tuple(values)
        if not {*columns} & {*kind.paths}:  # perhaps a table without a header, whose values are no names of fields
            yield Problem(f"row {number}", no_path)
            continue
        path_column, label_column = _checked_columns(columns, where, kind)
        path = _path(values.pop(path_column, None), no_path, kind)
        label = _checked_label(values.pop(label_column, None), where)
        if kind.by_folder and isinstance(path, bytes):
            label = top_folder(path)
        file_columns = _find_file_columns([*values], kind.file_columns, where, by_suffix=kind.is_metadata)
        files: dict[str, bytes | None] = {}
        for column, field in file_columns.items():
            if values[column] in (None, ""):
                files[field] = None
            elif isinstance(file := _path(values[column], "", kind), bytes):
                files[field] = file
            else:
                path = f"{file} (of its file {field!r})"
        if isinstance(path, str):
            yield Problem(f"row {number}", path)
        else:
            yield _Row(number, path, label, _empty_files(values, file_columns), files, columns)


def _path(value: object, no_path: str, kind: Kind) -> bytes | str:
    path = encoded_path(value, no_path)
    return path_below(path) if kind.is_metadata and isinstance(path, bytes) else path


def _check_header(header: tuple[str, ...], where: str, kind: Kind) -> None:
    """Raise SourceError if the header of a table without rows is wrong; each row is checked otherwise."""
    if header and not {*header} & {*kind.paths}:
        raise SourceError(f"{where}: its header has no column called {' or '.join(kind.paths)}, and no row follows")
    _checked_columns(header, f"{where}, header", kind)


def _checked_columns(columns: tuple[str, ...], where: str, kind: Kind) -> tuple[str, str]:
    """Return the names of the path and label columns; a default name for one that is missing."""
    chosen = []
    # In metadata, a column called label is the label, and class a further field beside it.
    labels = LABEL_COLUMNS[:1] if kind.is_metadata and LABEL_COLUMNS[0] in columns else LABEL_COLUMNS
    for what, names in (("path", kind.paths), ("label", labels)):
        found = [column for column in columns if column in names and column not in kind.file_columns]
        if len(found) > 1:
            raise SourceError(f"{where}: {found[0]!r} and {found[1]!r} may both be the {what}; rename or drop one")
        chosen.append(found[0] if found else names[0])
    for column in (column for column in columns if column not in (*chosen, *kind.kept)):
        try:
            checked_field_name(column)
        except FieldError as error:
            index = "; if it is pandas' index, write the table with to_csv(index=False)" if not column else ""
            raise SourceError(f"{where}: rename the column {column!r}: {error}{index}") from error
        if column != column.strip():
            raise SourceError(f"{where}: rename the column {column!r}: it is padded with spaces")
    return chosen[0], chosen[1]


def _checked_label(label: object, where: str) -> int | str | None:
    if label is None or label == "":
        return None
    if type(label) is int and abs(label) < 2**63:  # the least integer of 64 bits means no label
        return label
    if isinstance(label, str):
        with suppress(UnicodeEncodeError):  # JSON may hold a lone surrogate
            label.encode()
            return label
    raise SourceError(f"{where}: a label is a 64-bit integer, a name or null, got {short_repr(label, 50)}")


def _find_file_columns(columns: Sequence[str], named: Iterable[str], where: str, *, by_suffix: bool) -> dict[str, str]:
    """Return the field of each column that names files: those that are ``named``, or end with ``SUFFIX``."""
    found = {column: column for column in columns if column in named}
    for column in columns if by_suffix else ():
        field = column.removesuffix(SUFFIX)
        if field in ("", column) or column in found:
            continue
        try:
            found[column] = checked_field_name(field)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}, which names files: {error}") from error
        if field in columns:
            raise SourceError(f"{where}: {column!r} and {field!r} are both the field {field!r}; rename or drop one")
    return found


def _empty_files(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a row in the order of its columns, None for those that are files."""
    return {fields.get(name, name): None if name in fields else value for name, value in values.items()}
