"""A folder of images, with one folder for each class, in the order of torchvision's ImageFolder.

dbloader differs from ImageFolder in six ways. It takes files of more formats, such as GIF and HEIC. It leaves out
names that begin with a dot (macOS puts a ``._x.jpg`` without an image next to each ``x.jpg`` that it copies), and
folders that a Mac, a NAS or Windows has added. In each class, it takes a folder only once, so loops of links end. It
keeps a class without images, with a warning. If no folder has images, it takes the images directly in the root, without
labels. A ``x.txt`` or ``x.json`` beside ``x.jpg`` becomes a field.
"""

from __future__ import annotations

import heapq
import os
import posixpath
import re
import unicodedata
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.base import (
    UNDECIDED,
    Entry,
    FieldFile,
    Problem,
    Source,
    Tally,
    Unreadable,
    checked_root,
    name_range,
    problem_of,
    readable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from dbloader.sources.base import Reading

    _Found = tuple[bytes, dict[bytes, dict[str, bytes]]]  # path of an image, and `_Contents.beside` of its folder

# Extensions of torchvision.datasets.folder, then others of the formats in images/pillow.py; upper case matches too.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".avif", ".heic", ".heif", ".hif", ".jpe", ".jfif", ".mpo", ".apng", ".jp2", ".j2k", ".jpc", ".jpf", ".jpx",
    ".j2c", ".pbm", ".pnm", ".pfm", ".ico", ".qoi", ".pcx", ".tga", ".jxl",
)  # fmt: skip
LOOKED_FOR = f"looked for {', '.join(EXTENSIONS[:12])} and {len(EXTENSIONS) - 12} more extensions"
METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # Hugging Face's imagefolder reads them
SUFFIXES = tuple(extension.encode() for extension in EXTENSIONS)
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
ZIPS = (".zip",)

SIDECARS = (b".txt", b".json")  # extensions of files beside an image that become its fields
# Extensions of files that may have the labels or boxes of the images beside them.
_LISTINGS = (b".csv", b".tsv", b".json", b".jsonl", b".ndjson", b".xml", b"classes.txt")
# Folders that macOS and netatalk, Windows, Synology, QNAP, and other file servers add, in a path.
_SYSTEM = re.compile(
    r"(?:^|/)(?:RECYCLER|(?i:__macosx|network trash folder|temporary items|thevolumesettingsfolder"
    r"|\$recycle\.bin|\$extend|system volume information|found\.[0-9]{3}|msocache"
    r"|@eadir|@tmp|@sharesnap|@syno[^/]*|#recycle|#snapshot|@recycle|@recently-snapshot|@__thumb|@transcode"
    r"|@upload_cache|[@~]snapshots?|network recycle bin|_nas_recycle_[^/]*|_gsdata_|lost\+found))/"
)
_HIDDEN = re.compile(r"(?:^|/)\.(?!\./)")  # not in ../x.jpg

_MAX_NAMED = 10  # most names in a warning
OUTSIDE = "is outside of all class folders: put it into one, or move it away"
LATE = "came after its folder was listed: convert again, or add it to a folder of shards with --append --new-only"


class _Contents(NamedTuple):
    """The names in one folder."""

    folders: list[bytes]
    images: list[bytes]
    problems: list[Problem]
    beside: dict[bytes, dict[str, bytes]]  # files beside images: the stem or name of an image -> field -> file


