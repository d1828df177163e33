"""CachedStore keeps the promises of every store about processes."""

from __future__ import annotations

import shutil

from dbloader.ext.caching.store import CachedStore
from dbloader.stores.base import Store
from tests.contracts.backend import FileBackend
from tests.contracts.processes import ProcessesContract


class TestCachedStore(FileBackend, ProcessesContract):
    """A cache of a store in one LMDB file. stores/lmdb/test_sharded.py tests how shards are read."""

    # A cache belongs to one store: test_cache.py has its own versions of these tests.
    test_constructing_a_store_opens_nothing = None  # type: ignore[assignment]
    test_pickle_has_the_place_and_no_handle = None  # type: ignore[assignment]
    test_open_store_keeps_its_records_when_it_is_replaced = None  # type: ignore[assignment]

    def open(self, place: str) -> Store:
        return CachedStore(place, f"{place}.cache")

    def remove(self, place: str) -> None:
        super().remove(place)
        shutil.rmtree(f"{place}.cache", ignore_errors=True)
