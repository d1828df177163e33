"""LMDBStore and LMDBWriter: the promises of every store, and what is particular to one LMDB file."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import lmdb
import numpy as np
import pytest

from dbloader import Record, create_store, open_store, write_store
from dbloader.errors import (
    DamagedRecordError,
    DamagedStoreError,
    NotAStoreError,
    PlaceError,
    RecordNotFoundError,
    StoreAccessError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StoreVersionError,
)
from dbloader.records.columns import CHUNK, COLUMNS, seal_chunk, unseal_chunk
from dbloader.records.document import open_sealed, seal
from dbloader.records.record import encode
from dbloader.stores.lmdb import env
from dbloader.stores.lmdb import writer as lmdb_writer
from dbloader.stores.lmdb.keys import column_key, event_key, record_key
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.store import (
    DIED,
    WAIT_S,
    StoreContract,
    documents_of,
    make_records,
    small_records,
    write_one_by_one,
)
from tests.support.children import in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dbloader.stores.base import Store

NOBODY = 65534


def opener_of(store: Store) -> int | None:
    assert isinstance(store, LMDBStore)
    return None if store._handle is None else store._handle.shared.pid


def shared(store: Store) -> env.Environment:
    """Return the environment that a store uses, which it opens if need be."""
    len(store)
    assert isinstance(store, LMDBStore)
    assert store._handle is not None
    return store._handle.shared


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
        tamper(place, b"records", {record_key(index): document for index, document in documents.items()})


def write(place: str | Path, records: list[Record], **options: Any) -> None:
    with create_store(place, **options) as writer:
        writer.write(encode(record) for record in records)
        writer.finish()


def tamper(place: str | Path, database: bytes, changes: dict[bytes, bytes | None]) -> None:
    """Put other values at some keys of a store, or removes them."""
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, sync=False) as env:
        there = env.open_db(database)
        with env.begin(write=True) as txn:
            for key, value in changes.items():
                if value is None:
                    assert txn.delete(key, db=there)
                else:
                    txn.put(key, value, db=there)


def value_at(place: str | Path, database: bytes, key: bytes) -> bytes:
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2, readonly=True) as env:
        there = env.open_db(database, create=False)
        with env.begin() as txn:
            value = txn.get(key, db=there)
    assert value is not None
    return bytes(value)


ONE_ENVIRONMENT = 2  # descriptors: LMDB's, and that of the hints about what will be read


def open_descriptors(path: str | Path) -> int:
    """Count how often this process has a file open."""
    target = os.path.realpath(path)
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        with suppress(OSError):  # the one of the listing
            count += os.readlink(f"/proc/self/fd/{descriptor}") == target  # noqa: PTH115
    return count


@contextmanager
def as_nobody() -> Iterator[None]:
    """Take away root's right to read and write everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that any user can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The place of a store of 20 records."""
    path = tmp_path / "store.lmdb"
    write(path, make_records(20))
    return path


# ---- One environment for each file and process


def test_stores_on_one_file_share_one_environment(place: Path) -> None:
    with open_store(place) as one, open_store(place) as two:
        assert shared(one) is shared(two)
        assert open_descriptors(place) == ONE_ENVIRONMENT


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


@pytest.mark.parametrize("link", ["hard", "symbolic", "folder"])
def test_a_link_to_a_store_is_the_same_store(place: Path, tmp_path: Path, link: str) -> None:
    other = tmp_path / "other.lmdb"
    if link == "hard":
        other.hardlink_to(place)
    elif link == "symbolic":
        other.symlink_to(place)
    else:
        (tmp_path / "folder").symlink_to(tmp_path)
        other = tmp_path / "folder" / place.name
    with open_store(place) as one, open_store(other) as two:
        assert shared(one) is shared(two)
        assert one.documents(range(20)) == two.documents(range(20))


def test_closing_one_store_keeps_another_on_the_same_file_working(place: Path) -> None:
    with open_store(place) as one:
        two = open_store(place)
        assert shared(one) is shared(two)
        two.close()
        assert one.documents(range(20)) == documents_of(make_records(20))
    assert open_descriptors(place) == 0


def test_a_store_that_was_replaced_is_another_file_with_its_own_environment(place: Path) -> None:
    with open_store(place) as old:
        before = shared(old)
        write(place, make_records(3, seed=9), overwrite=True)
        with open_store(place) as new:
            assert shared(new) is not shared(old) is before
            assert len(new) == 3
            assert len(old) == 20
        assert old.documents(range(20)) == documents_of(make_records(20))


@pytest.mark.parametrize("end", ["close", "with", "del", "garbage"])
def test_the_file_is_closed_with_the_last_store_that_uses_it(place: Path, end: str) -> None:
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


