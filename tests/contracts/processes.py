"""Processes, threads and pickles that share a store. Each backend's tests inherit this class."""

from __future__ import annotations

import os
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dbloader.records.columns import NO_LABEL
from dbloader.stores.base import Store
from tests.contracts.backend import Backend
from tests.contracts.records import WAIT_S, documents_of, facts, make_records, opener_of, stored
from tests.support.children import from_child


def read_here(store: Store, indices: list[int]) -> tuple[int, int | None, int | None, list[bytes], Any]:
    """Return this process's id, the handle's opener before and after reading, the documents and the records."""
    before = opener_of(store)
    documents = stored(store, indices)
    return os.getpid(), before, opener_of(store), documents, [facts(record) for record in store.read(indices)]


class ProcessesContract(Backend):
    """How processes and threads share a store."""

    def test_constructing_a_store_opens_nothing(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        with self.open(place) as store:
            assert opener_of(store) is None
            assert repr(store) == f"{type(store).__name__}({store.place!r})"
            self.write(place, make_records(3))
            assert opener_of(store) is None
            assert len(store) == 3
            assert opener_of(store) == os.getpid()

    @pytest.mark.parametrize("opened", [False, True])
    def test_each_process_opens_its_own_handle(self, tmp_path: Path, opened: bool) -> None:
        records, indices = make_records(20), [19, 0, 3, 3, 7]
        place = self.store(tmp_path, records)
        expected = [documents_of(records)[index] for index in indices]
        with self.open(place) as store:
            if opened:
                store.read([1])
            for _ in range(2):
                pid, before, after, documents, read = from_child(lambda: read_here(store, indices))
                assert before == (os.getpid() if opened else None)
                assert after == pid != os.getpid()
                assert documents == expected
                assert read == [facts(records[index]) for index in indices]
            # The parent's handle still works.
            assert stored(store, indices) == expected
            assert opener_of(store) == os.getpid()

    def test_pickle_has_the_place_and_no_handle(self, tmp_path: Path) -> None:
        records = make_records(4)
        place = self.store(tmp_path, records)
        with self.open(place) as store:
            unopened = pickle.dumps(store)
            store.read([0])
            assert opener_of(store) is not None
            opened = pickle.dumps(store)
            assert opened == unopened
            assert len(opened) < 1000
            with pickle.loads(opened) as copy:  # noqa: S301 - our own
                assert type(copy) is type(store)
                assert copy.place == store.place
                assert opener_of(copy) is None
                assert stored(copy, [2]) == documents_of(records)[2:3]

    def test_open_store_keeps_its_records_when_it_is_replaced(self, tmp_path: Path) -> None:
        place = self.place(tmp_path)
        old, new = make_records(5, seed=1), make_records(9, seed=2)
        self.write(place, old)
        with self.open(place) as store, self.open(place) as unopened:
            assert len(store) == 5
            self.write(place, new, overwrite=True)
            assert stored(store, range(5)) == documents_of(old)
            assert len(store) == len(store.names()) == len(store.column("crc32")) == 5
            assert store.verify() == store.manifest.digest
            assert stored(unopened, range(9)) == documents_of(new)
            store.close()
            assert stored(store, range(9)) == documents_of(new)

    @pytest.mark.slow
    def test_process_forks_safely_while_threads_read(self, tmp_path: Path) -> None:
        records = make_records(50)
        place = self.store(tmp_path, records)
        expected = documents_of(records)
        started, stop = threading.Barrier(5), threading.Event()

        def read_on(start: int) -> None:
            started.wait(WAIT_S)
            while not stop.is_set():
                assert stored(store, [start, 7]) == [expected[start], expected[7]]
                with self.open(place) as other:
                    assert other.name(start) == records[start].name

        with self.open(place) as store, ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read_on, 10 * number) for number in range(4)]
            try:
                started.wait(WAIT_S)
                for _ in range(6):
                    pid, _, after, documents, _ = from_child(lambda: read_here(store, [9, 8]), WAIT_S / 4)
                    assert pid == after != os.getpid()
                    assert documents == [expected[9], expected[8]]
            finally:
                stop.set()
            for reader in readers:
                reader.result()

    @pytest.mark.slow
    def test_threads_share_a_store_that_another_thread_closes(self, tmp_path: Path) -> None:
        records = make_records(60)
        place = self.store(tmp_path, records)
        expected = documents_of(records)
        barrier, stop = threading.Barrier(6), threading.Event()

        def read(seed: int, times: int) -> None:
            rng = random.Random(seed)
            barrier.wait(WAIT_S)  # all threads then open the store at the same time
            for _ in range(times):
                indices = rng.choices(range(60), k=8)
                assert [facts(record) for record in store.read(indices)] == [facts(records[i]) for i in indices]
                assert stored(store, indices[:2]) == [expected[index] for index in indices[:2]]
                assert store.name(indices[0]) == records[indices[0]].name
                assert store.find(str(records[30].name)) == 30
                assert store.column("label")[indices[1]] in (indices[1] % 3, NO_LABEL)
                assert len(store.names()) == 60

        def close_often() -> None:
            barrier.wait(WAIT_S)
            while not stop.wait(0.01):  # between two calls of close(), all threads share a handle
                store.close()

        with self.open(place) as store, ThreadPoolExecutor(6) as pool:
            closing = pool.submit(close_often)
            try:
                for future in [pool.submit(read, seed, 15) for seed in range(5)]:
                    future.result()
            finally:
                stop.set()
            closing.result()
