"""YOLO's layout for Ultralytics: ``images``, ``labels`` with a text file for each image, and ``data.yaml``."""

from __future__ import annotations

import json
import os
import posixpath
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader.errors import ExportError
from dbloader.ext.exports.base import REMEDY, describe, new_file
from dbloader.ext.exports.detection import IMAGES, DetectionExporter
from dbloader.ext.sources.boxes import find_orientation
from dbloader.images.info import UPRIGHT
from dbloader.images.pillow import TURNS, turn_boxes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store


class YOLOExporter(DetectionExporter):
    """Writes YOLO's layout."""

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        if wrong := next((name for name in self.classes if {'"', "\\", "\n"} & {*name}), None):
            raise ExportError(f"{store.place}: the class {wrong!r} has a quote, backslash or line end: {REMEDY}")
        (folder / "labels").mkdir()
        self._last: tuple[str, ...] = ()
        self._unsorted = False

    @override
    def is_free(self, path: str) -> bool:
        return not os.path.lexists(self.folder / "labels" / f"{posixpath.splitext(path)[0]}.txt")

    @override
    def write(self, record: Record) -> None:
        boxes, labels = self.boxes(record)
        if not (record.width and record.height):
            raise ExportError(f"{describe(record)} has no width and height, but YOLO divides boxes by them: {REMEDY}")
        path = self.save(record)
        order = posixpath.split(path)
        self._unsorted, self._last = self._unsorted or order < self._last, order
        width, height = record.width, record.height
        orientation = find_orientation(record.image) if isinstance(record.image, bytes) and len(boxes) else UPRIGHT
        if orientation != UPRIGHT:  # Ultralytics turns images upright, so turn their boxes too
            if TURNS[orientation][0]:
                width, height = height, width
            boxes = turn_boxes(boxes.astype(np.float64), orientation, width, height)
        size = width, height, width, height
        with new_file(self.folder / "labels", f"{posixpath.splitext(path)[0]}.txt") as file:
            for label, corners in zip(labels, boxes.tolist(), strict=True):
                left, top, right, bottom = (corner / length for corner, length in zip(corners, size, strict=True))
                box = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
                file.write(f"{label} {' '.join(map(repr, box))}\n".encode())

    @override
    def finish(self) -> None:
        super().finish()
        names = [f"  {label}: {json.dumps(name, ensure_ascii=False)}" for label, name in enumerate(self.classes)]
        lines = [f"train: {IMAGES}", f"val: {IMAGES}", "names:", *names]
        (self.folder / "data.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if self._unsorted:
            self.warnings.append("records are not in the order of their paths, but convert reads files in that order")
