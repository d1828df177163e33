"""CachedStore keeps the promises that every store makes to those who read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from dbloader.stores.cache import CachedStore
from dbloader.stores.lmdb.cache_file import CacheFile
from dbloader.stores.lmdb.keys import RECORDS, record_key
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.store import StoreContract

if TYPE_CHECKING:
    from dbloader.stores.base import Store


def opener_of(store: Store) -> int | None:
    assert isinstance(store, CachedStore)
    opened = store._opened
    if opened is None:
        return None
    assert isinstance(opened.local, CacheFile)
    return opened.local._shared.pid


READING = (
    "test_the_first_use_of_a_store_that_is_not_there_says_so",
    "test_each_process_reads_through_a_handle_of_its_own",
    "test_a_process_can_be_forked_while_threads_read",
    "test_threads_share_a_store",
    "test_one_thread_may_close_a_store_while_others_read",
    "test_a_closed_store_opens_again_when_it_is_used",
    "test_every_kind_of_record_comes_back_as_it_was_written",
    "test_read_gives_records_in_the_order_asked_with_repeats",
    "test_read_takes_any_sequence_of_indices",
    "test_reading_no_record_gives_none",
    "test_an_index_out_of_range_raises",
    "test_square_brackets_count_from_the_end_too",
    "test_iterating_gives_every_record_once_and_in_order",
    "test_documents_are_the_bson_that_was_written",
    "test_nothing_that_was_read_points_into_the_store",
    "test_columns_hold_the_facts_of_all_records",
    "test_an_unknown_column_is_refused",
    "test_names_are_packed_and_empty_where_there_is_none",
    "test_find_gives_the_least_index_of_a_name",
    "test_find_says_when_no_record_has_a_name",
    "test_a_store_of_no_records_is_a_store",
    "test_events_come_in_the_order_in_which_they_were_written",
    "test_verifying_a_whole_store_gives_its_digest_and_tells_its_progress",
    "test_a_damaged_record_raises_and_the_others_are_still_read",
    "test_a_damaged_record_without_a_name_is_told_by_its_index",
)


class TestCachedStore(StoreContract):
    """The reading half of the contract, over a store in an LMDB file."""

    opener = staticmethod(opener_of)

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return str(tmp_path / f"{name}.lmdb")

    def open(self, place: str) -> Store:
        return CachedStore(LMDBStore(place), f"{place}.cache")

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        with lmdb.open(place, subdir=False, max_dbs=2, lock=False) as env:
            records = env.open_db(RECORDS, create=False)
            with env.begin(write=True, db=records) as txn:
                for index, document in documents.items():
                    txn.delete(record_key(index))
                    if document is not None:
                        txn.put(record_key(index), document)

    def remove(self, place: str) -> None:
        Path(place).unlink()


# The others are of writing, and of what test_cache.py tells otherwise: that a cache is a cache of one store.
for _name in [name for name in dir(StoreContract) if name.startswith("test_") and name not in READING]:
    setattr(TestCachedStore, _name, None)  # which pytest does not collect