class FolderSource(Source):
    """The images in a folder of class folders.

    Classes are sorted. Within a class, folders are sorted by their path as a string (``a-b`` before ``a/b``), and
    the files of a folder by their names. Links are followed. Names are kept byte for byte. Memory holds the names in
    one folder and the folders of one class.

    With ``as_one_class``, all images below the folder are one class, and their names begin with ``./``.
    """

    follows = ("class_folder",)

    def __init__(
        self, folder: str | os.PathLike[str], reading: Reading = UNDECIDED, *, as_one_class: bool = False
    ) -> None:
        super().__init__(checked_root(folder), ())
        root, self._reading, self._as_one_class = os.fsencode(self.root), reading, as_one_class
        self._tally = Tally()
        try:
            self._identity = _identity(root)
            self._top = _Contents([b"."], [], [], {}) if as_one_class else _list_folder(root, b"", self._tally)
        except OSError as error:
            raise SourceError(f"{readable(root)}: the folder cannot be read: {error.strerror}") from error
        if not (self._top.folders or self._top.images):
            found = "; ".join(["no image directly in it", *map(": ".join, self._top.problems[:1])])
            raise SourceError(
                f"{readable(root)}: it contains no class folders ({found}): "
                "put the images of each class into a folder or use --listing FILE"
            )
        self._is_flat = bool(self._top.images) and next(self._image_folders(), None) is None
        folders = [] if self._is_flat else self._top.folders
        if reading.class_folder in ("last", "path"):
            folders = [*self._image_folders()]
        self._class_of = CLASS_FOLDERS[reading.class_folder or "first"]
        names = sorted({self._class_of(_order(folder)) for folder in folders})
        self._labels = {name: label for label, name in enumerate(names)}
        self.classes = class_names([os.fsencode(name) for name in names], readable(root))
        self.understood = (f"images: {self.place}", describe_classes(self.classes, reading.class_folder))
        if self._is_flat:
            self.warnings = tuple(_describe_listings(self.root, self._top))
        elif not as_one_class:
            self.warnings = tuple(first_warnings(self.root, self.classes))

    def _image_folders(self) -> Iterator[bytes]:
        """Yield the folder of each image in a class folder."""
        for folder in self._top.folders:
            for found in self._walk(folder, Tally()):
                if not isinstance(found, Problem):
                    yield posixpath.dirname(found[0])

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally = deepcopy(self._tally)
        filled, depths = [False] * len(self.classes), Depths()
        yield from self._top.problems
        for name in self._top.images:
            yield _entry((name, self._top.beside), None, tally) if self._is_flat else Problem(readable(name), OUTSIDE)
        for folder in [] if self._is_flat else self._top.folders:
            for found in self._walk(folder, tally):
                if isinstance(found, Problem):
                    yield found
                    continue
                inner = _order(posixpath.dirname(found[0]))
                label = self._labels.get(self._class_of(inner))
                if label is None:
                    yield Problem(readable(found[0]), LATE)
                    continue
                filled[label] = True
                depths.add(inner)
                yield _entry(found, label, tally)
        if not self._is_flat:
            check_filled(readable(self.root), self.classes, filled, tally)
            tally.warnings += [] if self._as_one_class else depths.warnings(self.classes, self._reading)
        return tally

    @override
    def late(self, listed: Iterable[Entry | Problem]) -> Iterator[dict[str, str]]:
        # Not a set, which would need several times the memory.
        known = np.unique(np.fromiter((hash(item.name) for item in listed), "i8"))
        with suppress(SourceError):  # the folder is gone, or all images are
            for item in FolderSource(self.root, self._reading, as_one_class=self._as_one_class).entries():
                if not (known[known.searchsorted(hash(item.name)) :][:1] == hash(item.name)).any():
                    yield {"name": item.name, "event": "rejected", "reason": LATE}

    def _walk(self, folder: bytes, tally: Tally) -> Iterator[_Found | Problem]:
        """Yield the images of one class; each folder is listed once, when its turn comes.

        A folder's path sorts before the paths of its subfolders, so a heap of known folders gives the sorted order.
        """
        root = os.fsencode(self.root)
        pending = [(_order(folder), folder)]
        visited = {self._identity: b"."}  # the root, because a link to it would mix all classes into this one
        while pending:
            path = heapq.heappop(pending)[1]
            try:
                same = visited.setdefault(_identity(posixpath.join(root, path)), path)
                if same != path:
                    reason = f"is the same folder as {readable(same)!r}, which is taken only once"
                    yield Problem(readable(path), reason)
                    continue
                contents = _list_folder(root, path, tally, sidecars=not self._as_one_class)
            except OSError as error:
                where = posixpath.join(root, path)
                problem = problem_of(error, readable(path), where)
                if isinstance(problem, Unreadable):  # all files of the folder are unreadable
                    raise SourceError(f"{readable(where)} {problem.reason}; is its disk there?") from error
                yield problem._replace(reason=f"the folder {problem.reason}")
                continue
            for name in contents.folders:
                inner = posixpath.join(path, name)
                heapq.heappush(pending, (_order(inner), inner))
            yield from contents.problems
            for name in contents.images:
                yield posixpath.join(path, name), contents.beside


