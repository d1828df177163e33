"""An image folder: each file under its name, byte for byte.

``metadata.jsonl`` has a row for each record, with the column ``file_name`` of Hugging Face's imagefolder.
``classes.json`` has the class names in the order of labels. ``target.json`` has the name of the target field, unless
the target is the label. The export omits these files if ``convert`` makes the same store without them.
docs/exporting.md describes the columns.
"""

from __future__ import annotations

import json
import os
import posixpath
from typing import TYPE_CHECKING, Any

import numpy as np
from bson.json_util import RELAXED_JSON_OPTIONS, dumps
from typing_extensions import override

from dbloader.errors import ExportError
from dbloader.ext.exports.base import (
    NAME_ERRORS,
    REMEDY,
    UNKNOWN_FORMAT,
    Exporter,
    describe,
    extension_of,
    is_safe,
    new_file,
    save_file,
)
from dbloader.ext.sources.checked_rows import FILE_NAME, FILE_NAME_SUFFIX
from dbloader.ext.sources.labels import CLASSES
from dbloader.images.info import find_facts
from dbloader.records.values import pack
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.images.info import Facts
    from dbloader.records.record import Record
    from dbloader.stores.base import Store

METADATA = "metadata.jsonl"


class FolderExporter(Exporter):
    """Writes an image folder."""

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        self._classes = store.manifest.classes
        # Whether each label has a class name of its own.
        self._by_name = len({*self._classes}) == len(self._classes) and "" not in self._classes
        # These files are created first, so no image can take their names.
        self._metadata, self._names = new_file(folder, METADATA), new_file(folder, CLASSES)
        self._order: tuple[str, ...] = ()  # sort key of the previous image; `convert` sorts images by this key
        # Whether `convert` makes the same store without METADATA and CLASSES.
        self._plain = bool(self._classes) and [*self._classes] == sorted({*self._classes})
        self._plain = self._plain and all(map(self._make_class_folder, self._classes))

    @override
    def write(self, record: Record) -> None:
        data, extension = self._file(record)
        path = self._save_image(record, data, extension)
        name = self._class_of(record)
        row: dict[str, Any] = {FILE_NAME: path, "label": name if self._by_name and name else record.label}
        if record.name != path:
            row["name"] = record.name
        if record.resized_from is not None:
            row["resized_from"] = [*record.resized_from]
        order = (path.partition("/")[0], *posixpath.split(path))
        is_image = path.lower().endswith(EXTENSIONS)
        is_plain = is_image and order[0] == name and len(row) == 2 and not record.fields and order > self._order
        self._plain, self._order = self._plain and is_plain, order
        for key, value in record.fields.items():
            if key == FILE_NAME or key.endswith(FILE_NAME_SUFFIX):
                taken = f"but {METADATA} uses this name for a column of files"
                raise ExportError(f"{describe(record)} has a field {key!r}, {taken}: {REMEDY}")
            if key in self.store.manifest.file_fields:
                row[key + FILE_NAME_SUFFIX] = None if value is None else self._save_field(record, key, value)
            else:
                row[key] = pack(key, value)
        self._metadata.write(dumps(row, json_options=RELAXED_JSON_OPTIONS).encode() + b"\n")

    @override
    def finish(self) -> None:
        super().finish()
        self.write_target()
        self._names.write(json.dumps(self._classes).encode() + b"\n")
        self.close()
        if self._plain:
            for name in (METADATA, CLASSES):
                (self.folder / name).unlink()

    @override
    def close(self) -> None:
        self._metadata.close()
        self._names.close()

    def _make_class_folder(self, name: str) -> bool:
        """Make the folder of a class; return False if no folder can have its name."""
        if "/" in name or not is_safe(name):
            return False
        try:
            os.mkdir(posixpath.join(os.fsencode(self.folder), name.encode()))  # noqa: PTH102 - bytes
        except OSError as error:
            if error.errno not in NAME_ERRORS:
                raise
            return False
        return True

    def _class_of(self, record: Record) -> str:
        label = -1 if record.label is None else record.label
        return self._classes[label] if 0 <= label < len(self._classes) else ""

    def _file(self, record: Record) -> tuple[bytes, str]:
        """Return a record's image file, and the extension of its format ("" for an unknown format)."""
        image = self.image_file(record)
        if record.damaged is not None:
            self.changes["damaged: convert --on-damaged keep accepts them"] += 1
        if isinstance(record.image, np.ndarray):
            return image, ".png"
        facts = self._facts(image)
        if (record.format, record.width, record.height) != (facts[:3] if facts else (None, None, None)):
            self.changes["without the size and format of their image: convert adds these, and the digest changes"] += 1
        return image, extension_of(facts.format) if facts else ""

    def _save_image(self, record: Record, data: bytes, extension: str) -> str:
        """Write an image and return its path: the record's name, or a made-up path if the name cannot be used."""
        wanted, made_up = record.name or "", f"{record.index:09}"
        if extension and not wanted.lower().endswith(EXTENSIONS):
            wanted += extension
        paths = [wanted] if record.name else []
        paths += [f"{self._class_of(record)}/{made_up}{extension}"]
        return save_file(self.folder, paths, made_up, extension, data)

    def _save_field(self, record: Record, field: str, data: bytes) -> str:
        """Write the file of a field and return its path: the record's name, in a folder with the field's name."""
        facts = self._facts(data)
        extension = extension_of(facts.format) if facts else ""
        paths = [f"{field}/{posixpath.splitext(record.name or '')[0]}{extension}"] if record.name else []
        return save_file(self.folder, paths, f"{field}/{record.index:09}", extension, data)

    def _facts(self, data: bytes) -> Facts | None:
        facts = find_facts(data)
        if facts is None:
            self.changes[UNKNOWN_FORMAT] += 1
        return facts
