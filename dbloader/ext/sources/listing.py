"""Read images whose paths are in a listing, or in the metadata of a folder.

docs/listings.md describes the formats and columns. The number of a row is the number of its first line. In a ``.json``,
it is the position of the item, counted from 1. A label is an integer or the name of a class. A name becomes its
position in the sorted list of all names. Null and empty text mean no label. In JSON, a label that is text is a name. In
a CSV, TSV or text file, all labels are text: `labels.py` decides whether they are integers or names. Several classes,
or a number with a fraction, are stored in a field. This field is called the target.
"""

from __future__ import annotations

import math
from array import array
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._describe import counted, cut
from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import BOXES, FRACTIONS, OWN_SIZE, box_fields
from dbloader.ext.sources.boxes import LABELS as BOX_LABELS
from dbloader.ext.sources.checked_rows import ListingRow, ListingRules, checked_rows
from dbloader.ext.sources.chosen_columns import choose_columns, flag_warnings
from dbloader.ext.sources.class_folders import FOLDERS_IN_WORDS, folder_warnings
from dbloader.ext.sources.labels import label_of, number_labels, read_classes, read_target
from dbloader.ext.sources.listed_boxes import ListedBoxes
from dbloader.ext.sources.listing_files import ListedFiles
from dbloader.ext.sources.listing_paths import name_below, prefix_of
from dbloader.ext.sources.listing_rows import is_text, made_up_header, read_header
from dbloader.ext.sources.listing_survey import ListingSurvey, find_repeats
from dbloader.ext.sources.metadata import unused_warnings
from dbloader.records.columns import NO_LABEL
from dbloader.records.manifest import CLASS_LISTS
from dbloader.sources.base import Entry, FieldFile, Listing, Problem, Source, Tally, checked_root, readable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator, Sequence


class ListingSource(Source):
    """Reads the images of a listing in its order, with repeats; made by ``read_listing``.

    Files may have any extension, and need not exist. The name of an entry is its normalized path: ``./a//b`` becomes
    ``a/b``, and ``../a`` stays. An absolute path below the root loses the path of the root.
    """

    follows: tuple[str, ...] = ("encoding",)
    has_columns = True

    def __init__(
        self,
        root: Path,
        classes: tuple[str, ...],
        warnings: list[str],
        labels: dict[str, int],
        rules: ListingRules,
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
        for row in checked_rows(self._rules):
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

    def _target(self, row: ListingRow) -> Any:
        """Return a row's list of classes, or its number; None without a number."""
        if self._rules.target != CLASS_LISTS:
            return None if row.label is None else float(row.label)  # type: ignore[arg-type]
        names = row.label if isinstance(row.label, list) else [] if row.label is None else [row.label]
        return sorted({self._number(name, row) if isinstance(name, str) else int(name) for name in names})

    def _number(self, text: str, row: ListingRow) -> int:
        return label_of(self.labels, text, f"{self._place}, row {row.number}")


class BoxRowsSource(ListingSource):
    """Reads a listing with a row for each box. This takes 60 bytes of memory for each row, and 150 for each image."""

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        paths, labels, boxes = array("q"), array("q"), array("d")
        for row in checked_rows(self._rules):
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
        for at, row in enumerate(row for row in checked_rows(self._rules) if isinstance(row, ListingRow)):
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
    class_folder: str | None = None,
) -> ListingSource:
    """Return the source for a listing. The paths in the listing start from the folder ``root``.

    This function reads the listing to find its classes and mistakes. Each iteration reads the listing again. Memory
    holds the distinct labels, 8 bytes for each row, 8 bytes for each path of metadata, and all of a ``.json``.
    ``make`` gets the arguments of ``ListingSource`` and returns a source, such as a source of files in MongoDB.
    ``files`` looks up files in another place, such as a zip; None for a folder or MongoDB.

    For metadata without a column of labels, the first folder of each path is its class. All paths must have a folder,
    and there must be at least two such folders.
    """
    listing, root = Listing.of(listing), checked_root(root)
    path, is_disk = Path(listing.path), make is None
    files = files or ListedFiles(root if is_disk else None)
    known = read_classes(path.parent) if is_metadata else None
    rules = ListingRules(listing, path, files, prefix_of(root), encoding, (*file_columns,), is_metadata)
    rules = rules._replace(is_export=known is not None, class_folder=class_folder, by_folder=class_folder is not None)
    rules = choose_columns(rules)
    survey, first = _read_all(rules)
    if not class_folder and (column := survey.only_label()):
        with suppress(SourceError):  # if its labels are wrong, the column stays a field of text
            labelled = replace(listing, label=column)
            return _as_guess(read_listing(labelled, root, file_columns, make, files, encoding=encoding), column)
    by_folder = rules.by_folder or (known is None and survey.has_classes_in_folders())
    rules = rules._replace(has_lists=survey.has_lists, is_fraction=survey.is_fraction(), types=survey.types.found())
    rules = rules._replace(by_folder=by_folder, target=survey.target())
    has_boxes = bool(first.chosen.corners)
    make = make or (BoxRowsSource if has_boxes else ListingSource)
    classes, labels = _number_classes(rules, survey, first, known)
    warnings = [*_warnings(rules, survey, first)]
    warnings += folder_warnings(root if is_disk else "", classes) if by_folder else ()
    warnings += unused_warnings(root, survey.listed) if is_metadata and is_disk else ()
    found = make(root, classes, warnings, labels, rules, (*survey.file_fields,))
    if path.suffix.lower() == ".txt" and "text" in first.fields:
        found.target = "text"
    elif rules.is_export:
        found.target, found.numbers_classes = read_target(path.parent), True
    if has_boxes or rules.has_lists:
        found.follows = (*found.follows, "boxes")
    elif not files.is_unknown and found.target != "text":
        found.follows = (*found.follows, "class_folder")
    found.understood = (*found.understood, *_understood(rules, survey, first))
    return found