def _entry(found: _Found, label: int | None, tally: Tally) -> Entry:
    path, beside = found
    if not beside:
        tally.files += 1
        return Entry(readable(path), (path,), label, {})
    folder, name = posixpath.split(path)
    there = beside.get(posixpath.splitext(name)[0]) or beside.get(name) or {}
    paths = {field: posixpath.join(folder, file) for field, file in sorted(there.items())}
    tally.count_beside(paths)
    files = {field: FieldFile(readable(file), (file,)) for field, file in paths.items()}
    return Entry(readable(path), (path,), label, {}, files=files)


def _list_folder(root: bytes, path: bytes, tally: Tally, *, sidecars: bool = True) -> _Contents:
    """Return the contents of a folder, sorted; the names of problems are paths below the root."""
    contents, others = _Contents([], [], [], {}), list[bytes]()
    with os.scandir(posixpath.join(root, path)) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                tally.hidden += 1
                continue
            try:
                if entry.is_dir():
                    if is_system(readable(entry.name)):
                        tally.system.add(readable(posixpath.join(path, entry.name)))
                    else:
                        contents.folders.append(entry.name)
                    continue
                if entry.is_symlink():
                    entry.stat()  # raises for a broken link, which may have led to a folder
            except OSError as error:
                reason = f"the link cannot be followed: {error.strerror}"
                contents.problems.append(Problem(readable(entry.name), reason))
                continue
            if entry.name.lower().endswith(SUFFIXES):
                contents.images.append(entry.name)  # or a named pipe, which becomes a problem when it is read
                continue
            others.append(entry.name)
    images = {name for image in contents.images if others for name in (image, posixpath.splitext(image)[0])}
    for name in sorted(others):
        stem, extension = posixpath.splitext(name)
        if sidecars and stem in images and extension.lower() in SIDECARS:
            contents.beside.setdefault(stem, {})[extension[1:].decode().lower()] = name
            continue
        tally.skip(name)
        if readable(name) in METADATA_FILES:  # metadata that can be used makes a folder another source
            tally.metadata = tally.metadata or readable(posixpath.join(path, name))
    contents.folders.sort(key=_order)
    contents.images.sort(key=_order)
    for name in (*contents.folders, *contents.images):
        if readable(name).encode() != name:
            tally.not_utf8 += 1
            tally.not_utf8_example = tally.not_utf8_example or readable(name)
    where = readable(path)
    problems = [Problem(posixpath.join(where, name), reason) for name, reason in sorted(contents.problems)]
    return contents._replace(problems=problems)


