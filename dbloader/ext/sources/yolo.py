"""YOLO's annotations: a text file for each image, with a line for each box."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader._describe import short_repr
from dbloader.errors import SourceError
from dbloader.sources.base import Entries, Entry, Problem, Source, readable
from dbloader.sources.boxes import FRACTIONS, box_fields, read_annotation
from dbloader.sources.folder import FolderSource

if TYPE_CHECKING:
    from collections.abc import Generator

    from dbloader.sources.base import Tally

_PLAIN = r"""(?:'[^'\\]*'|"[^"\\]*"|\w[^\\'"#:,\[\]{}]*)"""  # a text in YAML, with or without quotes
_CLASSES_TXT = "give a classes.txt with a name in each line as the listing (--listing)"


def _read_names(text: str, where: str) -> list[str]:
    """Return the ``names`` of a YAML file: a list in brackets, or a list or map with a name in each line."""
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


class YOLOSource(Source):
    """All images in a folder, with the boxes of their label files.

    ``listing`` is ``data.yaml`` or ``classes.txt`` with class names. The labels of ``images/train/x.jpg`` are in
    ``labels/train/x.txt``. If no folder in the path is called ``images``, they are in ``x.txt`` beside the image.
    """

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
        super().__init__(root, tuple(names))
        parts = [*root.absolute().parts]
        if "images" in parts:
            parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"  # replaces the last "images" in the path
        self._labels = os.fsencode(Path(*parts))

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        images, files, labelled = Entries(FolderSource(self.root, as_one_class=True)), set(), False
        for item in images:
            if isinstance(item, Problem):
                yield item
                continue
            path = posixpath.normpath(item.location[0])
            file = posixpath.splitext(path)[0] + b".txt"
            files.add(hash(file))
            there = os.path.lexists(posixpath.join(self._labels, file))  # no file means no objects
            labelled |= there
            try:
                fields = box_fields(*self._read(file)) if there else box_fields([], [])
            except ValueError as error:
                yield Problem(readable(path), f"its labels {readable(file)} cannot be used: {error}")
                continue
            yield Entry(readable(path), (path,), None, fields, boxes_in=FRACTIONS)
        if not labelled:
            raise SourceError(f"{readable(self._labels)}: there is no .txt file in it for any image of {self.place}")
        for folder, folders, names in os.walk(self._labels):
            folders.sort()
            for name in sorted(names):
                file = posixpath.relpath(posixpath.join(folder, name), self._labels)
                if name.endswith(b".txt") and name != b"classes.txt" and hash(file) not in files:
                    yield Problem(readable(file), "labels an image that is not there")
        return images.tally

    def _read(self, file: bytes) -> tuple[list[list[float]], list[int]]:
        boxes, labels = [], []
        text = read_annotation(posixpath.join(self._labels, file)).decode("utf-8-sig")
        for number, line in enumerate(text.splitlines(), 1):
            values = line.split()
            if not values:
                continue
            if len(values) != 5:
                raise ValueError(f"line {number} must be a class and x, y, width, height, got {short_repr(line)}")
            label, (x, y, width, height) = int(values[0]), map(float, values[1:])
            if not 0 <= label < len(self.classes):
                raise ValueError(f"line {number} has the class {label}, but classes are 0 to {len(self.classes) - 1}")
            labels.append(label)
            boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        return boxes, labels
