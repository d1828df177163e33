r"""Find the files of a listing, even if it names them by ids, by paths with ``\``, or in another Unicode form.

There is a rule for each of these differences. A rule finds a file only if exactly one file fits.
"""

from __future__ import annotations

import os
import posixpath
import unicodedata
from array import array
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import numpy as np

from dbloader.ext.sources.class_folders import is_split
from dbloader.sources.base import readable
from dbloader.sources.folder import SUFFIXES, is_system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PROBED = 20  # how many files are looked up to find out how a listing names files

SLASHES, ROOTED = r"\ in a path is read as /", "a path that begins with / starts from the folder"
FORM = "a name is found in its other Unicode form (NFC, NFD)"
CODED = "%20 and the like in a path are decoded"
STEM = "a name without its extension or folder finds the one image with this name"
NUMBER = "a number without leading zeros finds the one image with this number, as 7 finds 0007.jpg"


class ListedFiles:
    """Finds the files of a listing below a folder, in a bucket, or in zips.

    Args:
        root: The folder; None for a bucket, a web server or zips.
        has: A function that returns whether a bucket or zips have a path. It is None for a folder or a web server.
        all_paths: Returns all paths in a bucket or in zips.

    Attributes:
        rules: The rules that have found a file, as keys in the order of their first use.
    """

    def __init__(
        self,
        root: Path | None,
        has: Callable[[bytes], bool] | None = None,
        all_paths: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        self._root = b"" if root is None else os.fsencode(root)
        self._has, self._all_paths = has, all_paths
        self._looks_up = False  # whether to look up each path; True if one of the first paths was not there
        self._outer = b""  # a prefix of paths that stands for the root, such as train/ or C:/data/train/
        self._folders: list[bytes] = []
        self._extensions: list[bytes] = []
        self._widths: set[int] = set()  # lengths of the images' names that are numbers with leading zeros
        self._hashes: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self.rules: dict[str, None] = {}
        self._lost, self._is_there = b"", False  # first probed path without a file; whether any probed path has a file

    def notes(self) -> list[str]:
        """Return the rules that have found a file, and a hint if none of the probed paths has a file."""
        hint = f"{readable(self._lost)} is not there: the paths must start from the folder that is converted"
        return [*self.rules, *[hint] * (self._lost != b"" and not self._is_there)]

    @property
    def is_unknown(self) -> bool:
        """Whether files cannot be looked up, as on a web server."""
        return not (self._root or self._has)

    def probe(self, path: bytes) -> bool:
        """Return whether a path names a file. If no file has exactly this path, look up all paths from now on."""
        is_there = self.is_unknown or self._exists(path) or self._probe(path)
        self._lost, self._is_there = self._lost or (b"" if is_there else path), self._is_there or is_there
        return is_there

    def _probe(self, path: bytes) -> bool:
        self._looks_up = True
        found = self.find(path)
        if found == path and self._root:
            own = posixpath.basename(posixpath.abspath(self._root)) + b"/"
            above, own, below = path.replace(b"\\", b"/").rpartition(own)
            others = {*filter(is_split, readable(above).split("/"))}.difference(readable(self._root).split("/"))
            if own and above[-1:] in (b"", b"/") and not others and self._exists(below):
                self._outer, found = above + own, below
        return found != path and isinstance(found, bytes)

    def find(self, path: bytes) -> bytes | str:
        """Return the path of the file that ``path`` names, or ``path`` without a file; a message (str) for several."""
        odd = self._root and (b"\\" in path or b"%" in path or not path.isascii())
        if not (self._looks_up or odd):
            return path
        if self._hashes is None and not self._root:
            self._list()  # list all paths once, instead of asking a server about each
        if self._exists(path):
            return path
        for rule, other in self._spellings(path):
            if self._exists(other):
                self.rules[rule] = None
                return other
        return self._find_stem(path) if self._looks_up else path

    def _exists(self, path: bytes) -> bool:
        if self._has is None:
            return os.path.lexists(posixpath.join(self._root, path))
        if self._hashes is None:
            return self._has(path)
        stem, extension = posixpath.splitext(posixpath.basename(path))
        return path in self._places(stem, {extension} & {*self._extensions})

    def _spellings(self, path: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield (rule, path) for other spellings of a path."""
        slashed = path.replace(b"\\", b"/")
        paths = {path: FORM, slashed: SLASHES, path.lstrip(b"/"): ROOTED, unquote_to_bytes(path): CODED}
        if self._outer and slashed.startswith(self._outer):
            paths[slashed[len(self._outer) :]] = f"{readable(self._outer)} before a path is the folder itself"
        for other, rule in paths.items():
            if other != path:
                yield rule, other
            text = readable(other)
            for form in ("NFC", "NFD") if not text.isascii() else ():
                yield FORM, unicodedata.normalize(form, text).encode()

    def _find_stem(self, path: bytes) -> bytes | str:
        head, name = posixpath.split(posixpath.normpath(path.replace(b"\\", b"/")).lstrip(b"/"))
        stem, rule = posixpath.splitext(name)[0], STEM
        found = self._named(head, name)
        if not found and stem.isdigit():  # pandas and Excel drop the zeros of 0007
            rule, wider = NUMBER, sorted(width for width in self._widths if width > len(stem))
            found = [file for width in wider for file in self._named(head, b"0" * (width - len(stem)) + name)]
        if len(found) > 1:
            one, other = map(readable, sorted(found)[:2])
            return f"{readable(path)} may be {one} or {other}: write the path below the folder"
        if not found:
            return path
        self.rules[rule] = None
        return found[0]

    def _named(self, head: bytes, name: bytes) -> list[bytes]:
        """Return the images in or below a folder that have a name, or have it before their extension."""
        stem, extension = posixpath.splitext(name)
        found = [file for file in self.with_stem(name) if _is_below(file, head)]
        if extension.lower() in SUFFIXES:
            alike = (file for file in self.with_stem(stem) if file.lower().endswith(extension.lower()))
            found += [file for file in alike if _is_below(file, head)]
        return [file for file in found if posixpath.dirname(file) == head] or found

    def with_stem(self, stem: bytes) -> list[bytes]:
        """Return all images, in any folder, whose name without the extension is ``stem``."""
        if self._hashes is None:
            self._list()
        found = self._places(stem, {*self._extensions})
        return found if self._has else [file for file in found if self._exists(file)]

    def _places(self, stem: bytes, extensions: set[bytes]) -> list[bytes]:
        """Return the paths of images called ``stem`` plus one of ``extensions``."""
        assert self._hashes is not None
        at = slice(*(int(self._hashes.searchsorted(hash(stem), side)) for side in ("left", "right")))
        codes = ((self._folders[code >> 12], self._extensions[code & 4095]) for code in self._codes[at].tolist())
        return [posixpath.join(folder, stem + extension) for folder, extension in codes if extension in extensions]

    def _list(self) -> None:
        """List all images below the folder. The list takes 16 bytes of memory for each image."""
        hashes, codes, kinds, folders = array("q"), array("q"), dict[bytes, int](), dict[bytes, int]()
        for path in self._all_paths() if self._has else self._walk():
            folder, name = posixpath.split(path)
            stem, extension = posixpath.splitext(name)
            if extension.lower() in SUFFIXES and not name.startswith(b"."):
                hashes.append(hash(stem))
                if stem.startswith(b"0") and stem.isdigit():
                    self._widths.add(len(stem))
                kind = kinds.setdefault(extension, len(kinds))
                codes.append(folders.setdefault(folder, len(folders)) << 12 | kind)
        order = np.argsort(np.frombuffer(hashes, np.int64), kind="stable")
        self._hashes = np.frombuffer(hashes, np.int64)[order]
        self._codes = np.frombuffer(codes, np.int64)[order]
        self._extensions, self._folders = [*kinds], [*folders]

    def _walk(self) -> Iterator[bytes]:
        for folder, folders, files in os.walk(self._root):
            folders[:] = sorted(name for name in folders if name[:1] != b"." and not is_system(readable(name)))
            below = b"" if folder == self._root else posixpath.relpath(folder, self._root)
            yield from (posixpath.join(below, name) for name in files)


def _is_below(file: bytes, head: bytes) -> bool:
    folder = posixpath.dirname(file)
    return not head or folder == head or folder.endswith(b"/" + head)
