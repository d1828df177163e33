"""LMDBStore and LMDBWriter keep the promises of every store; places, and files that are not stores."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import numpy as np
import pytest

from dbloader import Record, open_store, write_store
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
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb.store import LMDBStore
from dbloader.stores.lmdb.writer import LMDBWriter
from dbloader.stores.open import create_store
from tests.contracts.records import (
    WAIT_S,
    documents_of,
    make_records,
    stored,
    write,
    write_nothing,
    write_one_by_one,
    write_partial,
)
from tests.contracts.store import StoreContract
from tests.support.children import in_child
from tests.support.images import as_nobody
from tests.support.lmdb_files import tamper_with_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from dbloader.stores.base import Store


def opener_of(store: Store) -> int | None:
    assert isinstance(store, LMDBStore)
    return None if store.handle is None else store.handle.pid


class TestLMDBStore(StoreContract):
    opener = staticmethod(opener_of)

    def place(self, tmp_path: Path, name: str = "store") -> str:
        return str(tmp_path / f"{name}.lmdb")

    def what_is_at(self, place: str) -> list[str]:
        return sorted(path.name for path in Path(place).parent.glob(f"{Path(place).name}*"))

    def remove(self, place: str) -> None:
        Path(place).unlink()

    def move(self, place: str, to: str) -> None:
        Path(place).rename(to)

    def put_something_else(self, place: str) -> None:
        Path(place).write_text("precious\n" * 10_000)

    def replace_documents(self, place: str, documents: dict[int, bytes | None]) -> None:
        tamper_with_records(place, documents)


def test_a_batch_is_read_in_one_transaction(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    class Counting:
        def __enter__(self) -> None:
            nonlocal begun
            begun += 1

        def __exit__(self, *exception: object) -> None:
            pass

    with open_store(place) as store:
        len(store)
        monkeypatch.setattr(env, "gate", Counting())  # which every transaction goes through
        store.read([3, 1, 1, 19])
        assert begun == 1
        store.documents(range(20))
        assert begun == 2
        store.read([])
        assert begun == 3


def test_a_borrowed_image_is_in_the_map_and_a_read_one_is_not(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    write_store([Record(image=b"a file"), Record(image=np.arange(12, dtype=np.uint8).reshape(2, 2, 3))], place)
    with open_store(place) as store:
        with store.borrow([0, 1]) as borrowed:
            file, array = [record.image for record in borrowed]
            assert type(file) is memoryview
            assert type(array) is np.ndarray
            assert not array.flags.writeable
        assert [type(record.image) for record in store.read([0, 1])] == [bytes, np.ndarray]
        assert store.read([1])[0].image.flags.writeable  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["ftp://host/store", "redis://user:secret@host/0"])
def test_a_uri_of_an_unknown_kind_is_no_place(place: str) -> None:
    uses: list[Callable[[], object]] = [lambda: open_store(place), lambda: create_store(place)]
    for use in uses:
        with pytest.raises(PlaceError, match=rf"^{place.split(':')[0]}:// is no place that this version") as caught:
            use()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["https://host/store", "s3://bucket/a.lmdb"])
def test_a_store_in_object_storage_is_copied_first(place: str) -> None:
    uses: list[Callable[[], object]] = [lambda: open_store(place), lambda: create_store(place)]
    for use in uses:
        with pytest.raises(PlaceError, match=rf"^{place} is in object storage, and stores are made and read on this"):
            use()


@pytest.mark.parametrize("place", ["", b"", b"store.lmdb"])
def test_what_is_no_text_is_no_place(place: Any) -> None:
    for use in (open_store, create_store, LMDBStore, LMDBWriter):
        with pytest.raises(
            PlaceError,
            match=f"^a place is the path of an LMDB file or mongodb://host/database.collection, got {place!r}$",
        ):
            use(place)


@pytest.mark.parametrize("name", ["with space", "ünï 日本 🐈", "percent%20 'quote'", "-dash", "a.lmdb.partial.lmdb"])
def test_a_place_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for place in (folder / name, str(folder / f"{name} 2")):
        write(place, make_records(5))
        with open_store(place) as store:
            assert store.place == str(place)
            assert stored(store, range(5)) == documents_of(make_records(5))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.slow
def test_a_relative_place_stays_where_it_was_when_the_working_directory_changes(
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
        # A spawned process begins in the working directory that its parent began in.
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            assert pool.apply_async(len, (store,)).get(WAIT_S) == 3
            pool.close()
            pool.join()


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with pytest.raises(StoreNotFoundError, match=r"store\.lmdb does not exist; dbloader convert makes a store$"):
        len(open_store(place))
    with pytest.raises(FileNotFoundError, match=r"x/store\.lmdb does not exist"):
        len(open_store(tmp_path / "x" / "store.lmdb"))
    place.write_bytes(b"")
    with pytest.raises(StoreNotFoundError, match=r"lmdb/below does not exist"):
        len(open_store(place / "below"))


def test_a_file_that_cannot_be_reached_is_not_called_missing(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    place.symlink_to(place)
    with pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be read: Too many levels of symbolic links$"):
        len(open_store(place))


def test_an_unfinished_conversion_is_pointed_out_where_the_store_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, make_records(3))
        writer.commit()
        assert Path(f"{place}.partial").exists()
    with pytest.raises(NotAStoreError, match=r"is not there, but its unfinished conversion is: .* --resume goes on"):
        len(open_store(place))


def test_an_unfinished_store_that_was_copied_to_the_place_is_no_store(tmp_path: Path) -> None:
    place, other = tmp_path / "store.lmdb", tmp_path / "other.lmdb"
    write_partial(place, make_records(3))
    shutil.copy(f"{place}.partial", other)
    with pytest.raises(NotAStoreError, match="is not a finished store: its conversion was interrupted"):
        len(open_store(other))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, so not a dbloader store"),
        (b"x", "is not an LMDB file"),
        (b"a text\n" * 10_000, "is not an LMDB file"),
        (bytes(100_000), "is not an LMDB file"),
    ],
    ids=["empty", "tiny", "text", "zeros"],
)
def test_a_file_of_another_kind_is_no_store(tmp_path: Path, content: bytes, message: str) -> None:
    place = tmp_path / "file"
    place.write_bytes(content)
    with pytest.raises(NotAStoreError, match=message):
        len(open_store(place))


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_ordinary_file_is_no_store_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "fifo"
    if kind == "fifo":
        os.mkfifo(place)
    else:
        place = Path("/dev/zero")
    with pytest.raises(NotAStoreError, match="is not an ordinary file, so not a dbloader store"):
        len(open_store(place))


@pytest.mark.parametrize(
    ("databases", "keys"), [([], []), ([b"records"], []), ([b"other"], []), ([], [b"records", b"meta"])]
)
def test_an_lmdb_file_of_another_program_is_no_store(tmp_path: Path, databases: list[bytes], keys: list[bytes]) -> None:
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


def test_an_lmdb_file_of_another_version_of_lmdb_says_so(place: Path) -> None:
    with place.open("r+b") as file:
        for page in (0, 4096):
            file.seek(page + 16 + 4)  # behind the page's header and LMDB's magic number
            file.write((999).to_bytes(4, "little"))
    with pytest.raises(StoreError, match=r"LMDB data format v999 is not supported|of another version of LMDB"):
        len(open_store(place))


def test_a_store_that_is_open_through_lmdb_itself_is_not_called_damaged(place: Path) -> None:
    with lmdb.open(str(place), subdir=False, lock=False), open_store(place) as store:
        with pytest.raises(StoreError, match="is already open in this process") as caught:
            len(store)
        assert not isinstance(caught.value, DamagedStoreError)


def test_too_many_open_files_are_not_called_damage(place: Path) -> None:
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


def test_a_file_that_may_not_be_read_says_so(open_path: Path) -> None:
    place = open_path / "store.lmdb"
    write(place, make_records(3))
    place.chmod(0)
    with as_nobody(), pytest.raises(StoreAccessError, match=r"store\.lmdb may not be read"):
        len(open_store(place))
    (open_path / "closed").mkdir(mode=0o700)
    write(open_path / "closed" / "store.lmdb", make_records(3))
    (open_path / "closed").chmod(0o700 if os.geteuid() == 0 else 0)
    with as_nobody(), pytest.raises(StoreAccessError, match=r"closed/store\.lmdb may not be read: Permission denied"):
        len(open_store(open_path / "closed" / "store.lmdb"))
    (open_path / "closed").chmod(0o700)
