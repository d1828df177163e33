"""Threads that share a store, and forks among them."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dbloader.records.columns import NO_LABEL
from tests.contracts.backend import Backend
from tests.contracts.processes import read_here
from tests.contracts.records import WAIT_S, documents_of, facts, make_records, stored
from tests.support.children import from_child

if TYPE_CHECKING:
    from pathlib import Path


class ThreadsContract(Backend):
    """How threads share a store."""

    @pytest.mark.slow
    def test_a_process_can_be_forked_while_threads_read(self, tmp_path: Path) -> None:
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
                    pid, _, after, documents, _ = from_child(lambda: read_here(store, self.opener, [9, 8]), WAIT_S / 4)
                    assert pid == after != os.getpid()
                    assert documents == [expected[9], expected[8]]
            finally:
                stop.set()
            for reader in readers:
                reader.result()

    @pytest.mark.slow
    def test_threads_share_a_store(self, tmp_path: Path) -> None:
        records = make_records(200)
        place = self.store(tmp_path, records)
        expected = documents_of(records)
        barrier = threading.Barrier(8)

        def read(seed: int) -> None:
            rng = random.Random(seed)
            barrier.wait(WAIT_S)  # all are the first to use it
            for _ in range(15):
                indices = rng.choices(range(200), k=8)
                assert [facts(record) for record in store.read(indices)] == [facts(records[i]) for i in indices]
                assert stored(store, indices) == [expected[index] for index in indices]
                assert store.name(indices[0]) == records[indices[0]].name
                assert store.find(str(records[100].name)) == 100
                assert store.column("label")[indices[1]] in (indices[1] % 3, NO_LABEL)

        with self.open(place) as store, ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(read, seed) for seed in range(8)]:
                future.result()

    def test_one_thread_may_close_a_store_while_others_read(self, tmp_path: Path) -> None:
        records = make_records(60)
        place = self.store(tmp_path, records)
        expected = documents_of(records)
        barrier, stop = threading.Barrier(5), threading.Event()

        def read(start: int) -> None:
            barrier.wait(WAIT_S)
            for _ in range(30):
                assert stored(store, [start]) == [expected[start]]
                assert store.find(str(records[start].name)) == start
                assert len(store.names()) == len(store.column("width")) == 60

        def close_often() -> None:
            barrier.wait(WAIT_S)
            while not stop.is_set():
                store.close()

        with self.open(place) as store, ThreadPoolExecutor(5) as pool:
            closing = pool.submit(close_often)
            try:
                for future in [pool.submit(read, 5 * number) for number in range(2, 6)]:
                    future.result()
            finally:
                stop.set()
            closing.result()
