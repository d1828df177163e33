"""What a process opens of a store at its first use.

It is an LMDBHandle (lmdb/handle.py) or a MongoReader (mongo/reader.py). ``Store.open_handle`` returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.records.manifest import Manifest


class Handle(Protocol):
    """What one process has open of a store."""

    @property
    def manifest(self) -> Manifest:
        """The header of the store."""

    def chunk(self, column: str, number: int) -> bytes | memoryview:
        """Return one chunk of a column."""

    def chunks(self, column: str) -> Iterator[bytes | memoryview]:
        """Return all chunks of a column. Their number is checked before anyone allocates memory for the records."""
