"""Read images from class folders, and warn if the names of the folders seem to be no classes."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import unicodedata
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from dbloader._describe import counted
from dbloader.ext.sources.options import UNDECIDED
from dbloader.sources.base import Entries, Entry, readable
from dbloader.sources.folder import (
    METADATA_FILES,
    SIDECARS,
    SUFFIXES,
    FolderSource,
    describe_classes,
    describe_unused,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from dbloader.ext.sources.options import Reading
    from dbloader.sources.base import Problem, Source, Tally

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
_PARTS = {"images", "labels", "annotations", "jpegimages"}  # folders of a data set; no class has such a name
# Words in the names of folders of images (_PICTURES) or their labels (_ANSWERS), as in train_masks or gtFine. A class
# may have such a name, as in mask and no_mask. So a warning needs folders of both kinds, and no other class folder.
_PICTURES = {"image", "images", "img", "imgs", "rgb"}
_ANSWERS = {
    "mask", "masks", "label", "labels", "gt", "truth", "annotation", "annotations", "annot", "ann", "anns", "seg",
    "segmentation", "trimap", "trimaps",
}  # fmt: skip
_OF_IMAGES = re.compile(r"(?i)(?<=.)[_-](?:images?|imgs?|jpe?g|png|data)$")  # as in train_images, test-jpg
# A file beside images may have their labels or boxes if its name ends with one of these.
_TABLES = (b".csv", b".tsv")
LISTINGS = (*_TABLES, b".json", b".jsonl", b".ndjson", b".xml", b"classes.txt")

_YOLO = re.compile(rb"[0-9]+(?=.*\.)(?:[ \t]+[0-9.]+){4}")  # the first line of YOLO's labels
# The end of a mask's name
_MASK = re.compile(r"_(?:masks?|seg|segmentation|gt|labels?|trimap)(?:_?[0-9]+)?$", re.IGNORECASE)
_IN_JSON = re.compile(rb"(?:" + b"|".join(map(re.escape, SUFFIXES)) + rb")\"", re.IGNORECASE)
_TEXTS = (".caption", ".captions", ".tag", ".tags")  # extensions of texts about an image in other programs
_SAMPLE = 20  # number of text files to look at; the first may be empty, because its image has no boxes

# For each value of the option ``class_folder``, a function finds the class in the path of an image's folder.
CLASS_FOLDERS: dict[str, Callable[[str], str]] = {
    "first": lambda folder: folder.partition("/")[0],
    "last": lambda folder: folder.rpartition("/")[2],
    "path": lambda folder: folder,
}
FOLDERS_IN_WORDS = {"first": "the first folder", "last": "the last folder", "path": "the folders"}


class ClassFolderSource(FolderSource):
    """A folder of images in class folders. The class is the first folder of a path, unless the user chooses another."""

    follows = ("class_folder",)

    def __init__(self, folder: str | os.PathLike[str], reading: Reading = UNDECIDED) -> None:
        self._reading = reading
        self._chosen = reading.class_folder or "first"
        super().__init__(folder)
        if self.classes:
            self.understood = (*self.understood[:1], describe_classes(self.classes, FOLDERS_IN_WORDS[self._chosen]))
        self.warnings = (*folder_warnings(self.root, self.classes), *_listings_in(self.root, self.classes))

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
        depths, companions, entries = Depths(), Companions(self), Entries(super().entries())
        for item in entries:
            if isinstance(item, Entry):
                companions.add(item)
                if self.classes:
                    depths.add(posixpath.dirname(item.name))
            yield item
        tally = entries.tally
        tally.warnings += depths.warnings(self.classes, self._reading, self.root)
        tally.warnings += companions.warnings(tally)
        return tally


class Companions:
    """Finds files that belong to images beside them: masks called like their images, and texts with YOLO's boxes."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source  # reads the texts; None if that takes too long
        self._images = array("q")  # hashes of the images' paths without extensions
        self._masked = array("q")  # hashes of the masks' paths without extensions and without _mask
        self._texts = 0
        self._mask = self._boxes = ""  # names of the first mask and of the first text with boxes

    def add(self, entry: Entry) -> None:
        """Take an image into account."""
        stem = posixpath.splitext(entry.name)[0]
        self._images.append(hash(stem))
        if mask := _MASK.search(stem):
            self._masked.append(hash(stem[: mask.start()]))
            self._mask = self._mask or entry.name
        text = entry.files.get("txt")
        if self._source and text and self._texts < _SAMPLE and not self._boxes:
            self._texts += 1
            data = next(iter(self._source.read([Entry(text.name, text.location, None, {})], lambda size: None)))
            self._boxes = text.name if isinstance(data, bytes) and _YOLO.match(data) else ""

    def warnings(self, tally: Tally) -> Iterator[str]:
        """Yield a warning for each kind of companions."""
        for extension in filter(tally.skipped.__contains__, _TEXTS):
            what = f"{counted(tally.skipped[extension], f'{extension} file')} not read"
            yield f"{what}: if each has the text of the image with its name, rename them from {extension} to .txt"
        if self._boxes:
            way = "give the data.yaml, or a classes.txt with a name on each line, as the listing (--listing)"
            yield f"{self._boxes} looks like boxes of YOLO, but becomes a text: {way}"
        masks = np.count_nonzero(np.isin(self._masked, self._images))
        if self._masked and 4 * masks >= len(self._images):
            found = f"{counted(int(masks), 'image')} called like a mask of another image, such as {self._mask}"
            way = "for masks, give a listing (--listing) with a column of images and one of masks (--file-field)"
            yield f"{found}: each becomes a record; {way}"


