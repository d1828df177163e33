"""LMDB environments: one for each file and process, even with forks and threads."""

from __future__ import annotations

import gc
import mmap
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dbloader import open_store
from dbloader.errors import NotAStoreError
from dbloader.stores.base import Store
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.handle import LMDBHandle
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.records import WAIT_S, documents_of, make_records, stored
from tests.support.children import in_child
from tests.support.lmdb_files import ONE_ENVIRONMENT, open_descriptors, tamper


def shared(store: Store) -> env.Environment:
    """Return the environment of a store, and open the store if necessary."""
    len(store)
    assert isinstance(store, LMDBStore)
    assert isinstance(store.handle, LMDBHandle)
    return store.handle.shared


def resident_bytes(path: Path) -> int:
    """Return how much of a mapped file is in this process's memory."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_ours = line.endswith(f" {path}")
        elif is_ours and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


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


def test_pages_are_released_beside_a_mapped_file_whose_name_is_not_utf8(place: Path, tmp_path: Path) -> None:
    other = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(other, "wb") as written:  # noqa: PTH123 - a path of bytes
        written.write(b"content")
    with open(other, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), open_store(place) as store:  # noqa: PTH123
        first = documents_of(store.read(range(len(store))))
        assert resident_bytes(place) > 0
        shared(store).release_pages()
        assert resident_bytes(place) == 0
        assert documents_of(store.read(range(len(store)))) == first


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
    gc.collect()  # frees the handle that the error's traceback keeps
    assert open_descriptors(place) == 0
    tamper(place, b"meta", {b"manifest": b""})  # py-lmdb would refuse this if the file were open


def test_threads_open_and_close_one_file_without_errors(place: Path) -> None:
    # py-lmdb refuses to open a file again until the file is closed, even if the environment object still exists.
    before = sys.getswitchinterval()
    barrier = threading.Barrier(3)  # with few threads, the file is often closed

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


def test_forked_child_closes_inherited_environment(place: Path) -> None:
    with open_store(place) as used, open_store(place) as unused:
        before = shared(used)
        assert shared(unused) is before

        def look() -> None:
            assert open_descriptors(place) == 0
            assert stored(used, range(20)) == documents_of(make_records(20))
            assert shared(used) is not before
            assert shared(used).pid == os.getpid()
            assert open_descriptors(place) == ONE_ENVIRONMENT
            unused.close()  # the child still has its parent's handle
            used.close()
            assert open_descriptors(place) == 0

        assert in_child(look) == 0
        assert stored(used, range(20)) == documents_of(make_records(20))
        assert shared(used) is before
