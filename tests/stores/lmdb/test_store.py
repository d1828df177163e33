"""LMDBStore and LMDBWriter keep the promises of every store. Also tests places, and files that are not stores."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from dbloader import open_store
from dbloader.errors import (
    DamagedStoreError,
    NotAStoreError,
    PlaceError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dbloader.records.record import encode
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.lmdb.writer import LMDBWriter
from dbloader.stores.open import create_store
from tests.contracts.backend import FileBackend
from tests.contracts.records import WAIT_S, documents_of, make_records, stored, write, write_nothing, write_partial
from tests.contracts.store import StoreContract
from tests.support.children import in_child
from tests.support.images import as_nobody
from tests.support.lmdb_files import tamper_with_records


class TestLMDBStore(FileBackend, StoreContract):
    def put_something_else(self, place: str) -> None:
        Path(place).write_text("precious\n" * 10_000)

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        tamper_with_records(place, documents)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("ftp://host/store", "^ftp:// is not a place that this version of dbloader supports"),
        ("redis://user:secret@host/0", "^redis:// is not a place that this version of dbloader supports"),
        ("https://host/store", "^https://host/store is in object storage, which this operation does not support"),
        ("s3://bucket/a.lmdb", "^s3://bucket/a.lmdb is in object storage, which this operation does not support"),
        ("", "^a place must be the path of an LMDB file or mongodb://host/database.collection, got ''$"),
    ],
)
def test_place_that_is_not_a_path_is_refused(place: Any, message: str) -> None:
    for use in (open_store, create_store, LMDBStore, LMDBWriter):
        with pytest.raises(PlaceError, match=message) as caught:
            use(place)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["with space", "ünï 日本 🐈", "percent%20 'quote'", "-dash", "a.lmdb.partial.lmdb"])
def test_place_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for place in (folder / name, str(folder / f"{name} 2")):
        write(place, make_records(5))
        with open_store(place) as store:
            assert store.place == str(place)
            assert stored(store, range(5)) == documents_of(make_records(5))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
def test_relative_place_survives_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with create_store("store.lmdb") as writer:
        writer.write(encode(record) for record in make_records(3))
        monkeypatch.chdir(elsewhere)
        writer.finish()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["store.lmdb"]
    monkeypatch.chdir(tmp_path)
    with open_store("store.lmdb") as store:
        monkeypatch.chdir(elsewhere)
        assert store.place == "store.lmdb"
        assert len(store) == 3
        # A spawned process starts in the working directory in which its parent started.
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            assert pool.apply_async(len, (store,)).get(WAIT_S) == 3
            pool.close()
            pool.join()


def leave_partial(place: Path) -> None:
    write_partial(place, make_records(3))


def make_file_above(place: Path) -> None:
    place.parent.touch()


def copy_partial(place: Path) -> None:
    leave_partial(place)
    shutil.copy(f"{place}.partial", place)


def change_version(place: Path) -> None:
    write(place, make_records(3))
    with place.open("r+b") as file:
        for page in (0, 4096):
            file.seek(page + 16 + 4)  # after the page's header and LMDB's magic number
            file.write((999).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda place: None, StoreNotFoundError, r"store\.lmdb does not exist; dbloader convert makes a store$"),
        (lambda place: None, FileNotFoundError, r"store\.lmdb does not exist"),
        (
            lambda place: place.symlink_to(place),
            StoreAccessError,
            r"store\.lmdb cannot be read: Too many levels of symbolic links$",
        ),
        (make_file_above, StoreNotFoundError, r"store\.lmdb does not exist"),
        (leave_partial, NotAStoreError, "does not exist, but its unfinished conversion does: .* --resume continues it"),
        (copy_partial, NotAStoreError, "is not a finished store: its conversion was interrupted"),
        (lambda place: place.touch(), NotAStoreError, "is empty or not an ordinary file"),
        (lambda place: place.write_bytes(b"x"), NotAStoreError, "is not an LMDB file"),
        (lambda place: place.write_text("text\n" * 10_000), NotAStoreError, "is not an LMDB file"),
        (lambda place: place.write_bytes(bytes(100_000)), NotAStoreError, "is not an LMDB file"),
        (os.mkfifo, NotAStoreError, "is empty or not an ordinary file"),
        (lambda place: place.symlink_to("/dev/zero"), NotAStoreError, "is empty or not an ordinary file"),
        (change_version, StoreError, r"LMDB data format v999 is not supported|of another version of LMDB"),
    ],
)
def test_place_without_a_store_is_refused(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    place = tmp_path / "folder" / "store.lmdb"
    if make is not make_file_above:
        place.parent.mkdir()
    make(place)
    with pytest.raises(error, match=message):
        len(open_store(place))


def test_missing_store_with_a_long_name_is_an_error_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"a does not exist; dbloader convert makes a store$"):
        len(open_store(tmp_path / ("a" * 250)))


@pytest.mark.parametrize(("databases", "keys"), [([], []), ([b"records"], []), ([], [b"records", b"meta"])])
def test_lmdb_file_of_another_program_is_refused_and_kept(
    tmp_path: Path, databases: list[bytes], keys: list[bytes]
) -> None:
    place = tmp_path / "other.lmdb"
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2) as env:
        for name in databases:
            env.open_db(name)
        with env.begin(write=True) as txn:
            for key in (b"key", *keys):
                txn.put(key, b"value")
    with pytest.raises(NotAStoreError, match="is an LMDB file, but not a dbloader store"):
        len(open_store(place))
    with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
        write_nothing(place, overwrite=True)
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2) as env, env.begin() as txn:
        assert txn.get(b"key") == b"value"


def test_file_that_lmdb_has_open_already_is_an_error_but_not_damage(place: Path) -> None:
    with lmdb.open(str(place), subdir=False, lock=False), open_store(place) as store:
        with pytest.raises(StoreError, match="is already open in this process") as caught:
            len(store)
        assert not isinstance(caught.value, DamagedStoreError)


def test_too_many_open_files_are_an_error_but_not_damage(place: Path) -> None:
    def exhaust() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        store = open_store(place)
        descriptors = [os.open(os.devnull, os.O_RDONLY)]
        while descriptors[-1] < 63:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(StoreError, match=r"cannot be read: .*Too many open files") as caught:
            len(store)
        assert not isinstance(caught.value, DamagedStoreError)
        for descriptor in descriptors:
            os.close(descriptor)
        assert len(store) == 20

    assert in_child(exhaust) == 0


def test_file_without_read_permission_raises(open_path: Path) -> None:
    place = open_path / "store.lmdb"
    write(place, make_records(3))
    place.chmod(0)
    with as_nobody(), pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be read"):
        len(open_store(place))
    (open_path / "closed").mkdir(mode=0o700)
    write(open_path / "closed" / "store.lmdb", make_records(3))
    (open_path / "closed").chmod(0o700 if os.geteuid() == 0 else 0)
    with as_nobody(), pytest.raises(StoreAccessError, match=r"closed/store\.lmdb cannot be read: Permission denied"):
        len(open_store(open_path / "closed" / "store.lmdb"))
    (open_path / "closed").chmod(0o700)