def test_a_store_that_could_not_be_opened_leaves_no_file_open(place: Path) -> None:
    tamper(place, b"meta", {b"manifest": None})
    with pytest.raises(NotAStoreError, match="not a finished store"):
        len(open_store(place))
    gc.collect()  # the handle, from the error's traceback
    assert open_descriptors(place) == 0
    tamper(place, b"meta", {b"manifest": b""})  # which py-lmdb would refuse if the file were open


def test_threads_that_open_and_close_the_same_file_never_see_it_open_twice(place: Path) -> None:
    # py-lmdb refuses a file from the moment it is opened until it is closed, not until its object is gone.
    before = sys.getswitchinterval()
    barrier = threading.Barrier(3)  # so few that often none has it open

    def open_and_close() -> None:
        barrier.wait(WAIT_S)
        for _ in range(1500):
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


def test_an_environment_that_is_closed_while_it_is_found_is_opened_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Collecting(dict[Any, Any]):
        """Stands for the garbage collector, which may end the last other store in the middle of a look-up."""

        def get(self, key: Any, default: Any = None) -> Any:
            found = super().get(key, default)
            if found is not None:
                one.close()
            return found

    monkeypatch.setattr(env, "_open", Collecting())
    with open_store(place) as one, open_store(place) as two:
        before = shared(one)
        assert shared(two) is not before
        assert two.documents(range(20)) == documents_of(make_records(20))
        assert open_descriptors(place) == ONE_ENVIRONMENT


def test_a_forked_child_closes_what_it_inherited(place: Path) -> None:
    with open_store(place) as used, open_store(place) as unused:
        before = shared(used)
        assert shared(unused) is before

        def look() -> None:
            assert open_descriptors(place) == 0
            assert used.documents(range(20)) == documents_of(make_records(20))
            assert shared(used) is not before
            assert shared(used).pid == os.getpid()
            assert open_descriptors(place) == ONE_ENVIRONMENT
            unused.close()  # whose handle is its parent's
            used.close()
            assert open_descriptors(place) == 0

        assert in_child(look) == 0
        assert used.documents(range(20)) == documents_of(make_records(20))
        assert shared(used) is before


def test_grandchildren_open_handles_of_their_own(place: Path) -> None:
    with open_store(place) as store:
        assert shared(store).pid == os.getpid()

        def read() -> None:
            assert store.documents([3]) == documents_of(make_records(20))[3:4]
            assert shared(store).pid == os.getpid()

        def read_and_fork() -> None:
            read()
            assert in_child(read) == 0
            read()

        assert in_child(read_and_fork) == 0
        read()


def test_a_child_that_is_forked_while_a_store_is_read_can_fork_and_read_itself(place: Path) -> None:
    # Forking shuts a gate; here it is opened again in the child, too.
    with open_store(place) as store:

        def read_in_thread() -> None:
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(store.documents, [3]).result(WAIT_S) == documents_of(make_records(20))[3:4]

        def read_and_fork() -> None:
            read_in_thread()
            assert in_child(read_in_thread) == 0

        assert in_child(read_and_fork) == 0
        read_in_thread()


def test_a_fork_waits_for_the_threads_that_read_and_others_wait_for_it() -> None:
    gate = env.gate
    inside, entering, entered, forked = (threading.Event() for _ in range(4))

    def wait_for_fork() -> None:
        deadline = time.monotonic() + WAIT_S
        while not gate._forking:  # nothing tells of it
            assert time.monotonic() < deadline

    def read() -> None:
        with gate, gate:  # as where a damaged record's name is looked up
            inside.set()
            wait_for_fork()
            assert entering.wait(WAIT_S)
            assert not entered.wait(0.05)  # or else threads that come and go would put it off for ever
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


@pytest.mark.parametrize(("size", "pages", "ahead"), [(499, 100, True), (500, 100, False), (0, 1, True)])
def test_reading_ahead_is_for_files_that_fit_into_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, size: int, pages: int, ahead: bool
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 10, "SC_PHYS_PAGES": pages}.__getitem__)
    assert env._fits_memory(size) == ahead


# ---- Places


@pytest.mark.parametrize("place", ["http://host/store", "s3://bucket/a.lmdb", "redis://user:secret@host/0"])
def test_a_uri_of_an_unknown_kind_is_no_place(place: str) -> None:
    uses: list[Callable[[], object]] = [lambda: open_store(place), lambda: create_store(place)]
    for use in uses:
        with pytest.raises(PlaceError, match=rf"^{place.split(':')[0]}:// is no place that this version") as caught:
            use()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["", b"", b"store.lmdb"])
def test_what_is_no_text_is_no_place(place: Any) -> None:
    for use in (open_store, create_store, LMDBStore, lmdb_writer.LMDBWriter):
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
            assert store.documents(range(5)) == documents_of(make_records(5))
    assert len(list(folder.iterdir())) == 2


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


