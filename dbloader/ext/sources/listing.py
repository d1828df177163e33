"""Images that a listing or the metadata of a folder names, with their labels and extra fields, in their order.

docs/listings.md describes the formats and columns. The number of a row is the number of its first line, or in a
``.json`` the position of the item, counted from 1. A label is an integer or the name of a class. A name becomes its
position in the sorted list of all names. Null and empty text mean no label. In JSON, a label that is text is a name. In
a CSV, TSV or text file, all labels are text: `labels.py` decides whether they are integers or names. Several classes,
or a number with a fraction, are stored in a field, the target, instead of the label.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from array import array
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader._describe import cut, short_repr
from dbloader.errors import FieldError, SourceError
from dbloader.ext.sources.boxes import AS_FRACTIONS, BOXES, FRACTIONS, OWN_SIZE, box_fields
from dbloader.ext.sources.boxes import LABELS as BOX_LABELS
from dbloader.ext.sources.class_folders import folder_warnings, is_split
from dbloader.ext.sources.labels import LABEL_NAMES, label_of, no_label, number_labels, read_classes, read_target
from dbloader.ext.sources.listed_boxes import AS_COCO, ListedBoxes, take_box, take_boxes
from dbloader.ext.sources.listing_columns import (
    ALL,
    CHECKS,
    INTEGER,
    LABEL_COLUMNS,
    MISSING,
    PATH_COLUMNS,
    ColumnTypes,
    are_texts,
    box_like_columns,
    corner_columns,
    is_about_rows,
    is_certain,
    is_float,
    label_columns,
    may_be_label,
    path_columns,
    plain,
)
from dbloader.ext.sources.listing_files import PROBED, ListedFiles
from dbloader.ext.sources.listing_rows import is_text, made_up_header, read_header, read_rows, text_layout
from dbloader.records.columns import NO_LABEL
from dbloader.records.manifest import CLASS_LISTS, TARGET
from dbloader.records.record import RESERVED_FIELDS, checked_field_name
from dbloader.sources.base import Entry, FieldFile, Listing, Problem, Source, Tally, checked_root, readable
from dbloader.sources.folder import EXTENSIONS, METADATA_FILES, SUFFIXES, describe_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

# Columns of metadata. A column such as "mask_file_name" has the paths of the files in the field "mask".
FILE_NAME = "file_name"  # path of the image
_RECORD_COLUMNS = ("name", "resized_from")  # become attributes of the record
FILE_NAME_SUFFIX = "_file_name"

_VALUES = re.compile(r"(?:\S+[\s,])?(?:-?[0-9.]+[\s,]+)+-?[0-9.]+")  # several numbers, perhaps after a name
_LIKE_NUMBER = re.compile(r"[+-]?[0-9]+(?:,[0-9]+)+|[+-]?[0-9][0-9.,]* ?%")
# ImageNet's boxes: a class and four numbers for each. A number in place of the class is a confidence: no match.
_PREDICTIONS = re.compile(r"\s*(?:(?![\d.]+\s)\S+(?:\s+-?[\d.]+){4}(?:\s+|$))+")
_KNOWN_COLUMNS = 1000  # number of different sets of columns, as in JSON, whose meaning is remembered


class _Rules(NamedTuple):
    """How to read the columns. Strangers may have written a folder's metadata, so its paths must stay in the folder."""

    listing: Listing
    path: Path
    files: ListedFiles
    prefix: bytes  # what absolute paths below the root begin with
    encoding: str | None = None
    file_columns: tuple[str, ...] = ()  # columns that name files of extra fields
    is_metadata: bool = False  # whether the listing is the metadata of a folder
    is_export: bool = False  # whether an export wrote the metadata
    is_guess: bool = False  # whether columns of 0 and 1 become classes, although they may be something else
    by_folder: bool = False  # labels are the first folders of the paths
    types: Mapping[str, Callable[[str], Any]] = MappingProxyType({})  # make a value, such as a number, of a text
    target: str = ""  # the field that has the label, if it is no class
    has_lists: bool = False  # whether rows have lists of boxes
    is_fraction: bool = False  # whether boxes are fractions of the width and height

    def rows(self) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
        return read_rows(self.path, self.encoding)

    def path_columns(self, columns: Sequence[str]) -> list[str]:
        if self.is_metadata:
            return [column for column in columns if column == FILE_NAME]
        if self.listing.image is not None:
            return _matching(self.listing.image, columns)
        return path_columns(columns)


class _Columns(NamedTuple):
    """The columns of a row that do not become fields."""

    path: str
    labels: tuple[str, ...]  # several for a column of each class
    corners: tuple[str, ...]  # of the row's box, () without one
    size: tuple[str, ...]  # width and height of the image of the box


