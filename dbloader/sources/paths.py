"""Paths of files in listings, and the names of their records."""

from __future__ import annotations

import os
import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING

from dbloader._describe import short_repr
from dbloader.sources.base import readable

if TYPE_CHECKING:
    from pathlib import Path


def prefix_of(root: Path) -> bytes:
    """Return what absolute paths below a folder begin with, for ``name_below``."""
    return posixpath.normpath(os.fsencode(root.absolute())).rstrip(b"/") + b"/"


def name_below(path: bytes, prefix: bytes) -> str:
    """Return the name of the record of a file: its normalized path, without the folder that it is in."""
    return readable(posixpath.normpath(path).removeprefix(prefix))


def encoded_path(path: object, no_path: str = "it has no path") -> bytes | str:
    """Return the bytes of a path, or a reason why it cannot be one."""
    if path is None or path == "":
        return no_path
    with suppress(UnicodeEncodeError):
        if isinstance(path, str) and "\0" not in path:
            return path.encode("utf-8", "surrogateescape")  # a JSON may hold a name that is not UTF-8 like this
    return f"its path cannot be that of a file: {short_repr(path, 50)}"


def path_below(path: bytes) -> bytes | str:
    """Return a path normalized, or why it is not below the folder of its metadata, which strangers may have made."""
    path = posixpath.normpath(path)
    if path.startswith((b"/", b"../")) or path in (b".", b".."):
        return f"its path leaves the folder: {short_repr(readable(path), 50)}; give a listing (--listing) to take it"
    return path
