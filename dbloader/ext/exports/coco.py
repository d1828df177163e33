"""COCO's layout: the folder ``images``, and ``annotations.json`` with images, annotations and categories.

The records of a store made from COCO contain the original annotations. If these annotations still describe all boxes,
the export writes them, with segmentations. Otherwise the export makes an annotation of each box.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader.errors import DamagedRecordError
from dbloader.ext.exports.detection import DetectionExporter
from dbloader.ext.sources.boxes import BOXES, LABELS, coco_corners

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

ANNOTATIONS = "annotations.json"


class COCOExporter(DetectionExporter):
    """Writes COCO's layout. The constructor reads all records of the export, to find their original annotations."""

    kept = frozenset({BOXES, LABELS, "iscrowd", "image_id", "annotations"})

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        super().__init__(store, indices, folder)
        original = self._original_ids()
        self._is_original = bool(original)
        self._ids = original or [*range(1, len(self.classes) + 1)]
        self._made = 0  # number of new annotations
        self._before_image = self._before_annotation = ""  # separators: "" before the first item, then a comma
        self._images = (folder / ANNOTATIONS).open("w", encoding="utf-8")
        self._images.write('{"images": [')
        self._annotations = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)  # noqa: SIM115 - closed below

    def _original_ids(self) -> list[int]:
        """Return the id of each category if COCO annotations describe the boxes of all exported records, else []."""
        images, annotations, known = array("q"), array("q"), dict[int, int]()
        for record in self.records():
            found = _original(record)
            if found is None:
                return []
            images.append(record.fields["image_id"])
            for annotation, label in zip(found, record.fields[LABELS].tolist(), strict=True):
                annotations.append(annotation["id"])
                if known.setdefault(label, annotation["category_id"]) != annotation["category_id"]:
                    return []
        if not all(len(np.unique(np.frombuffer(part, np.int64))) == len(part) for part in (images, annotations)):
            return []
        return self._complete(self._with_other_records(known)) or self._complete(known)

    def _with_other_records(self, known: dict[int, int]) -> dict[int, int]:
        """Add the ids of classes that occur only in records outside of the query, and return all ids.

        So a class has the same id in exports with different queries.
        """
        if len(self.indices) == len(self.store):
            return known
        known = dict(known)
        for index in range(len(self.store)):
            if len(known) == len(self.classes):
                break
            with suppress(DamagedRecordError):
                [record] = self.store.read([index])
                for annotation, label in zip(_original(record) or (), record.fields.get(LABELS, ()), strict=False):
                    known.setdefault(int(label), annotation["category_id"])
        return known

    def _complete(self, known: dict[int, int]) -> list[int]:
        """Return an id for each class, in the order of the labels; [] if these ids would not ascend.

        If no id is known, a class gets the id of the next class, minus 1. After the last known id, ids are consecutive.
        """
        ids: list[int] = []  # the id of the last class comes first
        count, last = len(self.classes), max(known, default=-1)
        above = known.get(last, 0) + count - last
        for label in reversed(range(count)):
            above = known.get(label, above - 1)
            ids.append(above)
        return ids[::-1] if ids == sorted({*ids}, reverse=True) else []

    @override
    def write(self, record: Record) -> None:
        boxes, labels = self.boxes(record)
        size = {"width": record.width, "height": record.height} if record.width and record.height else {}
        number = record.fields["image_id"] if self._is_original else int(record.index or 0) + 1
        image = {"id": number, "file_name": self.save(record), **size}
        self._images.write(f"{self._before_image}\n{json.dumps(image)}")
        self._before_image = ","
        if self._is_original:
            annotations = record.fields["annotations"].strip()[1:-1].strip()
        else:
            crowds = np.resize(np.asarray(record.fields.get("iscrowd", 0)), len(labels)).tolist()
            rows = zip(boxes.tolist(), labels, crowds, strict=True)
            annotations = ",\n".join(self._annotation(number, *row) for row in rows)
        if annotations:
            self._annotations.write(f"{self._before_annotation}\n{annotations}")
            self._before_annotation = ","

    def _annotation(self, image: int, corners: list[float], label: int, crowd: int) -> str:
        self._made += 1
        left, top, right, bottom = corners
        box = [left, top, right - left, bottom - top]
        about = {"id": self._made, "image_id": image, "category_id": self._ids[label]}
        return json.dumps({**about, "bbox": box, "area": box[2] * box[3], "iscrowd": int(bool(crowd))})

    @override
    def finish(self) -> None:
        super().finish()
        self._images.write('],\n"annotations": [')
        self._annotations.seek(0)
        shutil.copyfileobj(self._annotations, self._images)
        pairs = zip(self._ids, self.classes, strict=True)
        categories = [{"id": number, "name": name} for number, name in pairs]
        self._images.write(f'],\n"categories": {json.dumps(categories)}}}\n')
        self.close()

    @override
    def close(self) -> None:
        self._images.close()
        self._annotations.close()


def _original(record: Record) -> list[dict[str, int]] | None:
    """Return the COCO annotations of a record if they describe its boxes, else None."""
    if not (record.width and record.height) or record.resized_from is not None:
        return None
    try:
        found: list[dict[str, int]] = json.loads(record.fields["annotations"])
        corners = np.array([coco_corners(one["bbox"]) for one in found], np.float32).reshape(-1, 4)
        same = np.array_equal(np.clip(corners, 0, [record.width, record.height] * 2), record.fields[BOXES])
        numbers = [record.fields["image_id"], *(one[key] for one in found for key in ("id", "category_id"))]
        is_whole = all(type(number) is int and abs(number) < 2**63 for number in numbers)
        same = same and len(record.fields[LABELS]) == len(found) and all(one["image_id"] == numbers[0] for one in found)
    except (KeyError, TypeError, ValueError):
        return None
    return found if same and is_whole else None
