"""Convert the paths in a listing to bytes, and to names of records."""

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
    """Return the absolute path of a folder in bytes, with a final slash."""
    return posixpath.normpath(os.fsencode(root.absolute())).rstrip(b"/") + b"/"


def name_below(path: bytes, prefix: bytes) -> str:
    """Return the name of a file's record: the normalized path of the file, without the prefix."""
    return readable(posixpath.normpath(path).removeprefix(prefix))


def encoded_path(path: object, no_path: str = "it has no path") -> bytes | str:
    """Return the bytes of a path, or the reason why it is no valid path."""
    if path is None or path == "":
        return no_path
    with suppress(UnicodeEncodeError):
        if isinstance(path, str) and "\0" not in path:
            return path.encode("utf-8", "surrogateescape")  # JSON may have lone surrogates for bytes that are not UTF-8
    return f"its path is not valid for a file: {short_repr(path, 50)}"
