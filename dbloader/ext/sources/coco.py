"""Read COCO's annotations, a JSON object with lists of images, annotations and categories.

Such a file may have hundreds of MB. ``read_coco`` reads the whole file into memory and finds the position of each
object. Afterwards, memory holds at most 32 bytes for each object. An iteration decodes the objects of one image at a
time.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from codecs import BOM_UTF8
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from dbloader._describe import counted, short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import AS_FRACTIONS, FRACTIONS, OWN_SIZE, box_fields, coco_corners, is_number
from dbloader.ext.sources.listing_columns import PATH_COLUMNS
from dbloader.ext.sources.listing_files import PROBED, ListedFiles
from dbloader.ext.sources.listing_paths import encoded_path, name_below, prefix_of
from dbloader.records.manifest import CLASS_LISTS
from dbloader.sources.base import Entry, Problem, Source, Tally, readable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    _Array = np.ndarray[Any, np.dtype[np.int64]]
    _Rows = dict[str, _Array]

_BOM = BOM_UTF8.decode("latin-1")
_MARK = re.compile(r"[ \t\r\n]*([{}\[\]:,])[ \t\r\n]*")
_LISTS = ("images", "annotations", "categories")
_decode = json.JSONDecoder().raw_decode


def read_coco(listing: Path, root: Path) -> CocoSource | None:
    """Return the source of the images in a COCO file; None if the file has no list of COCO's images."""
    keys: set[str] = set()
    found = {key: array("q") for key in _LISTS}  # id, first byte and end of each object
    images_of, ids, kinds, has_pixels = array("q"), dict[str, int](), set[str](), False
    with listing.open("rb") as file:
        try:
            # In Latin-1, each byte is one character, so positions in the text are positions in the file.
            for key, value, begin, end in _members(str(mmap(file.fileno(), 0, access=ACCESS_READ), "latin-1")):
                keys.add(key)
                if key.removesuffix("_list") in PATH_COLUMNS:
                    return None
                if key not in _LISTS or begin == end:
                    continue
                if key == "images" and isinstance(value, dict) and not value.keys() & {"id", "file_name"}:
                    return None  # a listing, such as Karpathy's splits of Flickr30k
                where = f"{readable(listing)}, {key}, item {len(found[key]) // 3 + 1}"
                found[key].extend((_id(value, "id", where), begin, end))
                if key == "annotations":
                    images_of.append(_id(value, "image_id", where))
                    kinds.add(_kind(value))
                    has_pixels = has_pixels or _has_pixels(value.get("bbox"))
                elif key == "categories":
                    name = json.loads(os.pread(file.fileno(), end - begin, begin)).get("name")
                    if not isinstance(name, str) or name in ids:
                        raise SourceError(f"{where}: must have a unique name, got {short_repr(name)}")
                    ids[name] = value["id"]
        except (ValueError, RecursionError) as error:
            if "images" not in keys:
                return None
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{readable(listing)}: is not JSON: {error}") from error
    if "images" not in keys:
        return None
    rows = {key: np.array(values, np.int64).reshape(-1, 3) for key, values in found.items()}
    for key, values in rows.items():
        numbers, counts = np.unique(values[:, 0], return_counts=True)
        if len(numbers) < len(values):
            twice = numbers[counts > 1][0]
            raise SourceError(f"{readable(listing)}: two {key} have the id {twice}: give each its own id")
    kind = kinds.pop() if len(kinds) == 1 else "boxes"
    is_fraction = kind == "boxes" and len(images_of) > 0 and not has_pixels
    categories = dict(sorted((number, name) for name, number in ids.items()))
    return CocoSource(root, listing, categories, rows, np.array(images_of, np.int64), kind, is_fraction=is_fraction)


def _kind(annotation: dict[str, Any]) -> str:
    """Return what an annotation gives its image: "captions", "classes" as in iNaturalist's files, or "boxes"."""
    if annotation.get("bbox") or "segmentation" in annotation:
        return "boxes"
    return "captions" if isinstance(annotation.get("caption"), str) else "classes"


def _id(value: Any, key: str, where: str) -> int:
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict) and "segments_info" in value:
        raise SourceError(f"{where}: is of COCO's panoptic annotations, which have no boxes: give instances_….json")
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise SourceError(f"{where}: must be an object with an integer as its {key}, got {short_repr(value)}")
    return number


def _has_pixels(box: Any) -> bool:
    """Return whether a box has anything but numbers from 0 to 1, which may be fractions of width and height."""
    return not isinstance(box, list) or not all(is_number(number) and 0 <= number <= 1 for number in box)


