"""Read YOLO's annotations. Each image has a text file, with a line for each box."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import FRACTIONS, box_fields, read_annotation
from dbloader.ext.sources.class_folders import is_split
from dbloader.sources.base import Entries, Entry, Problem, Source, readable
from dbloader.sources.folder import FolderSource

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from dbloader.sources.base import Tally

# A class name in YAML, perhaps after its number. Each name has a line, or all names are in brackets.
_NUMBER = r"""(?P<quote>['"]?)(?P<number>\d+)(?P=quote)[ \t]*:\s+"""
_NAME = r"""(?P<name>'[^'\\\n]*'|"[^"\\\n]*"|\w[^\\'"#:,\[\]{}\n]*)"""
_LINE = re.compile(rf"[ \t]*(?:-[ \t]+|{_NUMBER}){_NAME}[ \t]*(?:\n\s*|$)")
_IN_BRACKETS = re.compile(rf"\s*(?:{_NUMBER})?{_NAME}\s*(?:,\s*|(?=[\]}}]$))")

_NO_LABELS = (b"classes.txt", b"README.txt", b"README.dataset.txt", b"README.roboflow.txt")
_TRIANGLE = 7  # a polygon's line has at least 7 numbers: a class, and x and y of three corners
_KPT_SHAPE = "give a data.yaml with kpt_shape as the listing (--listing)"
_CLASSES_TXT = "give a classes.txt with a name in each line, as the listing (--listing)"


def _read_names(text: str, where: str) -> list[str]:
    """Return the ``names`` in a YAML file. They are a list, perhaps with numbers, in brackets or on several lines."""
    block = re.search(r"^names[ \t]*:((?:.*\n?)(?:[ \t\-#\]}].*\n?|\n)*)", text, re.MULTILINE)
    value = re.sub(r"(?m)(?:^|[ \t])#.*$", "", block[1]).strip() if block else ""
    in_brackets = value[:1] + value[-1:] in ("[]", "{}")
    at, end, found = int(in_brackets), len(value) - in_brackets, dict[int, str]()
    while at < end:
        item = (_IN_BRACKETS if in_brackets else _LINE).match(value, at)
        is_map = item is not None and item["number"] is not None
        if item is None or is_map != (value[0] not in "[-") or (is_map and int(item["number"]) in found):
            wrong = short_repr(value[at:].strip().partition("\n")[0])
            raise SourceError(f"{where}: its names are not a simple list: {wrong}; {_CLASSES_TXT}")
        found[int(item["number"]) if is_map else len(found)] = item["name"].strip().strip("'\"")
        at = item.end()
    if not found:
        raise SourceError(f"{where}: it has no names of classes; {_CLASSES_TXT}")
    if max(found) >= len(found):
        lacking = min({*range(len(found))}.difference(found))
        raise SourceError(
            f"{where}: its names lack the number {lacking}: give each number from 0 to {max(found)} a name"
        )
    return [found[number] for number in range(len(found))]


def _images_of(root: Path) -> Path:
    """Return the folder of the images in a data set. Raise SourceError if there are several splits."""
    is_whole = (root / "images").is_dir() and (root / "labels").is_dir()
    folder, inside = (root / "images", "") if is_whole else (root, "images")
    splits = sorted(path / inside for path in folder.iterdir() if is_split(path.name) and (path / inside).is_dir())
    if len(splits) > 1:
        found = ", ".join(str(path.relative_to(folder)) for path in splits)
        raise SourceError(
            f"{readable(folder)}: has several splits ({found}): convert one at a time, first {readable(splits[0])}"
        )
    return splits[0] if splits and inside else folder


def _labels_of(root: Path) -> Path:
    """Return the folder in which Ultralytics and Darknet look for the labels of the images in ``root``."""
    parts = [*root.absolute().parts]
    images = next((name for name in ("images", "JPEGImages") if name in parts), "")
    if not images:
        return root.absolute()
    at = len(parts) - 1 - parts[::-1].index(images)  # of the last one
    labels = Path(*parts[:at], "labels", *parts[at + 1 :])
    return labels if images == "images" or labels.is_dir() else root.absolute()


def _may_be_pose(numbers: Sequence[float]) -> bool:
    """Return whether numbers may be x, y, width and height of a box, and then x and y of points in it."""
    (x, y, width, height), points = numbers[:4], numbers[4:]
    is_box = width / 2 <= x <= 1 - width / 2 and height / 2 <= y <= 1 - height / 2
    in_box = all(abs(value - x) <= width / 2 for value in points[::2])
    return is_box and in_box and all(abs(value - y) <= height / 2 for value in points[1::2])


class YOLOSource(Source):
    """Reads all images in a folder, and their boxes from label files.

    ``listing`` is a ``data.yaml`` or ``classes.txt`` with class names. The label file of ``images/train/x.jpg`` is
    ``labels/train/x.txt``. If no folder in the path is called ``images``, the file is ``x.txt`` beside the image.
    """

    follows = ("boxes",)
    numbers_classes = True

    def __init__(self, listing: Path, root: Path) -> None:
        try:
            text = listing.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{readable(listing)}: cannot be read: {error}") from error
        self._is_list = listing.suffix.lower() not in (".yaml", ".yml")
        if self._is_list:
            names = [line.strip() for line in text.splitlines() if line.strip()]
        else:
            names = _read_names(text, readable(listing))
        if len({*names}) < len(names):
            raise SourceError(f"{readable(listing)}: two of its classes have the same name: {short_repr(names)}")
        if "images" not in root.absolute().parts:
            root = _images_of(root)
        super().__init__(root, tuple(names))
        keypoints = re.search(r"^kpt_shape[ \t]*:[ \t]*\[[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*\]", text, re.MULTILINE)
        # how many numbers a line with keypoints has; None if data.yaml has no kpt_shape
        self._pose = 5 + int(keypoints[1]) * int(keypoints[2]) if keypoints else None
        if keypoints is None and re.search(r"^kpt_shape\b", text, re.MULTILINE):
            raise SourceError(f"{readable(listing)}: its kpt_shape is not a list such as [17, 3]: write one")
        self._labels = os.fsencode(_labels_of(root))
        # Counts of numbers in lines that were read as polygons, and whether one of them cannot be a box with keypoints.
        self._lengths, self._are_polygons = set[int](), False
        self.understood = (
            f"boxes: labels in {readable(self._labels)}, of upright images unless --boxes says otherwise",
        )

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        images, files, labelled = Entries(FolderSource(self.root, as_one_class=True).entries()), set(), False
        for item in images:
            if isinstance(item, Problem):
                yield item
                continue
            path = posixpath.normpath(item.location[0])
            file = posixpath.splitext(path)[0] + b".txt"
            labels = self._label_file(file)
            there = os.path.lexists(labels)  # no file means no objects
            files.add(hash(labels))
            labelled |= there
            try:
                fields = self._read(labels) if there else box_fields([], [])
            except ValueError as error:
                yield Problem(readable(path), f"its labels {readable(file)} cannot be used: {error}")
                continue
            yield Entry(readable(path), (path,), None, fields, boxes_in=FRACTIONS)
        if not labelled:
            raise SourceError(
                f"{readable(self._labels)}: there is no .txt file in it for any image of {self.place}; the labels of "
                "images/train/x.jpg are in labels/train/x.txt, or, if no folder is called images, beside the image"
            )
        for folder, inside, names in os.walk(self._labels):
            inside.sort()
            for name in sorted(names):
                labels = posixpath.join(folder, name)
                if name.endswith(b".txt") and name not in _NO_LABELS and hash(labels) not in files:
                    file = posixpath.relpath(labels, self._labels)
                    yield Problem(readable(file), "labels an image that is not there")
        if self._is_list and len(self._lengths) == 1 and not self._are_polygons:
            what = (
                f"all lines of {next(iter(self._lengths))} numbers were read as polygons, but fit a box and keypoints"
            )
            images.tally.warnings.append(f"{what} too: for keypoints, {_KPT_SHAPE}")
        return images.tally

    def _label_file(self, file: bytes) -> bytes:
        """Return the path of a label file, which may have the other Unicode form (NFC, NFD) of the image's name."""
        labels = posixpath.join(self._labels, file)
        if not (file.isascii() or os.path.lexists(labels)):
            for form in ("NFC", "NFD"):
                other = posixpath.join(self._labels, unicodedata.normalize(form, readable(file)).encode())
                labels = other if os.path.lexists(other) else labels
        return labels

    def _read(self, file: bytes) -> dict[str, Any]:
        """Return the fields of a label file. A polygon becomes a box. ``annotations`` keeps polygons and keypoints."""
        boxes, labels, is_plain = [], [], True
        text = read_annotation(file).decode("utf-8-sig")
        for number, line in enumerate(text.splitlines(), 1):
            values = line.split()
            if not values:
                continue
            is_polygon = self._pose is None and len(values) >= _TRIANGLE and len(values) % 2
            if len(values) not in (5, self._pose) and not is_polygon:
                form, way = "a class and x, y, width, height", ""
                if self._pose is not None:
                    form += f", perhaps with {self._pose - 5} numbers of keypoints"
                elif len(values) > _TRIANGLE:
                    way = f"; for keypoints, {_KPT_SHAPE}"
                raise ValueError(f"line {number} must be {form}, got {short_repr(line)}{way}")
            is_plain &= len(values) == 5
            label, numbers = int(values[0].removesuffix(".0")), [*map(float, values[1:])]
            if is_polygon:
                if outside := next((value for value in numbers if not 0 <= value <= 1), None):
                    raise ValueError(
                        f"line {number} has a corner outside of 0 to 1: {outside:g}; for keypoints, {_KPT_SHAPE}"
                    )
                self._lengths.add(len(values))
                self._are_polygons = self._are_polygons or not _may_be_pose(numbers)
                low, high = ((edge(numbers[::2]), edge(numbers[1::2])) for edge in (min, max))
                numbers = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, high[0] - low[0], high[1] - low[1]]
            x, y, width, height = numbers[:4]
            if not 0 <= label < len(self.classes):
                raise ValueError(f"line {number} has the class {label}, but classes are 0 to {len(self.classes) - 1}")
            labels.append(label)
            boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        return {**box_fields(boxes, labels), **({} if is_plain else {"annotations": text})}