# ---- What is at a place and is no store


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with pytest.raises(StoreNotFoundError, match=r"store\.lmdb does not exist; dbloader convert makes a store$"):
        len(open_store(place))
    with pytest.raises(FileNotFoundError, match=r"x/store\.lmdb does not exist"):
        len(open_store(tmp_path / "x" / "store.lmdb"))
    place.write_bytes(b"")
    with pytest.raises(StoreNotFoundError, match=r"lmdb/below does not exist"):
        len(open_store(place / "below"))


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
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, make_records(3))
        writer.commit()
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


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="is a folder; a store is one file"):
        len(open_store(tmp_path))


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
    ("databases", "keys"),
    [([], []), ([b"records"], []), ([b"meta"], []), ([b"other"], []), ([], [b"records", b"meta"])],
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
    with (
        pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
        create_store(place, overwrite=True),
    ):
        pass
    with lmdb.open(str(place), subdir=False, lock=False, max_dbs=2) as env, env.begin() as txn:
        assert txn.get(b"key") == b"value"


def test_a_manifest_of_another_program_is_no_store(place: Path) -> None:
    tamper(place, b"meta", {b"manifest": bson.encode({"format": "other", "version": 1})})
    with pytest.raises(NotAStoreError, match=r"store\.lmdb is not a dbloader store"):
        len(open_store(place))


def test_a_store_of_a_newer_version_says_what_to_install(place: Path) -> None:
    manifest = bson.decode(value_at(place, b"meta", b"manifest"))
    tamper(place, b"meta", {b"manifest": bson.encode({**manifest, "version": 2})})
    with pytest.raises(StoreVersionError, match=r"has format version 2; .* up to 1: install a newer one \(pip install"):
        len(open_store(place))


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


# ---- Damage