class _Row(NamedTuple):
    number: int
    path: bytes
    name: str  # of the record
    label: int | str | float | list[Any] | None
    fields: dict[str, Any]
    files: dict[str, bytes | None]  # file field -> path of its file; ``fields`` has None for the field
    columns: tuple[str, ...]
    chosen: _Columns
    box: tuple[float, ...] | None = None  # None if all its columns are empty
    size: tuple[int, int] = OWN_SIZE
    boxes: ListedBoxes | None = None  # None if the row has no list of boxes


class ListingSource(Source):
    """The images that a listing names, in its order, repeats included; made by ``read_listing``.

    Files may have any extension, and need not exist. The name of an entry is its normalized path (``./a//b`` becomes
    ``a/b``; ``../a`` stays), without the root if it is an absolute path below the root.
    """

    follows: tuple[str, ...] = ("encoding",)
    has_columns = True

    def __init__(
        self,
        root: Path,
        classes: tuple[str, ...],
        warnings: list[str],
        labels: dict[str, int],
        rules: _Rules,
        file_fields: tuple[str, ...],
    ) -> None:
        super().__init__(root, classes, warnings)
        self.file_fields = file_fields
        self.labels = labels
        self.target = rules.target
        self._place = readable(rules.path)
        self._rules = rules

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        prefix = self._rules.prefix
        for row in _rows(self._rules):
            if isinstance(row, Problem):
                yield row
                continue
            label: Any = row.label
            fields = row.fields
            if self._rules.target:
                fields, label = {**fields, self._rules.target: self._target(row)}, None
            elif isinstance(label, str):
                label = self._number(label, row)
            files = {name: FieldFile(name_below(path, prefix), (path,)) for name, path in row.files.items() if path}
            boxes_in = None
            if self._rules.has_lists:
                corners, labels, _ = row.boxes or ListedBoxes([], [])
                numbers = [self._number(name, row) if isinstance(name, str) else name for name in labels]
                fields = {**fields, **box_fields(corners, numbers)}
                boxes_in = FRACTIONS if self._rules.is_fraction else OWN_SIZE
            yield Entry(row.name, (row.path,), label, fields, boxes_in, files)
        return Tally()

    def _target(self, row: _Row) -> Any:
        """Return a row's list of classes, or its number; None without a number."""
        if self._rules.target != CLASS_LISTS:
            return None if row.label is None else float(row.label)  # type: ignore[arg-type]
        names = row.label if isinstance(row.label, list) else [] if row.label is None else [row.label]
        return sorted({self._number(name, row) if isinstance(name, str) else int(name) for name in names})

    def _number(self, text: str, row: _Row) -> int:
        return label_of(self.labels, text, f"{self._place}, row {row.number}")


class BoxRowsSource(ListingSource):
    """The images of a listing with a row for each box. It takes 60 bytes of memory for each row, 150 for each image."""

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        paths, labels, boxes = array("q"), array("q"), array("d")
        for row in _rows(self._rules):
            if isinstance(row, Problem):
                yield row
                continue
            paths.append(hash(row.name))
            label: Any = row.label
            labels.append(self._number(label, row) if isinstance(label, str) else NO_LABEL if label is None else label)
            boxes.extend(row.box or (math.nan,) * 4)
        hashes, corners, numbers = np.array(paths), np.array(boxes).reshape(-1, 4), np.array(labels)
        order = np.argsort(hashes, kind="stable")
        starts = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[:1]] - 1))
        rows_of = dict(zip(order[starts].tolist(), np.split(order, starts[1:]), strict=True))
        for at, row in enumerate(row for row in _rows(self._rules) if isinstance(row, _Row)):
            if (rows := rows_of.get(at)) is None:
                continue
            rows = rows[~np.isnan(corners[rows]).any(axis=1)]
            if (numbers[rows] == NO_LABEL).any():
                way = "--label-column (Listing(label=)) chooses the column of labels"
                yield Problem(row.name, f"one of its boxes has no label: write one; {way}")
                continue
            fields = box_fields(corners[rows].tolist(), numbers[rows].tolist())
            yield Entry(
                row.name, (row.path,), None, fields, boxes_in=FRACTIONS if self._rules.is_fraction else row.size
            )
        return Tally()


