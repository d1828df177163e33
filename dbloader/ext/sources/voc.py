"""Read Pascal VOC's annotations. Each image has an XML file."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any, NoReturn
from xml.etree import ElementTree as ET

import numpy as np
from typing_extensions import override

from dbloader._describe import counted, short_repr
from dbloader.errors import SourceError
from dbloader.ext.sources.boxes import OWN_SIZE, box_fields, read_annotation
from dbloader.ext.sources.listing_files import PROBED, ListedFiles
from dbloader.ext.sources.listing_paths import encoded_path, name_below, prefix_of
from dbloader.sources.base import Entry, Problem, Source, Tally, readable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VOCSource(Source):
    """Reads the images and boxes of all XML files in ``folder``, or only of the XML files that ``chosen`` lists."""

    follows = ("boxes",)

    def __init__(self, folder: Path, root: Path, chosen: Path | None = None) -> None:
        try:
            if chosen is None:
                names = sorted(_annotations_in(folder))
            else:
                lines = chosen.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
                names = [f"{line.split()[0]}.xml" for line in lines if line.strip()]
        except OSError as error:
            raise SourceError(f"{readable(chosen or folder)}: cannot be read: {error.strerror}") from error
        if not names:
            way = "for YOLO, give data.yaml or classes.txt; otherwise, write a CSV with path,xmin,ymin,xmax,ymax,label"
            raise SourceError(
                f"{readable(chosen or folder)}: there is no annotation in it: looked for .xml files; {way}"
            )
        super().__init__(root, find_classes(folder / name for name in names))
        self._folder, self._names = folder, names
        boxes = f"{len(names):,} XML files, for the image (upright or stored) whose size they give"
        self._found = f"boxes: {boxes}, unless --boxes says otherwise"
        self.understood = (self._found,)

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        prefix, labels = prefix_of(self.root), {name: label for label, name in enumerate(self.classes)}
        files, renamed, copied, repeats = ListedFiles(self.root), 0, 0, list[str]()
        first: dict[bytes, str] = {}  # {image: its first XML file}
        for number, file in enumerate(self._names):
            found = _parse(self._folder / file)
            if isinstance(found, str):
                yield Problem(readable(file), found)
                continue
            folder, own = posixpath.split(os.fsencode(file))
            named = encoded_path(_text(found, "filename"), "names no image in a <filename>")
            path: bytes | str = named
            if isinstance(named, bytes):
                beside = posixpath.join(folder, named)  # images may have the folders of their XML files, as in ImageNet
                named = beside if folder and self._has(beside) else named
                if number < PROBED:
                    files.probe(named)
                path = files.find(named)
            is_voc = found.tag == "annotation"  # only VOC's XML may lack a <filename>: other XML would lose its boxes
            if (isinstance(path, str) and is_voc) or (isinstance(path, bytes) and not self._has(path)):
                # Labeling tools may write no name, the name without its extension, or an old name of the file.
                same = files.with_stem(posixpath.splitext(own)[0])
                path, renamed = (same[0], renamed + 1) if len(same) == 1 and files.probe(same[0]) else (path, renamed)
            elif isinstance(path, bytes) and self._is_of_another(path, file):
                same = files.with_stem(posixpath.splitext(own)[0])
                path, copied = (same[0], copied + 1) if len(same) == 1 else (path, copied)
            if isinstance(path, str):
                yield Problem(readable(file), path)
                continue
            name = name_below(path, prefix)
            if (other := first.setdefault(path, file)) != file:
                repeats.append(f"as {readable(file)} repeats {readable(other)}")
            try:
                yield Entry(name, (path,), None, object_fields(found, labels), boxes_in=size_of(found))
            except (ValueError, RecursionError) as error:
                yield Problem(name, f"its annotation {readable(file)} {error}")
        if notes := files.notes():
            self.understood = (f"{self._found} ({'; '.join(notes)})",)
        return Tally([*_warnings(renamed, copied, repeats)])

    def _is_of_another(self, path: bytes, file: str) -> bool:
        """Return whether an image has an XML file of its own, so that ``file`` may be a copy with an old name."""
        stem = posixpath.splitext(posixpath.basename(readable(path)))[0]
        own = posixpath.join(posixpath.dirname(file), f"{stem}.xml")
        return own != file and (self._folder / own).exists()

    def _has(self, path: bytes) -> bool:
        return os.path.lexists(posixpath.join(os.fsencode(self.root), path))


def _warnings(renamed: int, copied: int, repeats: list[str]) -> Iterator[str]:
    """Yield warnings about wrong names of images, and about XML files that have the image of another one."""
    taken = "the only image that is called like the XML file is taken instead"
    if renamed:
        yield f"{counted(renamed, '<filename>')} not found: {taken}"
    if copied:
        yield f"{counted(copied, '<filename>')} of an image that has an XML file of its own: {taken}"
    if repeats:
        what = f"{counted(len(repeats), 'XML file')} with an image of another, {repeats[0]}"
        yield f"{what}: each becomes a record; remove files that are there by mistake"


def _annotations_in(folder: Path) -> list[str]:
    """Return the paths of the XML files in a folder, or in its inner folders if the folder itself has none."""
    found = [name for name in os.listdir(folder) if name.lower().endswith(".xml")]  # noqa: PTH208
    if not found:
        for inner, _, names in os.walk(folder):
            below = os.path.relpath(inner, folder)
            found += [posixpath.join(below, name) for name in names if name.lower().endswith(".xml")]
    return found


def find_classes(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the sorted class names of all objects in XML files. Skip files that cannot be read."""
    parsed = map(_parse, paths)
    return tuple(sorted({name for found in parsed if not isinstance(found, str) for name in object_names(found)}))


