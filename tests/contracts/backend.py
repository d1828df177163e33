"""What the contract tests need to know of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dbloader import open_store
from dbloader.errors import NotAStoreError, StoreNotFoundError
from dbloader.records.columns import DTYPES
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, stored, write_one_by_one

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dbloader import Record
    from dbloader.records.manifest import Manifest
    from dbloader.stores.base import Store
    from dbloader.stores.writer import Writer


class Backend:
    """Where a backend's stores are, and how the tests get at them.

    Attributes:
        opener: Returns the id of the process that opened the handle of a store object, or None. A function of a module,
            since it is sent to spawned processes.
    """

    opener: Any

    def place(self, tmp_path: Path, name: str = "store") -> str:
        """Return a place where nothing is."""
        raise NotImplementedError

    def what_is_at(self, place: str) -> list[str]:
        """List everything, finished or not, that belongs to a place."""
        raise NotImplementedError

    def remove(self, place: str) -> None:
        """Remove the store at a place."""
        raise NotImplementedError

    def move(self, place: str, to: str) -> None:
        """Move the store at a place."""
        raise NotImplementedError

    def put_something_else(self, place: str) -> None:
        """Put something of the backend's kind, but not a store, at a place."""
        raise NotImplementedError

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        """Replace the documents at some indices by other bytes, or remove them."""
        raise NotImplementedError

    def can_hold(self, place: str, index: int, document: bytes) -> bool:
        """Return whether the backend can hold such bytes at an index; a server refuses what is not BSON."""
        return True

    def open(self, place: str) -> Store:
        return open_store(place)

    def create(self, place: str, **options: bool) -> Writer:
        return create_store(place, **options)

    def write(self, place: str, records: Iterable[Record], **options: Any) -> Manifest:
        """Make a store of records. Options that are not create_store's are finish's."""
        finishing = {name: options.pop(name) for name in ("classes", "source", "created") if name in options}
        with self.create(place, **options) as writer:
            writer.write(encode(record) for record in records)
            return writer.finish(**finishing)

    def store(self, tmp_path: Path, records: Iterable[Record], **options: Any) -> str:
        """Make a store of records, and return its place."""
        place = self.place(tmp_path)
        self.write(place, records, **options)
        return place

    def write_nothing(self, place: str, **options: bool) -> None:
        """Begin to write, and leave."""
        with self.create(place, **options):
            pass

    def write_partial(self, place: str, records: list[Record], **options: bool) -> None:
        """Leave an unfinished store at a place, with all of the records committed."""
        with self.create(place, resumable=True, **options) as writer:
            write_one_by_one(writer, records)
            writer.commit()

    def check_unreadable(self, place: str) -> None:
        with self.open(place) as store, pytest.raises((StoreNotFoundError, NotAStoreError), match=r"store"):
            len(store)

    def check_documents(self, place: str, records: list[Record]) -> None:
        with self.open(place) as store:
            assert stored(store, range(len(store))) == documents_of(records)

    def check_same(self, place: str, other: str) -> None:
        """Check that two stores are the same in everything but their places."""
        with self.open(place) as store, self.open(other) as expected:
            assert store.manifest == expected.manifest
            assert stored(store, range(len(store))) == stored(expected, range(len(store)))
            assert list(store.names()) == list(expected.names())
            for name in DTYPES:
                assert store.column(name).tolist() == expected.column(name).tolist()
            assert list(store.events()) == list(expected.events())
            assert store.verify() == expected.verify()
            for name in set(expected.names()) - {""}:
                assert store.find(name) == expected.find(name)

    @pytest.fixture
    def many_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 1)
