"""Images in the rows of Parquet and Arrow files."""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyarrow import types
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.ext.sources.arrow_columns import ArrayRule, find_columns, from_lists
from dbloader.ext.sources.boxes import BOXES, OWN_SIZE, box_fields
from dbloader.ext.sources.boxes import LABELS as BOX_LABELS
from dbloader.ext.sources.labels import label_of, no_label, number_labels
from dbloader.ext.sources.listed_boxes import split_objects
from dbloader.ext.sources.listing_columns import are_texts
from dbloader.ext.sources.options import UNDECIDED
from dbloader.ext.sources.parquet_files import UNREADABLE, Files, check_machine, open_table, why
from dbloader.records.manifest import CLASS_LISTS
from dbloader.records.values import pack, unpack
from dbloader.sources.base import Entry, FieldFile, Problem, Source, Tally, full_path, problem_of, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from dbloader.ext.sources.arrow_columns import TableColumns
    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Loaded

_ROWS = 256  # number of rows whose fields are in memory at once


class _Location(NamedTuple):
    """Where an image is."""

    path: bytes  # path of the Parquet or Arrow file
    block: int
    row: int  # number of the row in the block
    column: str


def has_images(path: Path) -> bool:
    """Return whether a file has a column with images."""
    try:
        return bool(find_columns(open_table(path).schema, "").image)
    except SourceError:
        return False


