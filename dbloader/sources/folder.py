"""A folder of images, with one folder for each class, in the order of torchvision's ImageFolder.

dbloader differs from ImageFolder in six ways. It reads more formats, such as GIF and HEIC. It leaves out folders that a
Mac, a NAS or Windows has added, and names that begin with a dot (macOS adds a ``._x.jpg`` to ``x.jpg``). In each class,
it reads a folder only once, so loops of links end. A class without images keeps its label, with a warning. If no folder
has images, dbloader reads the images directly in the root, without labels. A ``x.txt`` or ``x.json`` beside ``x.jpg``
becomes a field of its record.
"""

from __future__ import annotations

import heapq
import os
import posixpath
import re
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader.errors import SourceError
from dbloader.sources.base import (
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
    from collections.abc import Generator, Iterable, Iterator, Sequence

    _Found = tuple[bytes, dict[bytes, dict[str, bytes]]]  # path of an image, and `_Contents.beside` of its folder

# Extensions of torchvision's ImageFolder, then more for the formats in images/pillow.py. Upper case matches too.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".avif", ".heic", ".heif", ".hif", ".jpe", ".jfif", ".mpo", ".apng", ".jp2", ".j2k", ".jpc", ".jpf", ".jpx",
    ".j2c", ".pbm", ".pnm", ".pfm", ".ico", ".qoi", ".pcx", ".tga", ".jxl",
)  # fmt: skip
LOOKED_FOR = f"looked for {', '.join(EXTENSIONS[:12])} and {len(EXTENSIONS) - 12} more extensions"
METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # Hugging Face's imagefolder reads them
SUFFIXES = tuple(extension.encode() for extension in EXTENSIONS)
SIDECARS = (b".txt", b".json")  # if a file with such an extension is beside an image, it becomes a field of the record
# Matches a path below a folder that macOS, netatalk, Windows, Synology, QNAP or another file server has added.
SYSTEM = re.compile(
    r"(?:^|/)(?:RECYCLER|(?i:__macosx|network trash folder|temporary items|thevolumesettingsfolder"
    r"|\$recycle\.bin|\$extend|system volume information|found\.[0-9]{3}|msocache"
    r"|@eadir|@tmp|@share(?:snap|bin)|@syno[^/]*|#recycle|#snapshot|@recycle|@recently-snapshot|@__thumb|@transcode"
    r"|@upload_cache|[@~]snapshots?|network recycle bin|_nas_recycle_[^/]*|_gsdata_|lost\+found|lost\.dir))/"
)

_MAX_NAMED = 10  # most names in a warning
OUTSIDE = "is outside of all class folders: put it into one, or move it away"
LATE = "was added after its folder was listed: convert again, or add it to a folder of shards with --append --new-only"


class _Contents(NamedTuple):
    """The names in one folder."""

    folders: list[bytes]
    images: list[bytes]
    problems: list[Problem]
    beside: dict[bytes, dict[str, bytes]]  # files beside images: the stem or name of an image -> field -> file