def class_names(folders: Sequence[bytes] | Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names of some class folders as text; SourceError if two become the same text."""
    classes = tuple(map(readable, folders))
    if len({*classes}) < len(classes):
        raise SourceError(
            f"{where}: two class folders would have the same name, because one name is not valid UTF-8: rename one"
        )
    return classes


def find_other_form(path: bytes) -> bytes | None:
    """Return the one path of a file or folder that looks like ``path`` and is there; None if not exactly one is.

    macOS and some programs write an accented letter as two characters (Unicode's form NFD), and most lists have one
    (NFC). Each part of the path may be in its own form.
    """
    found = [b"/"[: path.startswith(b"/")]]
    for part in path.split(b"/"):
        forms = {part, *(os.fsencode(unicodedata.normalize(form, os.fsdecode(part))) for form in ("NFC", "NFD"))}
        there = (posixpath.join(top, form) or b"." for top in found for form in forms)
        found = [other for other in there if os.path.lexists(other)]
    return found[0] if len(found) == 1 else None


def is_system(name: str) -> bool:
    """Return whether a folder has a name of those that a Mac, a NAS or Windows adds."""
    return _SYSTEM.match(f"{name}/") is not None


def is_left_out(path: str, tally: Tally) -> bool:
    """Return whether a file of an archive or bucket is hidden or in a system's folder; count it if so."""
    if found := _SYSTEM.search(path):
        tally.system.add(path[: found.end() - 1])
    elif _HIDDEN.search(path):
        tally.hidden += 1
    return found is not None or _HIDDEN.search(path) is not None


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - pathlib has no bytes
    return status.st_dev, status.st_ino


def _order(path: bytes) -> str:
    """Return a path as a Python string, because torchvision sorts paths as Python strings."""
    return path.decode("utf-8", "surrogateescape")


# The class of an image, from the path of its folder.
CLASS_FOLDERS: dict[str, Callable[[str], str]] = {
    "first": lambda folder: folder.partition("/")[0],
    "last": lambda folder: folder.rpartition("/")[2],
    "path": lambda folder: folder,
}


def describe_classes(classes: tuple[str, ...], class_folder: str | None) -> str:
    """Return the line that says where the labels are from."""
    kind = {"last": "the last folder", "path": "the folders"}.get(class_folder or "", "the first folder")
    return (
        f"labels: {kind} of each path: {name_range(classes)}" if classes else "labels: none, for lack of class folders"
    )


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
                f"the class folders contain only folders, such as {_named([*self._inner.values()])}: if the innermost "
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
        yield f"the classes are called {_named(classes)}: these look like splits; {way}"
    yield from number_warnings(classes)
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(unicodedata.normalize("NFC", name).casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            what = "they differ only by capital letters, spaces, or Unicode's normal form (NFC, NFD)"
            yield f"the classes {_named(names)} look alike: {what}; if they are one class, give their folders one name"


def _describe_listings(root: Path, top: _Contents) -> Iterator[str]:
    """Yield a warning if a file directly in a folder may have the labels of its images."""
    beside = {name for files in top.beside.values() for name in files.values()}
    names = sorted(name for name in os.listdir(os.fsencode(root)) if name.lower().endswith(_LISTINGS))  # noqa: PTH208 - bytes
    if name := next((name for name in names if name not in beside and not name.startswith(b".")), None):
        listing = root if name.lower().endswith(b".xml") else readable(os.path.join(os.fsencode(root), name))  # noqa: PTH118
        what = "if it has labels or boxes of the images, give it as a listing"
        yield f"{readable(name)} beside the images is not read: {what} (--listing {listing})"


def check_filled(place: str, classes: tuple[str, ...], filled: list[bool], tally: Tally) -> None:
    """Raise SourceError if no class has an image, and add the last warnings to the tally.

    They are about classes without images, metadata that is not used, and names that are not UTF-8.
    """
    if not any(filled):
        others = tally.skipped.most_common(3)
        found = "".join(f", found {count} {kind or 'without extension'}" for kind, count in others)
        raise SourceError(f"{place}: there is not one image in its class folders: {LOOKED_FOR}{found}")
    empty = [name for name, has_images in zip(classes, filled, strict=True) if not has_images]
    if empty:
        has = "class has" if len(empty) == 1 else "classes have"
        tally.warnings.append(f"{len(empty)} {has} no images: {_named(empty)}")
    if tally.metadata:
        tally.warnings.append(describe_unused(tally.metadata))
    if tally.not_utf8:
        names = "name is" if tally.not_utf8 == 1 else "names are"
        example = f"each invalid byte is written as in '{tally.not_utf8_example}'"
        tally.warnings.append(f"{tally.not_utf8} {names} not valid UTF-8: {example}")


def describe_unused(path: str) -> str:
    """Return the warning that a metadata file is not used."""
    what = "metadata must be a metadata.csv or metadata.jsonl directly in the folder, with a column file_name"
    return f"{path} is not used: {what}; or use a listing (--listing)"


def _named(names: Sequence[str]) -> str:
    """Return the first ten of some names, quoted, and how many more there are."""
    some = ", ".join(map(repr, names[:_MAX_NAMED]))
    more = len(names) - _MAX_NAMED
    return some if more <= 0 else f"{some} and {more} more"