class Depths:
    """Finds out whether all images are in inner folders of the class folders, as in ``cat/brown/0.jpg``."""

    def __init__(self) -> None:
        self._direct = ""  # a class folder with an image directly in it
        self._inner: dict[str, str] = {}  # {name: path} of the first two inner folders with different names

    def add(self, folder: str) -> None:
        """Take into account the folder of an image. The first part of its path is the class."""
        _, inner, last = folder.rpartition("/")
        if not inner:
            self._direct = folder
        elif len(self._inner) < 2:
            self._inner.setdefault(last, folder)

    def warnings(self, classes: tuple[str, ...], reading: Reading, root: Path | str = "") -> Iterator[str]:
        """Yield a warning if another folder may be the class."""
        is_odd = reading.class_folder is None and not self._direct and len(self._inner) > 1
        if is_odd and not [*folder_warnings(root, classes)]:
            yield (
                f"the class folders contain only folders, such as {quoted([*self._inner.values()])}: if the innermost "
                "folder or the path is the class, say so by class_folder (--class-folder last, or path)"
            )


def is_split(name: str) -> bool:
    """Return whether a name means a split, such as train, val2017 or test_set."""
    return name.lower().removesuffix("set").rstrip("0123456789_-") in _SPLITS


def _words(name: str) -> set[str]:
    """Return the words of a name such as leftImg8bit or train_masks, in small letters."""
    return {*map(str.lower, re.findall(r"[A-Z]*[a-z]+|[A-Z]+", name))}


def number_warnings(found: Source) -> Iterator[str]:
    """Yield a warning if the names of all classes are numbers, but the label of a class is another number."""
    classes = found.classes
    numbers = {name: int(name) for name in classes if re.fullmatch("-?[0-9]{1,18}", name)}
    other = next((label for label, name in enumerate(classes) if numbers.get(name) != label), None)
    is_ours = [*classes] == sorted(classes) and not found.numbers_classes  # else somebody has chosen the order
    if len(numbers) == len(classes) and is_ours and other is not None:
        what = f"the names of the classes look like numbers, but the label of {classes[other]!r} is {other}"
        yield f"{what}: classes='numbers' (--classes numbers) makes the numbers the labels"


def folded(name: str) -> str:
    """Return a name without what people do not see: case, invisible characters, spaces or _, Unicode's form."""
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", visible).casefold().replace("_", " ").split())