def read_listing(
    listing: str | os.PathLike[str] | Listing,
    root: str | os.PathLike[str],
    file_columns: Sequence[str] = (),
    make: Callable[..., ListingSource] | None = None,
    files: ListedFiles | None = None,
    *,
    is_metadata: bool = False,
    encoding: str | None = None,
) -> ListingSource:
    """Return the source of the images that a listing names, whose paths start from the folder ``root``.

    The listing is read here, for its classes and for mistakes that concern more than one row, and again by each
    iteration. Memory holds one row, the distinct labels and 8 bytes for each row, or all of a ``.json``; for metadata,
    also 8 bytes for each path. ``make`` gets the arguments of ``ListingSource`` and returns a source, such as one for
    files in MongoDB. ``files`` looks up files in another place, such as a zip; None for files of a folder or MongoDB.

    Metadata may have no column of labels. Then the first folder of each path is its class, if there are at least two
    such folders and each path has one.
    """
    listing, root = Listing.of(listing), checked_root(root)
    path = Path(listing.path)
    where = readable(path)
    files = files or ListedFiles(root if make is None else None)
    classes = read_classes(path.parent) if is_metadata else None
    is_export = classes is not None
    rules = _Rules(listing, path, files, prefix_of(root), encoding, (*file_columns,), is_metadata, is_export)
    rules = _choose_columns(rules)
    survey, first = _read_all(rules, where)
    if column := survey.only_label():
        with suppress(SourceError):  # if its labels are wrong, the column stays a field of text
            labelled = replace(listing, label=column)
            found = read_listing(labelled, root, file_columns, make, files, encoding=encoding)
            said = ", the only one besides the images"
            found.understood = tuple(line + said * line.startswith("labels:") for line in found.understood)
            ways = f"--label-column {column} (Listing(label=)) confirms it, --text-column {column} keeps it a field"
            taken = f"the column {column!r} gives the labels, as the only one besides the images: {ways}"
            found.warnings = (*found.warnings, taken)
            return found
    has_boxes = bool(first.chosen.corners)
    rules = rules._replace(has_lists=survey.has_lists, is_fraction=survey.is_fraction())
    rules = rules._replace(by_folder=classes is None and survey.has_classes_in_folders(), types=survey.types.found())
    rules = rules._replace(target=survey.target())
    names = survey.folders if rules.by_folder else survey.names
    if rules.target and rules.target != CLASS_LISTS:
        names = {}
    elif survey.first_integer and names and not classes:
        (number, integer), (name, other) = survey.first_integer, next(iter(names.items()))
        raise SourceError(
            f"{where}: row {number} has the label {integer}, and row {other} has the label {name!r}: give every row an "
            "integer or every row a name"
        )
    warnings = [] if rules.by_folder else [*survey.warnings()]
    is_csv = is_text(path) and not rules.by_folder and classes is None and len(first.chosen.labels) < 2
    first_rows = {name: f"row {number}" for name, number in names.items()}
    if len(first.chosen.labels) > 1:
        classes = first.chosen.labels
    classes, labels = number_labels(first_rows, where, classes, may_be_integers=is_csv)
    if not has_boxes:
        warnings += _find_repeats(rules, survey.paths, where)
    if rules.by_folder:
        warnings += folder_warnings(root, classes)
    if is_metadata:
        warnings += _unused_warnings(root, survey.listed)
    make = make or (BoxRowsSource if has_boxes else ListingSource)
    found = make(root, classes, warnings, labels, rules, (*survey.file_fields,))
    if path.suffix.lower() == ".txt" and "text" in first.fields:
        found.target = "text"
    elif is_export:
        found.target, found.numbers_classes = read_target(path.parent), True
    if has_boxes or rules.has_lists:
        found.follows = (*found.follows, "boxes")
    found.understood = (*found.understood, *_understood(rules, first))
    return found


def _read_all(rules: _Rules, where: str) -> tuple[_Survey, _Row]:
    """Return what the rows have in common, and the first row; SourceError if there is none, or if boxes are text."""
    survey = _Survey(rules)
    for row in _rows(rules):
        survey.add(row)
    if survey.first is None:
        raise SourceError(f"{where}: no row of it can be used: {': '.join(survey.problem or ['there are none'])}")
    column = next((name for name in (BOXES, BOX_LABELS) if name in survey.first.fields), None)
    if column and is_text(rules.path):
        raise SourceError(
            f"{where}: its column {column!r} is text, and boxes are lists of numbers: write a .jsonl, or use "
            "annotations of COCO, VOC or YOLO"
        )
    return survey, survey.first


