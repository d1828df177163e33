"""What the rows of a listing have in common: their classes, types and target, and warnings about them."""

from __future__ import annotations

import math
import re
import shlex
from array import array
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dbloader._describe import cut, short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import AS_FRACTIONS
from dbloader.ext.sources.checked_rows import RECORD_COLUMNS, ListingRow, checked_rows, matching, top_folder
from dbloader.ext.sources.class_folders import is_split
from dbloader.ext.sources.labels import no_label, read_target
from dbloader.ext.sources.listed_boxes import AS_COCO
from dbloader.ext.sources.listing_columns import (
    INTEGER,
    LABEL_COLUMNS,
    MISSING,
    ColumnTypes,
    are_texts,
    boolean,
    box_like_columns,
    is_float,
    may_be_label,
    plain,
)
from dbloader.ext.sources.listing_rows import is_text
from dbloader.records.manifest import CLASS_LISTS, TARGET
from dbloader.records.record import RESERVED_FIELDS
from dbloader.sources.base import Problem
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dbloader.ext.sources.checked_rows import ListingRules

_VALUES = re.compile(r"(?:\S+[\s,])?(?:-?[0-9.]+[\s,]+)+-?[0-9.]+")  # several numbers, perhaps after a name
_COMPARED = 500  # number of names that are compared with each other
_SHORT = 20  # in a listing with at most this many rows, each row may have its own class
_LIKE_NUMBER = re.compile(r"[+-]?[0-9]+(?:,[0-9]+)+|[+-]?[0-9][0-9.,]* ?%")


def find_repeats(rules: ListingRules, paths: array[int], where: str) -> Iterator[str]:
    """Yield a warning if rows repeat others. An image may be in several rows with different captions or questions.

    Raises:
        SourceError: Two rows give one image different labels.
    """
    hashes = np.frombuffer(paths, np.int64)
    hashes.sort()  # in place, because there may be millions
    twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    seen = array("q")
    for row in checked_rows(rules) if len(twice) else ():
        at = int(twice.searchsorted(hash(row.name)))
        if isinstance(row, ListingRow) and at < len(twice) and twice[at] == hash(row.name):
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
            "image has several classes, write them into one row (--separator); if each row is a box, its columns are "
            "xmin, ymin, xmax, ymax"
        )
    _, first, rows = np.unique(table[:, [0, 2]], axis=0, return_index=True, return_inverse=True)
    repeated = np.setdiff1d(np.arange(len(table)), first)
    if len(repeated):
        one, other = table[[first[rows.ravel()[repeated[0]]], repeated[0]], 3].tolist()
        count = f"{len(repeated):,} row{' repeats another' if len(repeated) == 1 else 's repeat others'}"
        yield f"{count}, as row {other} repeats row {one}: each becomes a record; remove rows that are there by mistake"


