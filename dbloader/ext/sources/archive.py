"""The part that readers of tars and zips share: class folders, hidden and unread files, and encodings of names."""

from __future__ import annotations

import os
import posixpath
import re
from abc import abstractmethod
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader._describe import counted
from dbloader.ext.sources.class_folders import (
    CLASS_FOLDERS,
    FOLDERS_IN_WORDS,
    LISTINGS,
    Companions,
    Depths,
    folder_warnings,
)
from dbloader.ext.sources.labels import label_of, no_label
from dbloader.ext.sources.options import UNDECIDED
from dbloader.sources.base import Entry, Source, Tally, full_path, readable
from dbloader.sources.folder import SYSTEM, class_names, describe_classes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Problem

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
ZIPS = (".zip",)
_LABELS = re.compile(r"(?:^|/)labels/[^/]*\.txt$")  # YOLO's
_MOST_UNREAD = 1000  # an ArchiveTally keeps at most this many paths
_HIDDEN = re.compile(r"(?:^|/)\.(?!\./)")  # .x, but not the .. of ../x.jpg


@dataclass
class ArchiveTally(Tally):
    """A tally that also has the paths of unread files that may have labels, and of links that are not images."""

    unread: list[str] = field(default_factory=list)
    links: int = 0
    link: str = ""  # the first of the links

    def skip_path(self, path: str, *, is_link: bool = False) -> None:
        """Count an unread file of an archive."""
        if is_link:
            self.links, self.link = self.links + 1, self.link or path
        self.skip(os.fsencode(posixpath.basename(path)))
        is_listing = os.fsencode(path.lower()).endswith(LISTINGS) or _LABELS.search(path.lower())
        if is_listing and len(self.unread) < _MOST_UNREAD:
            self.unread.append(path)


class ArchiveSource(Source):
    """The images in one or more tar or zip files.

    ``shared`` is the number of outer folders that all images have in common, and ``labels`` maps class folders to
    labels. If ``shared`` is None, ``labels`` maps the texts in WebDataset's ``.cls`` files to labels.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        paths: Sequence[Path],
        classes: tuple[str, ...],
        labels: dict[str, int],
        shared: int | None = None,
        reading: Reading = UNDECIDED,
    ) -> None:
        super().__init__(Path(os.sep), classes, place=full_path(place))
        self._paths, self._labels, self._shared, self._reading = paths, labels, shared, reading
        self._chosen = reading.class_folder or "first"
        if shared is not None:
            self.follows = ("class_folder",)
            said = describe_classes(classes, FOLDERS_IN_WORDS[self._chosen])
            more = ": all images are in one; --class-folder last makes it their class" * (not classes and shared > 0)
            self.understood = (f"images: {self.place}", f"{said}{more}")
            self.warnings = tuple(folder_warnings("", classes))

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally, depths, companions, unlabelled, total = ArchiveTally(), Depths(), Companions(self), 0, 0
        again = 0  # images with the path of an earlier image in the same file
        for path in self._paths:
            names = array("q")
            for item in self._found(path, tally):
                if isinstance(item, Entry):
                    total += 1
                    names.append(hash(item.name))
                    unlabelled += item.label is None
                    if self._shared is not None:
                        depths.add(_below(item.name, self._shared))
                        companions.add(item)
                yield item
            again += len(names) - len(np.unique(np.array(names, np.int64)))
        if again:
            what = f"{counted(again, 'image')} with the path of an earlier image in the same file"
            way = "if only the last one counts, extract the file, and convert the folder"
            tally.warnings.append(f"{what}: each becomes a record; {way}")
        if 0 < unlabelled < total:
            tally.warnings.append(f"{unlabelled:,} of {total:,} images have no label{no_label()}")
        tally.warnings += depths.warnings(self.classes, self._reading) if self.classes else ()
        tally.warnings += companions.warnings(tally)
        if tally.links:
            what = f"{counted(tally.links, 'link')} not read, such as {readable(tally.link)}"
            way = "extract the file, and convert the folder"
            tally.warnings.append(f"{what}: if it leads to a folder of images, or to an image's text, {way}")
        tally.warnings += [*map(self._unread, filter(self._may_have_labels, tally.unread))][:1]
        return tally

    def _may_have_labels(self, path: str) -> bool:
        """Return whether an unread file may have labels. `ClassFolderSource` decides this in the same way."""
        if not self._labels:
            return True
        return path.lower().endswith((".csv", ".tsv")) and path.count("/") <= (self._shared or 0)

    def _unread(self, path: str) -> str:
        where = readable(self._paths[0].name) if len(self._paths) == 1 else "the files"
        file = "the data.yaml, or a classes.txt with a name on each line," if path.endswith(".txt") else "it"
        way = f"extract {where}, and give {file} as the listing (--listing)"
        return f"{readable(path)} in {where} is not read: if it has labels or boxes of the images, {way}"

    @abstractmethod
    def _found(self, path: Path, tally: ArchiveTally) -> Iterator[Entry | Problem]:
        """Yield the images in one file."""

    def _label(self, image: str, text: str = "") -> int | None:
        """Return the label of an image's class folder, or of the text in its ``.cls`` file; None without either."""
        if self._shared is not None:
            text = CLASS_FOLDERS[self._chosen](_below(image, self._shared))
        return label_of(self._labels, text, f"{self.place}, {readable(image)}") if text else None


def is_left_out(path: str, tally: Tally) -> bool:
    """Return whether a file is hidden, or in an operating system's folder. Count such files in ``tally``."""
    if found := SYSTEM.search(path):
        tally.system.add(path[: found.end() - 1])
    elif _HIDDEN.search(path):
        tally.hidden += 1
    return found is not None or _HIDDEN.search(path) is not None


def encoding_warning(where: str, names: Sequence[str]) -> str:
    """Return the warning that names in an archive are in an unknown encoding."""
    what = f"{where} has {counted(len(names), 'name')} whose encoding is not UTF-8, such as {names[0]!r}"
    return f"{what}: give the encoding, as in encoding='gbk' (--encoding gbk, shift_jis or cp437)"


def _below(image: str, shared: int) -> str:
    """Return the folder of an image, below the outer folders that all images have in common."""
    return "/".join(posixpath.dirname(image).split("/")[shared:])


def number_folders(
    folders: set[str], where: str, reading: Reading = UNDECIDED
) -> tuple[tuple[str, ...], dict[str, int], int, Reading]:
    """Find the class folders of images: return (class names, {class folder: label}, ``shared``, ``reading``).

    ``shared`` is the number of outer folders that all images have in common. The class of an image is the next folder
    in its path, unless ``reading`` chooses another. For ``data/cat`` and ``data/dog``, return ("cat", "dog"),
    {"cat": 0, "dog": 1}, 1 and ``reading``.
    """
    parts = [folder.split("/") if folder else [] for folder in folders]
    shared = 0
    while all(len(names) > shared for names in parts) and len({names[shared] for names in parts}) == 1:
        shared += 1
    if reading.class_folder is not None and shared and all(len(names) == shared for names in parts):
        shared -= 1  # all images are in one folder, and the option class_folder makes it the class
    class_of = CLASS_FOLDERS[reading.class_folder or "first"]
    classes = sorted({class_of("/".join(names[shared:])) for names in parts} - {""})
    return class_names(classes, where), {name: label for label, name in enumerate(classes)}, shared, reading