def _choose_columns(rules: _Rules) -> _Rules:
    """Return the rules with the columns of images and labels, as the column names and the first rows show them.

    Raises:
        SourceError: The user has named a column that is not there, or several columns may name the images.
    """
    listing, path = rules.listing, rules.path
    if not listing.label and path.name == "_classes.csv":  # Roboflow's file has a column for each class
        listing = replace(listing, label=ALL)
    elif not listing.label and path.suffix.lower() == ".txt" and path.is_file():
        layout = text_layout(path, rules.encoding)
        listing = replace(listing, label=layout.attributes if layout and layout.are_classes else ())
    elif not (listing.label or listing.text or rules.is_metadata):
        are_flags, is_sure = _are_flags(rules)
        listing = replace(listing, label=ALL) if are_flags else listing
        rules = rules._replace(is_guess=are_flags and not is_sure)
    rules = rules._replace(listing=listing)
    for number, values in (row for row in islice(rules.rows(), PROBED) if not isinstance(row, Problem)):
        columns, candidates = [*values], rules.path_columns([*values])
        named = [listing.image or "", *(name for name in listing.label if name != ALL), *listing.text]
        if missing := [name for name in filter(None, named) if not _matching(name, columns)]:
            if is_text(path):  # in JSON, rows may have different columns
                shown = short_repr(columns, 200)
                raise SourceError(f"{readable(path)}: it has no column {missing[0]!r}: its columns are {shown}")
            continue
        paths = {column: encoded_path(str(values[column] or "")) for column in candidates}
        found = [column for column, file in paths.items() if isinstance(file, bytes) and rules.files.probe(file)]
        if not candidates or rules.is_metadata or rules.listing.image or is_certain(candidates[0]):
            continue
        if len(found) > 1:
            one, other = found[:2]
            raise SourceError(
                f"{readable(path)}, row {number}: {one!r} and {other!r} may both be the path: choose one with "
                "--image-column (Listing(image=))"
            )
        if found:
            rules = rules._replace(listing=replace(rules.listing, image=found[0]))
    return rules


def _are_flags(rules: _Rules) -> tuple[bool, bool]:
    """Return whether a table's columns besides the images may be classes, with values 1, 0, -1; and whether they must.

    They must if a value is -1, or if each row has exactly one 1. A single column is not enough. If a column, such as
    is_train or verified, is about the row and not about what the image shows, none is a class. Two columns may be a
    label and something else, unless each row has exactly one 1.
    """
    is_flag = re.compile(r"\s*(?:[01](?:\.0)?|-1(?:\.0)?)\s*").fullmatch
    columns = [column for column in read_header(rules.path, rules.encoding) if column]
    path = rules.path_columns(columns)[:1]
    has_label = not {*map(plain, columns)}.isdisjoint(LABEL_NAMES)
    if not path or len(columns) < 3 or has_label or is_about_rows(columns, ("is", "has", *CHECKS)):
        return False, False
    has_signs, is_single = False, True
    for row in (row[1] for row in rules.rows() if not isinstance(row, Problem)):
        values = [row[column] for column in columns if column not in path]
        if not all(map(is_flag, values)) or not (is_single or len(values) > 2):
            return False, False
        has_signs = has_signs or "-" in "".join(values)
        is_single = is_single and sum(float(value) > 0 for value in values) == 1
    return is_single or len(columns) > 3, has_signs or is_single


def _understood(rules: _Rules, row: _Row) -> Iterator[str]:
    """Yield the report's lines about how the listing was understood."""
    chosen = row.chosen
    labels = ", ".join(map(repr, chosen.labels[:3])) + f" and {len(chosen.labels) - 3} more" * (len(chosen.labels) > 3)
    found = f"the column {labels}" if chosen.labels else "none"
    found = "the first folder of a path" if rules.by_folder else found
    target = f" (several classes in {CLASS_LISTS!r})" if rules.target == CLASS_LISTS else ""
    target = target or (f" (numbers in {rules.target!r})" if rules.target else "")
    header = read_header(rules.path, rules.encoding)
    notes = [*rules.files.rules, *["its first row is no header"] * bool(made_up_header(header, ""))]
    notes += ["a column without a name is left out"] * ("" in header)
    how = f" ({'; '.join(notes)})" if notes else ""
    yield f"images: the column {chosen.path!r} of {readable(rules.path)}{how}"
    yield f"labels: {found}{target}"
    if chosen.corners:
        yield f"boxes: each row has one, in {', '.join(map(repr, chosen.corners))}"
    if rules.has_lists:
        yield "boxes: each row has a list of them, and of their labels"
    if rules.types:
        yield cut(f"numbers and booleans: {', '.join(map(repr, rules.types))}", 200)


