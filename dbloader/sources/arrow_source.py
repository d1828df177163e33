"""Images in the rows of Parquet and Arrow files."""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from pyarrow import types
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.arrow_columns import find_columns
from dbloader.sources.arrow_files import UNREADABLE, Files, why
from dbloader.sources.base import NOT_THE_FILE, Entry, Problem, Source, full_path, readable
from dbloader.sources.labels import number_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dbloader.sources.arrow_columns import Columns

_ROWS = 256
"""Rows whose fields are in memory at once."""


def read_arrow(place: str | os.PathLike[str], paths: Sequence[Path]) -> ArrowSource:
    """Return the source of the images in Parquet or Arrow files; SourceError if their columns are not alike.

    Paths and labels that are text are read here, to see whether paths are distinct, and for the classes. Memory holds
    8 bytes for each row, and the distinct labels.
    """
    files, hashes = Files(), array("q")
    first: dict[str, str] = {}  # for each text of a label, where it is first
    columns: Columns | None = None
    for path in paths:
        file = files.open(path)
        found = find_columns(file.schema, readable(path))
        columns = columns or found
        if found != columns:
            raise SourceError(
                f"{readable(path)}: its columns, their types or classes are not those of {readable(paths[0])}: "
                "convert each by itself"
            )
        is_text = columns.label is not None and not types.is_integer(file.schema.field(columns.label).type)
        wanted = [*[columns.path] * (not columns.is_own), *[columns.label] * is_text]
        for block in range(len(file.rows) if any(wanted) else 0):
            with suppress(*UNREADABLE):  # its rows become a problem
                for batch in file.batches(block, [*filter(None, wanted)], 16 * _ROWS):
                    if is_text:
                        texts = filter(None, pc.unique(batch.column(columns.label)).to_pylist())
                        first.update((text, readable(path)) for text in texts if text not in first)
                    hashes.extend(hash(name) for name in _paths(batch, columns) if name)
    if columns is None:
        raise SourceError(f"{readable(place)}: there are no Parquet or Arrow files in it")
    classes, labels = number_labels(first, readable(place), may_be_integers=False) if first else ((), {})
    distinct = columns.is_own or len(np.unique(np.frombuffer(hashes, np.int64))) == len(hashes)
    return ArrowSource(place, paths, columns, files, columns.classes or classes, labels, distinct=distinct)


