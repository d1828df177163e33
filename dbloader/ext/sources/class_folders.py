"""Folders whose class is not the first folder of a path, and warnings about names of class folders."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from typing import TYPE_CHECKING

from typing_extensions import override

from dbloader.ext.sources.options import UNDECIDED
from dbloader.sources.base import Entries, Entry, readable
from dbloader.sources.folder import SIDECARS, SUFFIXES, FolderSource, describe_classes, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Problem, Tally

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
# Extensions of files that may have the labels or boxes of the images beside them.
_LISTINGS = (b".csv", b".tsv", b".json", b".jsonl", b".ndjson", b".xml", b"classes.txt")

# The class of an image, from the path of its folder.
CLASS_FOLDERS: dict[str, Callable[[str], str]] = {
    "first": lambda folder: folder.partition("/")[0],
    "last": lambda folder: folder.rpartition("/")[2],
    "path": lambda folder: folder,
}
FOLDERS_IN_WORDS = {"first": "the first folder", "last": "the last folder", "path": "the folders"}


class ClassFolderSource(FolderSource):
    """A folder of class folders, of which the user may choose another than the first one."""

    follows = ("class_folder",)

    def __init__(self, folder: str | os.PathLike[str], reading: Reading = UNDECIDED) -> None:
        self._reading = reading
        self._chosen = reading.class_folder or "first"
        super().__init__(folder)
        if self.classes:
            self.understood = (*self.understood[:1], describe_classes(self.classes, FOLDERS_IN_WORDS[self._chosen]))
        self.warnings = tuple(first_warnings(self.root, self.classes) if self.classes else _listings_in(self.root))

    @override
    def class_of(self, folder: str) -> str:
        return CLASS_FOLDERS[self._chosen](folder)

    @override
    def labelled_folders(self) -> Iterable[bytes]:
        return super().labelled_folders() if self._chosen == "first" else self.image_folders()

    @override
    def opened_again(self) -> FolderSource:
        return ClassFolderSource(self.root, self._reading)

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        depths, entries = Depths(), Entries(super().entries())
        for item in entries:
            if isinstance(item, Entry) and self.classes:
                depths.add(posixpath.dirname(item.name))
            yield item
        entries.tally.warnings += depths.warnings(self.classes, self._reading)
        return entries.tally


class Depths:
    """Whether all images are in further folders inside the class folders, with different names."""

    def __init__(self) -> None:
        self._direct = ""  # a class folder with an image directly in it
        self._inner: dict[str, str] = {}  # names of the further folders -> their paths; the first two

    def add(self, folder: str) -> None:
        """Take the folder of an image into account, whose first part is the class."""
        _, inner, last = folder.rpartition("/")
        if not inner:
            self._direct = folder
        elif len(self._inner) < 2:
            self._inner.setdefault(last, folder)

    def warnings(self, classes: tuple[str, ...], reading: Reading) -> Iterator[str]:
        """Yield a warning if another folder may be the class."""
        if reading.class_folder is None and not self._direct and len(self._inner) > 1 and not _are_splits(classes):
            yield (
                f"the class folders contain only folders, such as {quoted([*self._inner.values()])}: if the innermost "
                "folder or the path is the class, say so by class_folder (--class-folder last, or path)"
            )


def _are_splits(classes: tuple[str, ...]) -> bool:
    return bool(classes) and SPLITS.issuperset(name.lower() for name in classes)


def number_warnings(classes: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning if the names of all classes are numbers, and a number is not the label of its class."""
    numbers = {name: int(name) for name in classes if re.fullmatch("[0-9]{1,18}", name)}
    other = next((label for label, name in enumerate(classes) if numbers.get(name) != label), None)
    if len(numbers) == len(classes) and other is not None:
        what = f"the class folders look like numbers, but the label of {classes[other]!r} is {other}"
        yield f"{what}: classes='numbers' (--classes numbers) makes the numbers the labels"


def first_warnings(root: Path | str, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield warnings about class folders that look like splits, like numbers, or alike; ``root`` is "" for archives."""
    if _are_splits(classes):
        way = f"convert one at a time, first {posixpath.join(readable(root), classes[0])}"
        way = way if root else "extract the file, and convert one at a time"
        yield f"the classes are called {quoted(classes)}: these look like splits; {way}"
    yield from number_warnings(classes)
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(unicodedata.normalize("NFC", name).casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            what = "they differ only by capital letters, spaces, or Unicode's normal form (NFC, NFD)"
            yield f"the classes {quoted(names)} look alike: {what}; if they are one class, give their folders one name"


def _listings_in(root: Path) -> Iterator[str]:
    """Yield a warning if a file directly in a folder of images may have the labels of these images."""
    names = sorted(name for name in os.listdir(os.fsencode(root)) if not name.startswith(b"."))  # noqa: PTH208 - bytes
    images = [name for name in names if name.lower().endswith(SUFFIXES)]
    stems = {*images, *(posixpath.splitext(name)[0] for name in images)}
    for name in names:
        stem, extension = posixpath.splitext(name)
        is_beside = stem in stems and extension.lower() in SIDECARS  # a field of its image
        if name.lower().endswith(_LISTINGS) and not is_beside:
            listing = root if name.lower().endswith(b".xml") else readable(os.path.join(os.fsencode(root), name))  # noqa: PTH118
            what = "if it has labels or boxes of the images, give it as a listing"
            yield f"{readable(name)} beside the images is not read: {what} (--listing {listing})"
            return