def _find_repeats(rules: _Rules, paths: array[int], where: str) -> Iterator[str]:
    """Yield a warning if rows repeat others. An image may be in several rows with different captions or questions.

    Raises:
        SourceError: Two rows give one image different labels.
    """
    hashes = np.frombuffer(paths, np.int64)
    hashes.sort()  # in place, because there may be millions
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    seen = array("q")
    for row in _rows(rules) if len(twice) else ():
        at = int(twice.searchsorted(hash(row.name)))
        if isinstance(row, _Row) and at < len(twice) and twice[at] == hash(row.name):
            label = tuple(sorted(map(str, row.label))) if isinstance(row.label, list) else row.label
            seen.extend((at, hash(label), hash((label, repr(row.fields))), row.number))
    table = np.array(seen).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    labelled = table[table[:, 1] != hash(None)]
    differ = np.flatnonzero((labelled[1:, 0] == labelled[:-1, 0]) & (labelled[1:, 1] != labelled[:-1, 1]))
    if len(differ):
        one, other = labelled[differ[0] : differ[0] + 2, 3].tolist()
        raise SourceError(
            f"{where}: rows {one} and {other} name the same image, with different labels: keep one of them; if an "
            "image has several classes, write them into one row (--separator)"
        )
    _, first, rows = np.unique(table[:, [0, 2]], axis=0, return_index=True, return_inverse=True)
    repeated = np.setdiff1d(np.arange(len(table)), first)
    if len(repeated):
        one, other = table[[first[rows.ravel()[repeated[0]]], repeated[0]], 3].tolist()
        count = f"{len(repeated):,} row{' repeats another' if len(repeated) == 1 else 's repeat others'}"
        yield f"{count}, as row {other} repeats row {one}: each becomes a record; remove rows that are there by mistake"