class ListingSurvey:
    """What the rows of a listing have in common. ``names`` and ``folders`` map labels to their first rows."""

    def __init__(self, rules: ListingRules) -> None:
        self._rules, self._is_text = rules, is_text(rules.path)
        self._rows = self._unlabelled = 0
        self.classless = 0  # rows with an empty list of classes
        self._has_labels = False  # whether metadata have a column of labels
        self.first: ListingRow | None = None
        self.first_integer: tuple[int, Any] | None = None  # the first row whose label is an integer, and the label
        self._fraction: ListingRow | None = None  # the first row whose label is a number with a fraction
        self._whole: ListingRow | None = None  # the first row whose label is a number such as 1.0
        self._is_whole = True  # whether each number is whole, such as 1.0
        self._several: ListingRow | None = None  # the first row with a list of classes
        self.has_lists = self._is_coco = self._has_pixels = self._has_boxes = False
        self._is_alone = not (rules.is_metadata or rules.listing.label or rules.listing.text or rules.file_columns)
        self._alone = array("q")  # hashes of the values in the only column besides the images
        self._numbers = self._splits = 0  # how many of these values are fractions, and how many are names of splits
        self.problem: Problem | None = None  # the first row that cannot be used
        self.names: dict[str, int] = {}
        self.folders: dict[str, int] = {}  # the first folders of the paths in metadata
        self.paths = array("q")  # hashes of the paths
        self.listed = array("q")  # hashes of the paths in metadata, to find images that no row names
        self.file_fields: dict[str, None] = {}
        self._is_counting = True  # whether the labels are the numbers of the rows, from 0 or 1
        self._kept = ("text",) if rules.path.suffix.lower() == ".txt" else RECORD_COLUMNS if rules.is_metadata else ()
        self.types = ColumnTypes(self._kept)

    def add(self, row: ListingRow | Problem) -> None:
        """Take a row into account."""
        if isinstance(row, Problem):
            self.problem = self.problem or row
            return
        self._rows += 1
        if self.first is None:
            self.first = row
            named = [column for text in self._rules.listing.text for column in matching(text, row.columns)]
            self.types = ColumnTypes({*self._kept, *(row.chosen.renamed.get(column, column) for column in named)})
        if self._is_alone:
            self._add_alone(row)
        self.paths.append(hash(row.name))
        self._is_counting = self._is_counting and str(row.label) in (str(self._rows - 1), str(self._rows))
        self.file_fields.update(dict.fromkeys(row.files))
        if self._is_text:
            self.types.add(row.fields)
        if self._rules.is_metadata:
            self.listed.extend(hash(path) for path in (row.path, *row.files.values()) if path)
            self._has_labels = self._has_labels or not {*row.columns}.isdisjoint(LABEL_COLUMNS)
            if not self._has_labels:
                self.folders.setdefault(top_folder(row.path), row.number)
        if row.boxes is not None:
            self.has_lists, self._is_coco = True, self._is_coco or row.boxes.is_coco
            for label in row.boxes.labels:
                self._add_label(label, row)
        for box in row.boxes.corners if row.boxes else [row.box] if row.box else []:
            self._has_boxes = True
            self._has_pixels = self._has_pixels or not 0 <= min(box) <= max(box) <= 1
        if isinstance(row.label, list):
            self._several = self._several or row
            self.classless += not row.label
            for label in row.label:
                self._add_label(label, row)
        elif row.label is None:
            self._unlabelled += 1
        else:
            self._add_label(row.label, row)

    def _add_label(self, label: Any, row: ListingRow) -> None:
        if isinstance(label, float) or (self._is_text and isinstance(label, str) and is_float(label)):
            if not math.isfinite(float(label)):  # nan or inf is a number or a name, as the other labels show
                self.names.setdefault(str(label), row.number)
            elif isinstance(label, float) or float(label) % 1:
                self._fraction = self._fraction or row
                self._is_whole = self._is_whole and float(label) % 1 == 0
            elif self._whole is None:
                self._whole = row
                self.names[label] = row.number  # `number_labels` refuses 1.0, unless another label has a fraction
        elif isinstance(label, str):
            self.names.setdefault(label, row.number)
        else:
            self.first_integer = self.first_integer or (row.number, label)

    def _add_alone(self, row: ListingRow) -> None:
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

    def repeats(self) -> int:
        """Return how many rows name the image of an earlier row."""
        hashes = np.frombuffer(self.paths, np.int64)
        hashes.sort()  # in place, as in `find_repeats`
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))

    def is_fraction(self) -> bool:
        """Return whether the boxes seem to be fractions of the width and height."""
        return self._has_boxes and not self._has_pixels

    def target(self) -> str:
        """Return the field for labels that are lists of classes, or numbers; "" if each label is one class."""
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

    def _has_target(self) -> bool:
        """Return whether an export wrote the listing, and named another target than the label."""
        return self._rules.is_export and bool(read_target(self._rules.path.parent))

    def has_classes_in_folders(self) -> bool:
        """Return whether the first folders of the paths can be the classes."""
        return not (self._has_labels or self.has_lists) and len(self.folders) > 1 and "" not in self.folders

    def warnings(self) -> Iterator[str]:
        """Yield warnings about rows without labels, labels that look like several, and columns that are left out."""
        first = self.first
        if first is None:
            return
        has_boxes = self.has_lists or bool(first.chosen.corners)
        yield from self._unlabelled_warnings(first, has_boxes=has_boxes)
        yield from self._label_warnings(first)
        if almost := self.types.almost_numbers():
            way = "write a decimal point before a digit, no space or comma in a number, and nothing for a missing value"
            yield f"numbers stay text in {', '.join(map(repr, almost))}: {way}"
        yield from self._box_warnings(first, has_boxes=has_boxes)

    def _unlabelled_warnings(self, first: ListingRow, *, has_boxes: bool) -> Iterator[str]:
        text = first.fields.get("text") if self._rules.path.suffix.lower() == ".txt" else None
        if isinstance(text, str) and self._unlabelled == self._rows:
            if _VALUES.fullmatch(text):
                mark = next(mark for mark in "\t ," if mark in text)
                way = "--label-column 2 (Listing(label=)) takes its first value as the label, 3 its second value; or "
                way += "write the names of all columns as the first line, and tabs or commas between columns"
                if mark != "\t":
                    way += (
                        f", or split classes by --label-column text --separator {mark!r} (Listing(label=, separator=))"
                    )
                yield f"what follows a path, such as {short_repr(text, 50)}, became one text: {way}"
        elif self._unlabelled == self._rows and not (
            has_boxes or self.file_fields or are_texts(first.fields) or self._has_target()
        ):
            names, columns = (", ".join(map(repr, columns)) for columns in (LABEL_COLUMNS, first.columns))
            what = f"the column of labels is one of {names}, and the columns are {cut(columns, 300)}"
            way = "--label-column (Listing(label=)) chooses another"
            flags = [column for column, of in self.types.found().items() if of is boolean]
            if len(flags) > 1:
                way += f", and with several columns, {shlex.quote(','.join(flags))}, each is a class"
            if len(first.columns) == 1 and "/" in first.name and not self._rules.files.is_unknown:
                way = "class_folder='first' (--class-folder first) takes the first folder of each path"
            yield f"no row has a label: {what}; {way}"
        elif 0 < self._unlabelled < self._rows and self._several:
            way = "write [] if an image has no class, and leave out images whose classes are unknown"
            yield f"{self._unlabelled} of {self._rows} rows have no list of classes, and so no class: {way}"
        elif 0 < self._unlabelled < self._rows and not has_boxes:
            are_numbers = self._fraction is not None
            hint = no_label(are_numbers=are_numbers, are_whole=are_numbers and self._is_whole)
            yield f"{self._unlabelled} of {self._rows} rows have no label{hint}"

    def _label_warnings(self, first: ListingRow) -> Iterator[str]:
        if self._is_counting and self._rows > _SHORT:
            way = (
                "--label-column (Listing(label=)) chooses other labels; for a list of paths alone, --class-folder does"
            )
            yield f"the labels are row numbers, so they are hardly classes: {way}"
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

    def _box_warnings(self, first: ListingRow, *, has_boxes: bool) -> Iterator[str]:
        if self._is_coco:
            yield AS_COCO
        if self.is_fraction():
            yield AS_FRACTIONS
        if not (has_boxes or self._rules.is_export) and (like := box_like_columns([*first.fields])):
            yield (
                f"{', '.join(map(repr, like))} may be boxes, but became plain fields: boxes are corners in pixels, "
                "in columns called x1, y1, x2, y2, or annotations of COCO"
            )
        if first.chosen.has_sides and plain(first.chosen.corners[0]) not in ("left", "xmin", "x1"):
            columns = ", ".join(map(repr, first.chosen.corners))
            read = f"{columns} were read as the left upper corner, width and height of a box, as in COCO"
            ways = "call them left, top, width, height; if x and y are the center, write xmin, ymin, xmax, ymax"
            yield f"{read}: to confirm this, {ways}"
        if first.chosen.corners and first.fields:
            yield f"columns that may vary between boxes of an image are left out: {', '.join(map(repr, first.fields))}"


