"""The base class of formats with boxes: a folder ``images``, and annotations beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dbloader.errors import ExportError
from dbloader.ext.exports.base import REMEDY, Exporter, describe, extension_of, save_file
from dbloader.ext.sources.boxes import BOXES, LABELS
from dbloader.images.info import find_facts
from dbloader.sources.folder import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

IMAGES = "images"


class DetectionExporter(Exporter):
    """Writes the images of a store with boxes."""

    kept = frozenset({BOXES, LABELS})  # fields that the format can store

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        self.classes = store.manifest.classes
        if len({*self.classes}) < len(self.classes):
            raise ExportError(f"{store.place}: two of its classes have the same name: {REMEDY}")
        (folder / IMAGES).mkdir()

    def save(self, record: Record) -> str:
        """Write the image of a record, and return its path below ``images``."""
        data = self.image_file(record)
        facts = find_facts(data)
        extension = extension_of(facts.format) if facts else ""
        name = record.name or ""
        wanted = name if name.lower().endswith(EXTENSIONS) else name + extension
        paths = [wanted] if name and self.is_free(wanted) else []
        path = save_file(self.folder / IMAGES, paths, f"{record.index:09}", extension, data)
        if path != name:
            self.changes["renamed: their names are unusable for image files, or taken"] += 1
        noted = {"damaged": record.damaged, "resized_from": record.resized_from, "label": record.label}
        left = [name for name, value in noted.items() if value is not None]
        left += [name for name in record.fields if name not in self.kept]
        self.changes.update(f"whose {name!r} is left out: other formats keep it" for name in left)
        return path

    def is_free(self, path: str) -> bool:
        """Return whether an image at this path would have an annotation file of its own."""
        del path
        return True

    def boxes(self, record: Record) -> tuple[np.ndarray, list[int]]:
        """Return (boxes, their labels). A box is x_min, y_min, x_max, y_max in pixels: float64, shape (n, 4).

        Raises:
            ExportError: The record has no boxes, or a label has no name.
        """
        boxes, labels = record.fields.get(BOXES), record.fields.get(LABELS)
        if not (isinstance(boxes, np.ndarray) and isinstance(labels, np.ndarray) and boxes.shape == (len(labels), 4)):
            raise ExportError(f"{describe(record)} has no arrays {BOXES!r} and {LABELS!r} of the same length: {REMEDY}")
        for label in labels.tolist():
            if type(label) is not int or not 0 <= label < len(self.classes):
                what = f"has a box with the label {label}, which is no class of the store"
                raise ExportError(f"{describe(record)} {what}: {REMEDY}")
        return boxes.astype(np.float64), labels.tolist()
