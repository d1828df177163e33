"""LMDB files that are written to and grow: the room that is reserved for them, and what goes wrong with it."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

from dbloader import Record, create_store, open_store
from dbloader.errors import DamagedStoreError, StoreError, StoreFullError
from dbloader.records.record import encode
from dbloader.stores.lmdb import growing, populating
from dbloader.stores.lmdb.growing import GrowingFile
from tests.contracts.store import documents_of, make_records, write_one_by_one
from tests.support.children import WAIT_S, in_child

if TYPE_CHECKING:
    from dbloader.stores.writer import Writer


def records_of(count: int, nbytes: int) -> list[Record]:
    return [Record(name=f"{number}", image=bytes([number]) * nbytes) for number in range(count)]


def check(place: Path, records: list[Record]) -> None:
    """Read the whole store, and compares it with what was written."""
    with open_store(place) as store:
        assert store.documents(range(len(records))) == documents_of(records)
        assert store.verify() == store.manifest.digest


def die(writer: Writer) -> None:
    """End this process with what the writer has committed."""
    writer.commit()
    os.kill(os.getpid(), signal.SIGKILL)


def is_mapped(path: Path) -> bool:
    """Return whether this process has the file mapped to be written to."""
    maps = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return any(fields[1] == "rw-s" for fields in maps if fields[5:] == [str(path)])


def test_files_are_written_through_the_map_where_room_is_kept(tmp_path: Path, way: str) -> None:
    with create_store(tmp_path / "store.lmdb") as writer:
        assert is_mapped(tmp_path / "store.lmdb.partial") == (way == "through the map")
        writer.finish()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("first", [2**15, 2**16, 2**20])
def test_the_map_grows_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    for name in ("_FIRST_MAP_SIZE", "_STEP", "_SPARE"):
        monkeypatch.setattr(growing, name, first)
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    records = [Record(name=f"{number}", image=bytes(size)) for number, size in enumerate([10, 9**7, 10_000] * 3)]
    place = tmp_path / "store.lmdb"
    with create_store(place) as writer:
        for record in records:
            writer.write([encode(record)])
        manifest = writer.finish()
    with open_store(place) as store:
        assert store.documents(range(9)) == documents_of(records)
        assert store.verify() == manifest.digest
        size = place.stat().st_size
        assert 3 * 9**7 < size < 4 * 9**7


def pages_in_memory(fd: int, length: int) -> list[bool]:
    """Says of each page of a file whether the system holds it in memory."""
    found = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    with mmap.mmap(fd, length) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        assert not ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(length), found)
        del first
    return [bool(byte & 1) for byte in found]


def test_the_next_step_of_the_map_is_in_memory_before_it_is_written_to(tmp_path: Path) -> None:
    page, pages = mmap.PAGESIZE, 64
    with open(tmp_path / "file", "w+b", buffering=0) as file:  # noqa: PTH123
        file.write(b"not to be changed".ljust(page))
        os.posix_fallocate(file.fileno(), page, (pages - 1) * page)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if any(pages_in_memory(file.fileno(), pages * page)[1:]):
            pytest.skip("this file system keeps reserved room in memory")
        preparation = populating.Populating(file.fileno(), range(page), range((pages - 32) * page, pages * page))
        preparation.start()
        preparation.join()
        assert all(pages_in_memory(file.fileno(), pages * page)[-32:])
        assert (tmp_path / "file").read_bytes() == b"not to be changed".ljust(page).ljust(pages * page, b"\0")


def thread_of(growing_file: GrowingFile) -> threading.Thread | None:
    return growing_file._preparation


def test_while_a_step_is_filled_the_next_comes_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_STEP", 2**20)
    path = tmp_path / "file"
    with open(path, "w+b", buffering=0) as file:  # noqa: PTH123
        growing_file = GrowingFile(str(path), file.fileno(), sync=False)
        try:
            if not is_mapped(path):
                pytest.skip("files are not written through a map here")
            growing_file.make_room([bytes(10)])
            assert thread_of(growing_file) is None, "there was room"
            growing_file.make_room([bytes(2**20)])
            thread = thread_of(growing_file)
            assert thread is not None
            thread.join()
            size = path.stat().st_size
            assert all(pages_in_memory(file.fileno(), size)[-(2**20) // mmap.PAGESIZE :])
        finally:
            growing_file.close()
        assert path.stat().st_size < 2**18, "what was reserved is given back"


def test_a_kernel_that_cannot_bring_pages_into_memory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(populating, "_MADV_POPULATE_WRITE", 9999)
    monkeypatch.setattr(populating, "_SYNC_FILE_RANGE_WRITE", 9999)
    for name in ("_STEP", "_SPARE"):
        monkeypatch.setattr(growing, name, 2**16)
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    records = [Record(name=f"{number}", image=bytes([number]) * 30_000) for number in range(40)]
    with create_store(tmp_path / "store.lmdb", durable=False) as writer:
        write_one_by_one(writer, records)
        writer.finish()
    with open_store(tmp_path / "store.lmdb") as store:
        assert store.documents(range(40)) == documents_of(records)


def test_a_transaction_that_takes_more_than_was_reckoned_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_STEP", "_SPARE"):
        monkeypatch.setattr(growing, name, 2**16)
    monkeypatch.setattr(growing.GrowingFile, "make_room", lambda self, values: [*values])
    records = [Record(name=f"{number}", image=bytes(100_000)) for number in range(20)]
    with create_store(tmp_path / "store.lmdb") as writer:
        write_one_by_one(writer, records)
        writer.finish()
    with open_store(tmp_path / "store.lmdb") as store:
        assert store.documents(range(20)) == documents_of(records)


def test_a_store_begun_in_one_way_is_finished_in_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(name=f"{number}", image=bytes([number]) * 30_000) for number in range(40)]
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    for stop, kinds in ((10, ()), (25, growing._KEEPS_ROOM), (40, ()), (40, growing._KEEPS_ROOM)):
        monkeypatch.setattr(growing, "_KEEPS_ROOM", kinds)
        with create_store(place, resumable=True, resume=partial.exists()) as writer:
            write_one_by_one(writer, records[:stop])
            writer.commit()
        assert partial.stat().st_size < 3 * 30_000 * stop + 10**6, "no reserved room is left in it"
    with create_store(place, resume=True) as writer:
        writer.finish()
    with open_store(place) as store:
        assert store.documents(range(40)) == documents_of(records)
        assert store.verify() == store.manifest.digest


@pytest.mark.usefixtures("way")
def test_a_partial_store_larger_than_the_first_map_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_FIRST_MAP_SIZE", 2**16)
    place = tmp_path / "store.lmdb"
    records = [Record(name=f"{number}", image=bytes(100_000)) for number in range(20)]
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, records[:10])
        writer.commit()
    with create_store(place, resume=True) as writer:
        assert writer.length == 10
        write_one_by_one(writer, records)
        writer.finish()
    with open_store(place) as store:
        assert store.documents(range(20)) == documents_of(records)


def test_a_disk_that_others_fill_ends_no_process(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    monkeypatch.setattr(growing, "_STEP", 2 * 10**6)
    place = small_disk / "store.lmdb"

    def write_beside_another() -> None:
        with create_store(place, resumable=True) as writer:
            write_one_by_one(writer, records_of(4, 500_000))
            with suppress(OSError), open(small_disk / "other", "wb", buffering=0) as other:  # noqa: PTH123
                while other.write(bytes(4096)):
                    pass
            write_one_by_one(writer, records_of(32, 500_000))

    def write_refused() -> None:
        with pytest.raises(StoreFullError, match=r"no room is left for .*: free some space and resume"):
            write_beside_another()

    assert in_child(write_refused) == 0  # else the signal that ended it
    (small_disk / "other").unlink()
    with create_store(place, resume=True) as writer:
        assert writer.length >= 4
        write_one_by_one(writer, records_of(32, 500_000))
        writer.finish()


# ---- A writer that was killed leaves room in its file


def kill_one(place: Path, records: list[Record], **options: bool) -> None:
    def write() -> None:
        with create_store(place, resumable=True, **options) as writer:
            write_one_by_one(writer, records)
            die(writer)

    assert in_child(write) == -signal.SIGKILL


def test_room_that_a_killed_writer_had_reserved_is_there_for_the_next(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "_STEP", 6 * 10**6)
    place, records = small_disk / "store.lmdb", records_of(6, 500_000)
    kill_one(place, records)
    with suppress(OSError), open(small_disk / "other", "wb", buffering=0) as other:  # noqa: PTH123
        while other.write(bytes(2**16)):
            pass
    with create_store(place, resume=True) as writer:
        writer.finish()
    check(place, records)


def test_a_file_is_no_longer_however_often_its_writers_are_killed(tmp_path: Path) -> None:
    place, records = tmp_path / "store.lmdb", records_of(6, 500_000)
    sizes = []
    for resume in (False, True, True, True):
        kill_one(place, records, resume=resume)
        sizes.append(Path(f"{place}.partial").stat().st_size)
    assert max(sizes) < sizes[0] + growing._STEP
    with create_store(place, resume=True) as writer:
        writer.finish()
    check(place, records)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("lost", [1, 4096, 2_000_000])
def test_a_partial_store_that_was_cut_short_is_not_resumed(tmp_path: Path, lost: int) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, records_of(6, 500_000))
        writer.commit()
    size = partial.stat().st_size
    os.truncate(partial, size - lost)
    with (
        pytest.raises(DamagedStoreError, match=r"cut short: it has \d+ bytes of \d+\); begin again with overwrite"),
        create_store(place, resume=True),
    ):
        pass
    assert partial.stat().st_size == size - lost
    with create_store(place, overwrite=True) as writer:
        write_one_by_one(writer, records_of(3, 10))
        writer.finish()
    check(place, records_of(3, 10))


def test_a_partial_store_with_holes_is_given_room_before_it_is_written_to(tmp_path: Path) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, [Record(image=bytes(10**6)) for _ in range(5)])
        writer.commit()
    whole = tmp_path / "whole"
    partial.rename(whole)
    subprocess.run(["cp", "--sparse=always", whole, partial], check=True)
    size = partial.stat().st_size
    if partial.stat().st_blocks * 512 >= size:
        pytest.skip("this file system has no holes")
    with create_store(place, resume=True) as writer:
        if growing._keeps_room(writer._partial.fd):  # type: ignore[attr-defined]
            assert partial.stat().st_blocks * 512 >= size
        writer.finish()
    check(place, [Record(image=bytes(10**6)) for _ in range(5)])


# ---- What a machine may lack


def test_without_a_thread_to_be_had_a_store_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(populating.Populating, "start", refuse)
    for name in ("_STEP", "_SPARE"):
        monkeypatch.setattr(growing, name, 2**16)
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    with create_store(tmp_path / "store.lmdb") as writer:
        write_one_by_one(writer, records_of(40, 30_000))
        writer.finish()
    check(tmp_path / "store.lmdb", records_of(40, 30_000))


@pytest.mark.parametrize("resumable", [False, True])
def test_without_address_space_for_a_larger_map_the_writer_says_so_and_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumable: bool
) -> None:
    place, partial = tmp_path / "store.lmdb", tmp_path / "store.lmdb.partial"
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 100_000)
    monkeypatch.setattr(growing, "_STEP", 2**16)

    def refuse(self: GrowingFile, least: int) -> None:
        self.env.close()  # as LMDB does when it cannot map the file again
        raise lmdb.MemoryError("mdb_env_set_mapsize: Cannot allocate memory")

    with (  # noqa: PT012
        pytest.raises(StoreError, match=r"store\.lmdb cannot be written: .*Cannot allocate memory"),
        create_store(place, resumable=resumable) as writer,
    ):
        write_one_by_one(writer, records_of(1, 100_000))
        writer.commit()
        monkeypatch.setattr(GrowingFile, "_reserve", refuse)
        write_one_by_one(writer, records_of(40, 100_000))
        writer.commit()
    monkeypatch.undo()
    assert partial.exists() == resumable
    with create_store(place, resume=resumable) as writer:
        assert (writer.length > 0) == resumable
        write_one_by_one(writer, records_of(40, 100_000))
        writer.finish()
    check(place, records_of(40, 100_000))


def test_where_room_cannot_be_reserved_files_are_written_by_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with create_store(tmp_path / "store.lmdb") as writer:
        assert not is_mapped(tmp_path / "store.lmdb.partial")
        write_one_by_one(writer, make_records(20))
        writer.finish()
    check(tmp_path / "store.lmdb", make_records(20))


@pytest.mark.parametrize("already", ["empty", "begun"])
def test_a_full_disk_is_an_error_from_the_first_byte_on(small_disk: Path, already: str) -> None:
    place = small_disk / "store.lmdb"
    if already == "begun":
        with create_store(place, resumable=True) as writer:
            write_one_by_one(writer, records_of(2, 500_000))
            writer.commit()
    with suppress(OSError), open(small_disk / "other", "wb", buffering=0) as other:  # noqa: PTH123
        while other.write(bytes(4096)):
            pass

    def write_refused() -> None:
        with (  # noqa: PT012
            pytest.raises(StoreFullError, match="no room is left for"),
            create_store(place, resumable=True, resume=already == "begun") as writer,
        ):
            write_one_by_one(writer, records_of(8, 500_000))
            writer.finish()

    assert in_child(write_refused) == 0  # else the signal that ended it
    (small_disk / "other").unlink()
    with create_store(place, resume=True) as writer:
        assert writer.length == (2 if already == "begun" else 0)
        write_one_by_one(writer, records_of(8, 500_000))
        writer.finish()
    check(place, records_of(8, 500_000))


def test_a_full_disk_leaves_no_reserved_room_behind(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.writer.COMMIT_BYTES", 10**6)
    place, partial = small_disk / "store.lmdb", small_disk / "store.lmdb.partial"
    with pytest.raises(StoreFullError), create_store(place, resumable=True) as writer:
        write_one_by_one(writer, records_of(60, 500_000))
    with create_store(place, resumable=True, resume=True) as writer:
        assert 500_000 * writer.length <= partial.stat().st_size < 501_000 * (writer.length + 1) + growing._SPARE


# ---- Forks and interrupts


def test_a_forked_child_that_leaves_the_block_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    place, records = tmp_path / "store.lmdb", records_of(40, 100_000)
    with create_store(place, resumable=True) as writer:
        write_one_by_one(writer, records[:20])
        writer.commit()

        def leave() -> None:
            with pytest.raises(StoreError, match="is written by the process that began it"):
                writer.write([encode(records[20])])
            writer.__exit__(None, None, None)

        assert in_child(leave) == 0
        with pytest.raises(StoreError, match="another process is writing"), create_store(place, resume=True):
            pass
        write_one_by_one(writer, records)
        writer.finish()
    check(place, records)


def test_an_interrupt_at_the_first_commit_does_not_close_the_file_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "store.lmdb"
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name.startswith("dbloader-commit"):
            raise KeyboardInterrupt

    events: list[str] = []
    with suppress(KeyboardInterrupt), create_store(place, resumable=True) as made:
        writer: Any = made
        store, close = writer._store, writer._close

        def slow(*arguments: object) -> None:
            ready.wait(WAIT_S)
            store(*arguments)
            events.append("stored")

        def closing() -> None:
            events.append("closed")
            close()

        ready = threading.Event()
        writer._store, writer._close = slow, closing
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        writer.write([encode(record) for record in make_records(3)])
        threading.Timer(0.2, ready.set).start()
        writer.commit()
    monkeypatch.undo()
    assert events == ["stored", "closed"]
    with create_store(place, resume=True) as writer:
        assert writer.length == 3


# ---- Places


def test_a_link_at_the_place_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "store.lmdb", tmp_path / "disk" / "real.lmdb"
    link.symlink_to(target)
    for count in (3, 5):
        with create_store(link, overwrite=True) as writer:
            assert (tmp_path / "disk" / "real.lmdb.partial").exists()
            write_one_by_one(writer, make_records(count))
            writer.finish()
        assert link.is_symlink()
        check(target, make_records(count))
        check(link, make_records(count))


@pytest.mark.parametrize("exists", [False, True])
def test_a_place_that_names_a_folder_is_refused_with_a_better_one(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "images").mkdir()
    place = f"{tmp_path}/images/"
    with (
        pytest.raises(StoreError, match=re.escape(f"a store is one file: name one, such as {tmp_path}/images.lmdb")),
        create_store(place),
    ):
        pass
    assert [*tmp_path.iterdir()] == ([tmp_path / "images"] if exists else [])


def test_what_is_no_store_is_not_said_to_be_replaceable(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("mine")
    for overwrite in (False, True):
        with (
            pytest.raises(StoreError, match="is not a dbloader store and will not be overwritten: name another place"),
            create_store(tmp_path / "text", overwrite=overwrite),
        ):
            pass
    assert (tmp_path / "text").read_text() == "mine"
