"""CachedStore keeps the contract of stores."""

from __future__ import annotations

import shutil

from dbloader.caching.store import CachedStore
from dbloader.stores.base import Store
from tests.contracts.backend import FileBackend
from tests.contracts.processes import ProcessesContract


class TestCachedStore(FileBackend, ProcessesContract):
    """A cached store in an LMDB file. stores/lmdb/test_sharded.py tests the reading of shards."""

    # A cache belongs to one store: test_cache.py has its own versions of these tests.
    test_constructing_a_store_opens_nothing = None  # type: ignore[assignment]
    test_pickle_has_the_place_and_no_handle = None  # type: ignore[assignment]
    test_open_store_keeps_its_records_when_it_is_replaced = None  # type: ignore[assignment]

    def open(self, place: str) -> Store:
        return CachedStore(place, f"{place}.cache")

    def remove(self, place: str) -> None:
        super().remove(place)
        shutil.rmtree(f"{place}.cache", ignore_errors=True)