class CocoSource(Source):
    """Reads images with boxes, captions or classes from a COCO file; made by ``read_coco``."""

    numbers_classes = True

    def __init__(
        self,
        root: Path,
        listing: Path,
        categories: dict[int, str],
        rows: _Rows,
        images_of: _Array,
        kind: str,
        *,
        is_fraction: bool,
    ) -> None:
        super().__init__(root, tuple(categories.values()))
        self.listing = listing
        self._prefix = prefix_of(root)
        self._files = ListedFiles(root)
        self._kind, self._is_fraction = kind, is_fraction
        found = f"{kind}: {len(images_of):,} annotations"
        if is_fraction:
            self.warnings = (AS_FRACTIONS,)
        if kind == "boxes":
            self.follows = ("boxes",)
            found += ", for the image (upright or stored) whose size they give, unless --boxes says otherwise"
        elif kind == "classes" and len(np.unique(images_of)) < len(images_of):
            self.target = CLASS_LISTS
        self._found, self.understood = found, (found,)
        self._labels = {number: label for label, number in enumerate(categories)}
        order = np.argsort(images_of, kind="stable")
        self._images, self._annotations, self._images_of = rows["images"], rows["annotations"][order], images_of[order]
        self._probed = {*self._images[:PROBED, 0].tolist()}

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        begins, ends = (np.searchsorted(self._images_of, self._images[:, 0], side) for side in ("left", "right"))
        names, tally = array("q"), Tally()
        with self.listing.open("rb") as file:
            for (number, first, last), begin, end in zip(self._images.tolist(), begins, ends, strict=True):
                spans = [(first, last), *self._annotations[begin:end, 1:].tolist()]
                texts = [os.pread(file.fileno(), last - first, first) for first, last in spans]
                try:
                    image, *annotations = map(json.loads, texts)
                    entry = self._entry(number, image, annotations, f"[{b', '.join(texts[1:]).decode()}]")
                except (ValueError, AttributeError) as error:
                    raise SourceError(f"{readable(self.listing)}: was changed since it was first read") from error
                names.append(hash(entry.name))
                yield entry
        if notes := self._files.notes():
            self.understood = (f"{self._found} ({'; '.join(notes)})",)
        if (repeated := len(names) - len(np.unique(names))) > 0:
            again = f"{counted(repeated, 'image')} with the file of an earlier image"
            tally.warnings.append(f"{again}: each becomes a record; give each file one id")
        for row in np.flatnonzero(~np.isin(self._images_of, self._images[:, 0])).tolist():
            reason = f"no image has the id {self._images_of[row]}"
            yield Problem(f"annotation {self._annotations[row, 0]}", reason)
        return tally

    def _entry(
        self, number: int, image: dict[str, Any], annotations: list[dict[str, Any]], text: str
    ) -> Entry | Problem:
        given = image.get("file_name")
        if given is None and isinstance(url := image.get("coco_url"), str):  # LVIS has no other name
            given = "/".join(url.split("/")[-2:])
        path = encoded_path(given)
        if isinstance(path, str):
            return Problem(f"image {number}", f"its file_name is no path: {short_repr(image.get('file_name'), 50)}")
        if number in self._probed:
            self._files.probe(path)
        if isinstance(path := self._files.find(path), str):
            return Problem(f"image {number}", path)
        name, boxes, labels = name_below(path, self._prefix), [], []
        if self._kind == "captions":
            captions = [annotation["caption"] for annotation in annotations]
            return Entry(name, (path,), None, {"captions": captions, "image_id": number})
        for annotation in annotations:
            category = annotation.get("category_id")
            try:
                if self._kind == "boxes":
                    boxes.append(coco_corners(annotation.get("bbox")))
                if type(category) is not int or category not in self._labels:
                    raise ValueError(f"has a category_id that no category has: {short_repr(category, 50)}")  # noqa: TRY301
                labels.append(self._labels[category])
            except ValueError as error:
                return Problem(name, f"its annotation {annotation['id']} {error}")
        if self._kind == "classes":
            fields: dict[str, Any] = {"image_id": number, "annotations": text}
            if self.target:
                return Entry(name, (path,), None, {**fields, CLASS_LISTS: sorted({*labels})})
            return Entry(name, (path,), labels[0] if labels else None, fields)
        crowds = np.array([bool(annotation.get("iscrowd")) for annotation in annotations], np.int64)
        fields = {**box_fields(boxes, labels), "iscrowd": crowds, "image_id": number, "annotations": text}
        size: Any = FRACTIONS if self._is_fraction else (image.get("width"), image.get("height"))
        return Entry(name, (path,), None, fields, boxes_in=size if all(map(is_number, size)) else OWN_SIZE)


def _members(text: str) -> Iterator[tuple[str, Any, int, int]]:
    """Yield (key, value, start, end) for each value in a JSON object, or for each item if the value is a list.

    The value or item is ``text[start:end]``. Before the values of each key, yield (key, None, 0, 0).
    """
    mark, at = _take(text, len(_BOM) * text.startswith(_BOM), "{")
    while mark != "}":
        if not text.startswith('"', at):
            raise ValueError(f"the key at byte {at} is no text")
        key, at = _decode(text, at)
        yield key, None, 0, 0
        _, at = _take(text, at, ":")
        if text.startswith("[", at):
            mark, at = _take(text, at, "[")
            if text.startswith("]", at):
                mark, at = _take(text, at, "]")
            while mark != "]":
                value, end = _decode(text, at)
                yield key, value, at, end
                mark, at = _take(text, end, ",]")
        else:
            value, end = _decode(text, at)
            yield key, value, at, end
            at = end
        mark, at = _take(text, at, ",}")


def _take(text: str, at: int, marks: str) -> tuple[str, int]:
    """Return the mark at a position, such as "{", and the position after it. Only ``marks`` are allowed there."""
    found = _MARK.match(text, at)
    if found is None or found[1] not in marks:
        raise ValueError(f"expected one of {marks!r} at byte {at:,}")
    return found[1], found.end()
