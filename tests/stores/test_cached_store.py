"""CachedStore keeps the promises that every store makes to its readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dbloader.stores.cache import CachedStore
from dbloader.stores.lmdb.cache_file import CacheFile
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.processes import ProcessesContract
from tests.contracts.reading import ReadingContract
from tests.contracts.threads import ThreadsContract
from tests.contracts.verifying import VerifyingContract
from tests.support.lmdb_files import tamper_with_records

if TYPE_CHECKING:
    from dbloader.stores.base import Store


def opener_of(store: Store) -> int | None:
    assert isinstance(store, CachedStore)
    if store.local is None:
        return None
    assert isinstance(store.local, CacheFile)
    return store.local.shared.pid


class TestCachedStore(ProcessesContract, ThreadsContract, ReadingContract, VerifyingContract):
    """Over a store in an LMDB file."""

    opener = staticmethod(opener_of)
    # test_cache.py has these: a cache is a cache of one store, and its pickle holds the manifest.
    test_constructing_a_store_opens_nothing = None  # type: ignore[assignment]
    test_pickling_a_store_pickles_its_place_and_never_a_handle = None  # type: ignore[assignment]
    test_the_records_of_an_open_store_do_not_change_when_it_is_replaced = None  # type: ignore[assignment]

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return str(tmp_path / f"{name}.lmdb")

    def open(self, place: str) -> Store:
        return CachedStore(LMDBStore(place), f"{place}.cache")

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        tamper_with_records(place, documents)

    def remove(self, place: str) -> None:
        Path(place).unlink()
