"""What each format of an export does."""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store

CROISSANT = "croissant.json"


class Exporter(ABC):
    """Writes all records of a store, in their order, into a folder that is empty at first but for hidden files."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.warnings: list[str] = []  # sentences for people, complete after ``finish``: what is not as in the store

    @abstractmethod
    def write(self, record: Record) -> None:
        """Write one record; ExportError if the format cannot hold it."""

    def finish(self) -> None:  # noqa: B027 - some formats are complete without it
        """Write what follows the last record."""

    def close(self) -> None:  # noqa: B027
        """Close all files, also after an error."""


def new_file(folder: Path, name: str) -> BinaryIO:
    """Create a file below a folder, and the folders on its way; OSError if anything is there, even a link."""
    path = posixpath.join(os.fsencode(folder), name.encode())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(posixpath.dirname(path), exist_ok=True)  # noqa: PTH103 - bytes
        descriptor = os.open(path, flags, 0o666)
    return os.fdopen(descriptor, "wb")