def _read_all(rules: ListingRules) -> tuple[ListingSurvey, ListingRow]:
    """Return a survey of all rows, and the first row.

    Raises:
        SourceError: No row is usable, boxes are text, or the user has named a separator, but there are no labels.
    """
    where, survey = readable(rules.path), ListingSurvey(rules)
    for row in checked_rows(rules):
        survey.add(row)
    if survey.first is None:
        raise SourceError(f"{where}: no row of it can be used: {': '.join(survey.problem or ['there are none'])}")
    column = next((name for name in (BOXES, BOX_LABELS) if name in survey.first.fields), None)
    if column and is_text(rules.path):
        raise SourceError(
            f"{where}: its column {column!r} is text, and boxes are lists of numbers: write a .jsonl, or use "
            "annotations of COCO, VOC or YOLO"
        )
    if rules.listing.separator and not (survey.first.chosen.labels or survey.only_label()):
        columns = cut(", ".join(map(repr, survey.first.fields)), 200)
        raise SourceError(
            f"{where}: the separator {rules.listing.separator!r} splits labels, but no column is known to have labels: "
            f"--label-column (Listing(label=)) chooses one of {columns}"
        )
    return survey, survey.first


def _as_guess(found: ListingSource, column: str) -> ListingSource:
    """Report and warn that the only column besides the images gives the labels."""
    more = ", the only one besides the images"
    found.understood = tuple(line + more * line.startswith("labels:") for line in found.understood)
    ways = f"--label-column {column} (Listing(label=)) confirms it, --text-column {column} keeps it a field"
    taken = f"the column {column!r} gives the labels, as the only one besides the images: {ways}"
    found.warnings = (*found.warnings, taken)
    return found


def _number_classes(
    rules: ListingRules, survey: ListingSurvey, first: ListingRow, known: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the classes, and {label in the listing: its number}. An export has ``known`` classes.

    Raises:
        SourceError: Some labels are integers and others are names.
    """
    where, columns = readable(rules.path), first.chosen.labels
    names = survey.folders if rules.by_folder and not rules.class_folder else survey.names
    if rules.target and rules.target != CLASS_LISTS:
        names = {}
    elif survey.first_integer and names and not known:
        (number, integer), (name, other) = survey.first_integer, next(iter(names.items()))
        raise SourceError(
            f"{where}: row {number} has the label {integer}, and row {other} has the label {name!r}: give every row an "
            "integer or every row a name"
        )
    may_be_integers = is_text(rules.path) and not rules.by_folder and known is None and len(columns) < 2
    rows = {name: f"row {number}" for name, number in names.items()}
    return number_labels(rows, where, columns if len(columns) > 1 else known, may_be_integers=may_be_integers)


def _warnings(rules: ListingRules, survey: ListingSurvey, first: ListingRow) -> Iterator[str]:
    """Yield warnings about the rows."""
    if not rules.by_folder or rules.class_folder:
        yield from survey.warnings()
    if len(first.chosen.labels) > 1:
        yield from flag_warnings(rules, first.chosen.labels)
    if not first.chosen.corners:
        yield from find_repeats(rules, survey.paths, readable(rules.path))


def _understood(rules: ListingRules, survey: ListingSurvey, row: ListingRow) -> Iterator[str]:
    """Yield lines for the report about the listing, whose first row is ``row``."""
    chosen = row.chosen
    repeats = 0 if chosen.corners else survey.repeats()
    without = f"; {counted(survey.classless, 'row')} without a class" * bool(survey.classless)
    labels = ", ".join(map(repr, chosen.labels[:3])) + f" and {len(chosen.labels) - 3} more" * (len(chosen.labels) > 3)
    found = f"the column {labels}" if chosen.labels else "none"
    found = f"{FOLDERS_IN_WORDS[rules.class_folder or 'first']} of a path" if rules.by_folder else found
    if found == "none" and rules.path.suffix.lower() == ".txt" and "text" in row.fields:
        found = "none; what follows each path is the target, 'text'"
    target = f" (several classes in {CLASS_LISTS!r}{without})" if rules.target == CLASS_LISTS else ""
    target = target or (f" (numbers in {rules.target!r})" if rules.target else "")
    header = read_header(rules.path, rules.encoding)
    has_names = not made_up_header(header, "")
    notes = [*rules.files.notes(), *["its first row is no header"] * (not has_names)]
    notes += ["a column without a name is left out"] * (has_names and "" in header)
    notes += [f"{counted(repeats, 'row')} with the image of an earlier row: each becomes a record"] * bool(repeats)
    how = f" ({'; '.join(notes)})" if notes else ""
    yield f"images: the column {chosen.path!r} of {readable(rules.path)}{how}"
    yield f"labels: {found}{target}"
    if chosen.corners:
        yield f"boxes: each row has one, in {', '.join(map(repr, chosen.corners))}"
    if rules.has_lists:
        yield "boxes: each row has a list of them, and of their labels"
    if chosen.renamed:
        renamed = (f"{column!r} in {field!r}" for column, field in chosen.renamed.items())
        yield cut(f"fields with other names than their columns: {', '.join(renamed)}", 200)
    if rules.types:
        yield cut(f"numbers and booleans: {', '.join(map(repr, rules.types))}", 200)
