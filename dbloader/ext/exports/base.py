"""The base class of all export formats, and functions that they share."""

from __future__ import annotations

import errno
import io
import json
import os
import posixpath
from abc import ABC, abstractmethod
from collections import Counter
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image

from dbloader._describe import counted, short_repr
from dbloader.errors import ExportError
from dbloader.ext.sources.labels import TARGET_FILE
from dbloader.stores.base import READ_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

REMEDY = "choose another format (--format)"
UNKNOWN_FORMAT = "in no known image format: convert --check none keeps them"
# Errors of the operating system that are caused by the name of a file.
NAME_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
_TRIED_NAMES = 100
_EXTENSIONS = {"JPEG": ".jpg", "JPEG2000": ".jp2", "HEIF": ".heic"}  # otherwise, the format's name in lowercase


class Exporter(ABC):
    """Writes the records at some indices of a store, in ascending order, into an empty folder."""

    def __init__(self, store: Store, indices: Sequence[int], folder: Path) -> None:
        self.store = store
        self.indices = indices
        self.folder = folder
        self.warnings: list[str] = []  # differences between the files and the store, complete after `finish`
        self.changes: Counter[str] = Counter()  # number of records with each difference, such as "damaged: …"

    def records(self) -> Iterator[Record]:
        """Yield the records to write."""
        for start in range(0, len(self.indices), READ_AT_ONCE):
            yield from self.store.read(self.indices[start : start + READ_AT_ONCE])

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record. Raise ExportError if the format cannot store it."""

    def image_file(self, record: Record) -> bytes:
        """Return a record's image file, or a PNG of its pixels. Raise ExportError if the record has no image."""
        image = record.image
        if image is None:
            raise ExportError(f"{describe(record)} has no image, so it has no file: {REMEDY}")
        if not isinstance(image, np.ndarray):
            return bytes(image)
        if image.dtype != np.uint8 or not image.size or image.ndim < 2 or image.shape[2:] not in ((), (3,)):
            what = f"{image.dtype} of the shape {image.shape}, which is not an 8-bit gray or RGB image"
            raise ExportError(f"{describe(record)} has an array of {what}: {REMEDY}")
        self.changes["stored as pixels and written as PNG: convert --raw stores pixels again"] += 1
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG", compress_level=1)
        return file.getvalue()

    def write_target(self) -> None:
        """Write the name of the target field to a file, if the target is not the label."""
        if (target := self.store.manifest.target) != "label":
            (self.folder / TARGET_FILE).write_text(json.dumps([target]) + "\n", encoding="utf-8")

    def finish(self) -> None:
        """Write the files that depend on all records, and complete ``warnings``."""
        self.warnings += [f"{counted(count, 'record')} {what}" for what, count in self.changes.items()]

    def close(self) -> None:  # noqa: B027
        """Close all files. `close` is called after an error too."""


def all_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record, and its ``damaged`` and ``resized_from`` if it has them."""
    kept = {"damaged": record.damaged, "resized_from": record.resized_from and [*record.resized_from]}
    return {**record.fields, **{name: value for name, value in kept.items() if value is not None}}


def check_files(record: Record, names: Iterable[str]) -> None:
    """Raise ExportError if a file field of a record is neither bytes nor None."""
    for name in names:
        if not isinstance(value := record.fields.get(name), (bytes, NoneType)):
            what = f"{short_repr(value)}, but the manifest promises an image file: make the store again"
            raise ExportError(f"the field {name!r} of {describe(record)} is {what}")


def extension_of(image_format: str) -> str:
    """Return the extension of a format's files."""
    return _EXTENSIONS.get(image_format, f".{image_format.lower()}")


def describe(record: Record) -> str:
    """Return the index and name of a record for messages."""
    return f"record {record.index} ({record.name or 'without a name'})"


def new_file(folder: Path, name: str) -> BinaryIO:
    """Create a file and its folders below a folder. Raise OSError if the path exists, even as a link."""
    path = posixpath.join(os.fsencode(folder), name.encode())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(posixpath.dirname(path), exist_ok=True)  # noqa: PTH103 - bytes
        descriptor = os.open(path, flags, 0o666)
    return os.fdopen(descriptor, "wb")


def save_file(folder: Path, paths: list[str], made_up: str, extension: str, data: bytes) -> str:
    """Write a file at the first usable path, else under a made-up name. Return its path below the folder."""
    paths = [*paths, f"{made_up}{extension}", *(f"{made_up}-{number}{extension}" for number in range(_TRIED_NAMES))]
    for path in filter(is_safe, paths):
        try:
            file = new_file(folder, path)
        except OSError as error:
            if error.errno not in NAME_ERRORS:
                raise
            continue
        with file:
            file.write(data)
        return path
    raise ExportError(f"{made_up}{extension} and {_TRIED_NAMES} more names are taken")


def is_safe(name: str) -> bool:
    """Return whether every program finds the relative path ``name`` inside the folder.

    Hugging Face's datasets reads a backslash as a slash, and many programs ignore hidden files: neither is safe.
    """
    return not any(part[:1] in ("", ".") for part in name.split("/")) and not {"\\", "\0"} & {*name}