class ParquetSource(Source):
    """Reads images from the rows of Parquet or Arrow files, in the order of ``paths`` and rows.

    The constructor reads text labels to find the classes. It also reads the paths of the images, with 8 bytes of memory
    for each row, to find repeated paths. If no path occurs twice, the paths become the names of the records.
    ``file_fields`` names columns with image files, such as masks, that become fields.

    Raises:
        SourceError: The columns of the files differ, or no column is the image.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        file_fields: Sequence[str] = (),
        reading: Reading = UNDECIDED,
    ) -> None:
        first: dict[str, str] = {}  # {text of a label: file where it occurs first}
        files, hashes = Files(), array("q")
        columns = find_columns(files.open(paths[0]).schema, readable(paths[0]), file_fields)
        for path in paths:
            file, where = files.open(path), readable(path)
            if find_columns(file.schema, where, file_fields) != columns:
                raise SourceError(
                    f"{where}: has other columns or classes than {readable(paths[0])}: convert it by itself"
                )
            labels = columns.label or columns.several
            kind: Any = file.schema.field(labels).type if labels else None
            is_text = labels and not types.is_integer(kind.value_type if columns.several else kind)
            wanted = [name for name in (labels if is_text else None, None if columns.is_own else columns.path) if name]
            for block in range(len(file.rows) if wanted else 0):
                with suppress(*UNREADABLE):  # an iteration yields a Problem for these rows
                    for batch in file.batches(block, wanted, 16 * _ROWS):
                        if is_text:
                            texts = batch.column(labels)
                            texts = pc.unique(pc.list_flatten(texts) if columns.several else texts).to_pylist()
                            first = {**dict.fromkeys(filter(None, texts), where), **first}
                        hashes.extend(hash(name) for name in _paths(batch, columns) if name)
        self._labels: dict[str, int] = {}
        classes = columns.classes
        if first:
            classes, self._labels = number_labels(first, readable(place), may_be_integers=False)
        self._distinct = len(np.unique(np.frombuffer(hashes, np.int64))) == len(hashes)
        warnings = columns.warnings
        if not self._distinct:
            warnings += ("some images have the same path, so the names of records begin with file and row",)
        root = Path(place) if Path(place).is_dir() else paths[0].absolute().parent
        super().__init__(root, classes, warnings, place=full_path(place))
        self._paths, self._columns, self._files = paths, columns, files
        self.file_fields = tuple(columns.fields[name][0] for name in columns.files)
        self.field_classes, self.target = columns.field_classes, columns.target
        self.numbers_classes = not first
        if self.target and not columns.is_own:
            column = next(name for name, (field, _) in columns.fields.items() if field == self.target)
            what = "several classes" if columns.several else "numbers"
            labels = f"labels: the column {column!r} ({what} in {self.target!r})"
            self.understood = (f"images: the column {columns.image!r} of {self.place}", labels)
        elif not (columns.label or columns.objects or columns.is_own):
            self.understood = (f"images: the column {columns.image!r} of {self.place}", "labels: none")
        # Boxes in a dbloader export fit the stored images, unless the option ``boxes`` decides otherwise.
        names = {name for name, _ in columns.fields.values()}
        is_framed = columns.is_own and names >= {BOXES, BOX_LABELS}
        self.follows = ("boxes",) if columns.objects or is_framed else ()
        self._has_boxes = columns.objects is not None or (is_framed and reading.boxes is not None)

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        columns, total, unlabelled = self._columns, 0, 0
        has_numbers = is_whole = bool(columns.target) and not (columns.is_own or columns.several)
        parts = (f"{name}.path" if name in columns.files else name for name in columns.fields)
        wanted = [name for name in (columns.path, columns.label, *parts) if name is not None]
        has_stems = len({path.stem for path in self._paths}) == len(self._paths)
        for path in self._paths:
            where = readable(path.stem if has_stems else path).lstrip("/")
            file, number = self._files.open(path), 0  # number counts the rows of the file
            for block, rows in enumerate(file.rows):
                row, end = 0, number + rows
                try:
                    for batch in file.batches(block, wanted, _ROWS):
                        for name, label, fields in self._rows(batch, where, number):
                            if isinstance(label, Problem):
                                yield label
                            else:
                                yield self._entry(name, os.fsencode(path.absolute()), label, fields, block, row)
                            value: Any = fields[columns.target] if has_numbers else label
                            total, unlabelled = total + 1, unlabelled + (value is None)
                            is_whole = is_whole and (value is None or value % 1 == 0)
                            row, number = row + 1, number + 1
                    if row < rows:
                        raise ValueError("the row group has fewer rows than its header says")
                except UNREADABLE as error:
                    check_machine(error)
                    yield Problem(f"{where}, rows {number} to {end - 1}", f"cannot be read: {why(error)}")
                number = end
        has_other = bool(columns.objects or columns.target)
        if not columns.label:  # masks or captions need no labels
            texts = are_texts([field for field, _ in columns.fields.values()])
            has_other = has_other or texts or bool(columns.files)
        is_odd = unlabelled and (has_numbers or not has_other)
        hint = no_label(are_numbers=has_numbers, are_whole=is_whole and unlabelled < total)
        if not (has_numbers or columns.label):
            hint = ": call the column of labels 'label', with integers or names"
        return Tally([f"{unlabelled:,} of {total:,} images have no label{hint}"] if is_odd else [])

    def _entry(self, name: str, path: bytes, label: int | None, fields: dict[str, Any], block: int, row: int) -> Entry:
        files = {}
        for column in self._columns.files:
            field = self._columns.fields[column][0]
            if (found := fields.get(field)) is not None:
                title = found["path"] or f"of row {row}"
                files[field], fields[field] = FieldFile(title, _Location(path, block, row, column)), None
        boxes_in = None
        if self._has_boxes and fields.get(BOXES) is not None:
            fields, boxes_in = unpack(fields), OWN_SIZE
        return Entry(name, _Location(path, block, row, self._columns.image), label, fields, boxes_in, files)

    def _rows(self, batch: Any, where: str, number: int) -> Iterator[tuple[str, int | Problem | None, dict[str, Any]]]:
        """Yield (name, label, fields) for each row. If a row cannot be used, its label is a Problem."""
        columns = self._columns
        paths = _paths(batch, columns)
        labels = [None] * len(batch) if columns.label is None else batch.column(columns.label).to_pylist()
        values = [
            (field, column in columns.absent, _values(batch.column(column), kind))
            for column, (field, kind) in columns.fields.items()
        ]
        for at, (path, label) in enumerate(zip(paths, labels, strict=True)):
            name = path if path and self._distinct else f"{where}/{number + at:06}{'/' * bool(path)}{path or ''}"
            fields = {field: column[at] for field, absent, column in values if not absent or column[at] is not None}
            if columns.is_own and path is None:
                fields["name"] = None
            wrong = None if columns.objects is None else self._take_boxes(fields, name, *columns.objects)
            if columns.several:
                found = [self._label(one, name) for one in fields[CLASS_LISTS] or []]
                wrong = next((one for one in found if isinstance(one, Problem)), None)
                fields[CLASS_LISTS] = sorted({one for one in found if isinstance(one, int)})
            yield name, wrong or self._label(label, name), fields

    def _take_boxes(self, fields: dict[str, Any], name: str, field: str, part: str) -> Problem | None:
        """Move the boxes and labels of a row's objects into separate fields. Return a Problem if a value is wrong."""
        try:
            boxes, labels, objects = split_objects(fields.pop(field) or {}, part)
            if self.classes and (label := next((at for at in labels if not 0 <= at < len(self.classes)), None)):
                raise ValueError(f"an object has class {label}, but classes are 0 to {len(self.classes) - 1}")  # noqa: TRY301
            fields |= box_fields(boxes, labels)
        except ValueError as error:
            return Problem(name, f"its {field} cannot be read: {error}")
        if objects:
            fields[field] = objects
        return None

    def _label(self, label: int | str | None, name: str) -> int | Problem | None:
        if isinstance(label, str):
            return label_of(self._labels, label, self.place) if label else None
        count = len(self.classes)
        if label is None or (count and label == -1):  # Hugging Face writes -1 for a missing label
            return None
        if abs(label) >= 2**63 or (count and not 0 <= label < count):
            wanted = f"from 0 to {count - 1}" if count else "of 64 bits"
            return Problem(name, f"its label is {label}, not {wanted}")
        return label

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Loaded | Problem]:
        for entry in entries:
            path, block, row, column = _Location(*entry.location)
            try:
                found = self._files.read(Path(os.fsdecode(path)), block, row, column, hold)
            except UNREADABLE as error:
                check_machine(error)
                kind = type(problem_of(error, entry.name, path)) if isinstance(error, OSError) else Problem
                yield kind(entry.name, f"cannot be read: {why(error)}")
                continue
            if isinstance(found, bytes):
                yield found
            elif found is None:
                yield Problem(entry.name, "has neither bytes nor a path")
            elif os.path.isabs(found) or ".." in Path(found).parts or "\0" in found:  # noqa: PTH117
                wrong = f"which must be relative and below {readable(self.root)}"
                way = "embed the images with embed_table_storage of Hugging Face's datasets (docs/parquet.md)"
                yield Problem(entry.name, f"has only a path, {found!r}, {wrong}: {way}")
            else:
                yield from super().read([entry._replace(location=(found.encode(),))], hold)

    @override
    def close(self) -> None:
        self._files.close()


def _values(column: Any, kind: Any) -> list[Any]:
    """Return the values of a column, with arrays packed for BSON."""
    if isinstance(kind, ArrayRule):
        return [pack("", array) for array in from_lists(column, kind)]
    # If Hugging Face's datasets is imported, an Array2D keeps its lists in ``storage``.
    values: list[Any] = getattr(column, "storage", column).to_pylist()
    return values


def _paths(batch: Any, columns: TableColumns) -> list[str | None]:
    """Return the path of each image; None without one."""
    if columns.path is None:
        return [None] * len(batch)
    column = batch.column(columns.image)
    paths: list[str | None] = (pc.struct_field(column, "path") if types.is_struct(column.type) else column).to_pylist()
    return paths
