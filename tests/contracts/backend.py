"""What the contract tests need from a backend: places, and ways to read and change them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from dbloader import Record, open_store
from dbloader.errors import NotAStoreError, StoreNotFoundError
from dbloader.records.columns import DTYPES
from dbloader.records.manifest import Manifest
from dbloader.records.record import encode
from dbloader.stores.base import Store
from dbloader.stores.open import create_store
from tests.contracts.records import documents_of, salt_of, stored


class Backend:
    """How tests find, read and change the stores of a backend."""

    commit_bytes = 8 * 2**20

    def place(self, tmp_path: Path, name: str = "store") -> str:
        """Return an empty place."""
        raise NotImplementedError

    def what_is_at(self, place: str) -> list[str]:
        """List everything at a place, finished or not."""
        raise NotImplementedError

    def remove(self, place: str) -> None:
        """Remove the store at a place."""
        raise NotImplementedError

    def move(self, place: str, to: str) -> None:
        """Move the store at a place."""
        raise NotImplementedError

    def put_something_else(self, place: str) -> None:
        """Put something at a place that is not a store."""
        raise NotImplementedError

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        """Replace or remove the documents at some indices."""
        raise NotImplementedError

    def documents(self, place: str, records: list[Record]) -> list[bytes]:
        """Return the documents of a store of these records."""
        return documents_of(records, salt_of(place))

    def can_hold(self, place: str, index: int, document: bytes) -> bool:
        """Return whether the backend can store these bytes. A MongoDB server refuses invalid BSON."""
        return True

    def open(self, place: str) -> Store:
        return open_store(place)

    def write(self, place: str, records: Iterable[Record], **options: bool) -> Manifest:
        with create_store(place, **options) as writer:
            writer.write(encode(record) for record in records)
            return writer.finish()

    def store(self, tmp_path: Path, records: Iterable[Record], **options: bool) -> str:
        """Write a store, and return its place."""
        place = self.place(tmp_path)
        self.write(place, records, **options)
        return place

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


class FileBackend(Backend):
    """Stores in files or folders."""

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return str(tmp_path / f"{name}.lmdb")

    def what_is_at(self, place: str) -> list[str]:
        return sorted(path.name for path in Path(place).parent.glob(f"{Path(place).name}*"))

    def remove(self, place: str) -> None:
        if Path(place).is_dir():
            shutil.rmtree(place)
        else:
            Path(place).unlink()

    def move(self, place: str, to: str) -> None:
        Path(place).rename(to)