def sizes_to_cut(whole: int) -> list[int]:
    page = 4096
    return [1, page, 2 * page - 1, 2 * page, 3 * page, whole // 2, whole // 2 + 1, whole - page, whole - 1]


@pytest.mark.parametrize("number", range(len(sizes_to_cut(0))))
def test_a_file_that_was_cut_short_is_noticed_when_it_is_opened(place: Path, number: int) -> None:
    size = sizes_to_cut(place.stat().st_size)[number]
    os.truncate(place, size)

    def open_it() -> None:
        # In a child, because what is not noticed ends in SIGBUS.
        with pytest.raises((DamagedStoreError, NotAStoreError), match="is cut short: it has|is not an LMDB file"):  # noqa: RUF043
            open_store(place).verify()

    assert in_child(open_it) == 0


def test_a_file_that_was_cut_by_a_byte_says_how_much_it_lacks(place: Path) -> None:
    size = place.stat().st_size
    os.truncate(place, size - 1)
    with pytest.raises(DamagedStoreError, match=rf"is cut short: it has {size - 1} bytes of {size}; copy it again"):
        len(open_store(place))


def test_a_file_with_something_behind_it_is_still_the_store(place: Path) -> None:
    with place.open("ab") as file:
        file.write(bytes(5000))
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest


@pytest.mark.parametrize("kind", ["zeros", "ones", "noise", "one bit"])
def test_a_damaged_page_is_noticed_or_does_no_harm(place: Path, kind: str) -> None:
    # LMDB's own pages have no checksum, so this is what was tried, not a promise: no crash, never other records.
    expected = documents_of(make_records(20))
    content = place.read_bytes()
    other = place.with_name("other.lmdb")

    def read_damaged() -> None:
        noticed = 0
        for page in range(2, len(content) // 4096):
            for seed in range(1 if kind in ("zeros", "ones") else 5):
                rng = random.Random(1000 * page + seed)
                damaged = bytearray(content[4096 * page : 4096 * (page + 1)])
                if kind == "one bit":
                    damaged[rng.randrange(4096)] ^= 1 << rng.randrange(8)
                else:
                    damaged[:] = {"zeros": bytes(4096), "ones": b"\xff" * 4096}.get(kind) or rng.randbytes(4096)
                other.unlink(missing_ok=True)
                other.write_bytes(content[: 4096 * page] + damaged + content[4096 * (page + 1) :])
                try:
                    with open_store(other) as store:
                        store.verify()
                        assert store.documents(range(20)) == expected
                except (StoreError, DamagedRecordError):
                    noticed += 1
        assert noticed

    assert in_child(read_damaged) == 0


def test_what_lmdb_finds_damaged_is_a_damaged_store(place: Path) -> None:
    content = place.read_bytes()

    def read_damaged() -> None:
        with place.open("r+b") as file:
            file.seek(2 * 4096)
            file.write(bytes(len(content) - 2 * 4096))
        with open_store(place) as store, pytest.raises(DamagedStoreError, match=r"store\.lmdb cannot be read: .*MDB_"):
            store.verify()

    assert in_child(read_damaged) == 0

    def read_damaged_record() -> None:
        place.write_bytes(content)
        with open_store(place) as store:
            store.documents([0])
            with place.open("r+b") as file:  # which nobody should do
                file.seek(2 * 4096)
                file.write(bytes(len(content) - 2 * 4096))
            with pytest.raises(DamagedStoreError, match=r"store\.lmdb cannot be read: .*MDB_"):
                store.documents(range(20))

    assert in_child(read_damaged_record) == 0


@pytest.mark.parametrize("change", ["missing", "empty", "shorter", "odd", "longer"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_the_wrong_size_is_noticed(place: Path, name: str, change: str) -> None:
    key = column_key(name, 0)
    value = value_at(place, b"meta", key)
    new = {"missing": None, "empty": b"", "shorter": value[:-8], "odd": value[:-1], "longer": value + bytes(8)}[change]
    tamper(place, b"meta", {key: new})
    with open_store(place) as store:
        uses: list[Callable[[], object]] = [store.verify]
        if name == "name":
            uses += [store.names, lambda: store.name(19), lambda: store.find(str(make_records(20)[19].name))]
        else:
            uses.append(lambda: store.column(name))
        for use in uses:
            with pytest.raises(DamagedStoreError, match=f"chunk 0 of its column {name} is missing or damaged"):
                use()
        assert store.documents(range(20)) == documents_of(make_records(20))


def retell(place: Path, **changes: object) -> None:
    """Give a store another manifest, as a program would that means to lie: with the right CRC-32."""
    manifest = open_sealed(value_at(place, b"meta", b"manifest"))
    tamper(place, b"meta", {b"manifest": seal({**manifest, **changes})})


def put_chunk(place: Path, column: str, number: int, chunk: bytes) -> None:
    """Give a store another chunk of a column, with the right CRC-32."""
    tamper(place, b"meta", {column_key(column, number): seal_chunk(column, number, chunk)})


def chunk_at(place: Path, column: str, number: int) -> bytes:
    chunk = unseal_chunk(column, number, value_at(place, b"meta", column_key(column, number)))
    assert chunk is not None
    return bytes(chunk)


@pytest.mark.parametrize("name", COLUMNS)
def test_one_flipped_bit_of_a_column_is_found_by_whoever_reads_it(place: Path, name: str) -> None:
    key = column_key(name, 0)
    value = value_at(place, b"meta", key)
    rng = random.Random(name)
    for bit in rng.sample(range(8 * len(value)), 40):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        tamper(place, b"meta", {key: bytes(flipped)})
        with open_store(place) as store:
            uses: list[Callable[[], object]] = [store.verify]
            if name == "name":
                uses += [store.names, lambda: store.name(0), lambda: store.find(str(make_records(20)[19].name))]
            else:
                uses.append(lambda: store.column(name))
            if name == "name_hash":
                uses.append(lambda: store.find("class 0/0.jpg"))
            for use in uses:
                with pytest.raises(DamagedStoreError, match=f"chunk 0 of its column {name} is missing or damaged"):
                    use()


@pytest.mark.parametrize("name", COLUMNS)
def test_verifying_compares_each_column_with_the_records(place: Path, name: str) -> None:
    chunk = chunk_at(place, name, 0)
    put_chunk(place, name, 0, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    with open_store(place) as store:
        with pytest.raises(DamagedStoreError, match=f"its column {name} does not tell of the 20 records from 0 on"):
            store.verify()
        # Training goes by the records, each with its checksum.
        assert [record.label for record in store] == [record.label for record in make_records(20)]


def test_verifying_compares_columns_of_every_chunk(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, small_records(CHUNK + 100))
    put_chunk(place, "label", 1, bytes(len(chunk_at(place, "label", 1))))
    with (
        open_store(place) as store,
        pytest.raises(DamagedStoreError, match="its column label does not tell of the 100 records from 4096 on"),
    ):
        store.verify()


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("digest", "0" * 64),
        ("label_counts", None),
        ("labelled", 7),
        ("named", 7),
        ("image_bytes", 7),
        ("width", [1, 2]),
        ("height", [3, 4]),
        ("formats", {"JPEG": 20, "PNG": 1}),
        ("fields", {}),
        ("outcome", {"repaired": 1}),
        ("events", 1),
        ("classes", ["only one"]),
    ],
)
def test_verifying_compares_the_manifest_with_the_records(tmp_path: Path, fact: str, other: object) -> None:
    place = tmp_path / "store.lmdb"
    lines = [{"name": f"{number}", "event": event, "reason": "why"} for number, event in enumerate(["repaired"] * 2)]
    with create_store(place) as writer:
        records = make_records(20)
        writer.write((encode(record) for record in records), events=lines, outcome={"repaired": 2, "resized": 3})
        writer.finish(classes=["a", "b", "c", "d", "e"])
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest
    retell(place, **{fact: other})
    with (
        open_store(place) as store,
        pytest.raises(DamagedStoreError, match=rf"the ({fact}|outcome) in its manifest is not that of its records"),
    ):
        store.verify()


def test_one_flipped_bit_of_the_manifest_is_found_at_opening(place: Path) -> None:
    value = value_at(place, b"meta", b"manifest")
    for bit in random.Random(0).sample(range(8 * len(value)), 200):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        tamper(place, b"meta", {b"manifest": bytes(flipped)})
        with pytest.raises(StoreError, match=r"store\.lmdb"):
            len(open_store(place))


def test_lines_of_the_report_need_not_be_counted_in_the_outcome(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with create_store(place) as writer:
        writer.write([], events=[{"name": "a.jpg", "event": "noticed", "reason": "why"}])
        writer.finish()
    with open_store(place) as store:
        assert store.verify() == store.manifest.digest


@pytest.mark.parametrize("change", ["flipped", "missing", "exchanged", "empty", "something else"])
def test_a_damaged_line_of_the_report_is_found_when_it_is_read(tmp_path: Path, change: str) -> None:
    place = tmp_path / "store.lmdb"
    lines = [{"name": f"{number}.jpg", "event": "rejected", "reason": "why"} for number in range(3)]
    with create_store(place) as writer:
        writer.write([], events=lines)
        writer.finish()
    value = value_at(place, b"meta", event_key(1))
    new = {
        "flipped": value.replace(b"why", b"wky"),
        "missing": None,
        "exchanged": value_at(place, b"meta", event_key(2)),
        "empty": b"",
        "something else": seal({"event": "rejected"}, 1),
    }[change]
    tamper(place, b"meta", {event_key(1): new})
    with open_store(place) as store:
        events = store.events()
        assert next(events) == lines[0]
        with pytest.raises(DamagedStoreError, match=r"event 1 of its report is damaged: "):
            next(events)
        with pytest.raises(DamagedStoreError, match=r"event 1 of its report is damaged: "):
            store.verify()


@pytest.mark.parametrize("length", [19, 21, 10**12])
def test_a_manifest_of_another_length_is_found_by_verifying_and_by_each_column(place: Path, length: int) -> None:
    retell(place, length=length)
    with open_store(place) as store:
        with pytest.raises((DamagedStoreError, DamagedRecordError), match=r"is missing|is missing or damaged"):
            store.verify()
        for read in (lambda: store.column("label"), store.names, lambda: store.find("class 0/0.jpg")):
            with pytest.raises(DamagedStoreError, match=r"chunks? .*of its column \w+ (is|are) missing"):
                read()


def test_a_manifest_that_lies_about_its_length_takes_no_memory(tmp_path: Path) -> None:
    place, length = tmp_path / "store.lmdb", 10**13
    write(place, small_records(3))
    last = -(-length // CHUNK) - 1
    for column in COLUMNS:
        tamper(place, b"meta", {column_key(column, last): seal_chunk(column, last, b"")})
    retell(place, length=length)
    with open_store(place) as store:
        for read in (lambda: store.column("label"), store.names, lambda: store.find("x")):
            with pytest.raises(
                DamagedStoreError, match=r"its manifest says 10,000,000,000,000 records, but the chunks"
            ):
                read()


def test_a_record_that_was_put_at_another_index_is_found(place: Path) -> None:
    head = slice(9, 17)  # the index in a document
    with open_store(place) as store:
        one, other = store.documents([3, 4])
    as_three = other[: head.start] + one[head] + other[head.stop :]
    tamper(place, b"records", {record_key(3): as_three})
    with open_store(place) as store:
        with pytest.raises(DamagedRecordError, match=r"^record 3 .* is damaged: its CRC-32 is"):
            store[3]
        with pytest.raises(DamagedRecordError, match=r"^record 3 .* is damaged: its CRC-32 is"):
            store.verify()


def test_a_damaged_record_whose_name_is_damaged_too_is_told_by_its_index(place: Path) -> None:
    tamper(place, b"meta", {column_key("name", 0): None})
    tamper(place, b"records", {record_key(3): b"x"})
    with (
        open_store(place) as store,
        pytest.raises(DamagedRecordError, match=r"^record 3 \(its name is damaged too\) of .* it has only 1 bytes"),
    ):
        store[3]


# ---- Writing


def test_a_store_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "store.lmdb", make_records(3))
    finally:
        os.umask(before)
    assert (tmp_path / "store.lmdb").stat().st_mode & 0o777 == 0o640


def test_a_finished_store_is_one_file(tmp_path: Path) -> None:
    write(tmp_path / "store.lmdb", make_records(3))
    with open_store(tmp_path / "store.lmdb") as store:
        store.read([0])
        assert [path.name for path in tmp_path.iterdir()] == ["store.lmdb"]


def test_temporary_files_of_a_conversion_belong_beside_the_store(tmp_path: Path) -> None:
    assert create_store(tmp_path / "store.lmdb").scratch == tmp_path


def die(*arguments: object) -> None:
    os._exit(DIED)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_was_finished_but_not_renamed_is_published_by_resuming(tmp_path: Path, overwrite: bool) -> None:
    place = tmp_path / "store.lmdb"
    records = make_records(20)
    if overwrite:
        write(place, make_records(2, seed=5))

    def finish() -> None:
        with create_store(place, resumable=True, overwrite=overwrite) as writer:
            write_one_by_one(writer, records)
            writer.finish(created="then")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", die)
        assert in_child(finish) == DIED
    assert value_at(f"{place}.partial", b"meta", b"manifest")
    if overwrite:
        with open_store(place) as store:
            assert len(store) == 2
    else:
        with pytest.raises(NotAStoreError, match="its unfinished conversion is"):
            len(open_store(place))
    with create_store(place, resume=True) as writer:
        assert writer.position == 20
        write_one_by_one(writer, records)
        manifest = writer.finish(created="then")
    assert [path.name for path in tmp_path.iterdir()] == ["store.lmdb"]
    with open_store(place) as store:
        assert store.documents(range(20)) == documents_of(records)
        assert store.verify() == manifest.digest


def test_a_partial_file_without_a_commit_is_resumed_from_the_beginning(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"

    def die_at_once() -> None:
        with create_store(place, resumable=True):
            os._exit(DIED)

    assert in_child(die_at_once) == DIED
    assert Path(f"{place}.partial").stat().st_size
    with create_store(place, resume=True) as writer:
        assert not writer.resumed
        write_one_by_one(writer, make_records(3))
        writer.finish()
    with open_store(place) as store:
        assert len(store) == 3


def test_a_partial_file_that_is_no_lmdb_file_is_kept_until_it_is_overwritten(tmp_path: Path) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    partial.write_text("a text\n" * 1000)
    with pytest.raises(StoreExistsError, match="an unfinished conversion is at"), create_store(place):
        pass
    with (
        pytest.raises(DamagedStoreError, match=r"partial is damaged .*; begin again with overwrite"),
        create_store(place, resume=True),
    ):
        pass
    assert partial.read_text() == "a text\n" * 1000
    write(place, make_records(3), overwrite=True)
    assert not partial.exists()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_partial_file_with_a_damaged_column_is_not_resumed(tmp_path: Path, name: str) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, make_records(3))
        writer.commit()
    whole = value_at(partial, b"meta", column_key(name, 0))
    for change in (whole[:-4], bytes([whole[0] ^ 1]) + whole[1:], None):
        tamper(partial, b"meta", {column_key(name, 0): change})
        writer = create_store(place, resume=True)
        message = rf"partial: its column {name} is damaged; begin again with overwrite \(--overwrite\)"
        with pytest.raises(DamagedStoreError, match=message), writer:
            pass
    with create_store(place, overwrite=True) as anew:  # the refused writer has let go of the file
        anew.finish()


def test_a_writer_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise lmdb.Error("No space left on device")

    monkeypatch.setattr("dbloader.stores.lmdb.writer.lmdb.open", refuse)
    with (
        pytest.raises(StoreFullError, match=r"no room is left for .*store\.lmdb"),
        create_store(tmp_path / "store.lmdb", resumable=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["damaged", "newer"])
def test_a_store_that_is_damaged_or_newer_may_be_overwritten(place: Path, kind: str) -> None:
    if kind == "damaged":
        os.truncate(place, place.stat().st_size // 2)
    else:
        tamper(place, b"meta", {b"manifest": bson.encode({"format": "dbloader", "version": 2})})
    write(place, make_records(3), overwrite=True)
    with open_store(place) as store:
        assert len(store) == 3


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_link_that_leads_in_a_circle_is_not_replaced(tmp_path: Path, options: dict[str, bool]) -> None:
    place, other = tmp_path / "store.lmdb", tmp_path / "other.lmdb"
    place.symlink_to(other)
    other.symlink_to(place)
    with (
        pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: its symbolic link leads in a circle"),
        create_store(place, **options),
    ):
        pass
    assert sorted(tmp_path.iterdir()) == [other, place]
    assert place.readlink() == other


def test_a_file_that_cannot_be_looked_at_is_not_overwritten(open_path: Path) -> None:
    place = open_path / "store.lmdb"
    write(place, make_records(3))
    place.chmod(0)
    open_path.chmod(0o777)
    with (
        as_nobody(),
        pytest.raises(StoreAccessError, match=r"store\.lmdb may not be read"),
        create_store(place, overwrite=True),
    ):
        pass
    place.chmod(0o600)
    with open_store(place) as store:
        assert len(store) == 3


def test_a_partial_file_that_is_renamed_just_before_it_is_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the process that finished it.
    place, partial, flock = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial", fcntl.flock
    locked: list[int] = []

    def rename_and_lock(descriptor: int, operation: int) -> None:
        if not locked:
            partial.rename(tmp_path / "other.lmdb")
        locked.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", rename_and_lock)
    with create_store(place) as writer:
        assert len(locked) == 2
        assert partial.exists()
        monkeypatch.undo()
        write_one_by_one(writer, make_records(3))
        writer.finish()
    assert (tmp_path / "other.lmdb").stat().st_size == 0
    with open_store(place) as store:
        assert len(store) == 3


def test_a_file_system_without_locks_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: No locks available"),
        create_store(tmp_path / "store.lmdb"),
    ):
        pass


def test_each_of_many_names_is_found(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    write(place, small_records(2 * CHUNK + 100))
    with open_store(place) as store:
        for index in [*range(0, len(store), 97), CHUNK - 1, CHUNK, len(store) - 1]:
            assert store.find(f"{index}.jpg") == index
        with pytest.raises(RecordNotFoundError, match=r"is named '8292\.jpg'"):
            store.find("8292.jpg")


def test_names_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    one, other = "plumless", "buckeroo"  # a known collision of CRC-32
    assert zlib.crc32(one.encode()) == zlib.crc32(other.encode())
    write(tmp_path / "store.lmdb", [Record(name="x"), Record(name=one), Record(name=other), Record(name=one)])
    with open_store(tmp_path / "store.lmdb") as store:
        assert [store.find(one), store.find(other)] == [1, 2]


def test_writing_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreAccessError, match=r"cannot be written: the folder .*/missing does not exist"),
        create_store(tmp_path / "missing" / "store.lmdb"),
    ):
        pass


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_folder_is_never_written_to_or_replaced(tmp_path: Path, options: dict[str, bool]) -> None:
    with (
        pytest.raises(StoreExistsError, match=r"is a folder; a store is one file: name one, such as .*\.lmdb$"),
        create_store(tmp_path, **options),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_partial_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "store.lmdb.partial").mkdir()
    with (
        pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: Is a directory"),
        create_store(tmp_path / "store.lmdb"),
    ):
        pass


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    with create_store(place, overwrite=True, resumable=True) as writer:
        write_one_by_one(writer, make_records(3))
        place.mkdir()
        with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
            writer.finish()
    place.rmdir()
    with create_store(place, resume=True) as writer:
        assert writer.length == 3


def test_a_folder_that_may_not_be_written_says_so(open_path: Path) -> None:
    place = open_path / "store.lmdb"
    write(place, make_records(2))
    open_path.chmod(0o555)
    for options in ({}, {"resume": True}):
        with (
            as_nobody(),
            pytest.raises(StoreAccessError, match=r"other\.lmdb cannot be written: Permission denied"),
            create_store(open_path / "other.lmdb", **options),
        ):
            pass
    with (
        as_nobody(),
        pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: Permission denied"),
        create_store(place, overwrite=True),
    ):
        pass
    open_path.chmod(0o755)
    assert [path.name for path in open_path.iterdir()] == ["store.lmdb"]


def test_a_folder_that_may_not_be_entered_says_so(open_path: Path) -> None:
    closed = open_path / "closed"
    closed.mkdir()
    write(closed / "store.lmdb", make_records(2))
    closed.chmod(0o700 if os.geteuid() == 0 else 0)
    for place in (closed / "store.lmdb", closed / "below" / "store.lmdb"):
        with (
            as_nobody(),
            pytest.raises(StoreAccessError, match=r"closed/.*store\.lmdb cannot be written: Permission denied"),
            create_store(place, overwrite=True),
        ):
            pass
    closed.chmod(0o700)


def test_a_folder_that_may_not_be_written_any_more_at_the_end_says_so(open_path: Path) -> None:
    folder = open_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    with as_nobody():
        with create_store(folder / "store.lmdb", resumable=True) as writer:
            write_one_by_one(writer, make_records(2))
            if os.geteuid() == NOBODY:
                os.seteuid(0)
            folder.chmod(0o555)
            if os.getuid() == 0:
                os.seteuid(NOBODY)
            with pytest.raises(StoreAccessError, match=r"store\.lmdb cannot be written: Permission denied"):
                writer.finish()
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o777)
        with create_store(folder / "store.lmdb", resume=True) as writer:
            assert writer.length == 2
            writer.finish()


# ---- No room


def big_records(count: int) -> list[Record]:
    return [Record(name=f"{number}.jpg", image=bytes([number]) * 500_000) for number in range(count)]


def fill(place: Path, records: list[Record], **options: bool) -> None:
    with create_store(place, resumable=True, **options) as writer:
        write_one_by_one(writer, records)
        writer.finish()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("room", ["freed", "elsewhere"])
def test_a_full_disk_loses_nothing_that_was_committed(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    records = big_records(32)
    filler, place = small_disk / "filler", small_disk / "store.lmdb"
    filler.write_bytes(bytes(10**7))
    message = r"no room is left for .*store\.lmdb: free some space and resume \(--resume\)$"
    for options in ({}, {"resume": True}):
        with pytest.raises(StoreFullError, match=message):
            fill(place, records, **options)
        assert [path.name for path in small_disk.iterdir() if path != filler] == ["store.lmdb.partial"]
    if room == "freed":
        filler.unlink()
    else:
        place = tmp_path / "store.lmdb"
        shutil.copy(small_disk / "store.lmdb.partial", tmp_path)
    with create_store(place, resume=True) as writer:
        assert 10 < writer.length < 25
        assert writer.length == writer.position
        write_one_by_one(writer, records)
        writer.finish()
    with open_store(place) as store:
        assert store.documents(range(32)) == documents_of(records)
        assert store.verify() == store.manifest.digest


@pytest.mark.usefixtures("way")
def test_a_full_disk_leaves_nothing_of_a_store_that_cannot_be_resumed(small_disk: Path) -> None:
    with pytest.raises(StoreFullError, match=r"no room is left for .*store\.lmdb: nothing was written$"):
        write(small_disk / "store.lmdb", big_records(60))
    assert list(small_disk.iterdir()) == []


@pytest.mark.usefixtures("way")
def test_a_disk_without_room_for_another_file_is_full(small_disk: Path) -> None:
    with suppress(OSError):
        for number in range(100):
            (small_disk / f"file {number}").touch()
    assert not (small_disk / "file 99").exists()
    with (
        pytest.raises(StoreFullError, match=r"no room is left for .*store\.lmdb: No space left on device"),
        create_store(small_disk / "store.lmdb"),
    ):
        pass


@pytest.mark.usefixtures("way")
def test_a_quota_that_is_used_up_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A limit of the process stands for a quota: here too much is free, and LMDB says only "Input/output error".
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    place = tmp_path / "store.lmdb"
    records = big_records(20)

    def write_limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 10**6, 5 * 10**6))
        message = r"no room is left for .*store\.lmdb: free some space and resume \(--resume\)$"
        with pytest.raises(StoreFullError, match=message):
            fill(place, records)

    assert in_child(write_limited) == 0
    with create_store(place, resume=True) as writer:
        assert 3 < writer.length < 10
        write_one_by_one(writer, records)
        writer.finish()
    with open_store(place) as store:
        assert store.documents(range(20)) == documents_of(records)


def test_an_error_of_the_disk_is_not_called_a_lack_of_room(tmp_path: Path) -> None:
    place = tmp_path / "store.lmdb"
    writer: Any = create_store(place, resumable=True)
    with writer:
        write_one_by_one(writer, make_records(3))
        writer.commit()
        size = Path(f"{place}.partial").stat().st_size
        for text, kind in (
            ("mdb_txn_commit: Input/output error", StoreError),
            ("mdb_env_sync: Read-only file system", StoreAccessError),
        ):
            error = writer._partial.explained(lmdb.Error(text))
            assert type(error) is kind
            assert str(error) == f"{place} cannot be written: {text}"
        assert Path(f"{place}.partial").stat().st_size == size


def test_a_database_of_another_program_is_not_overwritten_whatever_its_keys_are(tmp_path: Path) -> None:
    place = tmp_path / "foreign.lmdb"
    with lmdb.open(str(place), subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.put(b"records", b"not a sub-database")
    before = place.read_bytes()
    with (
        pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"),
        create_store(place, overwrite=True),
    ):
        pass
    assert place.read_bytes() == before


def test_a_lent_image_lies_in_the_map_and_a_read_one_does_not(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    write_store([Record(image=b"a file"), Record(image=np.arange(12, dtype=np.uint8).reshape(2, 2, 3))], place)
    with open_store(place) as store:
        with store.borrow([0, 1]) as lent:
            file, array = [record.image for record in lent]
            assert type(file) is memoryview
            assert type(array) is np.ndarray
            assert not array.flags.writeable
        assert [type(record.image) for record in store.read([0, 1])] == [bytes, np.ndarray]
        assert store.read([1])[0].image.flags.writeable  # type: ignore[union-attr]
