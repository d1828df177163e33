"""Read YOLO's annotations. Each image has a text file, with a line for each box."""

from __future__ import annotations

import os
import posixpath
import re
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
    from collections.abc import Generator

    from dbloader.sources.base import Tally

_PLAIN = r"""(?:'[^'\\]*'|"[^"\\]*"|\w[^\\'"#:,\[\]{}]*)"""  # a text in YAML, with or without quotes
_NO_LABELS = (b"classes.txt", b"README.txt", b"README.dataset.txt", b"README.roboflow.txt")
_TRIANGLE = 7  # a polygon's line has at least 7 numbers: a class, and x and y of three corners
_CLASSES_TXT = "give a classes.txt with a name in each line, as the listing (--listing)"


def _read_names(text: str, where: str) -> list[str]:
    """Return the ``names`` in a YAML file: a list in brackets, or a list or map with a name in each line."""
    block = re.search(r"^names[ \t]*:((?:.*\n?)(?:[ \t\-#].*\n?|\n)*)", text, re.MULTILINE)
    value = re.sub(r"(?m)(?:^|[ \t])#.*$", "", block[1]).strip() if block else ""
    inline = re.fullmatch(rf"\[\s*({_PLAIN})((?:,\s*{_PLAIN})*),?\s*\]", value)
    found = []
    if inline:
        found = [inline[1], *re.findall(rf",\s*({_PLAIN})", inline[2])]
    else:
        for line in filter(str.strip, value.splitlines()):
            item = re.fullmatch(rf"[ \t]*(?:-|(\d+):)[ \t]+({_PLAIN})", line)
            if not item or (item[1] and int(item[1]) != len(found)):
                raise SourceError(f"{where}: its names are not a simple list: {short_repr(line)}; {_CLASSES_TXT}")
            found.append(item[2])
    if not found:
        raise SourceError(f"{where}: it has no names of classes; {_CLASSES_TXT}")
    return [name.strip().strip("'\"") for name in found]


def _images_of(root: Path) -> Path:
    """Return the folder of a data set that contains the images. Raise SourceError if there are several splits."""
    is_whole = (root / "images").is_dir() and (root / "labels").is_dir()
    folder, inside = (root / "images", "") if is_whole else (root, "images")
    splits = sorted(path / inside for path in folder.iterdir() if is_split(path.name) and (path / inside).is_dir())
    if len(splits) > 1:
        found = ", ".join(str(path.relative_to(folder)) for path in splits)
        raise SourceError(
            f"{readable(folder)}: has several splits ({found}): convert one at a time, first {readable(splits[0])}"
        )
    return splits[0] if splits and inside else folder


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
        if listing.suffix.lower() == ".txt":
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
        parts = [*root.absolute().parts]
        if "images" in parts:
            parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # replaces the last "images" in the path
        self._labels = os.fsencode(Path(*parts))
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
            labels = posixpath.join(self._labels, file)
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
            raise SourceError(f"{readable(self._labels)}: there is no .txt file in it for any image of {self.place}")
        for folder, inside, names in os.walk(self._labels):
            inside.sort()
            for name in sorted(names):
                labels = posixpath.join(folder, name)
                if name.endswith(b".txt") and name not in _NO_LABELS and hash(labels) not in files:
                    file = posixpath.relpath(labels, self._labels)
                    yield Problem(readable(file), "labels an image that is not there")
        return images.tally

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
                form = "a class and x, y, width, height"
                if self._pose is not None:
                    form += f", perhaps with {self._pose - 5} numbers of keypoints"
                raise ValueError(f"line {number} must be {form}, got {short_repr(line)}")
            is_plain &= len(values) == 5
            label, numbers = int(values[0].removesuffix(".0")), [*map(float, values[1:])]
            if is_polygon:
                if outside := next((value for value in numbers if not 0 <= value <= 1), None):
                    raise ValueError(f"line {number} has a corner outside of 0 to 1: {outside:g}")
                low, high = ((edge(numbers[::2]), edge(numbers[1::2])) for edge in (min, max))
                numbers = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, high[0] - low[0], high[1] - low[1]]
            x, y, width, height = numbers[:4]
            if not 0 <= label < len(self.classes):
                raise ValueError(f"line {number} has the class {label}, but classes are 0 to {len(self.classes) - 1}")
            labels.append(label)
            boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        return {**box_fields(boxes, labels), **({} if is_plain else {"annotations": text})}