def _is_nested(words: set[str], names: Mapping[str, int]) -> bool:
    """Return whether the words of a name are a part of the words of another name, or contain them."""
    return any(words < (other := {*name.split()}) or other < words for name in islice(names, _COMPARED))


def _separator_of(names: Mapping[str, int]) -> str:
    """Return the mark that seems to separate several classes in a name; "" if there is none.

    At least half of the names with the mark must look like several classes. With |, all names do. With another mark,
    all parts must be names, or all must occur in two names. With a space, the second case also needs another name with
    more or fewer of the same words. With +, / and &, which occur in names too, only the first case counts.
    """
    for mark in "|;, +/&":
        joined = {name: [part.strip() for part in name.split(mark)] for name in names if mark in name}
        if not joined:
            continue
        used = Counter(part for name in names for part in {part.strip() for part in name.split(mark)})
        least = 1 if mark == "|" else 2
        made = sum(
            (mark in "|;," and min(used[part] for part in parts) >= least)
            or all(part in names for part in parts)
            or (mark == " " and min(used[part] for part in parts) >= least and _is_nested({*parts}, names))
            for parts in islice(joined.values(), _COMPARED)
        )
        joined = dict(islice(joined.items(), _COMPARED))
        if 2 * made >= len(joined):
            return mark
    return ""