class _Survey:
    """What the rows of a listing have in common. ``names`` and ``folders`` map labels to their first rows."""

    def __init__(self, rules: _Rules) -> None:
        self._rules, self._is_text = rules, is_text(rules.path)
        self._rows = self._unlabelled = 0
        self._has_labels = False  # whether metadata have a column of labels
        self.first: _Row | None = None
        self.first_integer: tuple[int, Any] | None = None  # the first row whose label is an integer, and the label
        self._fraction: _Row | None = None  # the first row whose label is a number with a fraction
        self._whole: _Row | None = None  # the first row whose label is a number such as 1.0
        self._is_whole = True  # whether each number is whole, such as 1.0
        self._several: _Row | None = None  # the first row with a list of classes
        self.has_lists = self._is_coco = self._has_pixels = self._has_boxes = False
        self._is_alone = not (rules.is_metadata or rules.listing.label or rules.listing.text or rules.file_columns)
        self._alone = array("q")  # hashes of the values in the only column besides the images
        self._numbers = self._splits = 0  # of these, numbers with a fraction, and names of splits
        self.problem: Problem | None = None  # the first row that cannot be used
        self.names: dict[str, int] = {}
        self.folders: dict[str, int] = {}  # the first folders of the paths in metadata
        self.paths = array("q")  # hashes of the paths
        self.listed = array("q")  # hashes of the paths in metadata, to find images that no row names
        self.file_fields: dict[str, None] = {}
        kept = ("text",) if rules.path.suffix.lower() == ".txt" else ()
        named = (name for text in rules.listing.text for name in (text, *_matching(text, [text])))
        self.types = ColumnTypes({*kept, *named, *(_RECORD_COLUMNS if rules.is_metadata else ())})

    def add(self, row: _Row | Problem) -> None:
        """Take a row into account."""
        if isinstance(row, Problem):
            self.problem = self.problem or row
            return
        self._rows += 1
        self.first = self.first or row
        if self._is_alone:
            self._add_alone(row)
        self.paths.append(hash(row.name))
        self.file_fields.update(dict.fromkeys(row.files))
        if self._is_text:
            self.types.add(row.fields)
        if self._rules.is_metadata:
            self.listed.extend(hash(path) for path in (row.path, *row.files.values()) if path)
            self._has_labels = self._has_labels or not {*row.columns}.isdisjoint(LABEL_COLUMNS)
            if not self._has_labels:
                self.folders.setdefault(_top_folder(row.path), row.number)
        if row.boxes is not None:
            self.has_lists, self._is_coco = True, self._is_coco or row.boxes.is_coco
            for label in row.boxes.labels:
                self._add_label(label, row)
        for box in row.boxes.corners if row.boxes else [row.box] if row.box else []:
            self._has_boxes = True
            self._has_pixels = self._has_pixels or not 0 <= min(box) <= max(box) <= 1
        if isinstance(row.label, list):
            self._several = self._several or row
            for label in row.label:
                self._add_label(label, row)
        elif row.label is None:
            self._unlabelled += 1
        else:
            self._add_label(row.label, row)

    def _add_label(self, label: Any, row: _Row) -> None:
        if isinstance(label, float) or (self._is_text and isinstance(label, str) and is_float(label)):
            if not math.isfinite(float(label)):  # other labels decide: a missing number, a class name, or an error
                self.names.setdefault(str(label), row.number)
            elif isinstance(label, float) or float(label) % 1:
                self._fraction = self._fraction or row
                self._is_whole = self._is_whole and float(label) % 1 == 0
            elif self._whole is None:
                self._whole = row
                self.names[label] = row.number  # an error, unless there are fractions
        elif isinstance(label, str):
            self.names.setdefault(label, row.number)
        else:
            self.first_integer = self.first_integer or (row.number, label)

    def _add_alone(self, row: _Row) -> None:
        value = next(iter(row.fields.values()), None)
        may_be = isinstance(value, (str, int, float, type(None))) and not str(value).lower().endswith(EXTENSIONS)
        self._is_alone = may_be and len(row.columns) == 2 and row.fields.keys() == (self.first or row).fields.keys()
        if self._is_alone and value not in (None, ""):
            self._alone.append(hash(value))
            self._numbers += is_float(str(value))
            self._splits += is_split(str(value))

    def only_label(self) -> str:
        """Return the only column besides the images if it must have the labels; else "".

        Classes repeat: on average, a class is in two rows or more. Captions, ids and paths hardly repeat. Numbers with
        a fraction are a target.
        """
        if self.first is None or not self._is_alone or 2 * len(self._alone) <= self._rows:
            return ""
        (column,), count = self.first.fields, len(self._alone)
        repeats = 2 * len(np.unique(np.frombuffer(self._alone, np.int64))) <= count
        return column if may_be_label(column) and self._splits < count and (repeats or self._numbers) else ""

    def is_fraction(self) -> bool:
        """Return whether the boxes seem to be fractions of the width and height."""
        return self._has_boxes and not self._has_pixels

    def target(self) -> str:
        """Return the field of the target, if the labels are no classes: of several classes, or of numbers; else ""."""
        if self._several:
            return CLASS_LISTS
        if self._fraction is None:
            return ""
        if self._is_text and not all(is_float(name) or INTEGER.fullmatch(name) for name in self.names):
            self.names[str(self._fraction.label)] = self._fraction.number  # number_labels raises the error
            return ""
        if self.names and not self._is_text:
            self.first_integer = self._fraction.number, self._fraction.label  # a number beside names is an error
            return ""
        (column,) = self._fraction.chosen.labels
        return TARGET if column in RESERVED_FIELDS else column

    def has_classes_in_folders(self) -> bool:
        """Return whether the first folders of the paths can be the classes."""
        return not (self._has_labels or self.has_lists) and len(self.folders) > 1 and "" not in self.folders

    def warnings(self) -> Iterator[str]:
        """Yield warnings: rows without labels, labels that look like several, and columns that are left out."""
        first = self.first
        if first is None:
            return
        has_boxes = self.has_lists or bool(first.chosen.corners)
        text = first.fields.get("text") if self._rules.path.suffix.lower() == ".txt" else None
        if isinstance(text, str) and self._unlabelled == self._rows:
            if _VALUES.fullmatch(text):
                way = "write the names of all columns as the first line, and commas between columns, or split classes"
                what = f"what follows a path, such as {short_repr(text, 50)}, became one text"
                yield f"{what}: {way} by --label-column text --separator ' ' (Listing(label=, separator=))"
        elif self._unlabelled == self._rows and not has_boxes and not are_texts(first.fields):
            names, columns = (", ".join(map(repr, columns)) for columns in (LABEL_COLUMNS, first.columns))
            what = f"the column of labels is one of {names}, and the columns are {cut(columns, 300)}"
            yield f"no row has a label: {what}; --label-column (Listing(label=)) chooses another"
        elif 0 < self._unlabelled < self._rows and not self._several and not has_boxes:
            are_numbers = self._fraction is not None
            hint = no_label(are_numbers=are_numbers, are_whole=are_numbers and self._is_whole)
            yield f"{self._unlabelled} of {self._rows} rows have no label{hint}"
        if name := next((name for name in self.names if _LIKE_NUMBER.fullmatch(name)), None):
            several = "; --separator ',' (Listing(separator=)) makes several classes of each" * ("," in name)
            yield f"labels such as {name!r} became names of classes: write numbers as 3.5 or 1234{several}"
        elif not self._several and not self._rules.target and (mark := _separator_of(self.names)):
            name = next(name for name in self.names if mark in name)
            yield (
                f"labels such as {short_repr(name, 80)} may be several classes: --separator {mark!r} "
                "(Listing(separator=)) splits them"
            )
        if self._rules.is_guess:
            flags = [*map(repr, first.chosen.labels)]
            ways = f"--label-column '*' (Listing(label=)) confirms it, --text-column {flags[0]} keeps them as fields"
            yield f"the columns {cut(', '.join(flags), 100)} have only 0 and 1, and became classes: {ways}"
        if name := next((name for name in self.names if name in (*MISSING, "nan", "NaN")), None):
            yield f"labels such as {name!r} became a class: leave the field empty where an image has no label"
        if almost := self.types.almost_numbers():
            way = "write a decimal point, no comma between thousands, and nothing for a missing value"
            yield f"numbers stay text in {', '.join(map(repr, almost))}: {way}"
        if self._is_coco:
            yield AS_COCO
        if self.is_fraction():
            yield AS_FRACTIONS
        if not (has_boxes or self._rules.is_export) and (like := box_like_columns([*first.fields])):
            yield (
                f"{', '.join(map(repr, like))} may be boxes, but became plain fields: boxes are corners in pixels, "
                "in columns called x1, y1, x2, y2, or annotations of COCO"
            )
        if first.chosen.corners and first.fields:
            yield f"columns that may vary between boxes of an image are left out: {', '.join(map(repr, first.fields))}"