def object_names(found: ET.Element) -> set[str]:
    """Return the class names of the objects in an annotation."""
    return {_text(item, "name") for item in found.iterfind("object")} - {""}


def size_of(found: ET.Element) -> tuple[int, int]:
    """Return the width and height of the image in an annotation, or OWN_SIZE if they are missing."""
    width, height = (_text(found, f"size/{side}") for side in ("width", "height"))
    return (int(width), int(height)) if width.isdecimal() and height.isdecimal() else OWN_SIZE


def object_fields(found: ET.Element, labels: dict[str, int]) -> dict[str, Any]:
    """Return the fields for an annotation; ValueError if it is wrong. ``fit_boxes`` checks the boxes later."""
    objects = [*found.iterfind("object")]
    boxes = []
    for item in objects:
        try:
            left, top, right, bottom = (float(_text(item, f"bndbox/{corner}")) for corner in _CORNERS)
        except ValueError as error:
            raise ValueError(f"has an object without four numbers in its <bndbox>: {error}") from error
        if _text(item, "name") not in labels:
            raise ValueError("has an object without a <name>, or its <name> was changed since it was first read")
        # VOC counts pixels from 1. The pixel at (xmax, ymax) is a part of the box.
        boxes.append((max(left - 1, 0.0), max(top - 1, 0.0), right, bottom))
    fields = box_fields(boxes, [labels[_text(item, "name")] for item in objects])
    for flag in ("difficult", "truncated"):
        fields[flag] = np.array([_text(item, flag) == "1" for item in objects], np.int64)
    fields["annotations"] = ET.tostring(found, encoding="unicode")
    return fields


class _Tree(ET.TreeBuilder):
    """Refuses document types: they could declare entities that include files or grow endlessly."""

    def doctype(self, name: str, *_: object) -> NoReturn:
        raise ValueError(f"it declares a document type, {short_repr(name, 50)}, which annotations do not need")


def _parse(path: Path) -> ET.Element | str:
    """Return the root of an XML file, or the reason why it cannot be used."""
    try:
        text = read_annotation(os.fsencode(path))
    except ValueError as error:
        return str(error)
    try:
        return ET.fromstring(text, ET.XMLParser(target=_Tree()))
    except (ET.ParseError, ValueError, LookupError) as error:
        return f"is not XML that can be used: {error}"


def _text(element: ET.Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()
