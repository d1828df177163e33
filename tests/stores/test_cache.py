"""Caches: records of a store elsewhere are read once, kept in a file of this machine, and read from there."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import pickle
import re
import resource
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, MongoDataset, Record, copy_store, create_store, open_store, write_store
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    NotAStoreError,
    OptionError,
    PlaceError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
)
from dbloader.records.record import encode
from dbloader.stores.cache import CachedStore
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.cache_file import CacheFile
from dbloader.stores.lmdb.keys import RECORDS, record_key
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.records import make_records, write_partial
from tests.support.children import from_child, in_child
from tests.support.images import as_nobody
from tests.support.leaks import find_resources
from tests.support.lmdb_files import tamper_with_records
from tests.support.mongo import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.stores.base import Store
    from tests.support.mongo import Mongod

WAIT_S = 60.0  # for what is on its way; only a broken test waits so long
LENGTH = 32
fork = multiprocessing.get_context("fork")

# Python >= 3.12 warns of every fork of a process with threads, which every client of a server has.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def data_of(index: int, size: int = 5000) -> bytes:
    return index.to_bytes(2, "big") * (size // 2)


def make(place: str | Path, length: int = LENGTH, *, size: int = 5000, base: int = 0, **options: Any) -> None:
    """A store of which every record tells its index and, by ``base``, its store."""
    with create_store(place, **options) as writer:
        writer.write(encode(Record(f"{i}.x", i % 7, data_of(base + i, size))) for i in range(length))
        writer.finish(classes=tuple("abcdefg"))


EXPECTED = [(data_of(index), index % 7) for index in range(LENGTH)]


def read_all(dataset: Any) -> list[Any]:
    return dataset.__getitems__(range(len(dataset)))  # type: ignore[no-any-return]


def epoch(dataset: Any, **options: Any) -> list[Any]:
    options = {"num_workers": 0, "timeout": WAIT_S if options.get("num_workers") else 0, **options}
    return [sample for batch in DataLoader(dataset, 4, collate_fn=list, **options) for sample in batch]


def kept(path: Path) -> dict[int, bytes]:
    """The documents in a cache."""
    shared = env.acquire(str(path))  # this process may have it open
    try:
        with shared.env.begin(db=shared.env.open_db(RECORDS, create=False)) as txn:
            return {int.from_bytes(key, "big"): document for key, document in txn.cursor()}
    finally:
        env.release(shared)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def cache_of(place: Path, path: Path, **options: Any) -> CachedStore:
    return CachedStore(LMDBStore(place), path, **options)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make(tmp_path / "origin.lmdb")
    return tmp_path / "origin.lmdb"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    return tmp_path / "local" / "cache.lmdb"


def file_of(store: CachedStore) -> CacheFile:
    """Return the cache file of a store, which is opened if need be."""
    len(store)
    assert isinstance(store.local, CacheFile)
    return store.local


def kept_by(store: CachedStore) -> dict[int, bytes]:
    return file_of(store).documents(range(len(store)))


def test_constructing_a_cache_touches_nothing(tmp_path: Path) -> None:
    with cache_of(tmp_path / "none.lmdb", tmp_path / "cache.lmdb") as store:
        assert list(tmp_path.iterdir()) == []
        assert repr(store) == f"CachedStore(LMDBStore('{tmp_path}/none.lmdb'), '{tmp_path}/cache.lmdb')"
        assert store.place == f"{tmp_path}/none.lmdb"


def test_a_pickle_holds_the_manifest_and_no_handle(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read([3])
        data = pickle.dumps(store)
        for handle in (b"CacheFile", b"Environment", b"Handle"):
            assert handle not in data
        place.unlink()  # nothing needs to be asked of the origin that the cache has
        with pickle.loads(data) as copy:  # noqa: S301 - our own
            assert copy.manifest == store.manifest
            assert copy.documents([3]) == store.documents([3])


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_of_less_than_a_byte_is_refused(path: Path, size: int) -> None:
    with pytest.raises(OptionError, match=f"cache_bytes must be at least 1, got {size}"):
        MongoDataset("mongodb://localhost/a.b", cache=path, cache_bytes=size)
    with pytest.raises(OptionError, match="needs a cache, got 100"):
        MongoDataset("mongodb://localhost/a.b", cache_bytes=100)


def test_a_path_that_is_none_is_refused_without_its_password(place: Path) -> None:
    with pytest.raises(PlaceError, match=r"^(?!.*secret).*the path of a file is wanted here") as raised:
        CachedStore(LMDBStore(place), "mongodb://user:secret@host/a.b")
    assert "secret" not in str(raised.value)


# Filling


@pytest.mark.slow
def test_after_one_epoch_the_server_is_not_asked_for_any_record(mongod: Mongod, mongod_uri: str, path: Path) -> None:
    make(mongod_uri)
    with Proxy(mongod.port) as proxy, MongoDataset(proxy.through(mongod_uri), decode=None, cache=path) as dataset:
        at_first = proxy.bytes_to_client
        assert epoch(dataset) == EXPECTED
        assert proxy.bytes_to_client - at_first > LENGTH * 5000
        with open_store(mongod_uri) as origin:
            assert kept(path) == dict(enumerate(origin.documents(range(LENGTH))))
        proxy.stop_accepting()
        proxy.cut()
        mongod.kill()
        assert epoch(dataset, shuffle=True) != EXPECTED
        assert epoch(dataset) == EXPECTED
        assert epoch(dataset, num_workers=1, multiprocessing_context="spawn") == EXPECTED
        assert dataset.store.documents([5]) == [kept(path)[5]]


def test_no_record_is_read_from_the_server_twice(mongod: Mongod, mongod_uri: str, path: Path) -> None:
    make(mongod_uri, size=50_000)
    with Proxy(mongod.port) as proxy, MongoDataset(proxy.through(mongod_uri), decode=None, cache=path) as dataset:
        before = proxy.bytes_to_client
        for indices in ([1, 2, 3], [3, 2, 1, 0], [2, 2, 2], [0, -LENGTH]):
            dataset.__getitems__(indices)
        assert 4 * 50_000 < proxy.bytes_to_client - before < 5 * 50_000
        assert sorted(kept(path)) == [0, 1, 2, 3]


def test_many_processes_that_begin_at_once_make_one_whole_cache(place: Path, path: Path) -> None:
    start, starting = os.pipe()

    def fill(number: int) -> None:
        os.close(starting)
        with cache_of(place, path) as store:
            os.read(start, 1)  # until the parent closes its end too
            for index in range(number, LENGTH, 2):
                store.read([index])
                store.documents([LENGTH - 1 - index])
            os._exit(0 if images_of(store, range(LENGTH)) == [data for data, _ in EXPECTED] else 1)

    processes = [fork.Process(target=fill, args=(number % 2,)) for number in range(6)]
    for process in processes:
        process.start()
    os.close(start)
    os.close(starting)
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0
        process.close()
    with open_store(place) as origin:
        assert kept(path) == dict(enumerate(origin.documents(range(LENGTH))))
    assert files_in(path.parent) == [path.name]  # no file of locks beside it


def test_a_forked_child_of_a_process_that_has_the_cache_open_reads_and_fills_it(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read([0])

        def child() -> Any:
            with cache_of(place, path) as another:
                another.read([2])
            return [record.image for record in store.read([0, 1])], file_of(store).shared.pid

        images, opener = from_child(child)
        assert images == [data_of(0), data_of(1)]
        assert opener != os.getpid()
        assert file_of(store).shared.pid == os.getpid()
        assert store.read([3])[0].image == data_of(3)
        assert sorted(kept_by(store)) == [0, 1, 2, 3]


class Dying(dict[int, bytes]):
    """Documents of which the process that writes them sees a few."""

    def items(self) -> Any:
        yield from list(super().items())[:4]
        die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_process_that_is_killed_while_it_fills_a_cache_leaves_a_usable_one(
    place: Path, path: Path, when: str
) -> None:
    """Killed with the file locked: before a transaction, in the middle of it, after it."""

    def fill() -> None:
        with cache_of(place, path) as store:
            store.read(range(8))
            local = file_of(store)
            if when == "during":
                local.add(Dying(zip(range(8, 16), store.documents(range(8, 16)), strict=True)))
            with local.shared.locked(fcntl.LOCK_EX):
                if when == "after":
                    with local.shared.env.begin(write=True, db=local.records) as txn:
                        txn.put(record_key(8), store.origin.documents([8])[0])
                die()

    with cache_of(place, path) as other:
        other.read([20])
        assert in_child(fill) == -signal.SIGKILL
        assert sorted(kept_by(other)) == [*range(9 if when == "after" else 8), 20]
        assert [record.image for record in other] == [data for data, _ in EXPECTED]
        assert len(kept_by(other)) == LENGTH


def test_a_child_does_not_keep_the_lock_of_its_parent_that_was_killed(place: Path, path: Path) -> None:
    reading, writing = os.pipe()
    running, runs = os.pipe()

    def parent() -> None:
        with cache_of(place, path) as store:
            store.read([0])
            local = file_of(store)
            if not os.fork():
                os.close(writing)
                os.write(runs, b".")  # it has closed what it inherited
                os.read(reading, 1)  # until the test ends
                os._exit(0)
            os.read(running, 1)
            with local.shared.locked(fcntl.LOCK_EX):
                die()

    pid = os.fork()
    if not pid:
        try:
            parent()
        finally:
            os._exit(1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for descriptor in (reading, writing, running, runs):
            os.close(descriptor)


def test_a_process_that_was_killed_before_it_wrote_anything_is_no_hindrance(place: Path, path: Path) -> None:
    path.touch()
    with cache_of(place, path) as store:
        assert store.read([1])[0].image == data_of(1)
    path.unlink()
    lmdb.open(str(path), subdir=False, lock=False).close()  # LMDB's header, and nothing of ours
    with cache_of(place, path) as store:
        assert store.read([1])[0].image == data_of(1)
        assert sorted(kept_by(store)) == [1]


def test_a_cache_that_is_removed_while_it_is_in_use_is_filled_again_by_others(place: Path, path: Path) -> None:
    with cache_of(place, path) as old:
        old.read(range(4))
        path.unlink()

        def child() -> list[int]:
            with cache_of(place, path) as new:
                new.read([5])
                return sorted(kept_by(new))

        assert from_child(child) == [5]
        with cache_of(place, path) as new:
            new.read([6])
            old.read([7])
            assert (sorted(kept_by(old)), sorted(kept_by(new))) == ([0, 1, 2, 3, 7], [5, 6])


# Its size


@pytest.mark.parametrize("size", [5000, 100])
def test_the_file_is_no_larger_than_it_may_be(tmp_path: Path, path: Path, size: int) -> None:
    length, limit = 400, 1_000_000
    make(tmp_path / "s.lmdb", length, size=size)
    with cache_of(tmp_path / "s.lmdb", path, max_bytes=limit) as store:
        for _ in range(2):
            for start in range(0, length, 7):
                store.read(range(start, min(start + 7, length)))
        assert 0 < len(kept_by(store)) < length or size == 100
        assert path.stat().st_size <= limit
        assert [record.image for record in store] == [data_of(index, size) for index in range(length)]
    assert len(kept(path)) * size > (limit / 4 if size == 5000 else 0)


def test_a_cache_of_a_byte_keeps_nothing_and_harms_nothing(place: Path, path: Path) -> None:
    with cache_of(place, path, max_bytes=1) as store, warnings.catch_warnings(record=True) as warned:
        assert [record.image for record in store] == [data for data, _ in EXPECTED]
        assert kept_by(store) == {}
        assert warned == []


def test_records_with_large_further_fields_are_kept_too(tmp_path: Path, path: Path) -> None:
    mask = np.arange(200_000)
    write_store([Record(f"{index}", index, b"x", fields={"mask": mask}) for index in range(12)], tmp_path / "s.lmdb")
    with cache_of(tmp_path / "s.lmdb", path) as store:
        assert len(list(store)) == 12
        assert len(kept_by(store)) == 12


def limit_files(nbytes: int) -> None:
    """Let this process write no larger files, as if the disk were full."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def test_on_a_full_disk_it_warns_once_and_goes_on_from_the_server(place: Path, path: Path) -> None:
    def read_on() -> tuple[list[str], int]:
        with cache_of(place, path) as store, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            store.read(range(4))
            limit_files(path.stat().st_size)
            for _ in range(3):
                assert [record.image for record in store] == [data for data, _ in EXPECTED]
            return [str(warning.message) for warning in warned], len(kept_by(store))

    (warning,), count = from_child(read_on)
    assert re.search(rf"the cache {path} takes no more records: .*(File too large|Input/output error)", warning)
    assert count == 4
    with cache_of(place, path) as store:  # and afterwards there is room again
        assert len(list(store)) == len(kept_by(store)) == LENGTH