class FolderSource(Source):
    """The images in a folder of class folders.

    Classes are sorted. Within a class, folders are sorted by path, as strings (``a-b`` before ``a/b``). Within a
    folder, files are sorted by name. Links are followed. Names are kept byte for byte. Memory contains only the names
    in one folder and the folders of one class.

    With ``as_one_class``, all images below the folder are one class, and their names begin with ``./``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, as_one_class: bool = False) -> None:
        super().__init__(checked_root(folder), ())
        root, self._as_one_class = os.fsencode(self.root), as_one_class
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
        self._is_flat = bool(self._top.images) and next(self.image_folders(), None) is None
        folders = () if self._is_flat else self.labelled_folders()
        names = sorted({self.class_of(_order(folder)) for folder in folders})
        self._labels = {name: label for label, name in enumerate(names)}
        self.classes = class_names([os.fsencode(name) for name in names], readable(root))
        self.understood = (f"images: {self.place}", describe_classes(self.classes))

    def class_of(self, folder: str) -> str:
        """Return the class of the images in a folder. ``folder`` is a path below the root."""
        return folder.partition("/")[0]

    def labelled_folders(self) -> Iterable[bytes]:
        """Return folders, as paths below the root, for which ``class_of`` returns all classes."""
        return self._top.folders

    def image_folders(self) -> Iterator[bytes]:
        """Yield the path of each image's folder below the root. Images directly in the root are left out."""
        for folder in self._top.folders:
            for found in self._walk(folder, Tally()):
                if not isinstance(found, Problem):
                    yield posixpath.dirname(found[0])

    def opened_again(self) -> FolderSource:
        """Return a new source of the same images."""
        return FolderSource(self.root, as_one_class=self._as_one_class)

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally = deepcopy(self._tally)
        filled = [False] * len(self.classes)
        yield from self._top.problems
        for name in self._top.images:
            yield _entry((name, self._top.beside), None, tally) if self._is_flat else Problem(readable(name), OUTSIDE)
        for folder in [] if self._is_flat else self._top.folders:
            for found in self._walk(folder, tally):
                if isinstance(found, Problem):
                    yield found
                    continue
                label = self._labels.get(self.class_of(_order(posixpath.dirname(found[0]))))
                if label is None:
                    yield Problem(readable(found[0]), LATE)
                    continue
                filled[label] = True
                yield _entry(found, label, tally)
        if not self._is_flat:
            check_filled(readable(self.root), self.classes, filled, tally)
        return tally

    @override
    def late(self, listed: Iterable[Entry | Problem]) -> Iterator[dict[str, str]]:
        # A set would need several times the memory of this array.
        known = np.unique(np.fromiter((hash(item.name) for item in listed), "i8"))
        with suppress(SourceError):  # the folder or all its images are gone
            for item in self.opened_again().entries():
                if not (known[known.searchsorted(hash(item.name)) :][:1] == hash(item.name)).any():
                    yield {"name": item.name, "event": "rejected", "reason": LATE}

    def _walk(self, folder: bytes, tally: Tally) -> Iterator[_Found | Problem]:
        """Yield the images of one class in sorted order.

        A folder sorts before its subfolders, and adds them to a heap. So the heap always contains the next folder.
        """
        root = os.fsencode(self.root)
        pending = [(_order(folder), folder)]
        visited = {self._identity: b"."}  # do not follow links to the root: they would mix all classes into one
        while pending:
            path = heapq.heappop(pending)[1]
            try:
                same = visited.setdefault(_identity(posixpath.join(root, path)), path)
                if same != path:
                    reason = f"is the same folder as {readable(same)!r}, which is read only once"
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
    """Return the sorted contents of a folder. Problems are named by their paths below the root."""
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
                    entry.stat()  # raises an error for a broken link, which may have led to a folder
            except OSError as error:
                reason = f"the link cannot be followed: {error.strerror}"
                contents.problems.append(Problem(readable(entry.name), reason))
                continue
            if entry.name.lower().endswith(SUFFIXES):
                contents.images.append(entry.name)  # may be a named pipe, which `read` reports as a problem
                continue
            others.append(entry.name)
    images = {name for image in contents.images if others for name in (image, posixpath.splitext(image)[0])}
    for name in sorted(others):
        stem, extension = posixpath.splitext(name)
        if sidecars and stem in images and extension.lower() in SIDECARS:
            contents.beside.setdefault(stem, {})[extension[1:].decode().lower()] = name
            continue
        tally.skip(name)
        if readable(name) in METADATA_FILES:  # unusable: with usable metadata, this would be another kind of source
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
    """Return the names of class folders as text. Raise SourceError if two names become the same text."""
    classes = tuple(map(readable, folders))
    if len({*classes}) < len(classes):
        raise SourceError(
            f"{where}: two class folders would have the same name, because one name is not valid UTF-8: rename one"
        )
    return classes


def is_system(name: str) -> bool:
    """Return whether a folder of this name was added by a Mac, a NAS or Windows."""
    return SYSTEM.match(f"{name}/") is not None


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - pathlib has no bytes
    return status.st_dev, status.st_ino


def _order(path: bytes) -> str:
    """Return a path as a Python string, because torchvision sorts paths as Python strings."""
    return path.decode("utf-8", "surrogateescape")


def describe_classes(classes: tuple[str, ...], folders: str = "the first folder") -> str:
    """Return a line of text that shows which folder of each path gives the label."""
    found = f"{folders} of each path: {name_range(classes)}" if classes else "none, for lack of class folders"
    return f"labels: {found}"


def check_filled(place: str, classes: tuple[str, ...], filled: list[bool], tally: Tally) -> None:
    """Raise SourceError if no class has an image, and add warnings to the tally.

    The warnings are about classes without images, unused metadata, and names that are not UTF-8.
    """
    if not any(filled):
        others = tally.skipped.most_common(3)
        found = "".join(f", found {count} {kind or 'without extension'}" for kind, count in others)
        raise SourceError(f"{place}: there is not one image in its class folders: {LOOKED_FOR}{found}")
    empty = [name for name, has_images in zip(classes, filled, strict=True) if not has_images]
    if empty:
        has = "class has" if len(empty) == 1 else "classes have"
        tally.warnings.append(f"{len(empty)} {has} no images: {quoted(empty)}")
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


def quoted(names: Sequence[str]) -> str:
    """Return text with the first ten names in quotation marks, and how many more there are."""
    some = ", ".join(map(repr, names[:_MAX_NAMED]))
    more = len(names) - _MAX_NAMED
    return some if more <= 0 else f"{some} and {more} more"
