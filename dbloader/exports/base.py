"""What each format of an export does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dbloader.records.record import Record
    from dbloader.stores.base import Store


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
