"""A folder of images, with one folder for each class, in the order of torchvision's ImageFolder.

dbloader differs from ImageFolder in four ways. It takes files of more formats, such as GIF and HEIC. It leaves out
names that begin with a dot (macOS puts a ``._x.jpg`` without an image next to each ``x.jpg`` that it copies). In each
class, it takes a folder only once, so loops of links end. It keeps a class without images, with a warning.
"""

from __future__ import annotations

import heapq
import os
import posixpath
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from dbloader._describe import counted
from dbloader.errors import SourceError
from dbloader.sources.base import Entry, Problem, Source, Tally, Unreadable, checked_root, problem_of, readable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path

# Extensions of torchvision.datasets.folder, then others of the formats in images/pillow.py; upper case matches too.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp",
    ".gif", ".avif", ".heic", ".heif", ".hif", ".jpe", ".jfif", ".mpo", ".apng", ".jp2", ".j2k", ".jpc", ".jpf", ".jpx",
    ".j2c", ".pbm", ".pnm", ".pfm", ".ico", ".qoi", ".pcx", ".tga",
)  # fmt: skip
LOOKED_FOR = f"looked for {', '.join(EXTENSIONS[:12])} and {len(EXTENSIONS) - 12} more extensions"
METADATA_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # Hugging Face's imagefolder reads them
SUFFIXES = tuple(extension.encode() for extension in EXTENSIONS)
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst")
ZIPS = (".zip",)

_MAX_NAMED = 10  # most names in a warning
OUTSIDE = "is outside of all class folders: put it into one, or move it away"
LATE = "came after its folder was listed: convert again, or add it to a folder of shards with --append --new-only"


class _Contents(NamedTuple):
    """The names in one folder."""

    folders: list[bytes]
    images: list[bytes]
    problems: list[Problem]


class FolderSource(Source):
    """The images in a folder of class folders.

    Classes are sorted. Within a class, folders are sorted by their path as a string (``a-b`` before ``a/b``), and
    the files of a folder by their names. Links are followed. Names are kept byte for byte. Memory holds the names in
    one folder and the folders of one class.

    With ``as_one_class``, all images below the folder are one class, and their names begin with ``./``.
    """

    def __init__(self, folder: str | os.PathLike[str], *, as_one_class: bool = False) -> None:
        root = checked_root(folder)
        self._as_one_class = as_one_class
        self._tally = Tally()
        try:
            self._identity = _identity(os.fsencode(root))
            contents = _Contents([b"."], [], []) if as_one_class else _list_folder(os.fsencode(root), b"", self._tally)
        except OSError as error:
            raise SourceError(f"{readable(root)}: the folder cannot be read: {error.strerror}") from error
        if not contents.folders:
            loose = counted(len(contents.images), "image")
            found = "; ".join([f"{loose} directly in it", *map(": ".join, contents.problems[:1])])
            raise SourceError(
                f"{readable(root)}: it contains no class folders ({found}): "
                "put the images of each class into a folder or use --listing FILE"
            )
        classes = class_names(contents.folders, readable(root))
        super().__init__(root, classes, first_warnings(root, classes))
        self._folders = contents.folders
        self._problems = [*contents.problems, *(Problem(readable(name), OUTSIDE) for name in contents.images)]

    @override
    def entries(self) -> Generator[Entry | Problem, None, Tally]:
        tally = deepcopy(self._tally)
        filled = [False] * len(self.classes)
        yield from self._problems
        for label, folder in enumerate(self._folders):
            for path in self._walk(folder, tally):
                if isinstance(path, Problem):
                    yield path
                else:
                    filled[label] = True
                    yield Entry(readable(path), (path,), label, {})
        check_filled(readable(self.root), self.classes, filled, tally)
        return tally

    @override
    def late(self, listed: Iterable[Entry | Problem]) -> Iterator[dict[str, str]]:
        # Not a set, which would need several times the memory.
        known = np.unique(np.fromiter((hash(item.name) for item in listed), "i8"))
        with suppress(SourceError):  # the folder is gone, or all images are
            for item in FolderSource(self.root, as_one_class=self._as_one_class).entries():
                if not (known[known.searchsorted(hash(item.name)) :][:1] == hash(item.name)).any():
                    yield {"name": item.name, "event": "rejected", "reason": LATE}

    def _walk(self, folder: bytes, tally: Tally) -> Iterator[bytes | Problem]:
        """Yield the paths of one class; each folder is listed once, when its turn comes.

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
                contents = _list_folder(root, path, tally)
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
                yield posixpath.join(path, name)


def _list_folder(root: bytes, path: bytes, tally: Tally) -> _Contents:
    """Return the contents of a folder, sorted; the names of problems are paths below the root."""
    contents = _Contents([], [], [])
    with os.scandir(posixpath.join(root, path)) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                tally.hidden += 1
                continue
            try:
                if entry.is_dir():
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
            tally.skip(entry.name)
            if readable(entry.name) in METADATA_FILES:  # metadata that can be used makes a folder another source
                tally.metadata = tally.metadata or readable(posixpath.join(path, entry.name))
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


def _identity(path: bytes) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - pathlib has no bytes
    return status.st_dev, status.st_ino


def _order(path: bytes) -> str:
    """Return a path as a Python string, because torchvision sorts paths as Python strings."""
    return path.decode("utf-8", "surrogateescape")


def first_warnings(root: Path | str, classes: tuple[str, ...]) -> Iterator[str]:
    """Yield a warning about class folders that look like splits."""
    if SPLITS.issuperset(name.lower() for name in classes):
        first = posixpath.join(readable(root), classes[0])
        yield f"the classes are called {_named(classes)}: these look like splits; convert one at a time, first {first}"


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