def _separator_of(names: Mapping[str, int]) -> str:
    """Return the mark that seems to separate several classes in a name; "" if there is none.

    A | hardly occurs in the name of a class. For other marks, half of the names must consist of parts found elsewhere.
    """
    for mark in "|;, ":
        joined = {name: [part.strip() for part in name.split(mark)] for name in names if mark in name}
        used = Counter(part for name in names for part in {part.strip() for part in name.split(mark)})
        least = 1 if mark == "|" else 2
        made = sum(
            all(part in names for part in parts) if mark == " " else min(used[part] for part in parts) >= least
            for parts in joined.values()
        )
        if joined and 2 * made >= len(joined):
            return mark
    return ""


def find_metadata(folder: Path) -> Path | None:
    """Return the metadata file in a folder that has the column ``file_name``; None without one."""
    found = [path for name in METADATA_FILES if (path := folder / name).is_file() and FILE_NAME in _columns(path)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise SourceError(f"{readable(folder)}: {names} both name the images: move one away")
    return found[0] if found else None


def _columns(path: Path) -> tuple[str, ...]:
    return read_header(path) if path.suffix != ".jsonl" else tuple(next((row[1] for row in read_rows(path)), ()))


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


def _rows(rules: _Rules) -> Iterator[_Row | Problem]:
    """Yield each row, checked, or why it cannot be used."""
    called = FILE_NAME if rules.is_metadata else rules.listing.image or " or ".join(PATH_COLUMNS)
    no_path = f"it has no path in a column called {called}"
    place = readable(rules.path)
    known: dict[tuple[str, ...], _Columns | None] = {}
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
            shown = cut(", ".join(map(repr, columns)), 200)
            way = (
                f"; the columns are {shown}: --image-column (Listing(image=)) chooses one; if these are values, write "
                "the names of the columns above them"
            )
            yield Problem(f"row {number}", no_path + way * (not rules.is_metadata))
            continue
        value = values.pop(chosen.path, None)
        if type(value) is int and not is_certain(chosen.path):
            value = str(value)  # an id in JSON
        path = _path(value, no_path, rules)
        label = _label_of(chosen, values, where, rules)
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
        try:
            box, size = take_box(values, chosen.corners, chosen.size) if chosen.corners else (None, OWN_SIZE)
            boxes = None if rules.is_export or is_text(rules.path) else take_boxes(values)
        except ValueError as error:
            path = str(error)
        if isinstance(path, str):
            yield Problem(f"row {number}", path)
            continue
        for column, of in rules.types.items():
            if (value := values.get(column)) is not None and column not in field_of:
                try:
                    values[column] = None if value == "" else of(value)
                except (ValueError, KeyError) as error:
                    raise SourceError(f"{where}: was changed since it was first read") from error
        fields = {field_of.get(name, name): None if name in field_of else value for name, value in values.items()}
        name = name_below(path, rules.prefix)
        yield _Row(number, path, name, label, fields, files, columns, chosen, box, size, boxes)


def _label_of(chosen: _Columns, values: dict[str, Any], where: str, rules: _Rules) -> Any:
    """Remove the columns of labels from the values of a row, and return its label, checked."""
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
            f"{where}: a box has one class, an integer or a name, and its label is {short_repr(label, 50)}: write a "
            "row for each class of a box"
        )
    return label


def _check_several(labels: list[Any], where: str, *, as_text: bool) -> None:
    """Raise SourceError if a list has a number with a fraction, or repeats an integer: it is no list of classes."""
    if any(_is_fraction(label, as_text=as_text) for label in labels):
        raise SourceError(
            f"{where}: its label is {short_repr(labels, 50)}, but a list must have the names or integers of classes: "
            "write these, or rename the column if its numbers are no classes"
        )
    numbers = [label for label in labels if type(label) is int or (as_text and INTEGER.fullmatch(label))]
    if len({*numbers}) < len(numbers):
        raise SourceError(
            f"{where}: its label, {short_repr(labels, 50)}, repeats a number, and looks like 0/1 for each class: use "
            "columns (--label-column a,b,c), or a list of the names or numbers of the image's classes"
        )