@pytest.mark.parametrize("limit", [0, 4096, 12288])
def test_a_cache_that_does_not_fit_at_all_says_so(place: Path, path: Path, limit: int) -> None:
    def read() -> None:
        limit_files(limit)
        with cache_of(place, path) as store:
            store.read([0])

    error = from_child(read)
    assert isinstance(error, StoreError)
    assert f"the cache {path}" in str(error)
    with cache_of(place, path) as store:  # what is there is no hindrance
        assert len(list(store)) == len(kept_by(store)) == LENGTH


# Damage and staleness


def test_a_damaged_record_in_the_cache_is_an_error_with_the_remedy(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read(range(LENGTH))
        good = kept_by(store)[5]
    tamper_with_records(path, {5: good[:100] + bytes([good[100] ^ 1]) + good[101:], 6: good, 7: b""})
    with cache_of(place, path) as store:
        for index, what in ((5, "its CRC-32 is"), (6, "it is record 5"), (7, "it has only 0 bytes")):
            message = rf"^record {index} of {place} is damaged in its cache {path}: {what}.*; remove that file"
            with pytest.raises(DamagedRecordError, match=message):
                store.read([8, index])
        assert store.read([8])[0].image == data_of(8)
        path.unlink()
        store.close()
        assert [record.image for record in store] == [data for data, _ in EXPECTED]


def test_a_record_that_is_damaged_at_its_origin_is_not_kept(place: Path, path: Path) -> None:
    with open_store(place) as origin:
        document = origin.documents([5])[0]
    tamper_with_records(place, {5: document[:100] + b"??" + document[102:]})
    with cache_of(place, path) as store:
        message = rf"^record 5 \(5\.x\) of {place} is damaged: its CRC-32 is"
        for _ in range(2):
            with pytest.raises(DamagedRecordError, match=message):
                store.read([4, 5])
        assert 5 not in kept_by(store)


def test_a_cache_that_is_cut_short_is_an_error_with_the_remedy(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read(range(LENGTH))
    os.truncate(path, path.stat().st_size // 2)
    with cache_of(place, path) as store, pytest.raises(DamagedStoreError, match=r"is cut short: .*remove that file"):
        store.read([0])


def test_a_cache_of_another_store_is_refused_with_the_remedy(tmp_path: Path, place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read([1, 2])
    make(tmp_path / "other.lmdb", base=1000)
    before = digest_of(path)
    message = (
        rf"^{path} caches another store than the one that is now at {tmp_path}/other\.lmdb: remove the file, or name"
    )
    with cache_of(tmp_path / "other.lmdb", path) as store, pytest.raises(NotAStoreError, match=message):
        len(store)
    assert digest_of(path) == before


def test_a_stale_cache_is_refused_when_the_dataset_is_made_and_when_it_is_refreshed(mongo_uri: str, path: Path) -> None:
    make(mongo_uri)
    message = r"caches another store than the one that is now at mongodb://.*: remove the file, or name another"
    with MongoDataset(mongo_uri, decode=None, cache=path) as dataset:
        assert epoch(dataset) == EXPECTED
        make(mongo_uri, base=1000, overwrite=True)
        assert epoch(dataset) == EXPECTED  # the store that it was made for
        with pytest.raises(NotAStoreError, match=message):
            MongoDataset(mongo_uri, cache=path)
        with pytest.raises(NotAStoreError, match=message):
            dataset.refresh()
        path.unlink()
        dataset.refresh()
        assert epoch(dataset) == [(data_of(1000 + index), index % 7) for index in range(LENGTH)]


@pytest.mark.parametrize("length", [LENGTH, 4])
def test_a_worker_that_finds_another_store_at_the_origin_mixes_nothing(tmp_path: Path, path: Path, length: int) -> None:
    place = tmp_path / "origin.lmdb"
    make(place)
    with cache_of(place, path) as store:
        store.read(range(16))
        make(place, length, base=1000, overwrite=True)
        pool = fork.Pool(1)
        try:
            assert pool.apply(images_of, (store, range(16))) == [data_of(index) for index in range(16)]
            for function, argument in ((images_of, [20]), (images_of, [1, 20]), (column_of, "label"), (name_of, 3)):
                with pytest.raises(
                    NotAStoreError, match=rf"^the store at {place} has been replaced since it was opened"
                ):
                    pool.apply(function, (store, argument))
        finally:
            pool.terminate()
            pool.join()
        assert images_of(store, range(LENGTH)) == [data for data, _ in EXPECTED]  # as this process has it open
        assert len(kept_by(store)) == LENGTH


def images_of(store: Store, indices: Any) -> list[Any]:
    return [record.image for record in store.read(indices)]


def column_of(store: Store, name: str) -> Any:
    return store.column(name)


def name_of(store: Store, index: int) -> Any:
    return store.name(index)


def test_the_same_records_under_other_class_names_keep_their_cache(mongo_uri: str, path: Path) -> None:
    make(mongo_uri)
    with MongoDataset(mongo_uri, decode=None, cache=path) as dataset:
        epoch(dataset)
        with open_store(mongo_uri) as store:
            records = list(store)
        write_store(records, mongo_uri, classes=tuple("ABCDEFG"), overwrite=True)
        dataset.refresh()
        assert dataset.classes == list("ABCDEFG")
        assert epoch(dataset) == EXPECTED


# What else may be at the path


def put_lmdb(path: Path, name: bytes | None) -> None:
    """Put an LMDB file of another program there, perhaps with a sub-database called like one of dbloader's."""
    with lmdb.open(str(path), subdir=False, max_dbs=2, lock=False) as other:
        database = other.open_db(name) if name else None
        with other.begin(write=True, db=database) as txn:
            txn.put(b"precious", b"value")


def put_unfinished(path: Path) -> None:
    write_partial(path, make_records(1))
    Path(f"{path}.partial").rename(path)


NO_CACHE = "is not a cache: remove it, or name another file"


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda path: path.write_bytes(b"precious" * 5000), NO_CACHE),
        (lambda path: path.write_bytes(b"precious"), NO_CACHE),
        (lambda path: put_lmdb(path, None), NO_CACHE),
        (lambda path: put_lmdb(path, b"records"), NO_CACHE),
        (put_unfinished, NO_CACHE),
        (
            lambda path: make(path, base=500),
            "caches another store than the one that is now at .*: remove the file, or name another",
        ),
    ],
)
def test_what_is_no_cache_is_refused_and_left_as_it_was(
    place: Path, path: Path, put: Callable[[Path], object], message: str
) -> None:
    put(path)
    before = digest_of(path)
    with cache_of(place, path) as store, pytest.raises(NotAStoreError, match=rf"^{path} {message}$"):
        store.read([0])
    assert digest_of(path) == before
    assert files_in(path.parent) == [path.name]


def test_a_folder_or_a_missing_one_is_refused(place: Path, path: Path) -> None:
    for where in (path.parent, path.parent / "none" / "cache.lmdb"):
        message = rf"^the cache {where} cannot be written: "
        with cache_of(place, where) as store, pytest.raises(StoreAccessError, match=message):
            store.read([0])
    assert files_in(path.parent) == []


def test_a_pipe_is_refused_and_nobody_waits_for_it(place: Path, path: Path) -> None:
    os.mkfifo(path)
    with cache_of(place, path) as store, pytest.raises(NotAStoreError, match=rf"^{path} is not a cac"):
        store.read([0])


def test_a_folder_that_may_not_be_written_is_an_error(place: Path, open_path: Path) -> None:
    copy_store(place, open_path / "origin.lmdb")
    message = f"^the cache {open_path}/cache.lmdb cannot be written: Permission denied$"
    open_path.chmod(0o555)
    with (
        cache_of(open_path / "origin.lmdb", open_path / "cache.lmdb") as store,
        as_nobody(),
        pytest.raises(StoreAccessError, match=message),
    ):
        store.read([0])


def test_a_copy_by_dbloader_copy_is_used_without_being_written_to(place: Path, open_path: Path) -> None:
    path = open_path / "copy.lmdb"
    for copy in (open_path / "origin.lmdb", path):
        copy_store(place, copy)
    path.chmod(0o444)
    open_path.chmod(0o555)
    before, status = digest_of(path), path.stat()
    with cache_of(open_path / "origin.lmdb", path) as store, as_nobody():
        assert [record.image for record in store] == [data for data, _ in EXPECTED]
        assert (store.find("7.x"), len(store.names()), store.name(4)) == (7, LENGTH, "4.x")
    assert (digest_of(path), path.stat().st_mtime_ns) == (before, status.st_mtime_ns)
    assert files_in(open_path) == ["copy.lmdb", "origin.lmdb"]


def test_with_a_whole_copy_the_server_is_asked_for_its_manifest_only(
    mongod: Mongod, mongod_uri: str, path: Path
) -> None:
    make(mongod_uri)
    copy_store(mongod_uri, path)
    with Proxy(mongod.port) as proxy, MongoDataset(proxy.through(mongod_uri), decode=None, cache=path) as dataset:
        assert isinstance(dataset.store, CachedStore)
        assert len(dataset.store) == LENGTH
        assert isinstance(dataset.store.local, LMDBStore)
        proxy.stop_accepting()
        proxy.cut()
        assert epoch(dataset) == epoch(dataset, num_workers=1) == EXPECTED
        assert dataset.targets.tolist() == [label for _, label in EXPECTED]
        assert dataset.names[3] == "3.x"
        assert dataset.find("5.x") == 5
        with LMDBDataset(path, decode=None) as same:
            assert read_all(same) == EXPECTED
        proxy.accept()  # a client that is closed says so


def test_a_whole_copy_that_is_replaced_is_not_taken_for_the_old_one(tmp_path: Path, place: Path, path: Path) -> None:
    copy_store(place, path)
    with cache_of(place, path) as store:
        assert images_of(store, [1]) == [data_of(1)]
        make(path, base=1000, overwrite=True)
        assert images_of(store, [2]) == [data_of(2)]
        error = from_child(lambda: images_of(store, [3]))
        assert isinstance(error, NotAStoreError)
        assert "caches another store than the one that is now at" in str(error)


def test_a_cache_and_its_origin_may_be_one_file(place: Path) -> None:
    with cache_of(place, place) as store, LMDBDataset(place, decode=None) as dataset:
        assert images_of(store, range(LENGTH)) == [data for data, _ in read_all(dataset)]


# Looking at a cache


def test_a_cache_is_no_store_and_says_what_it_is(place: Path, path: Path) -> None:
    message = rf"^{path} is not a whole store, but a cache of one in MongoDB, for MongoDataset\(..., cache=...\)"
    with cache_of(place, path) as store:
        for _ in range(2):  # while this process has it open, and when it has not
            store.read([0])
            with pytest.raises(NotAStoreError, match=message):
                LMDBDataset(path)
            assert sorted(kept_by(store)) == [0]
            store.close()
    with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
        copy_store(place, path, overwrite=True)
    assert sorted(kept(path)) == [0]


def test_an_error_that_is_kept_does_not_keep_a_cache_from_being_written(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read([0])
    with pytest.raises(NotAStoreError, match="a cache of one") as raised:
        LMDBDataset(path)
    with cache_of(place, path) as store:
        store.read([1])
        assert sorted(kept_by(store)) == [0, 1]
    assert "a cache of one" in str(raised.value)


def test_a_cache_leaves_no_file_open(place: Path, path: Path) -> None:
    def open_files() -> list[str]:
        return sorted(target for _, target in find_resources().files)

    before = open_files()
    store = cache_of(place, path)
    other = cache_of(place, path)
    store.read([0])
    other.read([0])
    assert open_files().count(str(path)) == 3  # LMDB's two, and the one that is locked: for both
    store.close()
    assert open_files().count(str(path)) == 3
    other.close()
    assert open_files() == before


def test_a_file_that_is_open_as_a_store_is_not_written_to(place: Path, path: Path) -> None:
    with cache_of(place, path) as store:
        store.read([0])
    shared = env.acquire(str(path))
    try:
        with cache_of(place, path) as store, pytest.raises(StoreError, match="open to read it only"):
            store.read([1])
    finally:
        env.release(shared)
