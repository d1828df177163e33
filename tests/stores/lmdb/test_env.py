"""LMDB environments: one for each file and process, whatever forks and threads do."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dbloader import open_store
from dbloader.errors import NotAStoreError
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.handle import LMDBHandle
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.records import WAIT_S, documents_of, make_records, stored
from tests.support.children import in_child
from tests.support.lmdb_files import ONE_ENVIRONMENT, open_descriptors, tamper

if TYPE_CHECKING:
    from dbloader.stores.base import Store


def shared(store: Store) -> env.Environment:
    """Return the environment of a store, which is opened if need be."""
    len(store)
    assert isinstance(store, LMDBStore)
    assert isinstance(store.handle, LMDBHandle)
    return store.handle.shared


@pytest.mark.parametrize("link", ["", "hard", "symbolic"])
def test_stores_on_one_file_share_one_environment(place: Path, tmp_path: Path, link: str) -> None:
    other = tmp_path / "other.lmdb" if link else place
    if link == "hard":
        other.hardlink_to(place)
    elif link:
        other.symlink_to(place)
    with open_store(place) as one, open_store(other) as two:
        assert shared(one) is shared(two)
        assert open_descriptors(place) == ONE_ENVIRONMENT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_release_pages_removes_pages_from_the_process(place: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        begin = next(number for number, line in enumerate(lines) if line.endswith(str(place)))
        return int(next(line for line in lines[begin:] if line.startswith("Rss:")).split()[1])

    with open_store(place) as store:
        before = [*store]
        assert resident() > 0
        shared(store).release_pages()
        assert resident() == 0
        assert documents_of([*store]) == documents_of(before)


@pytest.mark.parametrize("end", ["close", "with", "del", "garbage"])
def test_file_is_closed_with_its_last_store(place: Path, end: str) -> None:
    store = open_store(place)
    store.read([0])
    assert open_descriptors(place) == ONE_ENVIRONMENT
    if end == "close":
        store.close()
    elif end == "with":
        with store:
            pass
    elif end == "garbage":
        store.itself = store  # type: ignore[attr-defined]
    del store
    if end == "garbage":
        gc.collect()
    assert open_descriptors(place) == 0


def test_store_that_fails_to_open_leaves_no_file_open(place: Path) -> None:
    tamper(place, b"meta", {b"manifest": None})
    with pytest.raises(NotAStoreError, match="not a finished store"):
        len(open_store(place))
    gc.collect()  # the handle, from the error's traceback
    assert open_descriptors(place) == 0
    tamper(place, b"meta", {b"manifest": b""})  # which py-lmdb would refuse if the file were open


def test_threads_open_and_close_one_file_without_errors(place: Path) -> None:
    # py-lmdb refuses a file from the moment it is opened until it is closed, not until its object is gone.
    before = sys.getswitchinterval()
    barrier = threading.Barrier(3)  # few, so that often none has it open

    def open_and_close() -> None:
        barrier.wait(WAIT_S)
        for _ in range(300):
            with open_store(place) as store:
                assert len(store) == 20

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(open_and_close) for _ in range(3)]:
                future.result()
    finally:
        sys.setswitchinterval(before)
    assert open_descriptors(place) == 0


def test_environment_closed_during_acquire_is_opened_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Collecting(dict[Any, Any]):
        """Stands for the garbage collector, which may end the last other store in the middle of a look-up."""

        def get(self, key: Any, default: Any = None) -> Any:
            found = super().get(key, default)
            if found is not None:
                one.close()
            return found

    monkeypatch.setattr(env, "environments", Collecting())
    with open_store(place) as one, open_store(place) as two:
        before = shared(one)
        assert shared(two) is not before
        assert stored(two, range(20)) == documents_of(make_records(20))
        assert open_descriptors(place) == ONE_ENVIRONMENT


def test_forked_child_closes_inherited_environments(place: Path) -> None:
    with open_store(place) as used, open_store(place) as unused:
        before = shared(used)
        assert shared(unused) is before

        def look() -> None:
            assert open_descriptors(place) == 0
            assert stored(used, range(20)) == documents_of(make_records(20))
            assert shared(used) is not before
            assert shared(used).pid == os.getpid()
            assert open_descriptors(place) == ONE_ENVIRONMENT
            unused.close()  # whose handle is its parent's
            used.close()
            assert open_descriptors(place) == 0

        assert in_child(look) == 0
        assert stored(used, range(20)) == documents_of(make_records(20))
        assert shared(used) is before


def test_fork_waits_for_readers_and_new_readers_for_the_fork() -> None:
    gate = env.gate
    inside, entering, entered, forked = (threading.Event() for _ in range(4))

    def wait_for_fork() -> None:
        deadline = time.monotonic() + WAIT_S
        while not gate.closed:  # nothing tells of it
            assert time.monotonic() < deadline

    def read() -> None:
        with gate, gate:  # as where a damaged record's name is looked up
            inside.set()
            wait_for_fork()
            assert entering.wait(WAIT_S)
            assert not entered.wait(0.05)  # otherwise threads that come and go would put it off forever
            assert not forked.is_set()

    def fork_now() -> None:
        with gate:  # its own reading is not waited for
            assert in_child(lambda: os._exit(0)) == 0  # for multiprocessing cannot end a thread that forked
        forked.set()

    def come_late() -> None:
        wait_for_fork()
        entering.set()
        with gate:
            entered.set()

    with ThreadPoolExecutor(3) as pool:
        reading, late = pool.submit(read), pool.submit(come_late)
        assert inside.wait(WAIT_S)
        forking = pool.submit(fork_now)
        for future in (reading, forking, late):
            future.result(WAIT_S)
        assert entered.is_set()