def _is_fraction(label: object, *, as_text: bool) -> bool:
    """Return whether a label is a number that is written with a fraction or an exponent."""
    if as_text and isinstance(label, str):
        return is_float(label) and math.isfinite(float(label))
    return isinstance(label, float)


def _read_label(chosen: _Columns, values: dict[str, Any], where: str, rules: _Rules) -> Any:
    """Remove the columns of labels from the values of a row, and return its label."""
    if len(chosen.labels) > 1:
        return [column for column in chosen.labels if _flag(values.pop(column, None), column, where)]
    label = values.pop(chosen.labels[0], None) if chosen.labels else None
    if isinstance(label, str) and chosen.labels and plain(chosen.labels[0]) == "predictionstring":
        values[chosen.labels[0]] = label
        found = [*dict.fromkeys(label.split()[::5])] if _PREDICTIONS.fullmatch(label) else [None]
        label = found[0] if len(found) == 1 else found
    elif isinstance(label, str) and rules.listing.separator:
        label = [part.strip() for part in label.split(rules.listing.separator) if part.strip()]
    if isinstance(label, list):
        return [item for item in (_checked_label(item, where) for item in label) if item is not None]
    return _checked_label(label, where)


def _flag(value: object, column: str, where: str) -> bool:
    """Return whether an image has the class of a column."""
    text = str(value).strip().lower()
    if text in ("1", "true", "1.0"):
        return True
    if value is None or text in ("0", "-1", "false", "", "0.0", "-1.0"):
        return False
    raise SourceError(f"{where}: a column of a class has only 1, 0 or -1, but {column!r} has {short_repr(value, 50)}")


def _path(value: object, no_path: str, rules: _Rules) -> bytes | str:
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


def _matching(name: str, columns: Sequence[str]) -> list[str]:
    """Return [the column that the user has named, perhaps with other capitals, spaces, - or _]; [] without one."""
    if name in columns:
        return [name]
    found = [column for column in columns if plain(column) == plain(name)]
    return found if len(found) == 1 else []


def _find_columns(columns: tuple[str, ...], where: str, rules: _Rules) -> _Columns | None:
    """Return which columns have the path, the labels and a box; None without a path."""
    paths = [column for column in rules.path_columns(columns) if column not in rules.file_columns]
    is_chosen = rules.is_metadata or rules.listing.image or (paths and is_certain(paths[0]))
    if not (is_chosen or (len(paths) == 1 and rules.files.is_unknown)) or not paths:
        return None
    rest = [column for column in columns if column not in (paths[0], *rules.file_columns)]
    has_boxes = not rules.is_export and (not rules.is_metadata or label_columns(rest))
    corners = corner_columns(rest) if has_boxes else ()
    size = tuple(column for column in rest if plain(column) in ("width", "height")) if corners else ()
    size = size if [plain(column) for column in size] == ["width", "height"] else size[::-1]
    if ALL in rules.listing.label:
        labels = rest
    elif rules.listing.label:
        labels = [column for name in rules.listing.label for column in _matching(name, rest)]
    elif rules.is_metadata and LABEL_COLUMNS[0] in columns:
        labels = [LABEL_COLUMNS[0]]  # so ``class`` and ``target`` are extra fields
    else:
        labels = label_columns(rest)
    for what, option, names in (("path", "image", paths), ("label", "label", [] if rules.listing.label else labels)):
        if len(names) > 1:
            way = f"rename or drop one, or choose with --{option}-column (Listing({option}=))"
            raise SourceError(f"{where}: {names[0]!r} and {names[1]!r} may both be the {what}; {way}")
    taken = {paths[0], *labels, *corners, *size, *(_RECORD_COLUMNS if rules.is_metadata else ())}
    for column in (column for column in columns if column not in taken or column in rules.file_columns):
        try:
            checked_field_name(column)
        except FieldError as error:
            raise SourceError(f"{where}: rename the column {column!r}: {error}") from error
        if column != column.strip():
            raise SourceError(f"{where}: rename the column {column!r}: it is padded with spaces")
    return _Columns(paths[0], tuple(labels), corners, size if len(size) == 2 else ())


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
    raise SourceError(
        f"{where}: a label is a 64-bit integer, a number, a name, a list of these or null, got {short_repr(label, 50)}"
    )


def _find_file_columns(columns: Sequence[str], rules: _Rules, where: str) -> dict[str, str]:
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
            return path.encode("utf-8", "surrogateescape")  # JSON may have lone surrogates for bytes that are not UTF-8
    return f"its path is not valid for a file: {short_repr(path, 50)}"