def name_warnings(classes: tuple[str, ...]) -> Iterator[str]:
    """Yield warnings about names of classes that look alike, or that are padded."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(folded(name), []).append(name)
    for names in alike.values():
        if len(names) > 1 and max(map(len, names)) > 1:  # single letters, such as a and A, may be different classes
            what = "they differ only by capital letters, spaces, _, or Unicode's normal form (NFC, NFD, NFKC)"
            yield f"the classes {quoted(names)} look alike: {what}; if they are one class, give them one name"
    if padded := [name for names in alike.values() for name in names if len(names) == 1 and name != name.strip()]:
        yield f"spaces became a part of the names of the classes {quoted(padded)}: remove them in the source"


def folder_warnings(root: Path | str, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning if class folders look like the splits or parts of a data set; ``root`` is "" for archives."""
    parts = [name for name in classes if name.lower() in _PARTS]
    splits = [name for name in classes if is_split(_OF_IMAGES.sub("", name))]
    pictures = [name for name in classes if is_split(name) or not _PICTURES.isdisjoint(_words(name))]
    answers = [name for name in classes if not _ANSWERS.isdisjoint(_words(name))]
    if pictures and answers and {*pictures, *answers} == {*classes}:
        parts = parts or [name for name in classes if name not in splits]
    if parts:
        images = [name for name in parts if "images" in name.lower()]
        first = images or [*{*classes}.difference(parts)] or [name for name in parts if name not in answers] or parts
        what, way = "parts of a data set, not classes", "convert "
        more = ", and give a listing (--listing) unless it has class folders"
    elif len(classes) == 1 and classes[0] == posixpath.basename(readable(root).rstrip("/")):
        first, what, way, more = [*classes], "the data set, not a class", "convert ", ""
    elif len(splits) > 1 or (splits and len(classes) == 1):
        first = [name for name in splits if "train" in name.lower()] or splits  # other splits use the classes of train
        what, way, more = "splits", "convert one at a time, first ", ""
    else:
        return
    way = f"{way if root else f'extract the file, and {way}'}{posixpath.join(readable(root), min(first))}"
    yield f"the classes are called {quoted(classes)}: these look like {what}; {way}{more}"


def names_images(root: Path, name: bytes) -> bool:
    """Return whether a JSON file names images near its beginning."""
    with suppress(OSError):
        if name.lower().endswith((b".json", b".jsonl")):
            with Path(root, os.fsdecode(name)).open("rb") as file:
                return _IN_JSON.search(file.read(2**16)) is not None
    return False


def _listings_in(root: Path, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield warnings about files in a folder that may have labels or boxes of its images, or names of classes."""
    names = sorted(name for name in os.listdir(os.fsencode(root)) if not name.startswith(b"."))  # noqa: PTH208 - bytes
    images = [name for name in names if name.lower().endswith(SUFFIXES)]
    stems = {*images, *(posixpath.splitext(name)[0] for name in images)}
    for name in names:
        stem, extension = posixpath.splitext(name)
        is_field = stem in stems and extension.lower() in SIDECARS
        if is_field or (classes and readable(name) in METADATA_FILES):
            continue
        path = readable(posixpath.join(os.fsencode(root), name))
        if name == b"metadata.parquet":
            yield describe_unused(readable(name))
            return
        if stem in stems and extension.lower() == b".cls":
            way = f"pack the folder (tar --sort=name -cf x.tar -C {shlex.quote(readable(root))} .), and convert x.tar"
            yield f"{readable(name)} beside the images is not read: if it has the label, {way}"
            return
        is_yolo = {"images", "labels"} <= {*classes} if name.lower() == b"classes.txt" else _has_names(path)
        if classes and name.lower() == b"classes.txt" and not is_yolo:
            with suppress(OSError):
                lines = Path(root, os.fsdecode(name)).read_bytes().splitlines()
                if [*map(bytes.strip, lines)] == [*map(os.fsencode, classes)]:
                    continue
            yield f"{readable(name)} is not read: if it has the order of the classes, give it (--classes {path})"
        elif is_yolo or name.lower().endswith(_TABLES if classes else LISTINGS) or names_images(root, name):
            path = str(root) if extension.lower() == b".xml" else path
            what = f"{readable(name)} beside the {'class folders' if classes else 'images'} is not read"
            yield f"{what}: if it has labels or boxes of the images, give it as a listing (--listing {path})"
            return


def _has_names(path: str) -> bool:
    """Return whether a file is YAML with names of classes, such as YOLO's ``data.yaml``."""
    with suppress(OSError):
        return path.lower().endswith((".yaml", ".yml")) and b"\nnames:" in b"\n" + Path(path).read_bytes()
    return False