class ArrowSource(Source):
    """The images in the rows of Parquet or Arrow files; made by ``read_arrow``.

    ``labels`` has the label of each text. Where paths are ``distinct``, they are the names of the images.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        columns: Columns,
        files: Files,
        classes: tuple[str, ...],
        labels: dict[str, int],
        *,
        distinct: bool,
    ) -> None:
        super().__init__(Path(place) if Path(place).is_dir() else paths[0].absolute().parent, classes)
        self._place, self._paths, self._columns, self._files = place, paths, columns, files
        self._labels, self._distinct = labels, distinct

    @property
    @override
    def place(self) -> str:
        return full_path(self._place)

    @override
    def entries(self) -> Iterator[Entry | Problem]:
        total = unlabelled = 0
        stems = {path.stem for path in self._paths}
        for path in self._paths:
            where = readable(path.stem if len(stems) == len(self._paths) else path).lstrip("/")
            file = self._files.open(path)
            before = 0  # rows of the file
            for block, rows in enumerate(file.rows):
                row = 0
                try:
                    for batch in file.batches(block, self._columns.without_image, _ROWS):
                        for name, label, fields in self._rows(batch, f"{where}/{{:06}}", before + row):
                            if isinstance(label, Problem):
                                yield label
                            else:
                                yield Entry(name, os.fsencode(path.absolute()), label, fields, (block, row))
                                total, unlabelled = total + 1, unlabelled + (label is None)
                            row += 1
                    if row < rows:
                        raise ValueError("they are missing")
                except UNREADABLE as error:
                    _check_machine(error)
                    missing = f"rows {before + row} to {before + rows - 1}"
                    yield Problem(f"{where}, {missing}", f"cannot be read and are left out: {why(error)}")
                before += rows
        unnamed = () if self._distinct else ("paths of images occur several times: the row stands before each",)
        few = (f"{unlabelled:,} of {total:,} images have no label",) if unlabelled else ()
        self.warnings = (*self._columns.warnings, *unnamed, *few)

    def _rows(self, batch: Any, made_up: str, start: int) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield the name, the label, or a problem instead of it, and the fields of each row."""
        columns = self._columns
        fields = [(name, column, batch.column(column).cast(kind)) for column, (name, kind) in columns.fields.items()]
        values = [(name, column in columns.absent, cast.to_pylist()) for name, column, cast in fields]
        paths = _paths(batch, columns)
        labels = [None] * batch.num_rows if columns.label is None else batch.column(columns.label).to_pylist()
        for at, (path, label) in enumerate(zip(paths, labels, strict=True)):
            name = made_up.format(start + at)
            if path:
                name = path if self._distinct else f"{name}/{path.lstrip('/')}"
            yield (
                name,
                self._label(label, name),
                {key: column[at] for key, absent, column in values if not (absent and column[at] is None)},
            )

    def _label(self, label: int | str | None, name: str) -> int | Problem | None:
        if isinstance(label, str):
            if label and label not in self._labels:
                raise SourceError(f"{self.place}: was changed since it was first read")
            return self._labels.get(label)
        count = len(self.classes)
        if label is None or (count and label == -1):  # Hugging Face's test splits
            return None
        if (count and not 0 <= label < count) or abs(label) >= 2**63:
            of = f"one of the {count} classes (0 to {count - 1})" if count else "an integer of 64 bits"
            return Problem(name, f"its label {label} is not {of}")
        return label

    @override
    def read(self, entries: Sequence[Entry], hold: Callable[[int], object]) -> Iterator[bytes | Problem]:
        for entry in entries:
            assert entry.span is not None  # entries() gives it
            try:
                value = self._files.value(Path(os.fsdecode(entry.path)), *entry.span, self._columns.image)
            except (SourceError, *UNREADABLE) as error:
                _check_machine(error)
                yield Problem(entry.name, f"cannot be read: {why(error)}")
                continue
            found = value["bytes"] if value.is_valid and types.is_struct(value.type) else value
            path = None
            if not found.is_valid and value.is_valid and self._columns.path:
                path = value["path"].as_py()
            elif found.is_valid and types.is_string(found.type):
                path = found.as_py()
            if path:
                yield self._read_path(entry, path, hold)
            elif found.is_valid:
                data = found.as_buffer()
                hold(data.size)
                yield data.to_pybytes()
            else:
                yield Problem(entry.name, "its row has no image")

    def _read_path(self, entry: Entry, path: str, hold: Callable[[int], object]) -> bytes | Problem:
        """Return the file at a path that stands in the place of its bytes."""
        if os.path.isabs(path) or ".." in Path(path).parts or "\0" in path:  # noqa: PTH117
            return Problem(entry.name, f"its row has only a path, which is not below {readable(self.root)}: {path!r}")
        return next(super().read([entry._replace(path=os.fsencode(path), span=None)], hold))

    @override
    def close(self) -> None:
        self._files.close()


def _paths(batch: Any, columns: Columns) -> list[str | None]:
    """Return the path of each image; None without one."""
    if columns.path is None:
        return [None] * batch.num_rows
    column = batch.column(columns.image)
    paths: list[str | None] = (pc.struct_field(column, "path") if types.is_struct(column.type) else column).to_pylist()
    return paths


def _check_machine(error: BaseException) -> None:
    """Raise an error that is not the file's fault: to continue would reject good files."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in NOT_THE_FILE:
        raise error
